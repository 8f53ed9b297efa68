"""The rule of src/format/hf/hf_linear.c against transformers itself, for every architecture that it builds small.

Runs the survey of survey_linear.py and asks the C rule about every tensor of every model. A tensor passes when
both agree; a layer that is split or fused while loading ("part"), and all of a model that keeps its matrices
transposed, must be refused. Each tensor is asked about again without a model type: the number of wrong answers,
which is only shown, says how good the generic rule is for architectures that nobody has surveyed.
"""

import os
import subprocess
import sys
import tempfile

import survey_linear

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MINIMUM_ARCHITECTURES = 280  # the pinned transformers builds a few more; a survey that fails is no success


def build(folder):
    program = os.path.join(folder, "linear_rule")
    sources = ["tests/oracle/linear_rule.c", "src/format/hf/hf_linear.c"]
    options = ["-std=c17", "-O1", "-Wall", "-Wextra", "-Werror", "-Isrc", "-Iinclude", "-o", program]
    subprocess.run([os.environ.get("CC", "gcc"), *options, *sources], cwd=ROOT, check=True)
    return program


def ask(program, questions):
    text = "".join(question + "\n" for question in questions)
    answers = subprocess.run([program], input=text, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    assert len(answers) == len(questions), (len(answers), len(questions))
    return answers


def expected(record, verdict):
    if record["conv1d"]:
        return "refuse"
    return "refuse" if verdict == "part" else verdict


def main():
    passed = failed = generic_wrong = 0
    architectures, models, skipped = set(), 0, []
    with tempfile.TemporaryDirectory() as folder:
        program = build(folder)
        for records, not_built in survey_linear.survey_all(sys.argv[1:]):
            skipped += not_built
            for record in records:
                models += 1
                architectures.add(record["architecture"])
                rows = record["tensors"]
                names = [f"{name} {'x'.join(map(str, shape))}" for name, shape, _ in rows]
                model_type = record["model_type"]
                answers = ask(program, [f"{model_type} {record['tied']:d} {name}" for name in names])
                generic = ask(program, [f"- {record['tied']:d} {name}" for name in names])
                extra = ask(program, [f"layers {record['layers'] or 0} {name}" for name, _, _ in rows])
                for (name, shape, verdict), answer, without, is_extra in zip(rows, answers, generic, extra):
                    wanted = expected(record, verdict)
                    good = answer == wanted and is_extra == "no"
                    passed += good
                    failed += not good
                    generic_wrong += wanted in ("yes", "no") and without != wanted
                    if not good:
                        print(f"{model_type} ({record['architecture']}, tied={record['tied']}): {name} {shape}: "
                              f"transformers {wanted}, nibble {answer}, behind the last layer: {is_extra}")
    for model_type, name, tied, reason in skipped:
        print(f"not surveyed: {model_type} ({name}, tied={tied}): {reason}")
    print(f"{len(architectures)} architectures, {models} models; "
          f"{generic_wrong} answers would be wrong without the model type")
    if not sys.argv[1:] and len(architectures) < MINIMUM_ARCHITECTURES:
        print(f"only {len(architectures)} architectures could be surveyed, expected {MINIMUM_ARCHITECTURES}")
        failed += 1
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
