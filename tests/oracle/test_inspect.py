"""`nibble inspect` of GGUF files and adapters against the packages gguf and peft: the same tensors, sizes, metadata and settings; an adapter fits a base
exactly when PEFT loads it there without a missing or unexpected key."""
import json
import math
import sys
import warnings
from pathlib import Path

import gguf
import numpy
import torch
from common import check, main
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "nibble-tiny"
TYPES = {"Q8_0": "q8_0", "Q4_0": "q4_0", "F16": "f16", "BF16": "bf16", "F32": "f32", "Q4_K": "q4_k", "I32": "i32", "MXFP4": "mxfp4"}
V = gguf.GGUFValueType
NAMES = {V.UINT8: "u8", V.INT8: "i8", V.UINT16: "u16", V.INT16: "i16", V.UINT32: "u32", V.INT32: "i32", V.FLOAT32: "f32", V.BOOL: "bool", V.STRING: "string",
         V.UINT64: "u64", V.INT64: "i64", V.FLOAT64: "f64"}


def same_value(ours, theirs):
    if isinstance(theirs, float):
        return isinstance(ours, (int, float)) and (numpy.float32(ours) == numpy.float32(theirs) or ours == theirs) if math.isfinite(theirs) else ours in ("nan", "inf", "-inf")
    if isinstance(theirs, str):
        return ours == theirs if len(theirs.encode()) <= 200 else theirs.startswith(ours) and len(ours.encode()) > 190
    return ours == theirs


