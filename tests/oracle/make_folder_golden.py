"""Makes tests/data/folders with transformers + bitsandbytes: python tests/oracle/make_folder_golden.py

A tiny Llama (odd sizes, blocks that straddle rows) as save_pretrained writes it, and what the same libraries make of it in 4 and
8 bits, and a tiny GPT-OSS whose experts are MXFP4 beside transformers' own decoding of them. The C tests compare with these bytes."""
import json
import os
import shutil
from pathlib import Path

os.environ.update(TORCHDYNAMO_DISABLE="1", HF_HUB_OFFLINE="1")
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, GptOssConfig, LlamaConfig
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

root = Path(__file__).parent.parent / "data" / "folders"
shutil.rmtree(root, ignore_errors=True)
torch.manual_seed(7)

sizes = dict(hidden_size=45, intermediate_size=67, num_hidden_layers=1, num_attention_heads=3, num_key_value_heads=1, head_dim=14,
             vocab_size=37, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
model = AutoModelForCausalLM.from_config(LlamaConfig(**sizes, tie_word_embeddings=False, attention_bias=True))
for p in model.parameters(): p.data = torch.randn(p.shape) * 0.05
model.to(torch.bfloat16).save_pretrained(root / "llama")
(root / "llama" / "tokenizer.json").write_text('{"marker": "é ∑ 漢"}')


def quantized(name, **settings):
    packed = AutoModelForCausalLM.from_pretrained(root / "llama", quantization_config=BitsAndBytesConfig(**settings), device_map="cpu")
    packed.save_pretrained(root / name)


four = dict(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
quantized("llama-nf4", **four, bnb_4bit_quant_type="nf4")
quantized("llama-nf4-nested", **four, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
quantized("llama-fp4", **four, bnb_4bit_quant_type="fp4")
quantized("llama-int8", load_in_8bit=True)

config = GptOssConfig(**{**sizes, "hidden_size": 32, "intermediate_size": 32, "head_dim": 8, "num_attention_heads": 4}, num_local_experts=2,
                      num_experts_per_tok=1, layer_types=["full_attention"])
experts = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
experts.save_pretrained(root / "gpt-oss")
tensors = load_file(root / "gpt-oss" / "model.safetensors")
plain = dict(tensors)
for key in [k for k in tensors if k.endswith(("gate_up_proj", "down_proj"))]:
    count, inner, outer = tensors.pop(key).shape
    blocks = torch.randint(0, 256, (count, outer, inner // 32, 16), dtype=torch.uint8)
    scales = torch.randint(116, 126, (count, outer, inner // 32), dtype=torch.uint8)
    plain[key] = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16).contiguous()
    tensors |= {key + "_blocks": blocks, key + "_scales": scales}
save_file(plain, root / "gpt-oss" / "model.safetensors", metadata={"format": "pt"})
shutil.copytree(root / "gpt-oss", root / "gpt-oss-mxfp4")
save_file(tensors, root / "gpt-oss-mxfp4" / "model.safetensors", metadata={"format": "pt"})
at = root / "gpt-oss-mxfp4" / "config.json"
at.write_text(json.dumps({**json.loads(at.read_text()), "quantization_config": {"quant_method": "mxfp4"}}, indent=2) + "\n")
