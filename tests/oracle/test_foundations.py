"""quantize, dequantize, inspect and diff against the libraries they imitate: transformers, bitsandbytes, safetensors, torch.

bitsandbytes does not compute everything in the same way on a CPU and on CUDA. nibble follows CUDA, this file runs on a CPU;
so every check demands what both agree on, and where they differ it says so:

* FP4 codes of zeros and ties, codes of double-quantised scales (a coarse look-up on CPUs), and all-zero or not finite
  blocks differ. Their values are compared instead, or nibble's documented rule.
* Decoding on CPUs is right in bitsandbytes' Python backend only: its AVX-512 kernel takes wrong scales when a row is no
  multiple of the block, and flushes subnormal bf16 values. That backend is the judge here.
"""

import json
import math
import struct
import sys

import common
from common import check, config_of, files_of, how_different, raw, same, tensors_of, what_differs

import safetensors
import torch
import transformers
from bitsandbytes import functional as bnb
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from bitsandbytes.nn import Linear4bit
from bitsandbytes.nn.parametrize import replace_parameter_4bit
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BLOCKS = [32, 64, 128, 256, 512, 1024, 2048, 4096]
ISAS = ["scalar", "avx2", "avx512"]  # a machine that lacks one takes the best it has
AVX512 = torch.backends.cpu.get_cpu_capability() == "AVX512"

# Architectures whose checkpoints are compared as whole files, and what their configuration needs beside the sizes.
SMALL_EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=40)
ARCHITECTURES = {
    "llama": dict(attention_bias=True, mlp_bias=True), "qwen2": {}, "qwen3": {}, "mistral": {}, "gemma": {}, "gemma2": {},
    "gemma3_text": {}, "phi": {}, "phi3": {}, "smollm3": {}, "olmo": {}, "olmo2": {}, "olmo3": {},
    "granite": dict(attention_bias=True, mlp_bias=True), "cohere": {}, "cohere2": {}, "stablelm": dict(use_qkv_bias=True),
    "starcoder2": {}, "helium": {}, "glm": {}, "glm4": {}, "exaone4": {}, "ernie4_5": dict(use_bias=True), "gpt_neox": {},
    "gptj": {}, "bloom": {}, "opt": {}, "nemotron": {}, "seed_oss": {}, "arcee": {}, "apertus": {}, "lfm2": {},
    "hunyuan_v1_dense": {}, "persimmon": {}, "mamba": {}, "falcon_h1": {}, "qwen3_5_text": {}, "jamba": {},
    "mixtral": dict(num_local_experts=4), "olmoe": dict(num_experts=4), "qwen3_moe": SMALL_EXPERTS,
    "gpt_oss": dict(num_local_experts=3, num_experts_per_tok=2),
}


# ---- making and judging checkpoints ----

def sizes(room, wide=False):
    """Of a small model. Rows of no multiple of any block, or (wide) of 64."""
    hidden = 64 * room.random.choice([1, 2]) if wide else 4 * room.random.choice([14, 18, 22, 26])
    intermediate = 64 * room.random.choice([2, 3]) if wide else room.random.choice([134, 136, 177, 201])
    return dict(hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                head_dim=hidden // 4, vocab_size=room.random.choice([257, 331, 420]), max_position_embeddings=64, pad_token_id=0,
                bos_token_id=1, eos_token_id=2)


def save_model(room, name, kind, dtype, tied=None, shard="5GB", wide=False):
    """A folder that transformers saved: random weights, each tensor with its own spread."""
    tied = room.random.random() < 0.5 if tied is None else tied
    config = AutoConfig.for_model(kind, **sizes(room, wide), tie_word_embeddings=tied, **ARCHITECTURES[kind])
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data = room.normal(*parameter.shape) * 10 ** room.random.uniform(-2.5, -0.5)
    model.to(dtype).save_pretrained(room.folder / name, max_shard_size=shard)
    return room.folder / name


def upstream_quantize(room, source, name, **settings):
    """What transformers + bitsandbytes make of a folder."""
    model = AutoModelForCausalLM.from_pretrained(source, quantization_config=BitsAndBytesConfig(**settings), device_map="cpu")
    model.save_pretrained(room.folder / name)
    return room.folder / name


def four_bit(kind="nf4", nested=False, compute="bf16", **more):
    return dict(load_in_4bit=True, bnb_4bit_quant_type=kind, bnb_4bit_use_double_quant=nested, bnb_4bit_compute_dtype=FLOATS[compute], **more)


def save_packed(room, name, tensors, method="bitsandbytes"):
    """A folder with these tensors and a config that says they are packed."""
    folder = room.folder / name
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    settings = BitsAndBytesConfig(**four_bit()).to_dict() if method == "bitsandbytes" else {"quant_method": method}
    (folder / "config.json").write_text(json.dumps({"architectures": ["Some"], "model_type": "some", "quantization_config": settings}))
    return folder


def state_of(tensors, name):
    """bitsandbytes' own reading of the entries beside a packed weight."""
    entries = {k[len(name) + 1:]: v.clone() for k, v in tensors.items() if k.startswith(name + ".")}
    return bnb.QuantState.from_dict(entries, device=torch.device("cpu"))


def scales_of(state):
    return bnb.dequantize_blockwise(state.absmax, state.state2) + state.offset if state.nested else state.absmax


def upstream_decode(packed, state, dtype):
    flat = _dequantize_4bit_compute(raw(packed), scales_of(state), bnb.get_4bit_type(state.quant_type, device="cpu"), state.blocksize,
                                    (math.prod(state.shape),), dtype)
    return flat.reshape(state.shape)


def packed_names(tensors):
    return sorted(k.split(".quant_state.")[0] for k in tensors if ".quant_state.bitsandbytes__" in k)


def compare_decoded(room, folder, stored, isas=(None,)):
    """dequantize to every dtype against bitsandbytes, for each packed weight of a folder."""
    states = {name: state_of(stored, name) for name in packed_names(stored)}
    for dtype, target in FLOATS.items():
        theirs = {name: upstream_decode(stored[name], state, target) for name, state in states.items()}
        for isa in isas:
            room.remove("decoded")
            room.nibble("dequantize", folder, room.folder / "decoded", "--dtype", dtype, isa=isa)
            ours = tensors_of(room.folder / "decoded")
            for name, state in states.items():
                what = f"{name} ({state.quant_type}, block {state.blocksize}, shape {list(state.shape)}, stored as {stored[name].dtype}, " \
                       f"{'nested' if state.nested else 'flat'}) to {dtype}{' with ' + isa if isa else ''}"
                if room.expect(name in ours, f"{what}: missing"):
                    equal = same(ours[name], theirs[name], zeros=state.quant_type == "nf4")  # FP4: upstream's backends differ in the sign of zero
                    room.expect(equal, lambda: f"{what}: {how_different(ours[name], theirs[name])}")


