"""The readers of GGUF models and PEFT adapters against transformers and PEFT, through the program build/readers.

GGUF: models that transformers made, stored as llama.cpp's converter stores them, come back as the config and the weights that they
were stored from; Llama also through transformers' own GGUF reader. PEFT: what PEFT saves is read with PEFT's ranks and scales,
and written again byte for byte; what is written loads in PEFT; what PEFT matches is matched.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from common import FLOATS, check, main, tensors_of
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

READERS = Path(os.environ.get("NIBBLE", "build/nibble")).resolve().parent / "readers"
TYPES = {name: gguf.GGMLQuantizationType[name] for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")}


def read(*words):
    return subprocess.run([READERS, *map(str, words)], capture_output=True, text=True, timeout=120)


# ---- GGUF ----

def build(room, kind, **options):
    """A small model with random weights; its norms are around what they should be."""
    sizes = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                 vocab_size=room.random.choice([70, 96]), max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes | options))
    for parameter in model.parameters():
        parameter.data = room.normal(*parameter.shape) * 0.3
    return model.eval()


PARTS = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
NORMS = {False: {"post_attention_layernorm": "ffn_norm"},
         True: {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm"}}


def gguf_name(name, gemma):
    stem, _, end = name.rpartition(".")
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    if stem in whole: return f"{whole[stem]}.{end}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{(PARTS | NORMS[gemma])[part]}.{end}"


def store(path, model, architecture, kind):
    """Stores the model as llama.cpp's converter does; returns the exact value of each weight, under its name in transformers."""
    c, gemma = model.config, architecture.startswith("gemma")
    w = gguf.GGUFWriter(str(path), architecture)
    w.add_context_length(c.max_position_embeddings); w.add_embedding_length(c.hidden_size); w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(c.intermediate_size); w.add_head_count(c.num_attention_heads); w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps); w.add_key_length(c.head_dim); w.add_value_length(c.head_dim)
    rope = c.rope_parameters
    w.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if gemma: w.add_sliding_window(c.sliding_window)
    if architecture == "phi3": w.add_sliding_window(c.sliding_window or 0); w.add_rope_dimension_count(c.head_dim)
    if architecture == "gemma2": w.add_attn_logit_softcapping(c.attn_logit_softcapping); w.add_final_logit_softcapping(c.final_logit_softcapping)
    w.add_token_list([f"t{i}" for i in range(c.vocab_size)])
    w.add_bos_token_id(c.bos_token_id); w.add_eos_token_id(c.eos_token_id); w.add_pad_token_id(c.pad_token_id)
    if rope.get("rope_type") == "llama3":  # as the divisors of the frequencies
        plain = rope["rope_theta"] ** -(torch.arange(0, c.head_dim, 2).float() / c.head_dim)
        w.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq).numpy().astype(np.float32))
    exact = {}
    for name, value in model.state_dict().items():
        if c.tie_word_embeddings and name == "lm_head.weight": continue
        a = value.float().numpy()
        heads = {"q_proj": c.num_attention_heads, "k_proj": c.num_key_value_heads}.get(name.split(".")[-2]) if architecture == "llama" else None
        if heads: a = a.reshape(heads, 2, -1, *a.shape[1:]).swapaxes(1, 2).reshape(a.shape)
        offset = gemma and name.endswith("norm.weight")
        stored = TYPES["F32"] if a.ndim == 1 else kind
        packed = gguf.quants.quantize(np.ascontiguousarray(a + np.float32(1) if offset else a), stored)
        w.add_tensor(gguf_name(name, gemma), packed, raw_dtype=stored)
        back = gguf.quants.dequantize(packed, stored).astype(np.float32).reshape(a.shape)
        if heads: back = back.reshape(heads, -1, 2, *a.shape[1:]).swapaxes(1, 2).reshape(a.shape)
        exact[name] = torch.from_numpy(np.ascontiguousarray(back - np.float32(1) if offset else back))
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
    return exact


