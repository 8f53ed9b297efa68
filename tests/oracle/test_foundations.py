"""quantize, dequantize, inspect and diff against the libraries they imitate: transformers, bitsandbytes, safetensors, torch.

bitsandbytes does not compute everything in the same way on a CPU and on CUDA. nibble follows CUDA, this file runs on a CPU;
so every check demands what both agree on, and where they differ it says so: FP4 codes of zeros and ties, codes of
double-quantised scales (a coarse look-up on CPUs), and blocks that are all zero or not finite. There values are compared
instead, or nibble's documented rule.
"""

import json
import math
import struct
import sys

import common  # before torch: it sets the environment
from common import (FLOATS, add_state, check, config_of, files_of, four_bit, how_different, packed_names, raw, same, save_model,
                    save_packed, save_plain, scales_of, state_of, tensors_of, upstream_decode, upstream_quantize, what_differs)

import safetensors
import torch
from bitsandbytes import functional as bnb
from bitsandbytes.nn import Linear4bit
from bitsandbytes.nn.parametrize import replace_parameter_4bit
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

BLOCKS = [32, 64, 128, 256, 512, 1024, 2048, 4096]
ISAS = ["scalar", "avx2", "avx512"]  # a machine that lacks one takes the best it has

# Architectures whose checkpoints are compared as whole files, and what their configuration needs beside the sizes.
ARCHITECTURES = {
    "llama": dict(attention_bias=True, mlp_bias=True), "qwen2": {}, "qwen3": {}, "mistral": {}, "gemma": {}, "gemma2": {},
    "gemma3_text": {}, "phi": {}, "phi3": {}, "smollm3": {}, "olmo": {}, "olmo2": {}, "olmo3": {},
    "granite": dict(attention_bias=True, mlp_bias=True), "cohere": {}, "cohere2": {}, "stablelm": dict(use_qkv_bias=True),
    "starcoder2": {}, "helium": {}, "glm": {}, "glm4": {}, "exaone4": {}, "ernie4_5": dict(use_bias=True), "gpt_neox": {},
    "gptj": {}, "bloom": {}, "opt": {}, "nemotron": {}, "seed_oss": {}, "arcee": {}, "apertus": {}, "lfm2": {},
    "hunyuan_v1_dense": {}, "persimmon": {}, "mamba": {}, "falcon_h1": {}, "qwen3_5_text": {}, "jamba": {},
    "mixtral": dict(num_local_experts=4), "olmoe": dict(num_experts=4),
    "qwen3_moe": dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=40),
    "gpt_oss": dict(num_local_experts=3, num_experts_per_tok=2),
}


def make(room, kind, dtype, **more):
    return save_model(room, "source", kind, dtype, **more, **ARCHITECTURES[kind])


# ---- quantize: whole files ----

@check
def whole_files_are_transformers_own(room):
    """nf4, flat, from 16-bit weights: every file of the folder is byte for byte what transformers + bitsandbytes save."""
    for kind, tied in ((kind, tied) for kind in ARCHITECTURES for tied in (False, True)):
        # transformers keeps some of GPT-OSS's f16 tensors in f32: there the source itself would be changed
        dtype = "bf16" if kind == "gpt_oss" else room.random.choice(["f16", "bf16"])
        compute = room.random.choice(list(FLOATS))
        source = make(room, kind, FLOATS[dtype], tied=tied, shard=room.random.choice(["5GB", "40KB"]))
        theirs = upstream_quantize(room, source, "theirs", **four_bit(compute=compute))
        ours = room.folder / "ours"
        room.nibble("quantize", source, ours, "--format", "nf4", "--compute-dtype", compute, "--threads",
                    room.random.choice([1, 2, 3]), isa=room.random.choice(ISAS))
        what = f"{kind} ({dtype}, {'tied' if tied else 'untied'})"
        fault = what_differs(ours, theirs)
        room.expect(not fault, f"{what}: {fault}")
        parameters = sum(t.numel() for t in tensors_of(source).values())
        for folder in (source, ours):
            told, _ = room.json("inspect", folder)
            room.expect(told["parameters"] == parameters and told["problems"] == [],
                        f"{what}: inspect counts {told['parameters']} parameters of {parameters}; problems {told['problems']}")
        room.remove("source", "theirs", "ours")


@check
def whole_files_from_f32_are_transformers_own(room):
    """The same from f32, for weights of whole blocks: in a block that is not, CPU bitsandbytes divides by the scale instead
    of multiplying by its reciprocal."""
    for kind in ("llama", "qwen3", "gemma2", "phi3", "granite", "olmoe"):
        source = make(room, kind, torch.float32, wide=True)
        theirs = upstream_quantize(room, source, "theirs", **four_bit())
        room.nibble("quantize", source, room.folder / "ours", "--format", "nf4", isa=room.random.choice(ISAS))
        fault = what_differs(room.folder / "ours", theirs)
        room.expect(not fault, f"{kind}: {fault}")
        room.remove("source", "theirs", "ours")


@check
def int8_files_are_transformers_own(room):
    """int8 from every dtype: byte for byte as well. torch computes 127 / max as 127 times the rounded reciprocal; so does
    CUDA, but for the reciprocal's last bit."""
    for kind in ("llama", "qwen2", "gemma3_text", "phi3", "gpt_neox", "mixtral", "opt"):
        dtype = room.random.choice(list(FLOATS))
        source = make(room, kind, FLOATS[dtype])
        theirs = upstream_quantize(room, source, "theirs", load_in_8bit=True)
        room.nibble("quantize", source, room.folder / "ours", "--format", "int8", isa=room.random.choice(ISAS))
        fault = what_differs(room.folder / "ours", theirs)
        room.expect(not fault, f"{kind} ({dtype}): {fault}")
        room.remove("source", "theirs", "ours")


