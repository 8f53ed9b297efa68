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
    if len(document) > 45000 or models.get(kind, 0) >= 5:
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
