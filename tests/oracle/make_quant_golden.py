"""Makes tests/data/quant/golden.bin: what bitsandbytes, transformers and torch compute, for tests/quant/test_quant.c.

    python tests/oracle/make_quant_golden.py [FILE]

Needs bitsandbytes 0.50, transformers and torch, on the CPU (requirements.txt). The tests themselves need none of them.

The file is a list of records: u32 length of the name, name, u32 length of the data, data; all little-endian. Results that are
long are kept as the CRC-32 of their bytes. Before that, NaN becomes the one pattern 7fc00000 (7e00, 7fc0), and for fp4 -0
becomes +0: bitsandbytes itself is not consistent there.

Where CPU bitsandbytes deviates from its CUDA kernels, which are the rule here, the records come from a model of the CUDA rule in
numpy, written apart from the C code: 8-bit codes, blocks of zeros, NaN and infinities, and the sign of fp4's zeros; its thresholds are
the CPU's.
"""
import os, struct, sys, zlib
from pathlib import Path

os.environ.update(TORCHDYNAMO_DISABLE="1", HF_HUB_OFFLINE="1", PYTHONWARNINGS="ignore")
import numpy as np, torch
import bitsandbytes.functional as F
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

TARGET = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "data/quant/golden.bin")
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BLOCKS = [32, 64, 128, 256, 512, 1024, 2048, 4096]
records = {}


def raw(t):
    """The bytes of a tensor or array."""
    t = t.contiguous().flatten().view(torch.uint8).numpy() if isinstance(t, torch.Tensor) else np.ascontiguousarray(t)
    return t.tobytes()


def put(name, data):
    assert name not in records, name
    records[name] = data if isinstance(data, bytes) else raw(data)


def put_crc(name, t, signed_zero=True):
    """CRC-32 after NaN (and without signed_zero also -0) were made one pattern."""
    t = t.clone()
    if t.is_floating_point():
        t[t.isnan()] = float("nan")
        if not signed_zero: t[t == 0] = 0.0
        t = t.view(torch.int32 if t.dtype == torch.float32 else torch.int16)
    put(name, struct.pack("<I", zlib.crc32(raw(t))))


# ---- models of the CUDA rules ----------------------------------------------------------------------------------------------------

def absmax_of(x, block):
    """Largest magnitude per block, NaN ignored, subnormals flushed."""
    pad = np.zeros(-len(x) % block, np.float32)
    peak = np.fmax.reduce(np.abs(np.concatenate([x, pad])).reshape(-1, block), axis=1).astype(np.float32)
    peak[~(peak >= np.finfo(np.float32).tiny)] = 0
    return peak


def scaled(x, block):
    peak = absmax_of(x, block)
    with np.errstate(all="ignore"):
        return peak, x * np.repeat(np.float32(1) / peak, block)[:len(x)]


def count_below(y, thresholds):
    with np.errstate(invalid="ignore"): return (y[:, None] > np.asarray(thresholds, np.float32)[None, :]).sum(1)


def nf4_codes(y):
    table = F.get_4bit_type("nf4", device="cpu").numpy()
    return count_below(y, ((table[:-1].astype(np.float64) + table[1:]) / 2).astype(np.float32))


def fp4_codes(y):
    """By mid-points; at a tie the smaller value, which of negative ones is the larger magnitude."""
    table = np.sort(F.get_4bit_type("fp4", device="cpu").numpy()[:8])
    steps = ((table[:-1].astype(np.float64) + table[1:]) / 2).astype(np.float32)
    with np.errstate(invalid="ignore"): negative = y < 0
    magnitude = np.where(negative, np.nextafter(np.abs(y), np.float32(9)), y)
    return np.array([0, 1, 6, 7, 4, 5, 2, 3])[count_below(magnitude, steps)] + 8 * negative


def packed(codes, spare):
    codes = np.append(codes, [spare] * (len(codes) % 2)).reshape(-1, 2)
    return (codes[:, 0] * 16 + codes[:, 1]).astype(np.uint8)


def fourbit(x, kind, block):
    """(packed codes, scales) of an f32 array."""
    peak, y = scaled(x, block)
    y[np.repeat(peak == 0, block)[:len(x)]] = np.nan  # 0 * (1 / 0)
    spare = 7 if kind == "nf4" and peak[-1] != 0 else 0
    return packed({"nf4": nf4_codes, "fp4": fp4_codes}[kind](y), spare), peak