# ---- quantize: whole files ----

@check
def whole_files_are_transformers_own(room):
    """nf4, flat, from 16-bit weights: every file of the folder is byte for byte what transformers + bitsandbytes save."""
    for kind, tied in ((kind, tied) for kind in ARCHITECTURES for tied in (False, True)):
        # transformers keeps some of GPT-OSS's f16 tensors in f32: there the source itself would be changed
        dtype, compute = "bf16" if kind == "gpt_oss" else room.random.choice(["f16", "bf16"]), room.random.choice(list(FLOATS))
        source = save_model(room, "source", kind, FLOATS[dtype], tied, shard=room.random.choice(["5GB", "40KB"]))
        theirs = upstream_quantize(room, source, "theirs", **four_bit(compute=compute))
        room.nibble("quantize", source, room.folder / "ours", "--format", "nf4", "--compute-dtype", compute, "--threads",
                    room.random.choice([1, 2, 3]), isa=room.random.choice(ISAS))
        what = f"{kind} ({dtype}, {'tied' if tied else 'untied'})"
        fault = what_differs(room.folder / "ours", theirs)
        room.expect(not fault, f"{what}: {fault}")
        parameters = sum(t.numel() for t in tensors_of(source).values())
        for folder in (source, room.folder / "ours"):
            told = room.json("inspect", folder)[0]
            room.expect(told["parameters"] == parameters and told["problems"] == [],
                        f"{what}: inspect counts {told['parameters']} parameters of {parameters}; problems {told['problems']}")
        room.remove("source", "theirs", "ours")


@check
def whole_files_from_f32_are_transformers_own(room):
    """The same from f32, where no weight ends in the middle of a block: there CPU bitsandbytes divides instead of multiplying."""
    for kind in ("llama", "qwen3", "gemma2", "phi3", "granite", "olmoe"):
        source = save_model(room, "source", kind, torch.float32, wide=True)
        theirs = upstream_quantize(room, source, "theirs", **four_bit())
        room.nibble("quantize", source, room.folder / "ours", "--format", "nf4", isa=room.random.choice(ISAS))
        fault = what_differs(room.folder / "ours", theirs)
        room.expect(not fault, f"{kind}: {fault}")
        room.remove("source", "theirs", "ours")


@check
def int8_files_are_transformers_own(room):
    """int8 from every dtype: byte for byte as well. torch computes 127 / max as 127 times the rounded reciprocal; so does CUDA, but for
    the reciprocal's last bit."""
    for kind in ("llama", "qwen2", "gemma3_text", "phi3", "gpt_neox", "mixtral", "opt"):
        dtype = room.random.choice(list(FLOATS))
        source = save_model(room, "source", kind, FLOATS[dtype])
        theirs = upstream_quantize(room, source, "theirs", load_in_8bit=True)
        room.nibble("quantize", source, room.folder / "ours", "--format", "int8", isa=room.random.choice(ISAS))
        fault = what_differs(room.folder / "ours", theirs)
        room.expect(not fault, f"{kind} ({dtype}): {fault}")
        room.remove("source", "theirs", "ours")


@check
def other_formats_have_transformers_skeleton(room):
    """fp4 and double quantisation: config.json to the byte; names, dtypes and shapes; packed nf4 codes; scales no worse than upstream's."""
    for kind in ("llama", "qwen3", "olmo2", "starcoder2"):
        for fmt, nested in (("nf4", True), ("fp4", False), ("fp4", True)):
            dtype = room.random.choice(["f16", "bf16"])
            source = save_model(room, "source", kind, FLOATS[dtype])
            theirs = upstream_quantize(room, source, "theirs", **four_bit(fmt, nested))
            room.nibble("quantize", source, room.folder / "ours", "--format", fmt, "--compute-dtype", "bf16", *(["--double"] if nested else []))
            a, b, plain = tensors_of(room.folder / "ours"), tensors_of(theirs), tensors_of(source)
            what = f"{kind} {fmt}{' nested' if nested else ''}"
            for file in ("config.json", "generation_config.json"):
                room.expect(files_of(room.folder / "ours")[file] == files_of(theirs)[file], f"{what}: {file} differs")
            described = [{k: (v.dtype, v.shape if ".quant_state." not in k else None) for k, v in t.items()} for t in (a, b)]
            room.expect(described[0] == described[1], f"{what}: names, dtypes or shapes differ")
            for name in packed_names(b):
                if fmt == "nf4":
                    room.expect(same(a[name], b[name]), lambda: f"{what}: codes of {name}: {how_different(a[name], b[name])}")
                room.expect(same(a[name + ".quant_map"], b[name + ".quant_map"]), f"{what}: table of {name} differs")
                exact = bnb.quantize_4bit(plain[name], quant_type=fmt)[1].absmax.double()
                ours, other = ((scales_of(state_of(t, name)).double() - exact).abs() for t in (a, b))
                room.expect(bool((ours <= other + exact.abs() * 2.0 ** -21).all()), f"{what}: scales of {name} are further off than upstream's")
                if not nested:
                    ours, other = ((upstream_decode(t[name], state_of(t, name), torch.float32) - plain[name].float()).abs() for t in (a, b))
                    room.expect(bool((ours <= other + exact.max() * 2.0 ** -20).all()), f"{what}: {name} is further off than upstream's")
            room.remove("source", "theirs", "ours")


@check
def states_are_spelt_as_python_spells_them(room):
    """The JSON of nested states: bitsandbytes' keys in its order, numbers as Python prints them; offsets from 1e-44 to 1e37."""
    weights = {f"model.layers.{i}.mlp.up_proj.weight": room.normal(room.random.randrange(1, 5), 64) * 10 ** room.random.uniform(-44, 37) for i in range(150)}
    source, ours = room.folder / "source", room.folder / "ours"
    source.mkdir()
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    (source / "config.json").write_text('{"model_type": "llama"}')
    room.nibble("quantize", source, ours, "--format", "nf4", "--double", "--block", room.random.choice(BLOCKS))
    stored = tensors_of(ours)
    for name, weight in weights.items():
        text = bytes(stored[name + ".quant_state.bitsandbytes__nf4"].tolist()).decode()
        block = json.loads(text)["blocksize"]
        state = bnb.quantize_4bit(weight, blocksize=block, quant_type="nf4", compress_statistics=True)[1]
        theirs = json.loads(bytes(state.as_dict(packed=True)["quant_state.bitsandbytes__nf4"].tolist()))
        offset = json.loads(text)["nested_offset"]
        room.expect(text == json.dumps(theirs | {"nested_offset": offset}), f"{text} instead of {json.dumps(theirs)}")
        largest = weight.abs().max().item()
        room.expect(torch.tensor(offset).item() == offset, f"the offset {offset!r} is no f32")
        room.expect(abs(offset - theirs["nested_offset"]) <= 2.0 ** -21 * largest + 1e-37, f"the offset {offset!r} instead of {theirs['nested_offset']!r}")


