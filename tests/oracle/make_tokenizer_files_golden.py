"""Writes tests/data/tokenizer_files: small folders without tokenizer.json (tokenizer_folders.py), and in each as upstream.json the
tokenizer that transformers makes of it; the first inputs of fuzz/corpus/tokenizer_files.

    PYTHONPATH=(sentencepiece and tiktoken) build/oracle/bin/python tests/oracle/make_tokenizer_files_golden.py
"""
import json
import shutil
import struct
from pathlib import Path

import tokenizer_folders

root = Path(__file__).resolve().parent.parent.parent
data, seeds = root / "tests/data/tokenizer_files", root / "fuzz/corpus/tokenizer_files"
shutil.rmtree(data, ignore_errors=True)
seeds.mkdir(parents=True, exist_ok=True)
for name, files in tokenizer_folders.folders(300).items():
    tokenizer_folders.write(data / name, files)
    # transformers has no class that reads vocab.json for this one, so its parts are those of Qwen2 with another pattern.
    document = json.loads(tokenizer_folders.upstream(data / name).backend_tokenizer.to_str())
    if name == "qwen3_5":
        qwen2 = json.loads((data / "qwen2/upstream.json").read_text())
        document["model"] = qwen2["model"]
        shift = document["added_tokens"]
        for i, entry in enumerate(shift):
            entry["id"] = 300 + i
        document["post_processor"]["special_tokens"]["<|endoftext|>"]["ids"] = [300]
    if name == "tiktoken":  # in memory a token that was special once stays special; the text forgets that
        document["added_tokens"][-1]["special"] = True
    # fuzz/fuzz_tokenizer_files.c says what the first byte is.
    forms = ["tokenizer.model", "tekken.json", "tiktoken.model", "vocab.json"]
    types = ["llama", "mistral", "gemma2", "t5", "qwen2", "cohere2", "olmo", "gpt2"]
    kind = next(i for i, form in enumerate(forms) if form in files)
    settings = [s for s in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json") if s in files]
    if len(settings) == 1:
        kind |= 4 * ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"].index(settings[0])
    if files["config.json"]["model_type"] in types:
        kind |= 16 * types.index(files["config.json"]["model_type"])
    text = bytes([kind]) + (json.dumps(files[settings[0]]).encode() if settings else b"") + b"\0" + (data / name / forms[kind & 3]).read_bytes()
    (seeds / name).write_bytes(text + b"\0" + (data / name / "merges.txt").read_bytes() if kind & 3 == 3 else text)
    (data / name / "upstream.json").write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


# Small ones, which the fuzzer does better with.
def piece(text, score, kind):
    body = b"\x0a" + bytes([len(text)]) + text + b"\x15" + struct.pack("<f", score) + b"\x18" + bytes([kind])
    return b"\x0a" + bytes([len(body)]) + body


pieces = b"".join(piece(*p) for p in [(b"<unk>", 0, 2), (b"<s>", 0, 3), (b"</s>", 0, 3), (b"a", -1, 1), (b"b", -2, 1), (b"ab", -3, 1), (b"[x]", 0, 4), (b"<0x41>", 0, 6)])
for kind, model in {0x00: 2, 0x10: 1, 0x14: 2, 0x20: 2, 0x30: 1}.items():
    trainer = b"\x12\x08\x18" + bytes([model]) + b"\x98\x02\x01\xc0\x02\x00"
    (seeds / f"small-{kind:02x}").write_bytes(bytes([kind]) + b'{"add_bos_token":true,"added_tokens_decoder":{"3":{"content":"c"}}}\0' + pieces + trainer + b"\x1a\x04\x12\x02ab")
(seeds / "small-ranks").write_bytes(b'\x02{"extra_special_tokens":["<x>"]}\0YQ== 0\nYg== 1\nYWI= 2\n')
(seeds / "small-tekken").write_bytes(b'\x01{"bos_token":"<s>"}\0{"config":{"pattern":"a+|.","default_vocab_size":5},"vocab":[{"token_bytes":"YQ=="},{"token_bytes":"Yg=="},{"token_bytes":"YWI="}],"special_tokens":[{"rank":0,"token_str":"<s>"},{"rank":1,"token_str":"x"}]}')
(seeds / "small-pair").write_bytes(b'\x73{"tokenizer_class":"GPT2Tokenizer","a_token":{"content":"q"}}\0{"a":0,"b":1,"ab":2}\0#version: 0.2\na b\n')
