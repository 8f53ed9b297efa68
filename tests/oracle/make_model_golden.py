"""Makes tests/data/models: tiny models with random weights of every architecture, rope and storage, and what transformers, PEFT and
bitsandbytes compute with them, for tests/model/test_models.c.

    python tests/oracle/make_model_golden.py [FOLDER [CASE...]]      (default: tests/data/models, all cases)

A case is a folder: the model as transformers saves it, adapters as PEFT saves them (lora/, dora/, experts/: of q_proj, o_proj, the router and
the stacks of experts), and expected.safetensors:
  ids.N, labels.N       sequences and their labels (i32)
  logits.N              by transformers in f32 on the exact values of the stored weights
  half.N                the same in the model's own 16-bit dtype (when it has one)
  peer.N                8-bit: by bitsandbytes, which rounds activations as well
  greedy.N              the tokens that follow ids.N (i32), in f32
  KIND.loss             mean loss over trained tokens, of a padded batch, in f64
  KIND.NAME             gradient of an adapter's tensor NAME, of the same batch
Weights are drawn so that attention is sharp and no layer is negligible; every greedy choice has a clear margin.
"""
import json
import math
import re
import shutil
import sys
import zlib
from pathlib import Path

import common  # sets the environment before torch is imported
import bitsandbytes.functional as B
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig, Cohere2Config, Gemma2Config, Gemma3Config, Gemma3TextConfig, GptOssConfig, GraniteConfig,
                          Llama4TextConfig, LlamaConfig, Ministral3Config, MinistralConfig, MistralConfig, MixtralConfig, Olmo2Config, Olmo3Config,
                          Phi3Config, Qwen2Config, Qwen2MoeConfig, Qwen3_5MoeTextConfig, Qwen3_5TextConfig, Qwen3Config, Qwen3MoeConfig, Qwen3NextConfig, SmolLM3Config)

TARGET = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "data/models")
HALF = {"bf16": torch.bfloat16, "f16": torch.float16}
VOCAB, GREEDY, PAD = 48, 24, 0
LENGTHS = [1, 11, 5]
SIZES = dict(vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=PAD)
LAYERS = ["sliding_attention", "full_attention"]


VISION = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4)


def rope(kind="default", theta=10000.0, **more):
    return dict(rope_type=kind, rope_theta=theta, **more)


def llama(**more):
    return LlamaConfig(**{**SIZES, **dict(tie_word_embeddings=True, rope_parameters=rope()), **more})


def gemma(**more):
    return {**SIZES, **dict(head_dim=8, query_pre_attn_scalar=7, sliding_window=4, layer_types=LAYERS), **more}


HYBRID = dict(head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=6, linear_conv_kernel_dim=3,
              layer_types=["linear_attention", "full_attention"], rope_parameters=rope(partial_rotary_factor=.25))
EXPERTS = dict(num_experts_per_tok=2, moe_intermediate_size=8)
OSS = dict(SIZES, intermediate_size=8, head_dim=8, num_local_experts=5, num_experts_per_tok=2, sliding_window=4, swiglu_limit=1.0,
           rope_parameters=rope("yarn", 100.0, factor=8.0, beta_fast=8.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=16))