def dynamic_codes(y, table):
    """Nearest entry by f32 mid-points, ties to the even index, NaN to 0."""
    middle = ((table[:-1] + table[1:]) * np.float32(0.5)).astype(np.float32)
    with np.errstate(invalid="ignore"): code = (y[:, None] > middle[None, :]).sum(1)
    tie = (code < 255) & (y == middle[np.minimum(code, 254)])
    return (code + (tie & (code % 2 == 1))).astype(np.uint8)


# ---- records ---------------------------------------------------------------------------------------------------------------------

def make_fourbit(noise):
    """Every block size: source, codes and scales, CRCs of the decoded values; flat and nested."""
    for at, block in enumerate(BLOCKS):
        n = 2 * block + (37 if at % 2 else 22)
        source = ["bf16", "f16", "bf16", "f32"][at % 4]
        x = (torch.randn(n, generator=noise) * 10.0 ** (torch.rand(n, generator=noise) - 2)).to(DTYPES[source])
        put(f"fourbit/{block}/source/{source}", x)
        for kind in ("nf4", "fp4"):
            theirs, state = F.quantize_4bit(x, blocksize=block, quant_type=kind)
            codes, peak = fourbit(x.float().numpy(), kind, block)
            assert raw(peak) == raw(state.absmax)
            if kind == "nf4" and source != "f32": assert raw(codes) == raw(theirs), "the model is not bitsandbytes"
            put(f"fourbit/{block}/{kind}/codes", codes)
            if kind == "nf4": put(f"fourbit/{block}/scales", peak)
            shape = torch.Size((1, n + n % 2))  # one row of even length: all CPU paths index scales rightly there
            for name, dtype in DTYPES.items():
                values = F.dequantize_4bit(torch.from_numpy(codes)[:, None], F.QuantState(
                    absmax=state.absmax, shape=shape, code=state.code, dtype=dtype, blocksize=block, quant_type=kind))
                put_crc(f"fourbit/{block}/{kind}/{name}", values.flatten()[:n], signed_zero=kind == "nf4")
    # Nested: many blocks, so that there is more than one of 256; the codes of the weight do not matter.
    n, block = 32 * 300 + 15, 32
    x = torch.randn(n, generator=noise) * torch.rand(n, generator=noise)
    codes, state = F.quantize_4bit(x, blocksize=block, quant_type="nf4", compress_statistics=True)
    put("nested/codes", codes)
    put("nested/scale_codes", state.absmax)
    put("nested/nested_scales", state.state2.absmax)
    put("nested/offset", state.offset)
    put("nested/scales", F.dequantize_blockwise(state.absmax, state.state2) + state.offset)
    for name, dtype in DTYPES.items():
        state.dtype, state.shape = dtype, torch.Size((1, n + 1))
        put_crc(f"nested/{name}", F.dequantize_4bit(codes, state).flatten()[:n])


def make_edges(noise):
    """Zeros, NaN, infinities, subnormals: 64 values per block, a ragged tail of zeros; bf16 (every case exists there)."""
    x = torch.randn(64 * 9 + 11, generator=noise)
    x[64:128] = 0
    x[130] = x[191] = float("nan")
    x[200] = float("inf")
    x[300] = -float("inf")
    x[301] = float("nan")
    x[320:384] = float("nan")
    x[384:448] *= 1e-39
    x[450] = -0.0
    x[512:576] *= 2.0 ** 125
    x[576:] = 0
    x = x.bfloat16()
    put("edges/source", x)
    for kind in ("nf4", "fp4"):
        codes, peak = fourbit(x.float().numpy(), kind, 64)
        put(f"edges/{kind}", codes)
    put("edges/scales", peak)