@check
def shards_are_what_safetensors_writes(room):
    """--shard-size: each file is what safetensors.save_file makes of its tensors; together they are the unsharded file."""
    source = save_model(room, "source", "qwen2", torch.bfloat16)
    for fmt in ("nf4", "fp4", "int8"):
        room.nibble("quantize", source, room.folder / "whole", "--format", fmt)
        whole = tensors_of(room.folder / "whole")
        for size in ("9K", "40K", str(room.random.randrange(5000, 90000))):
            room.nibble("quantize", source, room.folder / "parts", "--format", fmt, "--shard-size", size)
            index = json.loads((room.folder / "parts/model.safetensors.index.json").read_text())
            found = {}
            for file in sorted((room.folder / "parts").glob("*.safetensors")):
                tensors = tensors_of(file)
                found |= {name: file.name for name in tensors}
                save_file(tensors, room.folder / "again", metadata={"format": "pt"})
                room.expect(file.read_bytes() == (room.folder / "again").read_bytes(), f"{fmt} --shard-size {size}: {file.name} is laid out differently")
                room.expect(all(same(t, whole[name]) for name, t in tensors.items()), f"{fmt} --shard-size {size}: {file.name} holds other values")
            room.expect(index["weight_map"] == found and set(found) == set(whole), f"{fmt} --shard-size {size}: the index is wrong")
            total = sum(t.numel() * t.element_size() for t in whole.values())
            room.expect(index["metadata"]["total_size"] == total, f"{fmt} --shard-size {size}: total_size is {index['metadata']['total_size']}, not {total}")
            room.remove("parts")
        room.remove("whole")


@check
def folders_come_back_byte_for_byte(room):
    """A folder saved by transformers + bitsandbytes, dequantised and quantised again, is the same in every file; the folder between has
    the config of the one it was made from, and is laid out as safetensors lays it out. nf4 through its dtype, int8 through f32."""
    for kind in ("llama", "qwen3", "gemma2", "glm4", "phi", "smollm3"):
        for fmt in ("nf4", "int8"):
            dtype = room.random.choice(["f16", "bf16"]) if fmt == "nf4" else "f32"
            source = save_model(room, "source", kind, FLOATS[dtype])
            theirs = upstream_quantize(room, source, "theirs", **(four_bit() if fmt == "nf4" else dict(load_in_8bit=True)))
            room.nibble("dequantize", theirs, room.folder / "plain", "--dtype", dtype)
            room.nibble("quantize", room.folder / "plain", room.folder / "again", "--format", fmt)
            fault = what_differs(room.folder / "again", theirs)
            room.expect(not fault, f"{kind} {fmt} ({dtype}): {fault}")
            between, before = files_of(room.folder / "plain"), files_of(source)
            room.expect(set(between) == set(before), f"{kind} {fmt}: dequantised files {sorted(set(between) ^ set(before))}")
            for file in set(between) - {"model.safetensors"}:
                room.expect(between[file] == before[file], f"{kind} {fmt}: dequantised {file} differs")
            save_file(tensors_of(room.folder / "plain"), room.folder / "again.safetensors", metadata={"format": "pt"})
            room.expect(between["model.safetensors"] == (room.folder / "again.safetensors").read_bytes(), f"{kind} {fmt}: dequantised weights are laid out differently")
            room.remove("source", "theirs", "plain", "again")


# ---- dequantize: 4-bit ----

@check
def every_storage_dtype_reads(room):
    """Folders saved by transformers with each bnb_4bit_quant_storage, nested and flat."""
    storages = [torch.uint8, torch.int8, torch.float16, torch.bfloat16, torch.float32, torch.float64]
    source = save_model(room, "source", "llama", torch.bfloat16, wide=True)
    for storage in storages:
        kind, nested = room.random.choice([("nf4", True), ("nf4", False), ("fp4", True), ("fp4", False)])
        theirs = upstream_quantize(room, source, "theirs", **four_bit(kind, nested, bnb_4bit_quant_storage=storage))
        stored = tensors_of(theirs)
        room.expect(all(stored[n].dtype == storage for n in packed_names(stored)), f"transformers did not store as {storage}")
        compare_decoded(room, theirs, stored)
        room.remove("theirs")


def add_packed(tensors, name, weight, block, kind, nested, storage=torch.uint8):
    packed, state = bnb.quantize_4bit(weight, blocksize=block, quant_type=kind, compress_statistics=nested, quant_storage=storage)
    tensors[name] = packed
    tensors.update({f"{name}.{k}": v.clone() for k, v in state.as_dict(packed=True).items()})