YARN = dict(factor=4.0, original_max_position_embeddings=16)
# name: (config, storage, adapters)
CASES = {
    "llama": (llama(tie_word_embeddings=False, attention_bias=True, mlp_bias=True), "bf16", ["lora", "dora"]),
    "mistral": (MistralConfig(**SIZES, sliding_window=4, rope_parameters=rope(theta=500.0)), "bf16", ["lora"]),
    "qwen2": (Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=3, layer_types=LAYERS, rope_parameters=rope(), tie_word_embeddings=True), "bf16", ["lora"]),
    "qwen3": (Qwen3Config(**SIZES, head_dim=8, rope_parameters=rope(theta=1e6), tie_word_embeddings=True), "bf16", ["dora"]),
    "gemma2": (Gemma2Config(**gemma(), attn_logit_softcapping=3.0, final_logit_softcapping=5.0, rope_parameters=rope()), "bf16", ["lora"]),
    "gemma3": (Gemma3TextConfig(**gemma(), rope_parameters={"full_attention": rope("linear", 1e5, factor=8.0), "sliding_attention": rope()}), "bf16", ["dora"]),
    "gemma3-vision": (Gemma3Config(text_config=gemma(), vision_config=VISION, mm_tokens_per_image=4), "bf16", ["lora"]),
    "phi3": (Phi3Config(**SIZES, sliding_window=4, rope_parameters=rope(theta=300.0)), "bf16", ["lora", "dora"]),
    "qwen3_5": (Qwen3_5TextConfig(**SIZES, **HYBRID, tie_word_embeddings=True, attention_bias=True), "bf16", ["lora", "dora"]),
    "qwen3_5_moe": (Qwen3_5MoeTextConfig(**{k: v for k, v in SIZES.items() if k != "intermediate_size"}, **EXPERTS, **HYBRID, num_experts=5, shared_expert_intermediate_size=12),
                    "bf16", ["lora", "experts"]),
    "qwen3_next": (Qwen3NextConfig(**SIZES, **EXPERTS, **HYBRID, num_experts=5, shared_expert_intermediate_size=12, mlp_only_layers=[0]), "bf16", ["lora", "experts"]),
    "phi3-longrope": (Phi3Config(**{**SIZES, **dict(num_attention_heads=2, num_key_value_heads=1)}, original_max_position_embeddings=16,
                                 rope_parameters=rope("longrope", 300.0, partial_rotary_factor=.75, short_factor=[1.0, 1.1, 1.3], long_factor=[1.5, 4.0, 9.0])), "bf16", ["lora"]),
    "smollm3": (SmolLM3Config(**SIZES, no_rope_layer_interval=2, use_sliding_window=True, sliding_window=4, attention_bias=True, mlp_bias=True, rope_parameters=rope()), "bf16", ["lora"]),
    "ministral": (MinistralConfig(**SIZES, head_dim=8, sliding_window=4, layer_types=LAYERS, rope_parameters=rope(theta=500.0)), "bf16", ["dora"]),
    "ministral3": (Ministral3Config(**SIZES, head_dim=8, rope_parameters=rope("yarn", factor=16.0, original_max_position_embeddings=4, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=.5)), "bf16", ["lora"]),
    "llama4": (Llama4TextConfig(**{**SIZES, **dict(intermediate_size=20)}, head_dim=8, intermediate_size_mlp=24, moe_layers=[], no_rope_layer_interval=2, attention_chunk_size=4, floor_scale=4, attn_scale=.5,
                                rope_parameters=rope()), "bf16", ["lora", "dora"]),
    "llama4-experts": (Llama4TextConfig(**{**SIZES, **dict(intermediate_size=20)}, head_dim=8, intermediate_size_mlp=24, interleave_moe_layer_step=2, num_local_experts=3, num_experts_per_tok=2,
                                        attention_chunk_size=4, use_qk_norm=False, attn_temperature_tuning=False, rope_parameters=rope()), "bf16", []),
    "rope-dynamic": (llama(tie_word_embeddings=False, max_position_embeddings=8, rope_parameters=rope("dynamic", 100.0, factor=4.0)), "bf16", []),
    "rope-proportional": (llama(rope_parameters=rope("proportional", partial_rotary_factor=.5)), "bf16", []),
    "olmo2": (Olmo2Config(**SIZES, attention_bias=True, rope_parameters=rope(theta=300.0)), "bf16", ["lora", "dora"]),
    "olmo3": (Olmo3Config(**SIZES, sliding_window=4, layer_types=LAYERS, rope_parameters={"full_attention": rope("yarn", 100.0, **YARN), "sliding_attention": rope(theta=300.0)}), "bf16", ["lora"]),
    "cohere2": (Cohere2Config(**SIZES, layer_norm_eps=1e-4, logit_scale=.6, sliding_window=4, layer_types=LAYERS, attention_bias=True, tie_word_embeddings=False, rope_parameters=rope(theta=300.0)), "bf16", ["lora", "dora"]),
    "granite": (GraniteConfig(**SIZES, embedding_multiplier=1.5, residual_multiplier=.7, attention_multiplier=.7, logits_scaling=.6, attention_bias=True, mlp_bias=True, rope_parameters=rope()), "bf16", ["lora", "dora"]),
    "mixtral": (MixtralConfig(**SIZES | dict(intermediate_size=8), num_local_experts=4, num_experts_per_tok=2, sliding_window=4, rope_parameters=rope()), "bf16", ["lora", "experts"]),
    "qwen2_moe": (Qwen2MoeConfig(**SIZES, **EXPERTS, num_experts=5, shared_expert_intermediate_size=12, decoder_sparse_step=2, use_sliding_window=True, sliding_window=3,
                                 layer_types=LAYERS, rope_parameters=rope()), "bf16", ["lora", "experts"]),
    "qwen3_moe": (Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=8, num_experts=6, norm_topk_prob=True, rope_parameters=rope()), "bf16", ["lora", "experts"]),
    "qwen3_moe-mixed": (Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=8, num_experts=4, norm_topk_prob=False, mlp_only_layers=[0], attention_bias=True, use_sliding_window=True,
                                       sliding_window=4, tie_word_embeddings=True, rope_parameters=rope()), "nf4-each", ["experts"]),
    "gpt_oss": (GptOssConfig(**OSS), "bf16", ["lora", "experts"]),
    "gpt_oss-mxfp4": (GptOssConfig(**OSS | dict(hidden_size=32, intermediate_size=32, num_local_experts=3)), "mxfp4", ["experts"]),
    "rope-linear": (llama(rope_parameters=rope("linear", factor=2.0)), "bf16", []),
    "rope-llama3": (llama(rope_parameters=rope("llama3", 1000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)), "bf16", []),
    "rope-yarn": (llama(rope_parameters=rope("yarn", 100.0, **YARN)), "bf16", []),
    "rope-yarn-mscale": (llama(rope_parameters=rope("yarn", 100.0, beta_fast=8.0, beta_slow=2.0, mscale=1.2, mscale_all_dim=0.7, truncate=False, **YARN)), "bf16", []),
    "rope-old-config": (llama(rope_parameters=rope("yarn", 50.0, attention_factor=1.3, **YARN)), "bf16", []),
    "store-f32": (llama(), "f32", ["lora"]),
    "store-f16": (llama(), "f16", []),
    "store-nf4": (llama(), "nf4", ["dora"]),
    "store-nf4-nested": (llama(), "nf4-nested", ["lora"]),
    "store-int8": (llama(), "int8", []),
}


