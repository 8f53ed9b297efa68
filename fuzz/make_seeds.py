"""Makes the first inputs of the fuzz corpora with the upstream libraries: python fuzz/make_seeds.py

Small files as safetensors, bitsandbytes and transformers write them; the fuzzer takes it from there. Needs the environment
of `make oracle`. What the fuzzer found since is kept beside them in fuzz/corpus/NAME.tar (minimised with -merge=1)."""
import json
import subprocess
import tempfile
from pathlib import Path

import gguf
import torch
import bitsandbytes.functional as F
from peft import LoraConfig
from safetensors.torch import save
from transformers import BitsAndBytesConfig, LlamaConfig

root = Path(tempfile.mkdtemp())  # packed at the end


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

# gguf: models of every architecture that is read, as small as they get, and one file with values of every type
def gguf_seed(name, architecture, fill):
    path = root / "gguf" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(str(path), architecture)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_model(writer, architecture, kind):
    gemma, qwen = architecture.startswith("gemma"), architecture.startswith("qwen")
    hidden, inner, vocabulary = 32, 32, 4
    for key, value in {"context_length": 8, "embedding_length": hidden, "block_count": 1, "feed_forward_length": inner, "attention.head_count": 2,
                       "attention.head_count_kv": 1, "attention.key_length": 16}.items(): writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32(f"{architecture}.rope.freq_base", 1e4)
    if gemma or architecture == "phi3": writer.add_uint32(f"{architecture}.attention.sliding_window", 4)
    if qwen: writer.add_string(f"{architecture}.rope.scaling.type", "yarn"); writer.add_float32(f"{architecture}.rope.scaling.factor", 2); writer.add_uint32(f"{architecture}.rope.scaling.original_context_length", 4)
    writer.add_uint32("tokenizer.ggml.eos_token_id", 1)
    shapes = {"token_embd": (vocabulary, hidden), "output_norm": (hidden,), "blk.0.attn_norm": (hidden,), "blk.0.attn_q": (32, hidden), "blk.0.attn_k": (16, hidden),
              "blk.0.attn_v": (16, hidden), "blk.0.attn_output": (hidden, 32), "blk.0.ffn_norm": (hidden,), "blk.0.ffn_gate": (inner, hidden),
              "blk.0.ffn_up": (inner, hidden), "blk.0.ffn_down": (hidden, inner)}
    if gemma: shapes |= {"blk.0.post_attention_norm": (hidden,), "blk.0.post_ffw_norm": (hidden,)}
    if architecture in ("qwen3", "gemma3"): shapes |= {"blk.0.attn_q_norm": (16,), "blk.0.attn_k_norm": (16,)}
    if architecture == "phi3":
        for name in ("attn_q", "attn_k", "attn_v", "ffn_gate"): del shapes[f"blk.0.{name}"]
        shapes |= {"blk.0.attn_qkv": (64, hidden), "blk.0.ffn_up": (2 * inner, hidden)}
    for name, shape in shapes.items():
        values = torch.randn(shape).numpy()
        if len(shape) == 1: writer.add_tensor(name + ".weight", values)
        else: writer.add_tensor(name + ".weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    if architecture == "qwen2":
        for name, size in (("q", 32), ("k", 16), ("v", 16)): writer.add_tensor(f"blk.0.attn_{name}.bias", torch.randn(size).numpy())
    if architecture == "llama":  # Llama 3's divisors
        turns = 8192 * 1e4 ** -(torch.arange(0, 16, 2) / 16) / (2 * torch.pi)
        smooth = ((turns - 1) / 3).clip(0, 1)
        writer.add_tensor("rope_freqs.weight", (1 / ((1 - smooth) / 8 + smooth)).float().numpy())


def gguf_values(writer):
    for kind in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"): getattr(writer, "add_" + kind)("a." + kind, 1)
    writer.add_float64("a.float64", 0.5); writer.add_bool("a.bool", True); writer.add_string("a.text", "ä")
    writer.add_array("a.texts", ["", "b"]); writer.add_array("a.numbers", [1, 2]); writer.add_array("a.floats", [1.5])
    for name in ("Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"):
        kind = gguf.GGMLQuantizationType[name]
        writer.add_tensor(name, torch.randint(0, 255, (1, gguf.GGML_QUANT_SIZES[kind][1]), dtype=torch.uint8).numpy(), raw_dtype=kind)


G = gguf.GGMLQuantizationType
for architecture, kind in {"llama": G.Q8_0, "qwen2": G.Q4_0, "qwen3": G.F16, "gemma2": G.BF16, "gemma3": G.Q5_1, "phi3": G.Q8_0}.items():
    gguf_seed(architecture + ".gguf", architecture, lambda writer: gguf_model(writer, architecture, kind))
gguf_seed("values.gguf", "values", gguf_values)

# peft: configs as PEFT writes them
for name, options in {"plain": dict(target_modules=["q_proj", "v_proj"]), "regex": dict(target_modules=r".*\.(q|up)_proj", exclude_modules=".*12.*"),
                      "all": dict(target_modules="all-linear", exclude_modules=["lm_head"], use_dora=True, use_rslora=True),
                      "layers": dict(target_modules=["q_proj", "model.norm"], layers_to_transform=[0, 1], layers_pattern="layers"),
                      "patterns": dict(target_modules=["q_proj"], rank_pattern={"q_proj": 4, r"layers\.1\..*": 2}, alpha_pattern={"mlp.*": 0.5}),
                      "saved": dict(target_modules=["q_proj"], modules_to_save=["lm_head", "norm"], lora_dropout=0.05, lora_bias=True),
                      "refused": dict(target_modules=["q_proj"], bias="all", trainable_token_indices=[1], init_lora_weights="pissa")}.items():
    config = LoraConfig(task_type="CAUSAL_LM", base_model_name_or_path="base/mödel", **options).to_dict()
    config = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    put("peft", name + ".json", json.dumps(config, indent=2, sort_keys=True))

# run_config: a file, and an override behind the mark of fuzz_run_config.c
least = "base_model: b\ndatasets: [{path: d.jsonl}]\nlearning_rate: 2e-4\n"
put("run_config", "least.yml", least)
put("run_config", "override.yml", least + "\n%%set datasets.0.type=alpaca")
put("run_config", "qlora.yml", """\
base_model: "a b"
load_in_4bit: true
adapter: qlora
lora_r: 16
lora_alpha: 32
lora_target_modules: [q_proj, v_proj]
datasets:
  - path: chat.jsonl
    type: chat_template
    field_messages: conversations
    message_property_mappings: {role: from, content: value}
    roles_to_train: ["assistant"]
    train_on_eos: turn
chat_template: chatml
val_set_size: 0.1
sample_packing: yes
optimizer: adamw_bnb_8bit
learning_rate: 3.0e-4
warmup_ratio: 0.1
bf16: auto
wandb_project:
flash_attention: true
gradient_checkpointing_kwargs:
  use_reentrant: false
special_tokens:
  pad_token: "<|endoftext|>"
memory: 1.5GiB
""")
put("run_config", "full.yml", least + """\
# every weight
chat_template_jinja: "{{ x }}\\u2028\\n"
output_dir: |
  two
  lines
lora_target_modules: '.*(q|k)_proj'
max_steps: 1_000
eval_steps: 10
val_set_size: 3
fp16: on
device: cpu
""")
# model: a byte that chooses the set of tensors (fuzz_model.c), config.json, and after a zero byte tokenizer.json
sizes = dict(vocab_size=16, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=4,
             max_position_embeddings=32, rms_norm_eps=1e-6, tie_word_embeddings=True)
tokenizer = json.dumps({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, " ": 2, "ab": 3}, "merges": [["a", "b"]]}})
yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=8, rope_theta=100.0)
kinds = ["full_attention", "sliding_attention"]
for name, kind, more in (("llama", 0, {}), ("llama", 0, dict(rope_parameters=yarn)),
                         ("llama", 0, dict(rope_theta=500.0, rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                                                                original_max_position_embeddings=8))),
                         ("mistral", 0, dict(sliding_window=3)), ("qwen2", 1, dict(use_sliding_window=True, sliding_window=2, layer_types=kinds)), ("qwen3", 2, {}),
                         ("gemma2", 3, dict(query_pre_attn_scalar=4, sliding_window=2, attn_logit_softcapping=5.0, hidden_activation="gelu_pytorch_tanh")),
                         ("phi3", 4, dict(sliding_window=2, original_max_position_embeddings=16)),
                         ("phi3", 4, dict(original_max_position_embeddings=2, rope_scaling=dict(type="su", short_factor=[1.5], long_factor=[4.0]), partial_rotary_factor=0.5)),
                         ("llama", 0, dict(max_position_embeddings=2, rope_scaling=dict(rope_type="dynamic", factor=2.0))),
                         ("llama", 0, dict(rope_parameters=dict(rope_type="proportional", partial_rotary_factor=0.5, rope_theta=100.0))),
                         ("smollm3", 0, dict(no_rope_layers=[1, 0], use_sliding_window=True, sliding_window=2)), ("ministral", 0, dict(sliding_window=2, layer_types=kinds)),
                         ("ministral3", 0, dict(rope_parameters=yarn | dict(llama_4_scaling_beta=0.5, mscale=1.0, mscale_all_dim=1.0))),
                         ("llama4_text", 8, dict(no_rope_layer_interval=2, intermediate_size_mlp=12, moe_layers=[], attention_chunk_size=2, floor_scale=2)),
                         ("granite", 0, dict(embedding_multiplier=2.0, residual_multiplier=0.3, attention_multiplier=0.5, logits_scaling=3.0)), ("olmo2", 6, {}),
                         ("olmo3", 6, dict(sliding_window=2, layer_types=kinds, rope_parameters=dict(full_attention=yarn, sliding_attention=dict(rope_type="default", rope_theta=50.0)))),
                         ("cohere2", 7, dict(sliding_window=2, layer_types=kinds, logit_scale=0.3, layer_norm_eps=1e-4)),
                         ("qwen3_moe", 9, dict(num_experts=2, num_experts_per_tok=1, moe_intermediate_size=4, norm_topk_prob=True)),
                         ("qwen3_moe", 9, dict(num_local_experts=2, num_experts_per_tok=2, moe_intermediate_size=4, mlp_only_layers=[], decoder_sparse_step=1)),
                         ("gpt_oss", 10, dict(intermediate_size=4, num_local_experts=2, num_experts_per_tok=2, sliding_window=2, swiglu_limit=0.5, swiglu_alpha=2.0)),
                         ("gpt_oss", 10, dict(intermediate_size=4, num_local_experts=2, num_experts_per_tok=1, layer_types=kinds, sliding_window=2, rope_scaling=yarn)),
                         ("mixtral", 9, dict(num_local_experts=2, intermediate_size=4)),
                         ("qwen3_5_text", 5, dict(linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=4, linear_value_head_dim=3, linear_conv_kernel_dim=3,
                                                  partial_rotary_factor=0.5, layer_types=["linear_attention", "full_attention"]))):
    text = json.dumps(sizes | dict(model_type=name) | more)
    put("model", f"{name}-{len(text)}", bytes([kind]) + text.encode() + b"\0" + tokenizer.encode())