def make_int8(noise):
    """Rows of every dtype; five of seven hold a code that depends on 127 / scale being computed as (1 / scale) * 127, as torch does."""
    for name, dtype in DTYPES.items():
        x = (torch.randn(6000, 83, generator=noise) * 10.0 ** (4 * torch.rand(6000, 1, generator=noise) - 3)).to(dtype)
        half = x.half().float()
        peak = half.abs().amax(1, keepdim=True)
        quotient, product = (torch.from_numpy(f(peak.numpy())) for f in (lambda s: np.float32(127) / s, lambda s: np.float32(1) / s * np.float32(127)))
        telling = ((half * quotient).round() != (half * product).round()).any(1).nonzero().flatten()
        x = torch.cat([x[telling[:5]], x[:2]])
        assert x.shape[0] == 7
        codes, scales, _ = F.int8_vectorwise_quant(x.half())
        put(f"int8/{name}/source", x)
        put(f"int8/{name}/codes", codes)
        put(f"int8/{name}/scales", scales)
        values = F.int8_vectorwise_dequant(codes, scales)
        for to, t in DTYPES.items(): put_crc(f"int8/{name}/{to}", values.to(t))
    codes = torch.arange(-128, 128, dtype=torch.int16).to(torch.int8).repeat(64, 1)
    scales = torch.rand(64, generator=noise) * 10.0 ** torch.linspace(-30, 30, 64)
    put("int8/all/scales", scales)
    values = F.int8_vectorwise_dequant(codes, scales)
    for to, t in DTYPES.items(): put_crc(f"int8/all/{to}", values.to(t))


def make_mxfp4():
    """All 16 codes under all 256 scales: block e holds 0 ... 15 twice, low nibble first."""
    codes = torch.arange(32).remainder(16).view(16, 2)
    blocks = (codes[:, 0] + 16 * codes[:, 1]).to(torch.uint8).repeat(1, 256, 1, 1)
    scales = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(1, 256, 1)
    for name, dtype in DTYPES.items():
        values = convert_moe_packed_tensors(blocks, scales, dtype=dtype)  # [1, 32, 256]: theirs is transposed
        put_crc(f"mxfp4/all/{name}", values[0].T.contiguous())


def make_dynamic8(noise):
    for name, signed in (("signed", True), ("unsigned", False)):
        table = F.create_dynamic_map(signed=signed)
        put(f"dynamic8/{name}/map", table)
        x = torch.randn(1000, generator=noise) * 10.0 ** (4 * torch.rand(1000, generator=noise) - 4)
        if not signed: x = x.square()
        x[300:556] = 0
        x[700], x[5] = float("nan"), 0.0
        middle = (table[:-1] + table[1:]) * 0.5
        beside = torch.cat([middle, torch.nextafter(middle, torch.tensor(9.0)), torch.nextafter(middle, torch.tensor(-9.0)), torch.ones(1)])
        put(f"dynamic8/{name}/source", x)
        for what, values, block in (("256", x, 256), ("64", x, 64), ("midpoints", beside, beside.numel())):
            peak, y = scaled(values.numpy(), block)
            y[np.repeat(peak == 0, block)[:len(y)]] = np.nan
            codes = torch.from_numpy(dynamic_codes(y, table.numpy()))
            put(f"dynamic8/{name}/{what}/codes", codes)
            put(f"dynamic8/{name}/{what}/scales", peak)
            state = F.QuantState(absmax=torch.from_numpy(peak), code=table, blocksize=block, dtype=torch.float32)
            put_crc(f"dynamic8/{name}/{what}/values", F.dequantize_blockwise(codes, state))


def make_conversions():
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    for name in ("f16", "bf16"): put_crc(f"convert/{name}/f32", every.view(DTYPES[name]).float())
    # each 16-bit pattern as the top of an f32, with low halves around every place where a rounding can turn
    tops = torch.arange(65536, dtype=torch.int64) << 16
    for low in (0, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x3001, 0x7fff, 0x8000, 0x8001, 0xffff):
        bits = (tops | low).to(torch.int32).view(torch.float32)
        for name in ("f16", "bf16"): put_crc(f"convert/f32/{name}/{low:04x}", bits.to(DTYPES[name]))


noise = torch.Generator().manual_seed(2026)
make_fourbit(noise)
make_edges(noise)
make_int8(noise)
make_mxfp4()
make_dynamic8(noise)
make_conversions()
TARGET.parent.mkdir(parents=True, exist_ok=True)
with open(TARGET, "wb") as f:
    for name, data in records.items():
        f.write(struct.pack("<I", len(name)) + name.encode() + struct.pack("<I", len(data)) + data)
print(f"{TARGET}: {len(records)} records, {TARGET.stat().st_size} bytes")
