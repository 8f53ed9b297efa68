"""Writes tests/data/tokenizer_files: small folders without tokenizer.json (tokenizer_folders.py), and in each as upstream.json the
tokenizer that transformers makes of it; the first inputs of fuzz/corpus/tokenizer_files.

    PYTHONPATH=(sentencepiece and tiktoken) build/oracle/bin/python tests/oracle/make_tokenizer_files_golden.py
"""
import json
import shutil
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
    (data / name / "upstream.json").write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