def loud(model, noise):
    """Redraws every weight; 0.02 as a library draws them would hide mistakes."""
    zero_centred = model.config.model_type.startswith(("qwen3_5", "qwen3_next"))
    is_gemma, hidden = model.config.model_type.startswith("gemma"), model.config.get_text_config().hidden_size
    with torch.no_grad():
        for name, p in model.named_parameters():
            z = torch.randn(p.shape, generator=noise)
            if "norm" in name: p.copy_((0.0 if is_gemma or zero_centred and "linear_attn" not in name else 1.0) + .25 * z + (2.0 if is_gemma and name.startswith(("model.norm", "model.language_model.norm")) else 0.0))
            elif name.endswith("A_log"): p.copy_(torch.rand(p.shape, generator=noise) * 4.5 - 3.5)
            elif "conv1d" in name: p.copy_(.6 * z)
            elif name.endswith("bias"): p.copy_(.3 * z)
            elif name.endswith("sinks"): p.copy_(1 + z)
            elif p.ndim == 3: p.copy_(1.5 * z / math.sqrt(p.shape[1 if model.config.model_type == "gpt_oss" else 2]))
            elif "embed" in name: p.copy_(z * (.7 / math.sqrt(hidden) if is_gemma else .6))
            elif "vision_tower" in name or "projector" in name: p.copy_(z)
            else: p.copy_(z * {"lm_head": 2.0, "q_proj": .8, "k_proj": .8}.get(name.split(".")[-2], 1.0) / math.sqrt(p.shape[1]))
    model.tie_weights()
    return model.eval()