put("model", "text-config", bytes([0]) + json.dumps({"model_type": "mistral3", "tie_word_embeddings": True, "text_config": sizes | {"model_type": "mistral"}}).encode())
for key, value in (("num_hidden_layers", 1024), ("vocab_size", 2147483647), ("num_attention_heads", 2147483646), ("head_dim", 2147483646), ("rms_norm_eps", "NaN"),
                   ("max_position_embeddings", 2147483647), ("hidden_size", -1), ("intermediate_size", 1e300)):
    put("model", f"hostile-{key}", bytes([0]) + json.dumps(sizes | {"model_type": "llama", key: float("nan") if value == "NaN" else value}).encode())

# run: what to do, then edits of a valid run's files (fuzz_run.c); 255 is an override of the configuration
def run_seed(name, choice, *edits):
    data = bytes([choice])
    for file, position, removed, added in edits:
        data += bytes([file]) + position.to_bytes(2, "little") + bytes([removed, len(added)]) + added
    put("run", name, data)


for name, choice in (("fresh", 4), ("resumed", 5), ("started", 6), ("sampled", 12)): run_seed(name, choice)
for value in (b"load_in_4bit=true", b"peft_use_dora=true", b"adapter=", b"sample_packing=true", b"train_on_inputs=true", b"val_set_size=1",
              b"optimizer=adamw_8bit", b"gradient_checkpointing=true", b"datasets.0.type=completion", b"lora_target_modules=[q_proj, up_proj]",
              b"chat_template=jinja", b"special_tokens={pad_token: </s>}"):
    for choice in (4, 5): run_seed(f"set-{value.split(b'=')[0].decode()}-{choice}", choice, (255, 0, 0, value))
for file in range(24): run_seed(f"edit-{file}", 5, (file, 40, 2, b"1"))

for folder in sorted(root.iterdir()):
    subprocess.run([Path(__file__).parent.parent / "scripts" / "fuzz-corpus", "add", folder.name, folder], check=True)