def described(tensors):
    return {name: (t.dtype, None if ".quant_state." in name else t.shape) for name, t in tensors.items()}


@check
def other_formats_have_transformers_skeleton(room):
    """fp4 and double quantisation: config.json to the byte; names, dtypes, shapes and tables; nf4 codes; scales and flat
    fp4 values that are nowhere further from the truth than upstream's."""
    for kind in ("llama", "qwen3", "olmo2", "starcoder2"):
        for fmt, nested in (("nf4", True), ("fp4", False), ("fp4", True)):
            source = make(room, kind, room.random.choice([torch.float16, torch.bfloat16]))
            theirs, ours = upstream_quantize(room, source, "theirs", **four_bit(fmt, nested)), room.folder / "ours"
            room.nibble("quantize", source, ours, "--format", fmt, *(["--double"] if nested else []))
            a, b, plain = tensors_of(ours), tensors_of(theirs), tensors_of(source)
            what = f"{kind} {fmt}{' nested' if nested else ''}"
            for file in ("config.json", "generation_config.json"):
                room.expect(files_of(ours)[file] == files_of(theirs)[file], f"{what}: {file} differs")
            room.expect(described(a) == described(b), f"{what}: names, dtypes or shapes differ")
            for name in packed_names(b):
                states = [state_of(t, name) for t in (a, b)]
                room.expect(same(a[name + ".quant_map"], b[name + ".quant_map"]), f"{what}: table of {name} differs")
                exact = bnb.quantize_4bit(plain[name], quant_type=fmt)[1].absmax.double()
                off, their_off = ((scales_of(state).double() - exact).abs() for state in states)
                room.expect(bool((off <= their_off + exact.abs() * 2.0 ** -21).all()), f"{what}: worse scales in {name}")
                if fmt == "nf4":
                    room.expect(same(a[name], b[name]), lambda: f"{what}: {name}: {how_different(a[name], b[name])}")
                elif not nested:
                    values = (upstream_decode(t[name], state, torch.float32) for t, state in zip((a, b), states))
                    off, their_off = ((v - plain[name].float()).abs() for v in values)
                    room.expect(bool((off <= their_off + exact.max() * 2.0 ** -20).all()), f"{what}: worse codes in {name}")
            room.remove("source", "theirs", "ours")


@check
def states_are_spelt_as_python_spells_them(room):
    """The JSON of nested states: bitsandbytes' keys in its order, numbers as Python prints them; offsets from 1e-44 to 1e37."""
    weights = {f"model.layers.{i}.mlp.up_proj.weight": room.normal(room.random.randrange(1, 5), 64) * 10 ** room.random.uniform(-44, 37)
               for i in range(150)}
    source = save_plain(room, "source", weights)
    block, entry = room.random.choice(BLOCKS), ".quant_state.bitsandbytes__nf4"
    room.nibble("quantize", source, room.folder / "ours", "--format", "nf4", "--double", "--block", block)
    stored = tensors_of(room.folder / "ours")
    for name, weight in weights.items():
        text = bytes(stored[name + entry].tolist()).decode()
        _, state = bnb.quantize_4bit(weight, blocksize=block, quant_type="nf4", compress_statistics=True)
        theirs = json.loads(bytes(state.as_dict(packed=True)[entry[1:]].tolist()))
        offset = json.loads(text)["nested_offset"]
        room.expect(text == json.dumps(theirs | {"nested_offset": offset}), f"{text} instead of {json.dumps(theirs)}")
        room.expect(torch.tensor(offset).item() == offset, f"the offset {offset!r} is no f32")
        near = 2.0 ** -21 * weight.abs().max().item() + 1e-37  # below that nibble takes a block for all zero, as CUDA does
        room.expect(abs(offset - theirs["nested_offset"]) <= near, f"the offset {offset!r} instead of {theirs['nested_offset']!r}")