def exact_weights(folder):
    """The value of every weight in f32, packed ones decoded by bitsandbytes."""
    raw, out = load_file(folder / "model.safetensors"), {}
    for name, t in raw.items():
        if any(k.startswith(f"{name}.quant_state.") for k in raw):
            state = B.QuantState.from_dict({k[len(name) + 1:]: v for k, v in raw.items() if k.startswith(name + ".")}, device="cpu")
            shape, state.dtype = state.shape, torch.float32
            state.shape = torch.Size((1, shape.numel()))  # rows of no multiple of the block are decoded wrongly by its AVX-512 kernel
            out[name] = B.dequantize_4bit(t, state).reshape(shape)
        elif t.dtype == torch.int8: out[name] = t.float() * raw[name.removesuffix("weight") + "SCB"][:, None] / 127
        elif ".weight." not in name and not name.endswith((".SCB", ".weight_format")): out[name] = t.float()
    return out


FP4 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])


def to_mxfp4(folder, noise):
    """Experts of GPT-OSS as the hub has them: random codes and scales, blocks along the input."""
    t, out = load_file(folder / "model.safetensors"), {}
    for name, w in t.items():
        if w.ndim != 3: out[name] = w; continue
        e, i, o = w.shape
        out[f"{name}_blocks"] = torch.randint(0, 256, (e, o, i // 32, 16), generator=noise, dtype=torch.uint8)
        out[f"{name}_scales"] = torch.randint(120, 124, (e, o, i // 32), generator=noise).to(torch.uint8)
    save_file(out, folder / "model.safetensors", metadata={"format": "pt"})
    set_quantization(folder, {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]})


def to_nf4_each(folder):
    """An NF4 state per linear layer and per expert, as transformers 4 saved them."""
    t, out = load_file(folder / "model.safetensors"), {}
    for name, w in t.items():
        if not name.endswith("_proj.weight"): out[name] = w; continue
        out[name], state = B.quantize_4bit(w.float(), blocksize=64, quant_type="nf4", compress_statistics=True)
        out |= {f"{name}.{k}": v for k, v in state.as_dict(packed=True).items()}
    save_file({k: v.contiguous() for k, v in out.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    set_quantization(folder, {"load_in_4bit": True, "quant_method": "bitsandbytes", "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True,
                              "bnb_4bit_compute_dtype": "float32", "bnb_4bit_quant_storage": "uint8", "llm_int8_skip_modules": ["lm_head"]})


def set_quantization(folder, how):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": how}, indent=2) + "\n")


def stacked(weights):
    """Experts as transformers 5 has them in memory: two stacks per layer. MXFP4 decoded."""
    out, parts = {}, {}
    for name, t in weights.items():
        name = name.replace(".block_sparse_moe.", ".mlp.")
        m = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)\.weight", name)
        if m: parts.setdefault(m[1], {})[{"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}.get(m[3], m[3]), int(m[2])] = t
        elif name.endswith("_blocks"):
            codes, scales = t.to(torch.uint8), weights[name[:-7] + "_scales"]
            values = torch.stack([FP4[(codes & 15).long()], FP4[(codes >> 4).long()]], -1).flatten(-2) * torch.exp2(scales.float() - 127)[..., None]
            out[name[:-7]] = values.flatten(-2).transpose(1, 2).contiguous()
        elif not name.endswith("_scales"): out[name] = t
    for name, p in parts.items():
        count = 1 + max(e for _, e in p)
        out[f"{name}.gate_up_proj"] = torch.stack([torch.cat([p["gate_proj", e], p["up_proj", e]]) for e in range(count)])
        out[f"{name}.down_proj"] = torch.stack([p["down_proj", e] for e in range(count)])
    return out


def module_names(weights):
    """Names of a model with vision as its modules have them; files have those of older versions."""
    lead = lambda n: n.replace("language_model.model.", "model.language_model.") if n.startswith("language_model.") else n if n.startswith(("model.", "lm_head")) else f"model.{n}"
    return {lead(n): t for n, t in weights.items()}


def has_experts(config):
    return hasattr(config, "num_experts_per_tok")


def reference(folder, dtype=torch.float32):
    """transformers on the exact weights; built in its dtype, because .to() would round the rotary frequencies."""
    config = AutoConfig.from_pretrained(folder)
    if hasattr(config, "quantization_config"): del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager", **dict(experts_implementation="eager") if has_experts(config) else {})
    missing, extra = model.load_state_dict(module_names(stacked(exact_weights(folder))), strict=False)
    assert not extra and all("lm_head" in m for m in missing), (missing, extra)
    model.tie_weights()
    return model.eval()


def save(model, folder, storage, noise):
    model.to(HALF.get(storage, torch.bfloat16 if storage in ("mxfp4", "nf4-each") else torch.float32)).save_pretrained(folder)
    if storage == "mxfp4": return to_mxfp4(folder, noise)
    if storage == "nf4-each": return to_nf4_each(folder)
    if storage in ("f32", "bf16", "f16"): return
    how = dict(load_in_8bit=True) if storage == "int8" else dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=storage.endswith("nested"),
                                                                 bnb_4bit_compute_dtype=torch.float32)
    packed = AutoModelForCausalLM.from_pretrained(folder, quantization_config=BitsAndBytesConfig(**how), device_map="cpu", dtype=torch.float32)
    shutil.rmtree(folder)
    packed.save_pretrained(folder)


def to_old_config(folder):
    """config.json as older transformers wrote it."""
    path = folder / "config.json"
    c = json.loads(path.read_text())
    scaling, c["torch_dtype"] = c.pop("rope_parameters"), c.pop("dtype")
    c["rope_theta"], c["rope_scaling"] = scaling.pop("rope_theta"), scaling
    path.write_text(json.dumps(c, indent=2) + "\n")


@torch.no_grad()
def logits_of(model, sequences):
    return [model(torch.tensor([s]), use_cache=False).logits[0].float() for s in sequences]


def far(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


@torch.no_grad()
def greedy(model, ids):
    """The tokens that follow, or None where a choice is too close to call."""
    new = []
    for _ in range(GREEDY):
        top = model(torch.tensor([ids + new]), use_cache=False).logits[0, -1].topk(2)
        if (top.values[0] - top.values[1]).item() < 5e-3: return None
        new.append(top.indices[0].item())
    return new


def make_adapter(model, folder, kind, noise):
    text = r"model\.language_model\.layers\..*_proj" if hasattr(model.config, "text_config") else "all-linear"
    if has_experts(model.config): text = ["q_proj", "k_proj", "v_proj", "o_proj", "in_proj_qkv", "in_proj_qkvz", "in_proj_z", "in_proj_a", "in_proj_b", "in_proj_ba", "out_proj"]
    more = {}
    if kind == "experts":
        router = "router" if model.config.model_type == "gpt_oss" else "gate"
        more = dict(target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj", f"mlp.{router}.weight"], use_rslora=True)
        text = ["q_proj", "o_proj"]
    config = LoraConfig(r=2, lora_alpha=3, target_modules=text, task_type="CAUSAL_LM", use_dora=kind == "dora", **more)
    adapted = get_peft_model(model, config)
    with torch.no_grad():
        for name, p in adapted.named_parameters():
            if "lora_A" in name or "lora_B" in name: p.copy_(torch.randn(p.shape, generator=noise) * (.4 if "lora_B" in name else p.shape[1] ** -.5))
            elif "magnitude" in name: p.mul_(1 + .2 * torch.randn(p.shape, generator=noise))
    adapted.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": ""}, indent=2) + "\n")  # no path of this machine


def gradients(folder, kind, sequences, labels):
    """Of one batch padded on the right, with an attention mask."""
    model = PeftModel.from_pretrained(reference(folder), folder / kind, is_trainable=True).eval()
    width = max(map(len, sequences))
    ids = torch.tensor([s + [PAD] * (width - len(s)) for s in sequences])
    mask = torch.tensor([[1] * len(s) + [0] * (width - len(s)) for s in sequences])
    want = torch.tensor([l + [-100] * (width - len(l)) for l in labels])
    z = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1].double()
    loss = torch.nn.functional.cross_entropy(z.reshape(-1, VOCAB), want[:, 1:].reshape(-1), ignore_index=-100)
    loss.backward()
    short = lambda n: n.removeprefix("base_model.model.").replace("model.language_model.", "model.").replace("lora_magnitude_vector.default.weight", "lora_magnitude_vector").replace(".default.", ".")
    out = {f"{kind}.{short(n)}": p.grad.float() for n, p in model.named_parameters() if p.requires_grad}
    return out | {f"{kind}.loss": torch.tensor([loss.item()], dtype=torch.float64)}


def make(name, config, storage, adapters):
    folder = TARGET / name
    noise = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    draw = lambda n: torch.randint(3, VOCAB, (n,), generator=noise).tolist()
    while True:  # until greedy choices are clear and of some variety, and 16 bits do for transformers itself
        shutil.rmtree(folder, ignore_errors=True)
        save(loud(AutoModelForCausalLM.from_config(config, dtype=torch.float32), noise), folder, storage, noise)
        sequences = [draw(n) for n in LENGTHS]
        judge = reference(folder)
        exact = logits_of(judge, sequences)
        half = logits_of(reference(folder, HALF[storage]), sequences) if storage in HALF else []
        if any(far(h, z) > 1.5e-2 for h, z in zip(half, exact)): continue
        tokens = [greedy(judge, s) for s in sequences]
        if all(tokens) and len(set(sum(tokens, []))) >= 6: break
    if name == "rope-old-config": to_old_config(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    labels = [list(s) for s in sequences]
    labels[1][:4] = [-100] * 4
    labels[2][3] = -100
    out = {}
    for i, s in enumerate(sequences):
        out |= {f"ids.{i}": torch.tensor(s, dtype=torch.int32), f"labels.{i}": torch.tensor(labels[i], dtype=torch.int32),
                f"greedy.{i}": torch.tensor(tokens[i], dtype=torch.int32)}
    out |= {f"logits.{i}": z for i, z in enumerate(exact)} | {f"half.{i}": z for i, z in enumerate(half)}
    if storage == "int8":
        peer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", device_map="cpu").eval()
        out |= {f"peer.{i}": z for i, z in enumerate(logits_of(peer, sequences))}
    for kind in adapters:
        make_adapter(reference(folder), folder / kind, kind, noise)
        out |= gradients(folder, kind, sequences, labels)
    save_file(out, folder / "expected.safetensors")
    print(f"{name}: {sum(f.stat().st_size for f in folder.rglob('*') if f.is_file())} bytes, {len(set(sum(tokens, [])))} distinct greedy tokens", flush=True)


for case_name in sys.argv[2:] or CASES: make(case_name, *CASES[case_name])
