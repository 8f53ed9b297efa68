"""Writes tests/data/tokenizers.json: small random tokenizers, texts, and what the tokenizers library makes of them; and the first
inputs of fuzz/corpus/tokenizer: a tokenizer.json, a zero byte, a text.

    build/oracle/bin/python tests/oracle/make_tokenizer_golden.py
"""
import json
import random
from pathlib import Path

import tokenizers_at_random as at_random
from test_tokenizers import alone
from tokenizers import Tokenizer

root = Path(__file__).resolve().parent.parent.parent
cases, seeds, models = [], root / "fuzz/corpus/tokenizer", {}
seeds.mkdir(parents=True, exist_ok=True)
rng = random.Random(7)
while len(cases) < 20:
    document, marks = at_random.tokenizer(rng)
    kind = json.loads(document)["model"]["type"]
    if len(document) > 45000 or models.get(kind, 0) >= 6:
        continue
    models[kind] = models.get(kind, 0) + 1
    document = json.dumps(json.loads(document), ensure_ascii=False, separators=(",", ":"))
    upstream, rows = Tokenizer.from_str(document), []
    while len(rows) < 25:
        text = at_random.text(rng, marks)
        made = alone(lambda: [upstream.encode(text).ids, upstream.encode(text, add_special_tokens=False).ids])
        decoded = made and alone(lambda: [upstream.decode(made[0], skip_special_tokens=False), upstream.decode(made[0])])
        if decoded:
            rows.append({"text": text, "special": made[0], "plain": made[1], "decoded": decoded[0], "bare": decoded[1]})
    cases.append({"tokenizer": document, "rows": rows})
    if models[kind] <= 2:
        (seeds / f"{kind.lower()}-{len(cases)}").write_bytes(document.encode() + b"\0" + rows[-1]["text"].encode())
(root / "tests/data/tokenizers.json").write_text(json.dumps({"cases": cases}, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")

# Small ones for the fuzzer, which does better with less: each part once.
parts = {
    "patterns": {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": at_random.PATTERNS[1]}, "behavior": "MergedWithNext", "invert": True}},
    "classes": {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[a-z&&[^b]]{,2}+|[[:punct:]\\W]|(?<x>.)\\k<x>|\\b\\h"}, "behavior": "Contiguous", "invert": False}},
    "forms": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}, {"type": "Replace", "pattern": {"String": "b"}, "content": "a "}, {"type": "Strip", "strip_left": True, "strip_right": False}]}},
    "charsmap": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "DAAAAAAoAAABAgAAAgAAgGEAAGIA"}},
    "decoders": {"decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "a", "prepend_scheme": "always"}, {"type": "CTC", "pad_token": "a", "word_delimiter_token": "|", "cleanup": True}]}},
    "frame": {"truncation": {"direction": "Left", "max_length": 3, "strategy": "OnlyFirst", "stride": 0}, "padding": {"strategy": {"Fixed": 4}, "direction": "Left", "pad_to_multiple_of": 3, "pad_id": 1, "pad_type_id": 0, "pad_token": "a"},
              "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "s", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens": {"s": {"id": "s", "ids": [1], "tokens": ["s"]}}}},
    "added": {"added_tokens": [{"id": 0, "content": "b", "single_word": True, "lstrip": True, "rstrip": True, "normalized": True, "special": True}]},
}
for name, part in parts.items():
    document = {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "<0x41>": 3}, "merges": [["a", "b"]], "byte_fallback": True, "unk_token": "a", "fuse_unk": True}} | part
    (seeds / f"small-{name}").write_bytes(json.dumps(document).encode() + b"\0ab b a\xc3\xa9 A1  ")
document = {"version": "1.0", "model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", -1.5], ["b", -2.25], ["ab", -3.75], ["<0xC3>", 0]], "byte_fallback": True}}
(seeds / "small-unigram").write_bytes(json.dumps(document).encode() + b"\0ab b a\xc3\xa9")