def compare_gguf(room, path):
    reader = gguf.GGUFReader(path)
    found, _ = room.json("inspect", path, "--tensors")
    formats = {}
    for tensor, mine in zip(reader.tensors, found["tensors"], strict=True):
        shape = [int(n) for n in reversed(tensor.shape)]
        room.expect(mine["name"] == tensor.name and mine["shape"] == shape and mine["bytes"] == tensor.n_bytes and mine["format"] == TYPES[tensor.tensor_type.name],
                    f"{path.name}: {mine} instead of {tensor.name} {shape} {tensor.n_bytes} {tensor.tensor_type.name}")
        entry = formats.setdefault(mine["format"], {"tensors": 0, "parameters": 0, "bytes": 0})
        entry["tensors"] += 1
        entry["parameters"] += int(tensor.n_elements)
        entry["bytes"] += int(tensor.n_bytes)
    room.expect(found["formats"] == formats, f"{path.name}: {found['formats']} instead of {formats}")
    room.expect(found["parameters"] == sum(f["parameters"] for f in formats.values()), f"{path.name}: parameters")
    fields = {k: f for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    room.expect([e["key"] for e in found["metadata"]] == list(fields), f"{path.name}: other keys")
    for entry in found["metadata"]:
        field = fields[entry["key"]]
        theirs = field.contents()
        if field.types[0] == V.ARRAY:
            room.expect(entry["type"] == f"array of {NAMES[field.types[1]]}" and entry["count"] == len(theirs) and entry["cut"] == (len(theirs) > 8),
                        f"{path.name}: {entry}")
            room.expect(all(same_value(a, b) for a, b in zip(entry["value"], theirs[:8], strict=True)), f"{path.name}: {entry} instead of {theirs[:8]}")
        else:
            room.expect(entry["type"] == NAMES[field.types[0]] and same_value(entry["value"], theirs), f"{path.name}: {entry} instead of {theirs!r}")
    return found


@check
def exported_files_are_told_as_gguf_reads_them(room):
    for kind in ("f32", "f16", "bf16", "q8_0", "q4_0"):
        path = room.folder / f"{kind}.gguf"
        room.nibble("export", MODEL, path, "--type", kind)
        found = compare_gguf(room, path)
        reader = gguf.GGUFReader(path)
        tokens = reader.fields["tokenizer.ggml.tokens"].contents()
        eos = int(reader.fields["tokenizer.ggml.eos_token_id"].contents())
        room.expect(found["problems"] == [], f"{kind}: {found['problems']}")
        room.expect(found["tokenizer"]["tokens"] == len(tokens) and found["tokenizer"]["special"]["eos"] == {"id": eos, "text": tokens[eos]}, f"{kind}: {found['tokenizer']}")


@check
def files_of_any_metadata_are_told_as_gguf_reads_them(room):
    for n in range(6):
        path = room.folder / f"any-{n}.gguf"
        writer = gguf.GGUFWriter(path, room.random.choice(["llama", "phi3", "clip"]))
        writer.add_type(room.random.choice(["model", "adapter", "mmproj"]))
        pieces = ["a", "é", "日本", "\n", "\x1b[31m", "🙂", "\u202e", '"', "\\"]
        for i in range(30):
            key = f"any.{i}"
            kind = room.random.randrange(9)
            text = "".join(room.random.choice(pieces) for _ in range(room.random.randrange(0, 150)))
            if kind == 0: writer.add_string(key, text or "x")
            elif kind == 1: writer.add_uint32(key, room.random.randrange(1 << 32))
            elif kind == 2: writer.add_int64(key, -room.random.randrange(1 << 62))
            elif kind == 3: writer.add_float32(key, room.random.choice([1e-5, 1 / 3, 1e30, math.inf, -0.0, 500000.0]))
            elif kind == 4: writer.add_float64(key, room.random.random())
            elif kind == 5: writer.add_bool(key, room.random.random() < 0.5)
            elif kind == 6: writer.add_array(key, [room.random.randrange(-1000, 1000) for _ in range(room.random.randrange(1, 20))])
            elif kind == 7: writer.add_array(key, [text[:k] or "x" for k in range(1, room.random.randrange(2, 15))])
            else: writer.add_int8(key, room.random.randrange(-128, 128))
        for i in range(room.random.randrange(1, 8)):
            shape = [room.random.randrange(1, 5) for _ in range(room.random.randrange(0, 3))] + [256]
            raw = room.random.choice([None, gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.MXFP4, gguf.GGMLQuantizationType.Q4_K])
            values = numpy.zeros(shape, dtype=room.random.choice([numpy.float32, numpy.float16, numpy.int32]))
            if raw is None: writer.add_tensor(f"t.{i}", values)
            else:
                size, width = gguf.GGML_QUANT_SIZES[raw]
                writer.add_tensor(f"t.{i}", numpy.zeros([*shape[:-1], 256 // size * width], dtype=numpy.uint8), raw_dtype=raw)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        compare_gguf(room, path)


def parameters(folder):
    return sum(t.numel() for t in load_file(folder / "adapter_model.safetensors").values())


def loads(base, folder):
    """Whether PEFT loads it without a complaint."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)
        except Exception:
            return False
    return not any("missing adapter keys" in str(w.message) or "unexpected" in str(w.message).lower() for w in said)


@check
def adapters_are_told_as_peft_saves_them(room):
    other = room.folder / "other"
    LlamaForCausalLM(LlamaConfig(vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)).save_pretrained(other)
    for n in range(6):
        folder = room.folder / f"lora-{n}"
        settings = dict(r=room.random.randrange(1, 9), lora_alpha=room.random.choice([1, 8, 12.5]), lora_dropout=room.random.choice([0.0, 0.1]),
                        use_rslora=room.random.random() < 0.5, use_dora=room.random.random() < 0.5, task_type="CAUSAL_LM",
                        target_modules=room.random.choice([["q_proj", "v_proj"], ["down_proj"], "all-linear", r".*\.(up|gate)_proj"]),
                        modules_to_save=room.random.choice([None, ["lm_head"]]))
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(MODEL), LoraConfig(**settings))
        if room.random.random() < 0.5: model = model.to(torch.bfloat16)
        model.save_pretrained(folder)
        saved = json.loads((folder / "adapter_config.json").read_text())
        found, _ = room.json("inspect", folder, "--base", MODEL, "--tensors")
        for key in ("r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora", "lora_bias", "base_model_name_or_path", "task_type"):
            room.expect(found[key] == saved[key], f"{settings}: {key} is {found[key]!r} instead of {saved[key]!r}")
        theirs = saved["target_modules"]
        room.expect(found["target_modules"] == theirs or sorted(found["target_modules"]) == sorted(theirs), f"{settings}: {found['target_modules']} instead of {theirs}")
        room.expect(found["modules_to_save"] == (saved["modules_to_save"] or []), f"{settings}: {found['modules_to_save']}")
        tensors = load_file(folder / "adapter_model.safetensors")
        room.expect({t["name"]: t["shape"] for t in found["tensors"]} == {k: list(t.shape) for k, t in tensors.items()}, f"{settings}: other tensors")
        room.expect(found["parameters"] == parameters(folder), f"{settings}: {found['parameters']} parameters")
        dtypes = {str(t.dtype).removeprefix("torch.").replace("bfloat16", "bf16").replace("float32", "f32") for t in tensors.values()}
        room.expect(found["dtype"] == (dtypes.pop() if len(dtypes) == 1 else None), f"{settings}: dtype {found['dtype']}")
        room.expect(found["fits"] is True and found["problems"] == [] and loads(MODEL, folder), f"{settings}: {found['problems']}")
        told, _ = room.json("inspect", folder, "--base", other)
        room.expect(told["fits"] is False and not loads(other, folder), f"{settings}: fits another model")

        # Without one tensor, and with one value that is no number.
        lost = sorted(k for k in tensors if "lora_B" in k)[-1]
        one = next(k for k in tensors if "lora_A" in k)
        tensors[one].view(-1)[3] = math.nan
        save_file({k: t for k, t in tensors.items() if k != lost}, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        told, _ = room.json("inspect", folder)
        room.expect(told["non_finite"] == 1 and any("not finite" in p and one in p for p in told["problems"]), f"{settings}: {told['problems']}")
        room.expect(any("lora_B is missing" in p for p in told["problems"]) and len(told["problems"]) == 2, f"{settings}: {told['problems']}")
        room.expect(not loads(MODEL, folder), f"{settings}: PEFT loads it without {lost}")


if __name__ == "__main__":
    sys.exit(main())
