"""Makes the first inputs of the fuzz corpora with the upstream libraries: python fuzz/make_seeds.py

Small files as safetensors, bitsandbytes and transformers write them; the fuzzer takes it from there. Needs the environment
of `make oracle`. What the fuzzer found since is kept beside them (minimised with -merge=1)."""
import json
from pathlib import Path

import torch
import bitsandbytes.functional as F
from safetensors.torch import save
from transformers import BitsAndBytesConfig, LlamaConfig

root = Path(__file__).parent / "corpus"


def put(target, name, data):
    folder = root / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


torch.manual_seed(1)
weight = torch.randn(5, 13)
files = {"plain": {"a": weight.bfloat16(), "b": weight.half()[:2], "c": weight[:1], "s": torch.tensor(1.0), "e": torch.zeros(0, 3)},
         "int8": {"m.weight": torch.randint(-127, 127, (3, 5), dtype=torch.int8), "m.SCB": torch.rand(3),
                  "m.weight_format": torch.tensor(0, dtype=torch.uint8)},
         "mxfp4": {"x_blocks": torch.randint(0, 255, (2, 3, 1, 16), dtype=torch.uint8), "x_scales": torch.full((2, 3, 1), 120, dtype=torch.uint8)}}
for kind in ("nf4", "fp4"):
    for nested in (False, True):
        packed, state = F.quantize_4bit(weight.half(), blocksize=32, quant_type=kind, compress_statistics=nested)
        entries = state.as_dict(packed=True)
        files[f"{kind}-{'nested' if nested else 'flat'}"] = {"w": packed} | {f"w.{k}": v for k, v in entries.items()}
        text = bytes(entries[f"quant_state.bitsandbytes__{kind}"].tolist())
        put("state", f"{kind}-{'nested' if nested else 'flat'}.json", text)
put("state", "f32.json", '{"quant_type": "nf4", "blocksize": 4096, "dtype": "float32", "shape": [2, 3, 4]}')
for name, tensors in files.items(): put("safetensors", name + ".safetensors", save(tensors, metadata={"format": "pt"}))

# convert: a byte that chooses config, format, block and nesting, then the weight file
files |= {"linear": {"m.up_proj.weight": weight.half(), "m.norm.weight": weight[0]}, "experts": {"m.experts.gate_up_proj": torch.randn(1, 32, 2).bfloat16()}}
for name, tensors in files.items():
    for choice in {"mxfp4": [0x02], "int8": [0x03], "experts": [0x0d]}.get(name, [0x00, 0x04, 0x08, 0x90]):
        put("convert", f"{name}-{choice:02x}", bytes([choice]) + save(tensors, metadata={"format": "pt"}))

config = LlamaConfig(hidden_size=64, architectures=["LlamaForCausalLM"]).to_dict()
put("config", "llama.json", json.dumps(config, indent=2))
put("config", "quantized.json", json.dumps({**config, "quantization_config": BitsAndBytesConfig(load_in_4bit=True).to_dict()}))
put("config", "python.json", '{"a": [NaN, -Infinity, 1e999, 123456789012345678901234567890], "vocab_size": 3, "dtype": "bfloat16"}')
put("config", "small.json", '{"quantization_config": {"a": [1, {"b": "]}"}]} , "tie_word_embeddings":true}')
put("config", "empty.json", "{}")
put("index", "two.json", json.dumps({"metadata": {"total_size": 10}, "weight_map": {"a": "model-00001-of-00002.safetensors",
                                                                                  "b": "model-00002-of-00002.safetensors"}}, indent=2))
put("index", "path.json", '{"weight_map": {"a": "../x", "b": "/etc/passwd"}}')
