"""What the makers of the operators' golden files share: the list of makers, random numbers, bounds, and the file itself.

A golden is one operator call on the tensors of a file, as `nibble-ops run` reads it (metadata `op` and `attrs`), with what an
upstream library computes from them as tensors `expect.NAME`, and the metadata `bounds`: how far ours may be off
(tools/ops/check.c lists the measures).

Bounds count roundings. Ours computes in f32 and rounds each result once; upstream rounds each step to the dtype it computes
in. A rounding moves a value by at most u (2^-12 of it in f16, 2^-9 in bf16), so n roundings, theirs and ours together, that
reach a result one after the other or as terms of a sum of like size move its norm by less than n u. In f32 what counts
is the order of sums: 3e-6 holds for all sizes here. A maker that needs more says why.
"""

import json
import logging
import os
import struct
import zlib

# Before torch is imported; see tests/oracle/common.py.
os.environ.update(TORCHDYNAMO_DISABLE="1", HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", PYTHONWARNINGS="ignore")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # below VNNI torch._int_mm saturates
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

import torch

torch.set_num_threads(1)  # the order of its sums must not depend on the machine

FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
FILE_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int32: "I32", torch.int8: "I8",
              torch.uint8: "U8"}
UNIT = {"f32": 3e-6, "f16": 2.0**-12, "bf16": 2.0**-9}
MAKERS = {}


def golden(name, **settings):
    """Registers a maker under a name. Called with a Noise and the settings it returns a Golden."""
    def register(function):
        assert name not in MAKERS, name
        MAKERS[name] = (function, settings)
        return function
    return register


def rel(dtype, roundings=2):
    """The relative norm error that so many roundings may cause."""
    return {"rel": UNIT[dtype] * (1 if dtype == "f32" else roundings)}


class Noise:
    """Random tensors that depend on seed and name alone."""

    def __init__(self, name, seed):
        self.generator = torch.Generator().manual_seed(zlib.crc32(f"{name}/{seed}".encode()))

    def normal(self, *shape, dtype="f32", scale=1.0):
        return (torch.randn(shape, generator=self.generator) * scale).to(FLOATS[dtype])

    def integers(self, low, high, *shape):
        return torch.randint(low, high, shape, generator=self.generator, dtype=torch.int32)


class Golden:
    def __init__(self, op, attrs, tensors):
        self.op, self.attrs, self.tensors, self.bounds = op, attrs, dict(tensors), {}

    def expect(self, name, value, bound, dtype=None):
        """A result of upstream. Gradients of parameters are f32 with us whatever upstream keeps them in."""
        assert value is not None, name
        self.tensors[f"expect.{name}"] = value.detach().to(FLOATS[dtype] if dtype else value.dtype)
        self.bounds[name] = bound

    def bytes(self):
        """The file. Sorted, so that the same tensors give the same bytes: upstream's writer shuffles the metadata."""
        tensors = {n: t.detach().contiguous().reshape(t.shape) for n, t in self.tensors.items()}
        header, data = {"__metadata__": {"attrs": json.dumps(self.attrs, sort_keys=True), "op": self.op,
                                         "bounds": json.dumps(self.bounds, sort_keys=True)}}, b""
        for name in sorted(tensors, key=lambda n: (-tensors[n].element_size(), n)):
            raw = tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes()
            header[name] = {"dtype": FILE_NAMES[tensors[name].dtype], "shape": list(tensors[name].shape),
                            "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text + data


def make(name, seed=0):
    function, settings = MAKERS[name]
    return function(Noise(name, seed), **settings)


def leaf(tensor):
    """A copy that autograd differentiates by."""
    return tensor.detach().clone().requires_grad_(True)
