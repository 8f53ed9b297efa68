"""Merged folders and GGUF files against PEFT, transformers and the gguf package.

Merging: what `merge` writes is base + adapter by PEFT's definitions, and loads in transformers. Exporting: every architecture in
every type has the tensors that gguf's own quantisers make of llama.cpp's arrangement, the metadata that llama.cpp reads, and
gives the logits of the folder when it is read again; where llama-cpp-python is installed, also in llama.cpp.
"""

import importlib.util
import json
import re
import sys
import warnings

import gguf
import numpy as np
import torch
from common import FLOATS, check, four_bit, main, save_model, tensors_of, upstream_quantize
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

warnings.filterwarnings("ignore")  # PEFT's, of tied weights
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma2": "gemma2", "gemma3_text": "gemma3",
                 "phi3": "phi3"}
TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")


def adapter(room, base, name, **settings):
    """A PEFT adapter of the model, every trained tensor away from its first value."""
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
                           LoraConfig(**{"r": 3, "lora_alpha": 7, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **settings}))
    for parameter in model.parameters():
        if parameter.requires_grad: parameter.data = parameter.data + 0.02 * room.normal(*parameter.shape)
    model.save_pretrained(str(room.folder / name))
    return room.folder / name


def ids_of(room, config, count=12):
    return [room.random.randrange(config.vocab_size) for _ in range(count)]


@torch.no_grad()
def logits(model, ids):
    return model(input_ids=torch.tensor([ids])).logits[0].float()


def nibble_logits(room, path, ids, *words):
    (room.folder / "ids.json").write_text(json.dumps([ids]))
    room.nibble("logits", path, "--ids", room.folder / "ids.json", "--out", room.folder / "logits.safetensors", "--force", "--dtype", "f32", *words)
    return load_file(room.folder / "logits.safetensors")["logits.0"]


def off(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


# ---- merging ----

@check
def merged_folders_are_pefts_sums(room):
    kinds = {"lora": {}, "dora": dict(use_dora=True), "rslora": dict(use_rslora=True, rank_pattern={"q_proj": 5}),
             "head": dict(modules_to_save=["lm_head"]), "embedding": dict(target_modules=["embed_tokens", "v_proj"]),
             "head_target": dict(target_modules=["lm_head", "o_proj"])}
    for i, (label, settings) in enumerate(kinds.items()):
        kind, dtype = list(ARCHITECTURES)[i % 6], room.random.choice(list(FLOATS))
        base = save_model(room, f"base-{label}", kind, torch.float32, tied=False)
        folder = adapter(room, base, f"adapter-{label}", **settings)
        out = room.folder / f"out-{label}"
        verify = [] if label == "embedding" else ["--verify"]
        room.nibble("merge", base, folder, out, "--dtype", dtype, *verify)
        live = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64), str(folder)).eval()
        live = live.to(torch.float64)
        merged = AutoModelForCausalLM.from_pretrained(out, dtype="auto").eval()
        room.expect(merged.dtype == FLOATS[dtype], f"{kind} {label}: loads as {merged.dtype}")
        want = live.merge_and_unload().state_dict()
        for name, got in merged.state_dict().items():
            ideal = want[name].to(FLOATS[dtype])
            room.expect((got != ideal).double().mean() < 0.005, f"{kind} {label}: {name} is not the sum rounded once")
        room.remove(f"base-{label}", f"adapter-{label}", f"out-{label}")


@check
def changed_heads_and_embeddings_of_tied_models_part(room):
    kinds = {"head": dict(modules_to_save=["lm_head"]), "embedding": dict(modules_to_save=["embed_tokens"]),
             "head_target": dict(target_modules=["lm_head", "o_proj"]), "embedding_target": dict(target_modules=["embed_tokens", "v_proj"])}
    for label, settings in kinds.items():
        base = save_model(room, "base", room.random.choice(["llama", "qwen3", "gemma3_text"]), torch.float32, tied=True)
        folder = adapter(room, base, "adapter", **settings)
        room.nibble("merge", base, folder, room.folder / "out", "--dtype", "f32")
        live = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), str(folder)).eval()
        ids = ids_of(room, live.config)
        want, merged = logits(live, ids), AutoModelForCausalLM.from_pretrained(room.folder / "out", dtype=torch.float32).eval()
        room.expect(not merged.config.tie_word_embeddings and off(logits(merged, ids), want) < 1e-5, f"{label}: the merged folder computes something else")
        if label != "embedding_target":
            room.expect(off(nibble_logits(room, base, ids, "--adapter", folder), want) < 1e-5, f"{label}: the live adapter computes something else")
        room.remove("base", "adapter", "out")