@check
def shards_are_what_safetensors_writes(room):
    """--shard-size: each file is what safetensors.save_file makes of its tensors; together they are the unsharded file."""
    source = make(room, "qwen2", torch.bfloat16)
    parts, again = room.folder / "parts", room.folder / "again"
    for fmt in ("nf4", "fp4", "int8"):
        room.nibble("quantize", source, room.folder / "whole", "--format", fmt)
        whole = tensors_of(room.folder / "whole")
        total = sum(t.numel() * t.element_size() for t in whole.values())
        for size in ("9K", "30K", str(room.random.randrange(5000, total // 2))):
            room.nibble("quantize", source, parts, "--format", fmt, "--shard-size", size)
            what, found = f"{fmt} --shard-size {size}", {}
            for file in sorted(parts.glob("*.safetensors")):
                tensors = tensors_of(file)
                found |= {name: file.name for name in tensors}
                save_file(tensors, again, metadata={"format": "pt"})
                room.expect(file.read_bytes() == again.read_bytes(), f"{what}: {file.name} is laid out differently")
                room.expect(all(same(t, whole[name]) for name, t in tensors.items()), f"{what}: {file.name} holds other values")
            index = json.loads((parts / "model.safetensors.index.json").read_text())
            room.expect(index["weight_map"] == found and set(found) == set(whole), f"{what}: the index is wrong")
            room.expect(index["metadata"]["total_size"] == total, f"{what}: total_size {index['metadata']['total_size']}, not {total}")
            room.remove("parts")
        room.remove("whole")


@check
def folders_come_back_byte_for_byte(room):
    """A folder saved by transformers + bitsandbytes, dequantised and quantised again, is the same in every file; the folder
    between has the config of the one it was made from, and safetensors' layout. nf4 through its dtype, int8 through f32."""
    for kind, fmt in ((kind, fmt) for kind in ("llama", "qwen3", "gemma2", "glm4", "phi", "smollm3") for fmt in ("nf4", "int8")):
        dtype = room.random.choice(["f16", "bf16"]) if fmt == "nf4" else "f32"
        source = make(room, kind, FLOATS[dtype])
        theirs = upstream_quantize(room, source, "theirs", **(four_bit() if fmt == "nf4" else dict(load_in_8bit=True)))
        plain, again = room.folder / "plain", room.folder / "again"
        room.nibble("dequantize", theirs, plain, "--dtype", dtype)
        room.nibble("quantize", plain, again, "--format", fmt)
        fault = what_differs(again, theirs)
        room.expect(not fault, f"{kind} {fmt} ({dtype}): {fault}")
        between, before = files_of(plain), files_of(source)
        room.expect(set(between) == set(before), f"{kind} {fmt}: dequantised files {sorted(set(between) ^ set(before))}")
        for file in set(between) - {"model.safetensors"}:
            room.expect(between[file] == before.get(file), f"{kind} {fmt}: dequantised {file} differs")
        save_file(tensors_of(plain), room.folder / "file", metadata={"format": "pt"})
        room.expect(between["model.safetensors"] == (room.folder / "file").read_bytes(), f"{kind} {fmt}: laid out differently")
        room.remove("source", "theirs", "plain", "again")


# ---- dequantize: 4-bit ----

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
                what = f"{name} ({state.quant_type}, block {state.blocksize}, shape {list(state.shape)}, {stored[name].dtype}, " \
                       f"{'nested' if state.nested else 'flat'}) to {dtype}{' with ' + isa if isa else ''}"
                if room.expect(name in ours, f"{what}: missing"):
                    zeros = state.quant_type == "nf4"  # FP4: upstream's backends differ in the sign of zero
                    room.expect(same(ours[name], theirs[name], zeros), lambda: f"{what}: {how_different(ours[name], theirs[name])}")


@check
def every_storage_dtype_reads(room):
    """Folders saved by transformers with each bnb_4bit_quant_storage, nested and flat."""
    source = make(room, "llama", torch.bfloat16, wide=True)
    for storage in (torch.uint8, torch.int8, torch.float16, torch.bfloat16, torch.float32, torch.float64):
        kind, nested = room.random.choice(["nf4", "fp4"]), room.random.random() < 0.5
        theirs = upstream_quantize(room, source, "theirs", **four_bit(kind, nested, bnb_4bit_quant_storage=storage))
        stored = tensors_of(theirs)
        room.expect(all(stored[n].dtype == storage for n in packed_names(stored)), f"transformers did not store as {storage}")
        compare_decoded(room, theirs, stored)
        room.remove("theirs")


@check
def every_block_and_shape_reads(room):
    """Weights straight from bitsandbytes' quantiser: blocks 32 to 4096, fewer values than a block, odd counts, ranks 1 to 4,
    tiny and huge values, every storage dtype that fits."""
    fixed = [(1, 1), (3,), (1, 3), (31,), (1, 33), (7, 9), (2, 3, 5), (4, 64), (129, 65), (3, 20, 17), (2, 3, 4, 7), (70000,), (257, 259)]
    storages = (torch.uint8, torch.int8, torch.bfloat16, torch.float32, torch.float64)
    tensors = {}
    for block, kind, nested in ((b, k, n) for b in BLOCKS for k in ("nf4", "fp4") for n in (False, True)):
        shapes = [*room.random.sample(fixed, 3), (room.random.randrange(1, 80), room.random.randrange(1, 200)),
                  (room.random.choice([block - 1, block, block + 1]),)]
        for shape in shapes:
            # The mean of nested scales must not overflow: upstream would write Infinity for the offset.
            spread = 10.0 ** room.random.choice([-36, -30, -6, -1, 0, 4, 30, 30 if nested else 37])
            dtype = room.random.choice(list(FLOATS.values())) if 1e-3 < spread < 1e3 else torch.float32
            weight = (room.normal(*shape) * spread).to(dtype)
            count = weight.numel()
            fitting = [s for s in storages if (count + 1) // 2 % s.itemsize == 0 and count > 2 * s.itemsize]
            packed, state = bnb.quantize_4bit(weight, blocksize=block, quant_type=kind, compress_statistics=nested,
                                              quant_storage=room.random.choice(fitting or [torch.uint8]))
            add_state(tensors, f"weight.{len(tensors)}", packed, state)
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
    ranks = [len(state_of(tensors, name).shape) for name in packed_names(tensors)]
    room.expect(ranks == [3] * 4, f"upstream stores them in another way: ranks {ranks}")
    compare_decoded(room, save_packed(room, "packed", tensors), tensors)


@check
def extreme_scales_decode(room):
    """Scales whose products overflow or vanish in f16, bf16 or f32, are negative, infinite or NaN; every code in every block."""
    edges = [0.0, -0.0, 1e-45, -1e-45, 3e-42, 1.1e-38, 1.2e-38, 1e-36, 2.9e-8, 6e-8, 1e-7, 5e-6, 6.1e-5, 65503.0, 65504.0, 65519.9,
             65520.0, 9e4, 2e5, 1e30, 3.3e38, 3.4028235e38, math.inf, -math.inf, math.nan, -1.0, -2.5e-7, -7e4, 1.0]
    tensors = {}
    for kind, block in ((kind, block) for kind in ("nf4", "fp4") for block in (32, 64, 1024)):
        scales = torch.tensor(edges + [room.random.choice([-1, 1]) * 10 ** room.random.uniform(-45, 38) for _ in range(67)])
        packed = room.bytes(len(scales) * block // 2, 1)
        packed.view(-1, block // 2)[:, :16] = torch.arange(16) * 17  # each code twice in a row
        state = bnb.QuantState(absmax=scales, shape=torch.Size((len(scales) // 2, 2 * block)), blocksize=block, quant_type=kind,
                               code=bnb.get_4bit_type(kind, device="cpu"), dtype=torch.float32)
        add_state(tensors, f"{kind}.{block}.weight", packed, state)
    compare_decoded(room, save_packed(room, "packed", tensors), tensors, ISAS)


@check
def extreme_nested_scales_decode(room):
    """Nested scales: every code; offsets tiny, huge and negative; sums that cancel or turn negative; other nested tables and
    block sizes."""
    tensors = {}
    for number in range(24):
        kind, block = room.random.choice(["nf4", "fp4"]), room.random.choice([32, 64, 256])
        nested_block, blocks = room.random.choice([64, 256, 256, 1024]), room.random.choice([1, 255, 256, 257, 600])
        count = blocks * block - room.random.randrange(block)
        spread = 10.0 ** room.random.choice([-40, -30, -4, 0, 4, 30, 37])
        offset = spread * room.random.uniform(-1, 1) if number % 2 else room.random.choice([-1, 1]) * 10 ** room.random.uniform(-44, 38)
        inner = bnb.QuantState(absmax=room.normal(-(-blocks // nested_block)).abs() * spread, blocksize=nested_block,
                               code=bnb.create_dynamic_map() if number % 3 else (room.normal(256) * 0.5).sort().values,
                               dtype=torch.float32)
        state = bnb.QuantState(absmax=torch.arange(blocks).to(torch.uint8) if blocks < 600 else room.bytes(blocks),
                               shape=torch.Size((count,)), blocksize=block, quant_type=kind, dtype=torch.bfloat16,
                               code=bnb.get_4bit_type(kind, device="cpu"), offset=torch.tensor(offset, dtype=torch.float32), state2=inner)
        add_state(tensors, f"number.{number}.weight", room.bytes((count + 1) // 2, 1), state)
    compare_decoded(room, save_packed(room, "packed", tensors), tensors, ISAS)


# ---- int8 ----

def edge_rows(room, weight, dtype):
    """Rows that are hard to quantise, written over a weight's first nine."""
    columns = weight.shape[1]
    weight[0] = 0
    weight[1, room.random.randrange(columns)] = 60000
    weight[2] = 0
    weight[2, 3] = 6e-8
    weight[3] *= 1e-4
    weight[4, 1], weight[4, 2] = 65504, -65504
    weight[5] = torch.linspace(-127, 127, columns).round().to(weight.dtype) + 0.5  # ties
    if dtype != "f16":
        weight[6, 5], weight[7, 0] = 1e6, 65520
    weight[8, 7] = -math.inf


@check
def int8_rows_at_the_edges(room):
    """Zero rows, one huge value, the smallest f16, f32 values that f16 cannot hold: as bitsandbytes. NaN: the CUDA rule.

    A value beyond f16 becomes an infinity there; the row then has scale inf and only zeros, on CPUs and on CUDA. A NaN makes
    the whole row NaN on CPUs; on CUDA it is left out of the scale and its own code is 0."""
    name, ours, decoded = "model.layers.0.mlp.gate_proj", room.folder / "ours", room.folder / "decoded"
    for dtype, isa in ((dtype, isa) for dtype in FLOATS for isa in ISAS):
        weight = (room.normal(40, 71) * 0.05).to(FLOATS[dtype])
        edge_rows(room, weight, dtype)
        codes, scales, _ = bnb.int8_vectorwise_quant(weight.half())
        room.nibble("quantize", save_plain(room, "source", {name + ".weight": weight}), ours, "--format", "int8", "--allow-non-finite", isa=isa)
        got, what = tensors_of(ours), f"{dtype} with {isa}"
        room.expect(same(got[name + ".SCB"], scales), lambda: f"{what}: scales: {how_different(got[name + '.SCB'], scales)}")
        room.expect(same(got[name + ".weight"], codes), lambda: f"{what}: codes: {how_different(got[name + '.weight'], codes)}")
        for to, target in FLOATS.items():
            room.nibble("dequantize", ours, decoded, "--dtype", to, isa=isa)
            back = tensors_of(decoded)[name + ".weight"]
            want = bnb.int8_vectorwise_dequant(got[name + ".weight"], got[name + ".SCB"]).to(target)
            room.expect(same(back, want), lambda: f"{what} to {to}: {how_different(back, want)}")
            room.remove("decoded")
        room.remove("source", "ours")

        without = weight.half()
        weight[9, 2], without[9, 2] = math.nan, 0
        codes, scales, _ = bnb.int8_vectorwise_quant(without)
        room.nibble("quantize", save_plain(room, "source", {name + ".weight": weight}), ours, "--format", "int8", "--allow-non-finite", isa=isa)
        got = tensors_of(ours)
        room.expect(same(got[name + ".SCB"], scales) and same(got[name + ".weight"], codes), f"{what}: a NaN is not left out")
        room.remove("source", "ours")


# ---- mxfp4 ----

EXPERTS = "model.layers.0.mlp.experts."


@check
def every_mxfp4_code_and_scale_decodes(room):
    """16 codes x 256 scales in each dtype against transformers' decoder, from 2^-127 to 2^128, where it overflows."""
    blocks = (torch.arange(16) | (torch.arange(16) * 7 + 3) % 16 << 4).to(torch.uint8)  # each code in both halves of a byte
    scales = torch.randperm(256, generator=room.noise).to(torch.uint8)
    tensors = {EXPERTS + "gate_up_proj_blocks": blocks.expand(4, 8, 8, 16).contiguous(),
               EXPERTS + "gate_up_proj_scales": scales.reshape(4, 8, 8),
               EXPERTS + "down_proj_blocks": room.bytes(3, 37, 5, 16), EXPERTS + "down_proj_scales": room.bytes(3, 37, 5)}
    folder = save_packed(room, "packed", tensors, "mxfp4")
    for dtype, isa in ((dtype, isa) for dtype in FLOATS for isa in ISAS):
        room.nibble("dequantize", folder, room.folder / "decoded", "--dtype", dtype, isa=isa)
        ours = tensors_of(room.folder / "decoded")
        for name in (EXPERTS + "gate_up_proj", EXPERTS + "down_proj"):
            theirs = convert_moe_packed_tensors(tensors[name + "_blocks"], tensors[name + "_scales"], dtype=FLOATS[dtype])
            room.expect(same(ours[name], theirs), lambda: f"{name} to {dtype} with {isa}: {how_different(ours[name], theirs)}")
        room.remove("decoded")


def expert_values(room, dtype):
    """[experts, in, out] with columns of very different size, zeros, ties and subnormal values."""
    experts, ins, outs = 2, 32 * room.random.randrange(1, 5), 2 * room.random.randrange(8, 40)
    values = room.normal(experts, ins, outs) * 10.0 ** torch.empty(experts, 1, outs).uniform_(-4, 4, generator=room.noise)
    values[0, :, 0], values[0, :, 1] = 0, -0.0
    values[0, :, 2] *= 1e-40
    values[0, :, 3] *= 1e30
    values[0, :, 4] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 7]).repeat(ins // 8)  # ties
    values[0, :, 5] = -values[0, :, 4]
    values[0, :, 6] = 2.0 ** -130
    return values.clamp(-6e4, 6e4).half() if dtype == "f16" else values.to(FLOATS[dtype])


@check
def mxfp4_codes_follow_the_ocp_rule(room):
    """Experts in each dtype: shared exponent floor(log2 max) - 2, nearest code, ties to even. Decoded by transformers, no
    value is further off than with another code, nor the worst of a block than with a smaller scale."""
    grid, name = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64), EXPERTS + "down_proj"
    better = seen = 0
    for dtype in FLOATS:
        values, ours = expert_values(room, dtype), []
        source = save_plain(room, "source", {name: values}, "gpt_oss")
        for isa in ISAS:
            room.nibble("quantize", source, room.folder / "ours", "--format", "mxfp4", isa=isa)
            ours.append(tensors_of(room.folder / "ours"))
            room.remove("ours")
        blocks, scales = ours[0][name + "_blocks"], ours[0][name + "_scales"]
        room.expect(all(same(o[name + "_blocks"], blocks) and same(o[name + "_scales"], scales) for o in ours), f"{dtype}: ISAs differ")

        x = values.double().transpose(1, 2).unflatten(-1, (-1, 32))
        most = x.abs().amax(-1)
        exponent = torch.where(most > 0, torch.frexp(most)[1].double() - 1 - 2, -127.0).clamp(-127, 127)
        room.expect(torch.equal(scales.double() - 127, exponent), lambda: f"{dtype}: {how_different(scales.double() - 127, exponent)}")
        y = x.abs() / torch.exp2(exponent)[..., None]
        ranks = [y > .25, y >= .75, y > 1.25, y >= 1.75, y > 2.5, y >= 3.5, y > 5]
        codes = sum(rank.to(torch.uint8) for rank in ranks) | torch.signbit(x).to(torch.uint8) << 3
        packed = codes[..., 0::2] | codes[..., 1::2] << 4
        room.expect(same(blocks, packed), lambda: f"{dtype}: codes: {how_different(blocks, packed)}")

        decoded = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).double()
        off = (decoded.transpose(1, 2).unflatten(-1, (-1, 32)) - x).abs()

        def least(shift):
            """What is lost at best with scales 2^shift times as large."""
            unit = torch.exp2((exponent + shift).clamp(-127, 127))[..., None]
            return ((x.abs() / unit)[..., None] - grid).abs().amin(-1) * unit * (1 + 1e-12)

        room.expect(bool((off <= least(0)).all()), f"{dtype}: a code is not the nearest")
        for shift in (-1, -2, -3):
            room.expect(bool((off.amax(-1) <= least(shift).amax(-1)).all()), f"{dtype}: a scale 2^{shift} times as large is better")
        better += int((least(1).square().sum(-1) < off.square().sum(-1)).sum())
        seen += most.numel()
        room.remove("source")
    room.notes.append(f"the next larger scale would lose less, in squares, in {100 * better / seen:.0f} % of the blocks")


# ---- safetensors ----

DTYPE_BITS = {"F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16,
              "U16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I8": 8, "U8": 8,
              "BOOL": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}


def random_file(room, count, entries=()):
    """Header and data of a valid file: random dtypes, shapes (scalars and empty ones too), names and order, and the given
    entries (name, dtype, shape, bytes)."""
    items = list(entries)
    for number in range(count):
        dtype = room.random.choice(list(DTYPE_BITS))
        shape = [room.random.choice([0, 1, 2, 3, 5, 8, 16]) for _ in range(room.random.randrange(5))]
        if math.prod(shape) * DTYPE_BITS[dtype] % 8:
            shape = [8]
        name = room.random.choice(["a", "ключ", "a b", "x/y", 'quote"', "back\\slash", "tab\t", "", "🤗"]) + f".{number}"
        data = room.bytes(math.prod(shape) * DTYPE_BITS[dtype] // 8)
        items.append((name, dtype, shape, bytes((data & 1 if dtype == "BOOL" else data).tolist())))
    room.random.shuffle(items)
    header, at = [], 0
    for name, dtype, shape, data in items:
        header.append((name, {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}))
        at += len(data)
    room.random.shuffle(header)
    return dict(header), b"".join(data for *_, data in items)


def join_file(text, data, length=None):
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def upstream_reads(data):
    """What safetensors makes of a file's bytes, or None when it refuses them."""
    try:
        return {name: (t["dtype"], list(t["shape"]), bytes(t["data"])) for name, t in safetensors.deserialize(data)}
    except safetensors.SafetensorError:
        return None


@check
def foreign_tensors_pass_through(room):
    """Random valid files with every dtype, unaligned and in any order: all but the quantised weight keep their bytes."""
    name = "model.layers.0.self_attn.q_proj.weight"
    for turn in range(30):
        kind, target = room.random.choice([("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)])
        weight = room.normal(room.random.randrange(1, 40), room.random.randrange(1, 90)).to(target)
        header, data = random_file(room, 14, [(name, kind, list(weight.shape), bytes(raw(weight).tolist()))])
        source, ours = save_plain(room, f"source-{turn}", {}) / "model.safetensors", room.folder / f"ours-{turn}/model.safetensors"
        source.write_bytes(join_file(json.dumps(header).encode(), data))
        block = room.random.choice(BLOCKS)
        room.nibble("quantize", source.parent, ours.parent, "--format", "nf4", "--block", block, "--allow-non-finite")
        before, after = upstream_reads(source.read_bytes()), upstream_reads(ours.read_bytes())
        if not room.expect(before and after, "safetensors refuses " + ("what nibble wrote" if before else "what this test takes for valid")):
            continue
        for key in set(before) - {name}:
            room.expect(after.get(key) == before[key], f"{key!r} ({before[key][:2]}) changed")
        got, (packed, state) = tensors_of(ours, name), bnb.quantize_4bit(weight, blocksize=block, quant_type="nf4")
        what = f"{kind} {list(weight.shape)} from byte {header[name]['data_offsets'][0]} on"
        room.expect(target == torch.float32 or same(got[name], packed), lambda: f"{what}: {how_different(got[name], packed)}")
        room.expect(same(got[name + ".absmax"], state.absmax), f"{what}: scales differ")


def damaged_header(room, header, size):
    """The header with one thing wrong, unusual or merely different; as text."""
    choose, name = room.random.choice, room.random.choice(list(header))
    entry = header[name]
    shape, offsets = entry["shape"], entry["data_offsets"]

    def number():
        return choose([0, 1, 2, -1, 7, size, size + 1, 2 ** 31, 2 ** 53 + 1, 2 ** 62, 2 ** 63, 2 ** 64 - 1, 2 ** 64, 10 ** 30])

    def odd():
        return choose([None, True, "", "4", 1.0, 0.5, -1, [], {}, [[]], 1e300, number()])

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
        lambda text: choose([" ", "\n", " \t\r\n", "\v", "\u00a0", "\ufeff", "x"]) + text,
        lambda text: text + choose([" ", "   \n", "\t\r\n", "\0", "x", "{}", ","]),
        lambda text: text[:-choose([1, 2, 3])],
        lambda text: choose(["[]", '"text"', "5", "null", "{}", f"[{text}]"]),
        lambda text: text.replace(*choose([("0", "00"), ("1", "+1"), ("0,", "-0,"), ("{", "{,"), (":", ":,"), ("]", ",]"), ('"dtype"', "dtype"),
                                           ('"', "'"), ('"dtype"', '"dtyp\\u0065"'), ("[", "[ \n"), ("2", "2e0"), ("3", "3.0")]), 1),
    ]
    change = choose(of_values + of_text)
    if change in of_values:
        change()
    text = json.dumps(header, ensure_ascii=choose([True, False]), separators=choose([(", ", ": "), (",", ":"), ("\n,", "\t:")]))
    return (change(text) if change in of_text else text).encode()


def damaged_file(room, how):
    header, data = random_file(room, room.random.randrange(1, 6))
    text = json.dumps(header).encode()
    if how < 7:
        return join_file(damaged_header(room, header, len(data)), data)
    if how == 7:
        lengths = [0, 1, 2, len(text) - 1, len(text) + 1, len(text) + len(data), 100000001, 2 ** 63, 2 ** 64 - 1]
        return join_file(text, data, room.random.choice(lengths))
    if how == 8:
        whole = join_file(text, room.random.choice([data + b"\0", data[:-1], data + data, b""]))
        return whole[:room.random.randrange(len(whole))] if room.random.random() < 0.5 else whole
    whole = bytearray(join_file(text, data))
    for _ in range(room.random.choice([1, 1, 2, 5])):
        whole[8 + room.random.randrange(len(text))] = room.random.choice(b'0123456789",:[]{}eE-+.\\ntu\0\xff')
    return bytes(whole)


# Where nibble is stricter than safetensors' reader, by what it says.
STRICTER = {"is there twice": "a repeated key", "dimensions, at most": "more than 8 dimensions",
            "its shape is not a list of sizes, or overflows": "an empty tensor with a dimension of 2^62 or more"}


@check
def safetensors_and_nibble_accept_the_same_files(room):
    """Damaged and merely unusual headers, lengths and data: nibble refuses what safetensors refuses and reads what it reads,
    but for STRICTER."""
    accepted = refused = 0
    file = room.folder / "damaged.safetensors"
    for turn in range(2000):
        whole = damaged_file(room, turn % 10)
        file.write_bytes(whole)
        theirs, done = upstream_reads(whole), room.call("inspect", file, "--json", "--tensors")
        document = json.loads(done.stdout)
        shown = f"{whole[:8].hex()} {whole[8:608]!r}, {len(whole)} bytes"
        if done.returncode == 0 and document["problems"] == []:
            accepted += 1
            shapes = {t["name"]: t["shape"] for t in document["tensors"]}
            if room.expect(theirs is not None, f"nibble reads what safetensors refuses: {shown}"):
                room.expect(shapes == {n: shape for n, (_, shape, _) in theirs.items()}, f"nibble reads something else in {shown}")
        else:
            refused += 1
            message = document["error"]["message"] if "error" in document else "; ".join(document["problems"])
            known = any(words in message for words in STRICTER)
            room.expect(message, f"refused without a reason: {done.stdout}")
            room.expect(theirs is None or known, f"nibble refuses what safetensors reads: {message}: {shown}")
    room.expect(accepted > 100 and refused > 500, "the mixture is lopsided: this check proves little")
    room.notes.append(f"{accepted} accepted, {refused} refused")


# ---- config.json ----

def spelt(text):
    """A JSON text as nested lists that keep the order of keys and the spelling of numbers, as Python's parser sees them."""
    return json.loads(text, parse_int=lambda s: f"int {s}", parse_float=lambda s: f"float {s}",
                      parse_constant=lambda s: f"constant {s}", object_pairs_hook=list)


CONFIG_VALUES = [
    "NaN", "Infinity", "-Infinity", "1e400", "-0", "-0.0", "123456789012345678901234567890", "9223372036854775808", "1E+2", "1.50",
    '"\\ud83e\\udd17 \\u00e9"', '"🤗 é\u2028"', '"a \\"quote\\" and }, {"', '"\\\\"', "[]", "{}", "[[], {}]", "null", "true",
    '{"quantization_config": {"quant_method": "gptq"}, "dtype": "float64", "torch_dtype": null}', '["quantization_config", "dtype"]',
    '"quantization_config"', '{"": {"": [1, {"dtype": "x"}]}}',
]
CONFIG_KEYS = ["zeta", "alpha", "quantization", "quantization_config_2", "text_quantization_config", "dtypes", "é", "🤗", "", " ",
               "{", "p", "q", "r", "Q", "\\\\", "a\\\"b", "\\u0061b", "vision_config", "_name_or_path"]


def unusual_config(room):
    """The text of a config with what real ones do not have."""
    choose = room.random.choice
    keys = room.random.sample(CONFIG_KEYS, room.random.randrange(1, len(CONFIG_KEYS)))
    members = [(key, choose(CONFIG_VALUES)) for key in keys] + [("model_type", '"llama"'), ("architectures", '["LlamaForCausalLM"]')]
    members += [(key, choose(['"bfloat16"', "null", '"float32"'])) for key in ("dtype", "torch_dtype") if choose([True, False])]
    members += [("quantization_config", "null")] if room.random.random() < 0.2 else []
    room.random.shuffle(members)
    line, colon, indent = choose(["\n", "\r\n", "", " ", "\t", "\n\n"]), choose([": ", ":", " : ", ":\t", ":\n"]), choose(["", "  ", "\t"])
    body = ("," + line + indent).join(f'"{key}"{colon}{value}' for key, value in members)
    return choose(["", " ", "\n", "\r\n\t"]) + "{" + line + indent + body + line + "}" + choose(["", "\n", "\r\n", " \n\n"])


@check
def config_texts_keep_every_other_key(room):
    """Unusual config texts through quantize and dequantize: all other keys, their order and the spelling of numbers stay, as
    Python's json sees them."""
    source = save_plain(room, "source", {"model.layers.0.mlp.up_proj.weight": room.normal(8, 64).to(torch.bfloat16)})
    packed, plain = room.folder / "packed", room.folder / "plain"

    def others(pairs, *keys):
        return [pair for pair in pairs if pair[0] not in keys]

    for _ in range(200):
        text = unusual_config(room)
        (source / "config.json").write_bytes(text.encode())
        room.remove("packed", "plain")
        fmt = room.random.choice(["nf4", "int8"])
        done = room.call("quantize", source, packed, "--format", fmt, "--quiet")
        if not room.expect(done.returncode == 0, f"quantize: {done.stderr.strip()}: {text!r}"):
            continue
        before, after = spelt(text), spelt((packed / "config.json").read_bytes().decode())
        kept = others(after, "quantization_config") == others(before, "quantization_config")
        room.expect(kept, f"quantize changed {text!r} to {(packed / 'config.json').read_text()!r}")
        expected = BitsAndBytesConfig(**(four_bit() if fmt == "nf4" else dict(load_in_8bit=True))).to_dict()
        room.expect(config_of(packed)["quantization_config"] == json.loads(json.dumps(expected)), f"quantization_config of {text!r}")

        done = room.call("dequantize", packed, plain, "--dtype", "f16", "--quiet")
        if not room.expect(done.returncode == 0, f"dequantize: {done.stderr.strip()}: {text!r}"):
            continue
        after, changed = spelt((plain / "config.json").read_bytes().decode()), ("quantization_config", "dtype", "torch_dtype")
        room.expect(others(after, *changed) == others(before, *changed), f"dequantize changed {text!r}")
        told = {key: value for key, value in after if key in changed}
        room.expect(set(told.values()) == {"float16"} and "quantization_config" not in told, f"dequantize says {told} of {text!r}")
        if room.random.random() < 0.1 and "vision_config" not in text:
            loaded = AutoConfig.from_pretrained(plain)
            room.expect(loaded.dtype == torch.float16, f"transformers takes the dtype for {loaded.dtype}: {text!r}")


# ---- diff ----

NUMBERS = [torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.bool]


def random_numbers(room, shape, dtype):
    if dtype in FLOATS.values():
        return (room.normal(*shape) * 10 ** room.random.uniform(-4, 4)).to(dtype)
    if dtype == torch.float64:
        return room.normal(*shape).double() * 10 ** room.random.uniform(-30, 30)
    if dtype == torch.bool:
        return room.bytes(*shape) > 127
    return torch.randint(0, 100, shape, generator=room.noise).to(dtype)


def random_pair(room):
    """Two tensors of one shape, close to each other or not, with some special values."""
    shape = room.random.choice([(), (1,), (7,), (8, 16), (3, 5, 7), (0, 3), (300, 301)])
    if room.random.random() < 0.6:
        first, second = room.random.choices(list(FLOATS.values()), k=2)
    else:
        first = room.random.choice(NUMBERS + [torch.float32])
        second = room.random.choice(NUMBERS) if room.random.random() < 0.4 else first
    x = random_numbers(room, shape, first)
    y = x.to(second) if second.is_floating_point else x.double().clamp(0, 100).to(second)
    for side in (x, y):
        for _ in range(room.random.choice([0, 0, 1, 3]) if side.numel() else 0):
            special = room.random.choice([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 3.0]) if side.is_floating_point() else 1
            side.view(-1)[room.random.randrange(side.numel())] = special
    if room.random.random() < 0.2 and first == second:
        y = x.clone()
    return x, torch.zeros_like(y) if room.random.random() < 0.1 else y


def figures(x, y):
    """equal, max_abs, rel_norm and cosine, by torch in f64."""
    a, b = x.double(), y.double()
    if torch.equal(raw(x), raw(y)) if x.dtype == y.dtype else torch.equal(raw(a), raw(b)):
        return True, 0.0, 0.0, 1.0
    d = (a - b).flatten()
    if d.isnan().any():
        return False, math.nan, math.nan, math.nan
    norms = a.norm().item(), b.norm().item()
    relative = d.norm().item() / norms[1] if norms[1] else math.inf if d.any() else 0.0
    cosine = (a * b).sum().item() / (norms[0] * norms[1]) if all(norms) else float(not d.any())
    return False, d.abs().max().item(), relative, cosine


@check
def diff_figures_are_torchs(room):
    """Random pairs in every mixture of dtypes, with NaN and infinities: equal, max_abs, rel_norm, cosine against torch; --tol."""
    pairs = {f"t{number}": random_pair(room) for number in range(160)}
    sides = [save_plain(room, name, {k: pair[i] for k, pair in pairs.items()}) for i, name in enumerate("ab")]
    told, status = room.json("diff", *sides)
    room.expect(status == 1 and not told["equal"] and not told["within"], f"exit status {status}, equal {told['equal']}")
    rows = {t["name"]: t for t in told["tensors"]}
    room.expect(set(rows) == set(pairs), "tensors are missing in the answer")
    for name, row in rows.items():
        x, y = pairs[name]
        equal, *wanted = figures(x, y)
        what = f"{name} {x.dtype} and {y.dtype} {list(x.shape)}"
        room.expect(row["equal"] is equal, f"{what}: equal is {row['equal']}")
        for key, want in zip(("max_abs", "rel_norm", "cosine"), wanted):
            got = row[key]
            good = got is None if not math.isfinite(want) else got is not None and abs(got - want) <= 1e-9 * abs(want) + 1e-12
            room.expect(good, f"{what}: {key} is {got}, torch has {want}")

    finite = {name: row["rel_norm"] for name, row in rows.items() if row["rel_norm"] is not None}
    room.remove("a", "b")
    sides = [save_plain(room, name, {k: pairs[k][i] for k in finite}) for i, name in enumerate("ab")]
    largest = max(finite.values())
    for tolerance, within in ((largest * 1.000001, True), (largest * 0.999999, False)):
        told, status = room.json("diff", *sides, "--tol", repr(tolerance))
        room.expect(told["within"] is within and status == (not within), f"--tol {tolerance} for {largest}: within {told['within']}")


# ---- the model computes the same ----

@check
def models_compute_the_same(room):
    """A folder quantised by nibble, run by transformers + bitsandbytes, and the same folder dequantised: the same logits."""
    avx512 = "avx512f" in open("/proc/cpuinfo").read()
    if avx512:
        room.notes.append("with AVX-512, CPU bitsandbytes is right for rows of whole blocks and for blocks from 2048 on only: others not tried")
    packed, plain = room.folder / "packed", room.folder / "plain"
    for kind in ("llama", "qwen3", "gemma3_text", "phi3", "olmo2"):
        fmt, dtype = room.random.choice(["nf4", "fp4"]), room.random.choice(["f32", "bf16"])
        wide, double = room.random.choice([True, False]), room.random.choice([[], ["--double"]])
        block = room.random.choice(BLOCKS if not avx512 else [32, 64] if wide else [2048, 4096])
        source = make(room, kind, FLOATS[dtype], wide=wide)
        room.nibble("quantize", source, packed, "--format", fmt, "--compute-dtype", dtype, "--block", block, *double)
        room.nibble("dequantize", packed, plain, "--dtype", dtype)
        what, models = f"{kind} {fmt} {dtype} block {block} {' '.join(double)}", []
        for folder in (packed, plain):
            model, info = AutoModelForCausalLM.from_pretrained(folder, device_map="cpu", output_loading_info=True)
            wrong = {k: info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[k]}
            room.expect(not wrong, f"{what}: {folder.name}: {wrong}")
            models.append(model.train())  # for inference bitsandbytes may round scales and inputs to bf16
        layers = {name + ".weight" for name, module in models[0].named_modules() if isinstance(module, Linear4bit)}
        room.expect(layers == set(packed_names(tensors_of(packed))), f"{what}: transformers has other 4-bit layers")
        ids = torch.tensor([[room.random.randrange(250) for _ in range(11)]])
        with torch.no_grad():
            x, y = (model(ids).logits.double() for model in models)
        off = ((x - y).norm() / y.norm()).item()
        room.expect(off < (1e-5 if dtype == "f32" else 2e-2), f"{what}: logits are off by {off:.1e}")
        room.remove("source", "packed", "plain")


if __name__ == "__main__":
    sys.exit(common.main())
