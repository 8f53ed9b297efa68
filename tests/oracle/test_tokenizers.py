"""nibble tokenize against the tokenizers library: random tokenizers on random text, ids with and without special tokens and texts
decoded from them, zero differences.

TOKENIZER_COUNT (default 300) says how many are drawn at random: a number and no time, so that a seed gives the same run on
every machine. TOKENIZER_FILES names further tokenizer.json files to try, TOKENIZER_KEEP a folder for tokenizers that showed
a difference.
"""
import json
import os
from pathlib import Path

import tokenizers_at_random as at_random
from common import check, main
from tokenizers import Tokenizer

COUNT = int(os.environ.get("TOKENIZER_COUNT", 300))
FILES = os.environ.get("TOKENIZER_FILES", "").split()
KEEP = os.environ.get("TOKENIZER_KEEP", "")
TEXTS = 400


def alone(call):
    """What a call gives, or None where tokenizers refuses or panics (which is no Exception)."""
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


def smallest(rows, want, got):
    bad = [i for i in range(len(want)) if i >= len(got) or want[i] != got[i]]
    i = min(bad, key=lambda i: len(rows[i]))
    return f"{len(bad)} of {len(want)} differ, such as {json.dumps(rows[i])}: upstream {json.dumps(want[i])[:200]}, nibble {json.dumps(got[i] if i < len(got) else None)[:200]}"


def compare(room, name, document, marks, texts):
    folder = room.folder / "model"
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(document, encoding="utf-8")
    upstream = alone(lambda: Tokenizer.from_str(document))
    if upstream is None:
        return 0
    rows = [at_random.text(room.random, marks) for _ in range(texts)]
    lines, ids = room.folder / "lines.jsonl", room.folder / "ids.json"
    size, count = upstream.get_vocab_size(), 0
    for special in (True, False):
        want = alone(lambda: [e.ids for e in upstream.encode_batch(rows, add_special_tokens=special)])
        if want is None:  # it panicked on one of them, and may hang from then on
            return count
        lines.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
        document_, status = room.json("tokenize", folder, "--lines", lines, *([] if special else ["--no-special"]))
        got = document_["ids"]
        room.expect(want == got, lambda: f"{name}: ids: {smallest(rows, want, got)}")
        lists = want + [[room.random.randrange(size + 3) for _ in range(room.random.randint(0, 10))] for _ in range(texts // 4)]
        kept = [(i, alone(lambda: upstream.decode(i, skip_special_tokens=not special))) for i in lists]
        lists, texts_ = [i for i, t in kept if t is not None], [t for _, t in kept if t is not None]
        ids.write_text(json.dumps(lists))
        document_, status = room.json("tokenize", folder, "--decode", ids, *([] if special else ["--no-special"]))
        got_ = document_["texts"]
        room.expect(texts_ == got_, lambda: f"{name}: decoded: {smallest(lists, texts_, got_)}")
        count += len(rows) + len(lists)
    return count


@check
def random_tokenizers_on_random_text(room):
    count, number = 0, 0
    while number < COUNT and len(room.faults) < 5:
        document, marks = at_random.tokenizer(room.random)
        number, faults = number + 1, len(room.faults)
        try:
            count += compare(room, f"tokenizer {number}", document, marks, TEXTS)
        except AssertionError as fault:
            room.expect(False, f"tokenizer {number}: {fault}")
        if KEEP and len(room.faults) > faults:
            Path(KEEP, f"tokenizer-{number}.json").write_text(document, encoding="utf-8")
    room.notes.append(f"{number} tokenizers, {count} strings")


@check
def given_tokenizers_on_random_text(room):
    count = 0
    for path in FILES:
        document = Path(path).read_text(encoding="utf-8")
        marks = [t["content"] for t in json.loads(document).get("added_tokens", [])][:50]
        count += compare(room, path, document, marks, 20000)
    room.expect(True, "")
    room.notes.append(f"{len(FILES)} tokenizers, {count} strings")


if __name__ == "__main__":
    main()