def same_bits(room, what, got, wanted):
    room.expect(set(got) == set(wanted), f"{what}: names differ: {sorted(set(got) ^ set(wanted))[:4]}")
    for name in set(got) & set(wanted):
        room.expect(got[name].shape == wanted[name].shape and torch.equal(got[name], wanted[name]), f"{what}: {name} differs")


def plain_config(config):
    """What both must say, in one form."""
    rope = config.rope_parameters
    keys = ["model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
            "max_position_embeddings", "tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id", "attention_bias", "mlp_bias", "hidden_act",
            "hidden_activation", "sliding_window", "layer_types", "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"]
    values = {key: getattr(config, key, None) for key in keys}
    return values | {"rms_norm_eps": np.float32(config.rms_norm_eps), "rope": json.dumps(rope, sort_keys=True)}


MODELS = [("llama", dict(tie_word_embeddings=False)), ("llama", dict(tie_word_embeddings=True, attention_bias=True, mlp_bias=True)),
          ("llama", dict(rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                              original_max_position_embeddings=8192))),
          ("qwen2", dict(tie_word_embeddings=True)), ("qwen3", dict(tie_word_embeddings=False)), ("gemma2", dict(sliding_window=32, query_pre_attn_scalar=16)),
          ("gemma3_text", dict(sliding_window=32, num_hidden_layers=7, query_pre_attn_scalar=16)), ("phi3", dict(sliding_window=32)), ("phi3", {})]


@check
def gguf_models_come_back_as_they_were(room):
    for number, (kind, options) in enumerate(MODELS):
        model = build(room, kind, **options)
        for name in room.random.sample(list(TYPES)[1:], 4) + ["F32"]:
            what, path = f"{kind} {number} {name}", room.folder / f"{number}-{name}.gguf"
            exact = store(path, model, kind.removesuffix("_text"), TYPES[name])
            dtype = room.random.choice(["f32", "f16", "bf16"])
            done = read("gguf", path, dtype, room.folder / path.stem)
            if not room.expect(done.returncode == 0, f"{what}: {done.stderr}"): continue
            same_bits(room, f"{what} as {dtype}", tensors_of(room.folder / path.stem), {k: v.to(FLOATS[dtype]) for k, v in exact.items()})
            got, wanted = plain_config(AutoConfig.from_pretrained(room.folder / path.stem)), plain_config(model.config)
            room.expect(got == wanted, f"{what}: config: " + ", ".join(f"{k}: {got[k]} for {wanted[k]}" for k in wanted if got[k] != wanted[k]))


@check
def gguf_models_equal_those_of_transformers_own_reader(room):
    for kind in ("llama", "qwen2", "qwen3", "gemma2", "gemma3_text"):
        gemma = "gemma" in kind  # whose own head transformers does not find
        model = build(room, kind, tie_word_embeddings=gemma, **({"sliding_window": 32} if gemma else {}))
        path = room.folder / f"{kind}.gguf"
        store(path, model, kind.removesuffix("_text"), TYPES["Q8_0"])
        upstream = AutoModelForCausalLM.from_pretrained(room.folder, gguf_file=path.name, dtype=torch.float32)
        done = read("gguf", path, "f32", room.folder / kind)
        if room.expect(done.returncode == 0, f"{kind}: {done.stderr}"):
            same_bits(room, kind, tensors_of(room.folder / kind), {k: v for k, v in upstream.state_dict().items() if not (gemma and k == "lm_head.weight")})


# ---- adapters ----