@check
def every_block_and_shape_reads(room):
    """Weights straight from bitsandbytes' quantiser: blocks 32 to 4096, fewer values than a block, odd counts, ranks 1 to 4, tiny and huge values."""
    tensors = {}
    fixed = [(1, 1), (3,), (1, 3), (31,), (1, 33), (7, 9), (2, 3, 5), (4, 64), (129, 65), (3, 20, 17), (2, 3, 4, 7), (70000,), (257, 259)]
    for block in BLOCKS:
        for kind in ("nf4", "fp4"):
            for nested in (False, True):
                shapes = room.random.sample(fixed, 3) + [(room.random.randrange(1, 80), room.random.randrange(1, 200))]
                shapes.append((room.random.choice([block - 1, block, block + 1]),))
                for shape in shapes:
                    # The mean of nested scales must not overflow: upstream would write Infinity for the offset.
                    spread = 10.0 ** room.random.choice([-36, -30, -6, -1, 0, 4, 30, 30 if nested else 37])
                    dtype = room.random.choice(list(FLOATS.values())) if 1e-3 < spread < 1e3 else torch.float32
                    weight = (room.normal(*shape) * spread).to(dtype)
                    fitting = [s for s in (torch.uint8, torch.int8, torch.bfloat16, torch.float32, torch.float64)
                               if (weight.numel() + 1) // 2 % s.itemsize == 0 and weight.numel() > 2 * s.itemsize]
                    add_packed(tensors, f"weight.{len(tensors)}", weight, block, kind, nested, room.random.choice(fitting or [torch.uint8]))
    compare_decoded(room, save_packed(room, "packed", tensors), tensors, ISAS)


@check
def fused_experts_read(room):
    """Three-dimensional parameters quantised by bitsandbytes' parametrisation, as its module writes them."""
    tensors = {}
    for number, nested in enumerate((False, True)):
        experts = torch.nn.Module()
        for name in ("gate_up_proj", "down_proj"):
            shape = [room.random.randrange(2, 5), room.random.randrange(3, 40), room.random.randrange(3, 40)]
            experts.register_parameter(name, torch.nn.Parameter(room.normal(*shape).to(torch.bfloat16)))
            replace_parameter_4bit(experts, name, compress_statistics=nested, quant_type=room.random.choice(["nf4", "fp4"]),
                                   blocksize=room.random.choice(BLOCKS[:4]))
        tensors |= {f"model.layers.{number}.mlp.experts.{k}": v.clone() for k, v in experts.state_dict().items()}
    room.expect(len(packed_names(tensors)) == 4 and all(len(state_of(tensors, n).shape) == 3 for n in packed_names(tensors)), "upstream's names changed")
    compare_decoded(room, save_packed(room, "packed", tensors), tensors)


@check
def extreme_scales_decode(room):
    """Scales whose products overflow or vanish in f16, bf16 or f32, are negative, infinite or NaN; every code in every block."""
    edges = [0.0, -0.0, 1e-45, -1e-45, 3e-42, 1.1e-38, 1.2e-38, 1e-36, 2.9e-8, 6e-8, 1e-7, 5e-6, 6.1e-5, 65503.0, 65504.0, 65519.9, 65520.0,
             9e4, 2e5, 1e30, 3.3e38, 3.4028235e38, math.inf, -math.inf, math.nan, -1.0, -2.5e-7, -7e4, 1.0]
    tensors = {}
    for kind in ("nf4", "fp4"):
        for block in (32, 64, 1024):
            scales = torch.tensor(edges + [room.random.choice([-1, 1]) * 10 ** room.random.uniform(-45, 38) for _ in range(67)])
            packed = room.bytes(len(scales) * block // 2, 1)
            packed.view(-1, block // 2)[:, :16] = torch.arange(16) * 17  # each code twice in a row
            state = bnb.QuantState(absmax=scales, shape=torch.Size((len(scales) // 2, 2 * block)), code=bnb.get_4bit_type(kind, device="cpu"),
                                   blocksize=block, quant_type=kind, dtype=torch.float32)
            name = f"{kind}.{block}.weight"
            tensors[name] = packed
            tensors.update({f"{name}.{k}": v.clone() for k, v in state.as_dict(packed=True).items()})
    compare_decoded(room, save_packed(room, "packed", tensors), tensors, ISAS)


@check
def extreme_nested_scales_decode(room):
    """Nested scales: every code, offsets tiny, huge and negative, sums that cancel or turn negative, other nested tables and block sizes."""
    tensors = {}
    for number in range(24):
        kind, block, nested_block = room.random.choice(["nf4", "fp4"]), room.random.choice([32, 64, 256]), room.random.choice([64, 256, 256, 1024])
        blocks = room.random.choice([1, 255, 256, 257, 600])
        n = blocks * block - room.random.randrange(block)
        table = bnb.create_dynamic_map() if number % 3 else (room.normal(256) * 0.5).sort().values
        spread = 10.0 ** room.random.choice([-40, -30, -4, 0, 4, 30, 37])
        offset = room.random.choice([-1, 1]) * 10 ** room.random.uniform(-44, 38) if number % 2 else spread * room.random.uniform(-1, 1)
        codes = torch.arange(blocks).to(torch.uint8) if blocks < 600 else room.bytes(blocks)
        inner = bnb.QuantState(absmax=room.normal(-(-blocks // nested_block)).abs() * spread, code=table, blocksize=nested_block, dtype=torch.float32)
        state = bnb.QuantState(absmax=codes, shape=torch.Size((n,)), code=bnb.get_4bit_type(kind, device="cpu"), blocksize=block, quant_type=kind,
                               dtype=torch.bfloat16, offset=torch.tensor(offset, dtype=torch.float32), state2=inner)
        name = f"number.{number}.weight"
        tensors[name] = room.bytes((n + 1) // 2, 1)
        tensors.update({f"{name}.{k}": v.clone() for k, v in state.as_dict(packed=True).items()})
    compare_decoded(room, save_packed(room, "packed", tensors), tensors, ISAS)


# ---- int8 ----

@check
def int8_rows_at_the_edges(room):
    """Zero rows, one huge value, the smallest f16, f32 values that f16 cannot hold: as bitsandbytes. NaN: the CUDA rule.

    A value beyond f16 becomes an infinity there. CPU bitsandbytes then stores the scale inf and only zeros, as CUDA does.
    A NaN makes the whole row NaN on CPUs; on CUDA it is left out of the scale and its own code is 0."""
    for dtype in FLOATS:
        source = save_model(room, "source", "llama", FLOATS[dtype])
        tensors = tensors_of(source)
        name = "model.layers.0.mlp.gate_proj"
        weight = tensors[name + ".weight"]
        columns = weight.shape[1]
        weight[0] = 0
        weight[1, room.random.randrange(columns)] = 60000
        weight[2] = 0
        weight[2, 3] = 6e-8
        weight[3] = weight[3] * 1e-4
        weight[4, 1], weight[4, 2] = 65504, -65504
        weight[5] = torch.linspace(-127, 127, columns).round().to(weight.dtype) + 0.5  # ties
        if dtype != "f16":
            weight[6, 5], weight[7, 0] = 1e6, 65520
        weight[8, 7] = -math.inf
        save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
        codes, scales, _ = bnb.int8_vectorwise_quant(weight.half())
        for isa in ISAS:
            room.nibble("quantize", source, room.folder / "ours", "--format", "int8", isa=isa)
            ours = tensors_of(room.folder / "ours")
            room.expect(same(ours[name + ".SCB"], scales), lambda: f"{dtype} {isa}: scales: {how_different(ours[name + '.SCB'], scales)}")
            room.expect(same(ours[name + ".weight"], codes), lambda: f"{dtype} {isa}: codes: {how_different(ours[name + '.weight'], codes)}")
            for to, target in FLOATS.items():
                room.remove("decoded")
                room.nibble("dequantize", room.folder / "ours", room.folder / "decoded", "--dtype", to, isa=isa)
                got, want = tensors_of(room.folder / "decoded")[name + ".weight"], bnb.int8_vectorwise_dequant(codes, scales).to(target)
                room.expect(same(got, want), lambda: f"{dtype} {isa} to {to}: {how_different(got, want)}")
            room.remove("ours")
        bad = weight.clone()
        bad[9, 2] = math.nan
        save_file({**tensors, name + ".weight": bad}, source / "model.safetensors", metadata={"format": "pt"})
        room.nibble("quantize", source, room.folder / "ours", "--format", "int8")
        ours = tensors_of(room.folder / "ours")
        rest = weight.half()
        rest[9, 2] = 0
        codes, scales, _ = bnb.int8_vectorwise_quant(rest)
        room.expect(same(ours[name + ".SCB"], scales) and same(ours[name + ".weight"], codes), f"{dtype}: a NaN is not left out")
        room.remove("source", "ours")


# ---- mxfp4 ----

@check
def every_mxfp4_code_and_scale_decodes(room):
    """16 codes x 256 scales in each dtype against transformers' decoder; e = 255 gives infinities and NaN."""
    blocks = torch.stack([torch.arange(16), (torch.arange(16) * 7 + 3) % 16], 1)
    blocks = (blocks[:, 0] | blocks[:, 1] << 4).to(torch.uint8).expand(4, 8, 8, 16).contiguous()
    scales = torch.arange(256, dtype=torch.uint8).reshape(4, 8, 8)
    scales = scales.view(-1)[torch.randperm(256, generator=room.noise)].reshape(4, 8, 8)
    ragged = room.bytes(3, 37, 5, 16), room.bytes(3, 37, 5)
    at = "model.layers.0.mlp.experts."
    tensors = {at + "gate_up_proj_blocks": blocks, at + "gate_up_proj_scales": scales, at + "down_proj_blocks": ragged[0],
               at + "down_proj_scales": ragged[1]}
    folder = save_packed(room, "packed", tensors, "mxfp4")
    for isa in ISAS:
        for dtype, target in FLOATS.items():
            room.nibble("dequantize", folder, room.folder / "decoded", "--dtype", dtype, isa=isa)
            ours = tensors_of(room.folder / "decoded")
            for name in ("gate_up_proj", "down_proj"):
                theirs = convert_moe_packed_tensors(tensors[at + name + "_blocks"], tensors[at + name + "_scales"], dtype=target)
                room.expect(same(ours[at + name], theirs), lambda: f"{isa} to {dtype}: {name}: {how_different(ours[at + name], theirs)}")
            room.remove("decoded")


@check
def mxfp4_codes_follow_the_ocp_rule(room):
    """Experts in each dtype: shared exponent floor(log2 max) - 2, nearest code, ties to even; decoded by transformers, no error is
    larger than with any smaller scale, nor is a code further off than any other of the 16."""
    grid = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    better = blocks_seen = 0
    for dtype, target in FLOATS.items():
        experts, ins, outs = 2, 32 * room.random.randrange(1, 5), 2 * room.random.randrange(8, 40)
        values = room.normal(experts, ins, outs) * 10.0 ** torch.empty(experts, 1, outs).uniform_(-4, 4, generator=room.noise)
        values[0, :, 0] = 0
        values[0, :, 1] = -0.0
        values[0, :, 2] *= 1e-40
        values[0, :, 3] *= 1e30 if dtype != "f16" else 1
        values[0, :, 4] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 7]).repeat(ins // 8)  # ties
        values[0, :, 5] = -values[0, :, 4]
        values[0, :, 6] = 2.0 ** -130
        values = values.clamp(-6e4, 6e4).to(target) if dtype == "f16" else values.to(target)
        source, name, ours = room.folder / "source", "model.layers.0.mlp.experts.down_proj", []
        source.mkdir()
        save_file({name: values}, source / "model.safetensors", metadata={"format": "pt"})
        (source / "config.json").write_text('{"model_type": "gpt_oss"}')
        for isa in ISAS:
            room.nibble("quantize", source, room.folder / "ours", "--format", "mxfp4", isa=isa)
            ours.append(tensors_of(room.folder / "ours"))
            room.remove("ours")
        room.expect(all(same(o[name + part], ours[0][name + part]) for o in ours for part in ("_blocks", "_scales")), f"{dtype}: instruction sets differ")
        x = values.double().transpose(1, 2).unflatten(-1, (-1, 32))
        most = x.abs().amax(-1)
        exponent = torch.where(most > 0, torch.frexp(most)[1].double() - 1 - 2, -127.0).clamp(-127, 127)
        scales = ours[0][name + "_scales"]
        room.expect(torch.equal(scales.double() - 127, exponent), lambda: f"{dtype}: scales: {how_different(scales.double() - 127, exponent)}")
        y = x.abs() / torch.exp2(exponent)[..., None]
        ties = [(y > .25), (y >= .75), (y > 1.25), (y >= 1.75), (y > 2.5), (y >= 3.5), (y > 5)]
        codes = sum(t.to(torch.uint8) for t in ties) | torch.signbit(x).to(torch.uint8) << 3
        packed = codes[..., 0::2] | codes[..., 1::2] << 4
        room.expect(same(ours[0][name + "_blocks"], packed), lambda: f"{dtype}: codes: {how_different(ours[0][name + '_blocks'], packed)}")
        decoded = convert_moe_packed_tensors(ours[0][name + "_blocks"], scales, dtype=torch.float32)
        off = (decoded.double().transpose(1, 2).unflatten(-1, (-1, 32)) - x).abs()

        def error_at(shift):
            unit = torch.exp2((exponent + shift).clamp(-127, 127))[..., None]
            return ((x.abs() / unit)[..., None] - grid).abs().amin(-1) * unit
        room.expect(bool((off <= error_at(0) * (1 + 1e-12)).all()), f"{dtype}: a code is not the nearest")
        for shift in (-1, -2, -3):
            room.expect(bool((off.amax(-1) <= error_at(shift).amax(-1) * (1 + 1e-12)).all()), f"{dtype}: a scale 2^{shift} smaller would be better")
        better += int((error_at(1).square().sum(-1) < off.square().sum(-1)).sum())
        blocks_seen += most.numel()
        room.remove("source")
    room.notes.append(f"the next larger scale would have a smaller squared error in {100 * better / blocks_seen:.0f} % of the blocks")


# ---- safetensors ----

DTYPE_BITS = {"F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
              "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I8": 8, "U8": 8, "BOOL": 8,
              "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}


def random_file(room, count, entries=()):
    """Header and data of a valid file: random dtypes, shapes (scalars and empty ones too) and order, plus given (name, dtype, shape, bytes)."""
    items = list(entries)
    for number in range(count):
        dtype = room.random.choice(list(DTYPE_BITS))
        shape = [room.random.choice([0, 1, 2, 3, 5, 8, 16]) for _ in range(room.random.randrange(5))]
        if math.prod(shape) * DTYPE_BITS[dtype] % 8:
            shape = [8]
        name = room.random.choice(["a", "ключ", "a b", "x/y", 'quote"', "back\\slash", "tab\t", "", "🤗"]) + f".{number}"
        data = bytes(room.bytes(math.prod(shape) * DTYPE_BITS[dtype] // 8).tolist())
        if dtype == "BOOL":
            data = bytes(b & 1 for b in data)
        items.append((name, dtype, shape, data))
    room.random.shuffle(items)
    header, at = {}, 0
    for name, dtype, shape, data in items:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    listed = list(header.items())
    room.random.shuffle(listed)
    return dict(listed), b"".join(data for *_, data in items)


def join_file(header, data, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def upstream_reads(data):
    """What safetensors makes of a file's bytes, or None when it refuses them."""
    try:
        return {name: (t["dtype"], list(t["shape"]), bytes(t["data"])) for name, t in safetensors.deserialize(data)}
    except safetensors.SafetensorError:
        return None


@check
def foreign_tensors_pass_through(room):
    """Random valid files with every dtype, unaligned and in any order: all but the quantised weight come out with the same bytes."""
    for turn in range(30):
        rows, columns = room.random.randrange(1, 40), room.random.randrange(1, 90)
        kind, target = room.random.choice([("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)])
        weight = room.normal(rows, columns).to(target)
        name = "model.layers.0.self_attn.q_proj.weight"
        header, data = random_file(room, 14, [(name, kind, [rows, columns], bytes(raw(weight).tolist()))])
        folder = room.folder / f"source-{turn}"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(join_file(header, data))
        (folder / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
        before = upstream_reads((folder / "model.safetensors").read_bytes())
        if not room.expect(before is not None, "safetensors refuses a file that this test takes for valid"):
            continue
        block = room.random.choice(BLOCKS)
        room.nibble("quantize", folder, room.folder / f"out-{turn}", "--format", "nf4", "--block", block)
        after = upstream_reads((room.folder / f"out-{turn}/model.safetensors").read_bytes())
        if not room.expect(after is not None, "safetensors refuses what nibble wrote"):
            continue
        for key in set(before) - {name}:
            room.expect(after.get(key) == before[key], f"{key!r} ({before[key][:2]}) changed")
        ours = tensors_of_known(room.folder / f"out-{turn}/model.safetensors", name)
        packed, state = bnb.quantize_4bit(weight, blocksize=block, quant_type="nf4")
        room.expect(target == torch.float32 or same(ours[name], packed), lambda: f"{kind} {rows}x{columns} at an odd place: {how_different(ours[name], packed)}")
        room.expect(same(ours[name + ".absmax"], state.absmax), f"{kind} {rows}x{columns} at an odd place: scales differ")


def tensors_of_known(file, prefix):
    """Only tensors under this name: torch has no dtype for some of the others."""
    with safetensors.safe_open(file, "pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys() if name.startswith(prefix)}


def damaged_header(room, header, size):
    """The header with one thing wrong, unusual or merely different; as text."""
    header = {name: dict(entry, shape=list(entry["shape"]), data_offsets=list(entry["data_offsets"])) for name, entry in header.items()}
    choose = room.random.choice
    name = choose(list(header))
    entry = header[name]
    shape, offsets = entry["shape"], entry["data_offsets"]

    def number():
        return choose([0, 1, 2, -1, 7, size, size + 1, 2 ** 31, 2 ** 53 + 1, 2 ** 62, 2 ** 63, 2 ** 64 - 1, 2 ** 64, 10 ** 30])

    def odd():
        return choose([None, True, "", "4", 1.0, 0.5, -1, [], {}, [[]], 1e300, number()])

    def spelling(text):
        return text.replace(*choose([("0", "00"), ("1", "+1"), ("0,", "-0,"), ("{", "{,"), (":", ":,"), ("]", ",]"), ('"dtype"', "dtype"), ('"', "'"),
                                     ('"dtype"', '"dtyp\\u0065"'), ("[", "[ \n"), ("2", "2e0"), ("3", "3.0")]), 1)

    of_values = [
        lambda: entry.update(dtype=choose([*DTYPE_BITS, "f32", "F128", "BF8", "", "F8_E4M3 "])),
        lambda: entry.update(dtype=odd()),
        lambda: shape.append(choose([0, 1, 2])),
        lambda: shape.insert(0, number()),
        lambda: entry.update(shape=odd()),
        lambda: shape.__setitem__(slice(0, 1), [odd()]),
        lambda: offsets.__setitem__(choose([0, 1]), offsets[0] + choose([-8, -1, 1, 8])),
        lambda: offsets.__setitem__(choose([0, 1]), number()),
        lambda: entry.update(data_offsets=choose([odd(), offsets[:1], offsets + [0], offsets[::-1]])),
        lambda: entry.update(data_offsets=list(header[choose(list(header))]["data_offsets"])),
        lambda: entry.pop(choose(["dtype", "shape", "data_offsets"])),
        lambda: entry.update({choose(["extra", "Dtype", "strides"]): odd()}),
        lambda: header.update({name: odd()}),
        lambda: header.update(new={"dtype": "F32", "shape": choose([[0], [0, 3], [1], []]), "data_offsets": [choose([0, size, size + 1])] * 2}),
        lambda: header.pop(name),
        lambda: header.update(__metadata__=choose([{}, {"format": "pt"}, {"a": "ü", "b": ""}, {"a": 1}, {"a": None}, [], "text", None, 5])),
    ]
    of_text = [
        lambda text: choose([" ", "\n", "\ufeff", "x"]) + text,
        lambda text: text + choose([" ", "   \n", "\t\r\n", "\0", "x", "{}", ","]),
        lambda text: text[:-choose([1, 2, 3])],
        lambda text: choose(["[]", '"text"', "5", "null", "{}", f"[{text}]"]),
        spelling,
    ]
    change = choose(of_values + of_text)
    if change in of_values:
        change()
    text = json.dumps(header, ensure_ascii=choose([True, False]), separators=choose([(", ", ": "), (",", ":"), ("\n,", "\t:")]))
    return (change(text) if change in of_text else text).encode()


# Where nibble is stricter than safetensors' reader, by what it says.
STRICTER = {"is there twice": "a repeated key", "dimensions, at most": "more than 8 dimensions",
            "the header is not a JSON object": "space before the header, which the format rules out",
            "its shape is not a list of sizes, or overflows": "an empty tensor with a dimension of 2^62 or more"}


@check
def safetensors_and_nibble_accept_the_same_files(room):
    """Damaged and merely unusual headers, lengths and data: nibble refuses what safetensors refuses and reads what it reads.
    STRICTER has the exceptions."""
    accepted = refused = 0
    file = room.folder / "damaged.safetensors"
    for turn in range(2000):
        header, data = random_file(room, room.random.randrange(1, 6))
        how = turn % 10
        if how < 7:
            whole = join_file(damaged_header(room, header, len(data)), data)
        elif how == 7:
            text = json.dumps(header).encode()
            whole = join_file(text, data, room.random.choice([0, 1, 2, len(text) - 1, len(text) + 1, len(text) + len(data), 100000001, 2 ** 63, 2 ** 64 - 1]))
        elif how == 8:
            whole = join_file(header, room.random.choice([data + b"\0", data[:-1], data + data, b""]))
            whole = whole[:room.random.randrange(len(whole))] if room.random.random() < 0.5 else whole
        else:
            whole = bytearray(join_file(header, data))
            for _ in range(room.random.choice([1, 1, 2, 5])):
                whole[room.random.randrange(8, len(whole) - len(data))] = room.random.choice(b'0123456789",:[]{}eE-+.\\ntu\0\xff')
            whole = bytes(whole)
        theirs = upstream_reads(whole)
        file.write_bytes(whole)
        done = room.call("inspect", file, "--json", "--tensors")
        document = json.loads(done.stdout)
        ours = done.returncode == 0 and document["problems"] == []
        length = struct.unpack("<Q", whole[:8])[0] if len(whole) >= 8 else 0
        shown = whole[8:8 + min(length, 600)]
        if ours:
            accepted += 1
            described = {t["name"]: t["shape"] for t in document["tensors"]}
            room.expect(theirs is not None, f"nibble reads what safetensors refuses: length {length}, {shown!r}, {len(whole)} bytes")
            room.expect(theirs is None or described == {n: shape for n, (_, shape, _) in theirs.items()}, f"nibble reads something else in {shown!r}")
        else:
            refused += 1
            message = document.get("error", {}).get("message", "") or "; ".join(document.get("problems", []))
            known = any(words in message for words in STRICTER)
            room.expect(theirs is None or known, f"nibble refuses what safetensors reads: {message}: {shown!r}, {len(whole)} bytes")
            room.expect(done.returncode == 1 or message, f"refused without a reason: {done.stdout}")
    room.expect(accepted > 100 and refused > 500, "the mixture is lopsided: this check proves little")
    room.notes.append(f"{accepted} accepted, {refused} refused by both")


# ---- config.json ----

def spelt(text):
    """A JSON text as nested lists that keep the order of keys and the spelling of numbers, as Python's parser sees them."""
    return json.loads(text, parse_int=lambda s: f"int {s}", parse_float=lambda s: f"float {s}", parse_constant=lambda s: f"constant {s}",
                      object_pairs_hook=list)


def unusual_config(room):
    """The text of a config with what real ones do not have."""
    r = room.random
    values = ["NaN", "Infinity", "-Infinity", "1e400", "-0", "-0.0", "123456789012345678901234567890", "9223372036854775808", "1E+2", "1.50",
              '"\\ud83e\\udd17 \\u00e9"', '"🤗 é\u2028"', '"a \\"quote\\" and }, {"', '"\\\\"', "[]", "{}", "[[], {}]", "null", "true",
              '{"quantization_config": {"quant_method": "gptq"}, "dtype": "float64", "torch_dtype": null}', '["quantization_config", "dtype"]',
              '"quantization_config"', '{"": {"": [1, {"dtype": "x"}]}}']
    keys = [f'"{k}"' for k in ("zeta", "alpha", "quantization", "quantization_config_2", "text_quantization_config", "dtypes", "é", "🤗", "", " ", "{",
                               "p", "q", "r", "Q", "\\\\", "a\\\"b", "\\u0061b", "vision_config", "_name_or_path")]
    r.shuffle(keys)
    members = [(key, r.choice(values)) for key in keys[:r.randrange(1, len(keys))]]
    members += [('"model_type"', '"llama"'), ('"architectures"', '["LlamaForCausalLM"]')]
    for key in ("dtype", "torch_dtype"):
        if r.random() < 0.5:
            members.append((f'"{key}"', r.choice(['"bfloat16"', "null", '"float32"'])))
    if r.random() < 0.2:
        members.append(('"quantization_config"', "null"))
    r.shuffle(members)
    line, colon, indent = r.choice(["\n", "\r\n", "", " ", "\t", "\n\n"]), r.choice([": ", ":", " : ", ":\t", ":\n"]), r.choice(["", "  ", "\t", "    "])
    body = ("," + line + indent).join(key + colon + value for key, value in members)
    return r.choice(["", " ", "\n", "\r\n\t"]) + "{" + line + indent + body + line + "}" + r.choice(["", "\n", "\r\n", " \n\n"])


@check
def config_texts_keep_every_other_key(room):
    """Unusual config texts through quantize and dequantize: all other keys, their order and the spelling of numbers stay, under Python's json."""
    source, packed, plain = room.folder / "source", room.folder / "packed", room.folder / "plain"
    source.mkdir()
    save_file({"model.layers.0.mlp.up_proj.weight": room.normal(8, 64).to(torch.bfloat16)}, source / "model.safetensors", metadata={"format": "pt"})
    for _ in range(200):
        text = unusual_config(room)
        (source / "config.json").write_bytes(text.encode())
        before = spelt(text)
        for folder in (packed, plain):
            room.remove(folder.name)
        fmt = room.random.choice(["nf4", "int8"])
        done = room.call("quantize", source, packed, "--format", fmt, "--quiet")
        if not room.expect(done.returncode == 0, f"quantize: {done.stderr.strip()}: {text!r}"):
            continue
        after = spelt((packed / "config.json").read_bytes().decode())
        expected = BitsAndBytesConfig(**(four_bit() if fmt == "nf4" else dict(load_in_8bit=True))).to_dict()
        room.expect([m for m in after if m[0] != "quantization_config"] == [m for m in before if m[0] != "quantization_config"],
                    f"quantize changed {text!r} to {(packed / 'config.json').read_text()!r}")
        room.expect(config_of(packed).get("quantization_config") == json.loads(json.dumps(expected)), f"quantization_config after {text!r}")
        done = room.call("dequantize", packed, plain, "--dtype", "f16", "--quiet")
        if not room.expect(done.returncode == 0, f"dequantize: {done.stderr.strip()}: {text!r}"):
            continue
        changed = ("quantization_config", "dtype", "torch_dtype")
        after = spelt((plain / "config.json").read_bytes().decode())
        room.expect([m for m in after if m[0] not in changed] == [m for m in before if m[0] not in changed], f"dequantize changed {text!r}")
        told = dict(after)
        dtypes = [told[k] for k in ("dtype", "torch_dtype") if k in told]
        room.expect("quantization_config" not in told and dtypes and set(dtypes) == {"float16"}, f"dequantize says {dtypes} after {text!r}")
        loaded = AutoConfig.from_pretrained(plain) if room.random.random() < 0.1 and '"vision_config"' not in text else None
        room.expect(loaded is None or loaded.dtype == torch.float16, f"transformers takes the dtype for {loaded and loaded.dtype}: {text!r}")


# ---- diff ----

NUMBERS = [torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.uint16, torch.uint32]


def number_tensor(room, shape, dtype):
    if dtype in FLOATS.values():
        return (room.normal(*shape) * 10 ** room.random.uniform(-4, 4)).to(dtype)
    if dtype == torch.float64:
        return room.normal(*shape).double() * 10 ** room.random.uniform(-30, 30)
    if dtype == torch.bool:
        return room.bytes(*shape) > 127
    return torch.randint(0, 100, shape, generator=room.noise).to(dtype)


@check
def diff_figures_are_torchs(room):
    """Random pairs in every mixture of dtypes, with NaN and infinities: equal, max_abs, rel_norm, cosine against torch in f64; --tol."""
    a, b = {}, {}
    for number in range(160):
        shape = room.random.choice([(), (1,), (7,), (8, 16), (3, 5, 7), (0, 3), (300, 301)])
        if room.random.random() < 0.6:
            dtypes = [room.random.choice(list(FLOATS.values())) for _ in range(2)]
        else:
            dtypes = [room.random.choice(NUMBERS + [torch.float32])] * 2
            if room.random.random() < 0.4:
                dtypes[1] = room.random.choice(NUMBERS)
        x = number_tensor(room, shape, dtypes[0])
        y = x.to(torch.float64).clamp(0 if dtypes[1] in NUMBERS[5:] else -100, 100).to(dtypes[1]) if dtypes[1] in NUMBERS else x.to(dtypes[1])
        for side in (x, y):
            for _ in range(room.random.choice([0, 0, 1, 3])):
                if side.numel():
                    place = room.random.randrange(side.numel())
                    special = room.random.choice([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 3.0]) if side.is_floating_point() else 1
                    side.view(-1)[place] = special
        if room.random.random() < 0.2 and dtypes[0] == dtypes[1]:
            y = x.clone()
        if room.random.random() < 0.1:
            y = torch.zeros_like(y)
        a[f"t{number}"], b[f"t{number}"] = x, y
    for side, name in ((a, "a"), (b, "b")):
        (room.folder / name).mkdir()
        save_file(side, room.folder / name / "model.safetensors", metadata={"format": "pt"})
        (room.folder / name / "config.json").write_text("{}")
    told, status = room.json("diff", room.folder / "a", room.folder / "b")
    room.expect(status == 1 and told["equal"] is False and told["within"] is False, f"exit status {status}, equal {told['equal']}")
    rows = {t["name"]: t for t in told["tensors"]}
    room.expect(set(rows) == set(a), "tensors are missing in the answer")
    worst = 0.0
    for name, row in rows.items():
        x, y = a[name], b[name]
        what = f"{name} {x.dtype} and {y.dtype} {list(x.shape)}"
        wide = [t.float().double() if t.dtype in FLOATS.values() else t.double() for t in (x, y)]
        equal = torch.equal(raw(x), raw(y)) if x.dtype == y.dtype else torch.equal(raw(wide[0]), raw(wide[1]))
        room.expect(row["equal"] is equal, f"{what}: equal is {row['equal']}")
        if equal:
            figures = 0.0, 0.0, 1.0
        else:
            d = (wide[0] - wide[1]).flatten()
            norms = [t.norm().item() for t in wide]
            cosine = (wide[0] * wide[1]).sum().item() / (norms[0] * norms[1]) if all(norms) else float(not d.any())
            relative = d.norm().item() / norms[1] if norms[1] else (math.inf if d.any() else 0.0)
            figures = (math.nan,) * 3 if d.isnan().any() else (d.abs().max().item(), relative, cosine)
        worst = max(worst, figures[1]) if math.isfinite(figures[1]) else math.inf
        for key, want in zip(("max_abs", "rel_norm", "cosine"), figures):
            got = row[key]
            if not math.isfinite(want):
                room.expect(got is None, f"{what}: {key} is {got}, torch has {want}")
            else:
                room.expect(got is not None and abs(got - want) <= 1e-9 * abs(want) + 1e-12, f"{what}: {key} is {got}, torch has {want}")
    finite = {n for n, row in rows.items() if row["rel_norm"] is not None}
    for side, name in ((a, "a"), (b, "b")):
        save_file({n: t for n, t in side.items() if n in finite}, room.folder / name / "model.safetensors", metadata={"format": "pt"})
    largest = max(rows[n]["rel_norm"] for n in finite)
    for tolerance, within in ((largest * 1.000001, True), (largest * 0.999999, False)):
        told, status = room.json("diff", room.folder / "a", room.folder / "b", "--tol", repr(tolerance))
        room.expect(told["within"] is within and status == (0 if within else 1), f"--tol {tolerance} with rel_norm up to {largest}: within {told['within']}")


# ---- the model computes the same ----

@check
def models_compute_the_same(room):
    """A folder quantised by nibble, run by transformers + bitsandbytes, and the same folder dequantised: the same logits."""
    if AVX512:
        room.notes.append("rows are multiples of 64: with AVX-512, CPU bitsandbytes takes wrong scales for others")
    for kind in ("llama", "qwen3", "gemma3_text", "phi3", "olmo2"):
        fmt, nested, dtype = room.random.choice(["nf4", "fp4"]), room.random.random() < 0.5, room.random.choice(["f32", "bf16"])
        source = save_model(room, "source", kind, FLOATS[dtype], wide=AVX512)
        block = 64 if AVX512 else room.random.choice(BLOCKS)
        room.nibble("quantize", source, room.folder / "packed", "--format", fmt, "--compute-dtype", dtype, "--block", block, *(["--double"] if nested else []))
        room.nibble("dequantize", room.folder / "packed", room.folder / "plain", "--dtype", dtype)
        models = []
        for folder in ("packed", "plain"):
            model, info = AutoModelForCausalLM.from_pretrained(room.folder / folder, device_map="cpu", output_loading_info=True)
            wrong = {k: v for k, v in info.items() if k in ("missing_keys", "unexpected_keys", "mismatched_keys") and v}
            room.expect(not wrong, f"{kind} {folder}: {wrong}")
            models.append(model.train())  # for inference bitsandbytes has a kernel that rounds scales and inputs to bf16
        layers = {n + ".weight" for n, m in models[0].named_modules() if isinstance(m, Linear4bit)}
        room.expect(layers == set(packed_names(tensors_of(room.folder / "packed"))), f"{kind}: transformers has other 4-bit layers")
        ids = torch.tensor([[room.random.randrange(250) for _ in range(11)]])
        with torch.no_grad():
            x, y = (model(ids).logits.double() for model in models)
        off = ((x - y).norm() / y.norm()).item()
        room.expect(off < (1e-5 if dtype == "f32" else 2e-2), f"{kind} {fmt} {dtype} block {block}: logits are off by {off:.1e}")
        room.remove("source", "packed", "plain")


if __name__ == "__main__":
    sys.exit(common.main())
