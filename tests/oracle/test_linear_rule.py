"""The rule of src/format/hf_linear.c against transformers itself, for every architecture it can build small.

Runs the survey of survey_linear.py and asks the C rule about every tensor of every model.  A tensor passes when
both agree: yes and no are the same words, "part" (a layer that is split or fused while loading) and every
linear layer of a model with transposed matrices must be refused.  Each tensor is asked about again without a
model type; only the number of those answers that are wrong is shown: how good the generic rule is for
architectures that nobody has surveyed.
"""

import os
import subprocess
import sys
import tempfile

import survey_linear

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MINIMUM_ARCHITECTURES = 250  # what the pinned transformers builds, less a few: a survey that fails is no success


def build(folder):
    program = os.path.join(folder, "linear_rule")
    sources = [os.path.join(ROOT, "tests/oracle/linear_rule.c"), os.path.join(ROOT, "src/format/hf_linear.c")]
    subprocess.run([os.environ.get("CC", "gcc"), "-std=c17", "-Wall", "-Wextra", "-Werror", "-O1",
                    "-I", os.path.join(ROOT, "src"), "-I", os.path.join(ROOT, "include"), "-o", program, *sources], check=True)
    return program


def ask(program, questions):
    answers = subprocess.run([program], input="".join(q + "\n" for q in questions), capture_output=True, text=True,
                             check=True).stdout.split()
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
                answers = ask(program, [f"{record['model_type']} {record['tied']:d} {name}" for name in names])
                generic = ask(program, [f"- {record['tied']:d} {name}" for name in names])
                extra = ask(program, [f"layers {record['layers'] or 0} {name}" for name, _, _ in rows])
                for (name, shape, verdict), answer, without, is_extra in zip(rows, answers, generic, extra):
                    wanted = expected(record, verdict)
                    good = answer == wanted and is_extra == "no"
                    passed += good
                    failed += not good
                    generic_wrong += wanted in ("yes", "no") and without != wanted
                    if not good:
                        print(f"{record['model_type']} ({record['architecture']}, tied={record['tied']}): {name} {shape}: "
                              f"transformers {wanted}, nibble {answer}{', extra layer' if is_extra == 'extra' else ''}")
    for model_type, name, tied, reason in skipped:
        print(f"not surveyed: {model_type} ({name}, tied={tied}): {reason}")
    print(f"{len(architectures)} architectures, {models} models; without the model type {generic_wrong} answers would be wrong")
    if not sys.argv[1:] and len(architectures) < MINIMUM_ARCHITECTURES:
        print(f"only {len(architectures)} architectures could be surveyed, expected {MINIMUM_ARCHITECTURES}")
        failed += 1
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