ADAPTERS = {
    "list": dict(target_modules=["q_proj", "v_proj"]), "all": dict(target_modules="all-linear"), "dora": dict(target_modules="all-linear", use_dora=True),
    "regex": dict(target_modules=r".*\.(k_proj|down_proj)"), "rslora": dict(target_modules=["o_proj"], use_rslora=True, r=9),
    "layers": dict(target_modules=["q_proj", "up_proj"], layers_to_transform=[1], layers_pattern="layers"),
    "one layer": dict(target_modules=["q_proj", "model.layers.0.mlp.up_proj"], layers_to_transform=1),
    "patterns": dict(target_modules=["q_proj", "up_proj", "o_proj"], rank_pattern={"q_proj": 6, r"layers\.1\.mlp\.up_proj": 2},
                     alpha_pattern={"mlp.*": 3, "model.layers.0.self_attn.o_proj": 1.5}, use_rslora=True),
    "exclude": dict(target_modules="all-linear", exclude_modules=["down_proj", "model.layers.0.self_attn.q_proj"]),
    "exclude regex": dict(target_modules=["q_proj", "k_proj"], exclude_modules=r".*\.0\..*q_proj"),
    "saved": dict(target_modules="all-linear", modules_to_save=["lm_head", "norm", "embed_tokens"]), "saved layer": dict(target_modules=["q_proj"], modules_to_save=["mlp"]),
    "bias": dict(target_modules=["q_proj"], lora_bias=True), "embedding": dict(target_modules=["embed_tokens", "q_proj"]),
    "dora embedding": dict(target_modules=["embed_tokens"], use_dora=True), "head": dict(target_modules=["lm_head", "v_proj"], lora_dropout=0.05),
}
REFUSED = {"bias": dict(bias="all"), "trainable_token_indices": dict(trainable_token_indices=[1, 2]), "fan_in_fan_out": dict(fan_in_fan_out=True),
           "init_lora_weights": dict(init_lora_weights="pissa"), "alora_invocation_tokens": dict(alora_invocation_tokens=[1]), "use_qalora": dict(use_qalora=True),
           "layer_replication": dict(layer_replication=[[0, 2]]), "task_type": dict(task_type="SEQ_CLS")}


def list_modules(folder, model):
    """The file of modules that `readers peft` takes."""
    lines = []
    for path, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if weight is None: continue
        if isinstance(module, torch.nn.Embedding): lines.append(f"{path} 2 {weight.shape[1]} {weight.shape[0]}")
        elif isinstance(module, torch.nn.Linear): lines.append(f"{path} {int(path == 'lm_head')} {weight.shape[0]} {weight.shape[1]}")
        else: lines.append(f"{path} 3 {weight.shape[0]} 0")
    (folder / "modules.txt").write_text("\n".join(lines) + "\n")
    return folder / "modules.txt"


def save_adapter(room, model, folder, **options):
    peft = get_peft_model(model, LoraConfig(**dict(r=4, task_type="CAUSAL_LM") | options))
    for parameter in peft.parameters():
        if parameter.requires_grad: parameter.data = room.normal(*parameter.shape)
    peft.save_pretrained(folder)
    return peft


@check
def adapters_of_peft_are_read_and_written_byte_for_byte(room):
    for name, options in ADAPTERS.items():
        model = build(room, "llama", tie_word_embeddings=False)
        modules, folder, copy = list_modules(room.folder, model), room.folder / name, room.folder / f"{name} again"
        peft = save_adapter(room, model, folder, **options)
        done = read("peft", folder, modules, copy)
        if not room.expect(done.returncode == 0, f"{name}: {done.stderr}"): continue
        layers = {path: m for path, m in peft.base_model.model.named_modules() if isinstance(m, LoraLayer)}
        lines = [line.split() for line in done.stdout.splitlines() if not line.startswith("replacement ")]
        room.expect({line[0] for line in lines} == set(layers), f"{name}: modules {[line[0] for line in lines]} for {list(layers)}")
        for path, r, alpha, scale, _ in lines:
            if path in layers:
                m = layers[path]
                room.expect((int(r), float(alpha), float(scale)) == (m.r["default"], m.lora_alpha["default"], m.scaling["default"]), f"{name}: {path}: {r} {alpha} {scale}")
        room.expect((folder / "adapter_model.safetensors").read_bytes() == (copy / "adapter_model.safetensors").read_bytes(), f"{name}: the tensors differ")
        mine, theirs = json.loads((copy / "adapter_config.json").read_text()), json.loads((folder / "adapter_config.json").read_text())
        for c in (mine, theirs):
            for key in ("target_modules", "exclude_modules"):
                if isinstance(c[key], list): c[key] = sorted(c[key])
            if isinstance(c["layers_to_transform"], int): c["layers_to_transform"] = [c["layers_to_transform"]]
            if isinstance(c["layers_pattern"], str): c["layers_pattern"] = [c["layers_pattern"]]
        room.expect(list(mine) == list(theirs) and mine == theirs, f"{name}: config {[k for k in theirs if mine.get(k) != theirs[k]]}")
        again = PeftModel.from_pretrained(build(room, "llama", tie_word_embeddings=False, vocab_size=model.config.vocab_size), copy)
        first, second = peft.state_dict(), again.state_dict()
        room.expect(all(torch.equal(first[k], second[k]) for k in second if "lora" in k or "modules_to_save" in k), f"{name}: PEFT loads other values")


