"""nibble tokenize on folders without tokenizer.json against AutoTokenizer of transformers: ids with and without special tokens of
random texts, zero differences. The folders are those of tests/data/tokenizer_files; where sentencepiece and tiktoken are
installed, also larger ones made here (tokenizer_folders.py). The judge of the former is upstream.json, which transformers
made, as their files need both packages.
"""
import importlib.util
import json
from pathlib import Path

import tokenizer_folders
import tokenizers_at_random as at_random
from common import check, main
from tokenizers import Tokenizer

DATA = Path(__file__).resolve().parent.parent / "data/tokenizer_files"
TEXTS = 2000
CAN_MAKE = all(importlib.util.find_spec(name) for name in ("sentencepiece", "tiktoken", "bpe_openai"))


def compare(room, name, folder, upstream):
    marks = [t.content for t in upstream.get_added_tokens_decoder().values()][:50]
    upstream.no_truncation(), upstream.no_padding()
    rows = [at_random.text(room.random, marks) for _ in range(TEXTS)] + tokenizer_folders.TEXT.splitlines()
    lines = room.folder / "lines.jsonl"
    lines.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    for special in (True, False):
        want = [e.ids for e in upstream.encode_batch(rows, add_special_tokens=special)]
        got = room.json("tokenize", folder, "--lines", lines, *([] if special else ["--no-special"]))[0]["ids"]
        bad = [i for i in range(len(rows)) if want[i] != got[i]]
        room.expect(not bad, lambda: f"{name}: {len(bad)} of {len(rows)} differ, such as {rows[bad[0]]!r}: {want[bad[0]]}, {got[bad[0]]}")
        ids = room.folder / "ids.json"
        ids.write_text(json.dumps(want[:300]))
        texts = room.json("tokenize", folder, "--decode", ids, *([] if special else ["--no-special"]))[0]["texts"]
        room.expect(texts == [upstream.decode(i, skip_special_tokens=not special) for i in want[:300]], f"{name}: decoded texts differ")


@check
def folders_of_the_test_data(room):
    names = sorted(p.name for p in DATA.iterdir())
    for name in names:
        compare(room, name, DATA / name, Tokenizer.from_file(str(DATA / name / "upstream.json")))
    room.notes.append(f"{len(names)} folders")


@check
def tekken_and_merges_as_transformers_reads_them(room):
    """Those that need neither package, with transformers itself."""
    names = [p.name for p in sorted(DATA.iterdir()) if not list(p.glob("*.model")) and p.name != "qwen3_5"]
    for name in names:
        compare(room, name, DATA / name, tokenizer_folders.upstream(DATA / name).backend_tokenizer)
    room.notes.append(f"{len(names)} folders")


@check
def larger_folders(room):
    if not CAN_MAKE:
        room.notes.append("skipped: needs sentencepiece, tiktoken and bpe_openai")
        return room.expect(True, "")
    for name, files in tokenizer_folders.folders(20000).items():
        if name == "qwen3_5":
            continue
        tokenizer_folders.write(room.folder / name, files)
        compare(room, name, room.folder / name, tokenizer_folders.upstream(room.folder / name).backend_tokenizer)


if __name__ == "__main__":
    main()