@check
def packed_bases_are_decoded_before_the_sum(room):
    for settings in (four_bit("nf4", True), four_bit("fp4"), dict(load_in_8bit=True)):
        base = save_model(room, "base", "llama", torch.bfloat16, wide=True)
        packed = upstream_quantize(room, base, "packed", **settings)
        folder = adapter(room, base, "adapter")
        room.nibble("dequantize", packed, room.folder / "plain", "--dtype", "f32")
        room.nibble("merge", packed, folder, room.folder / "a", "--dtype", "bf16", "--verify")
        room.nibble("merge", room.folder / "plain", folder, room.folder / "b", "--dtype", "bf16", "--verify")
        document, _ = room.json("diff", room.folder / "a", room.folder / "b")
        room.expect(document["equal"], f"{settings}: another sum than over the decoded weights")
        room.remove("base", "packed", "adapter", "plain", "a", "b")


# ---- exporting ----

def arrange(name, weight, config):
    """What llama.cpp's converter does to a tensor."""
    if ARCHITECTURES[config.model_type] == "llama" and re.search(r"[qk]_proj\.(weight|bias)$", name):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        weight = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    return weight + 1 if config.model_type.startswith("gemma") and name.endswith("norm.weight") else weight


@check
def exported_files_hold_what_gguf_makes_of_the_weights(room):
    for kind, architecture in ARCHITECTURES.items():
        more = {} if not kind.startswith("gemma") else dict(query_pre_attn_scalar=32, sliding_window=8)
        base = save_model(room, kind, kind, torch.float32, wide=True, tied=True if kind == "gemma2" else None, **more)
        config = AutoConfig.from_pretrained(base)
        if kind.startswith("gemma"):  # the scale that llama.cpp takes for granted
            text = json.loads((base / "config.json").read_text()); text["query_pre_attn_scalar"] = config.head_dim
            (base / "config.json").write_text(json.dumps(text))
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
        ids = ids_of(room, config)
        want = logits(model, ids)
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
        for type_name in TYPES:
            path = room.folder / f"{kind}-{type_name}.gguf"
            room.nibble("export", base, path, "--type", type_name)
            reader = gguf.GGUFReader(path)
            stored = {t.name: t for t in reader.tensors}
            field = reader.fields["general.architecture"].contents()
            room.expect(field == architecture, f"{kind}: architecture {field}")
            expected = {names.get_name(n, try_suffixes=(".weight", ".bias")): arrange(n, w.float().numpy(), config)
                        for n, w in tensors_of(base).items() if not (config.tie_word_embeddings and n == "lm_head.weight")}
            room.expect(set(stored) == set(expected), lambda: f"{kind}: tensors {sorted(set(stored) ^ set(expected))[:4]}")
            for name, weight in expected.items():
                target = gguf.GGMLQuantizationType.F32 if weight.ndim == 1 else gguf.GGMLQuantizationType[type_name.upper()]
                good = stored[name].tensor_type == target and np.array_equal(
                    np.asarray(stored[name].data).reshape(-1).view(np.uint8), gguf.quants.quantize(weight, target).reshape(-1).view(np.uint8))
                room.expect(good, f"{kind} {type_name}: {name} differs from gguf's own {target.name}")
            if type_name == "f32":
                room.expect(off(nibble_logits(room, path, ids), want) < 1e-5, f"{kind}: other logits from the GGUF file")


@check
def exported_models_run_in_llama_cpp(room):
    if importlib.util.find_spec("llama_cpp") is None:
        room.notes.append("llama-cpp-python is not installed")
        room.expect(True, "")
        return
    import llama_cpp
    for kind in ARCHITECTURES:
        base = save_model(room, kind, kind, torch.float32, wide=True, tied=True if kind == "gemma2" else None)
        path = room.folder / f"{kind}.gguf"
        room.nibble("export", base, path, "--type", "f32")
        config = AutoConfig.from_pretrained(base)
        ids = ids_of(room, config)
        engine = llama_cpp.Llama(str(path), n_ctx=64, n_threads=1, logits_all=True, verbose=False)
        engine.eval(ids)
        got = torch.tensor(np.array(engine.scores[: len(ids)]))
        want = logits(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval(), ids)
        room.expect(off(got, want) < 5e-3, lambda: f"{kind}: logits differ by {off(got, want):.1e}")


if __name__ == "__main__":
    sys.exit(main())