@check
def options_that_are_not_supported_are_refused_by_name(room):
    for name, options in REFUSED.items():
        folder = room.folder / name
        save_adapter(room, build(room, "llama", tie_word_embeddings=False), folder, target_modules=["q_proj"])
        config = json.loads((folder / "adapter_config.json").read_text()) | options
        (folder / "adapter_config.json").write_text(json.dumps(config))
        done = read("peft", folder, list_modules(room.folder, build(room, "llama")), room.folder / "never")
        room.expect(done.returncode == 1 and name in done.stderr, f"{name}: {done.stderr}")
    room.expect(not (room.folder / "never").exists(), "a refused adapter was written")


@check
def adapters_that_do_not_fit_are_named(room):
    model = build(room, "llama", tie_word_embeddings=False)
    modules = list_modules(room.folder, model)
    save_adapter(room, model, room.folder / "good", target_modules=["q_proj", "up_proj"])
    tensors, config = load_file(room.folder / "good/adapter_model.safetensors"), json.loads((room.folder / "good/adapter_config.json").read_text())
    q = "base_model.model.model.layers.1.self_attn.q_proj"

    def bad(says, change=lambda t: None, **options):
        folder = room.folder / "bad"
        folder.mkdir(exist_ok=True)
        changed = dict(tensors)
        change(changed)
        save_file(changed, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        (folder / "adapter_config.json").write_text(json.dumps(config | options))
        done = read("peft", folder, modules, room.folder / "never")
        room.expect(done.returncode == 1 and all(word in done.stderr for word in says), f"{says}: {done.stderr}")
    bad(["layers.1.self_attn.q_proj", "lora_B"], lambda t: t.pop(f"{q}.lora_B.weight"))
    bad(["layers.1.self_attn.q_proj"], lambda t: (t.pop(f"{q}.lora_B.weight"), t.pop(f"{q}.lora_A.weight")))
    bad(["layers.7"], lambda t: t.update({f"{q}.lora_A.weight".replace("layers.1", "layers.7"): torch.zeros(4, 64), f"{q}.lora_B.weight".replace("layers.1", "layers.7"): torch.zeros(64, 4)}))
    bad(["q_proj", "[3, 64]"], lambda t: t.update({f"{q}.lora_A.weight": torch.zeros(3, 64)}))
    bad(["q_proj", "64", "72"], lambda t: t.update({f"{q}.lora_A.weight": torch.zeros(4, 72)}))
    bad(["z_proj"], lambda t: t.update({f"{q}.lora_A.weight".replace("q_proj", "z_proj"): torch.zeros(4, 64)}))
    bad(["v_proj", "no tensors"], target_modules=["q_proj", "up_proj", "v_proj"])
    bad(["lora_magnitude_vector"], use_dora=True)
    bad(["lm_head", "modules_to_save"], modules_to_save=["lm_head"])
    bad(["LOHA"], peft_type="LOHA")
    bad(["new_option"], new_option=3)
    bad(["target_modules", "regular expression"], target_modules="(q_proj")

    # A name that matches nothing beside others that do: PEFT accepts it, and so does nibble, with a warning.
    (room.folder / "good/adapter_config.json").write_text(json.dumps(config | {"target_modules": ["q_proj", "up_proj", "z_proj"]}))
    done = read("peft", room.folder / "good", modules, room.folder / "unmatched")
    room.expect(done.returncode == 0, f"a name without a module: {done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
