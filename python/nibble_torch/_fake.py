"""Shapes and dtypes of the operators' outputs, for torch.compile, export and the meta device.

They check what shapes tell. The library checks everything once more, with values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

# Arguments of a packed weight (data ... columns) and of an adapter (bias ... scale).
WEIGHT, ADAPTER = 11, 6
COMPUTE = (torch.float32, torch.float16, torch.bfloat16)
DENSE, NF4, FP4, INT8, MXFP4 = range(5)


def _absent(tensor: Tensor) -> bool:
    return tensor.numel() == 0


def _check(op: str, condition: Any, text: str) -> None:
    torch._check(condition, lambda: f"nibble: {op}: {text}")


def _check_weight(op: str, weight: Sequence[Any], part: str = "") -> None:
    data, scales, codes, nested, table, offset, form, block, nested_block, rows, columns = weight
    count = rows * columns
    _check(op, DENSE <= form <= MXFP4, f"format{part} is {form}, allowed are 0 to 4")
    if form in (NF4, FP4):
        valid = 32 <= block <= 4096 and block & (block - 1) == 0
        _check(op, valid, f"block{part} is {block}, allowed are the powers of two from 32 to 4096")
    if not isinstance(count, int) or count == 0:
        return
    size = data.element_size()
    needed = {DENSE: count * size, INT8: count, MXFP4: count // 2}.get(form, (count + 1) // 2)
    held = data.numel() * size
    text = f"data{part} has {held} bytes of {data.dtype}, a weight of shape [{rows}, {columns}] takes {needed}"
    _check(op, needed <= held < needed + size, text)
    if form == DENSE:
        _check(op, data.dtype in COMPUTE, f"data{part} is {data.dtype}, not float32, float16 or bfloat16")
        return
    blocks = {INT8: rows, MXFP4: count // 32}.get(form, -(-count // block) if block > 0 else 0)
    if form == MXFP4 or not _absent(codes):
        _check(op, codes.dtype == torch.uint8, f"codes{part} is {codes.dtype}, not uint8")
        _check(op, codes.numel() == blocks, f"codes{part} has {codes.numel()} elements, {blocks} were expected")
    parts = [("scales", scales, blocks)]
    if not _absent(codes):
        parts = [("nested", nested, -(-blocks // nested_block)), ("table", table, 256), ("offset", offset, 1)]
    if form == MXFP4:
        parts = []
    for name, tensor, expected in parts:
        _check(op, tensor.dtype == torch.float32, f"{name}{part} is {tensor.dtype}, not float32")
        text = f"{name}{part} has {tensor.numel()} elements, {expected} were expected"
        _check(op, tensor.numel() == expected, text)


def _check_adapter(op: str, dtype: torch.dtype, rows: int, columns: int, adapter: Sequence[Any], part: str = "") -> None:
    bias, lora_a, lora_b, magnitude, norm, _ = adapter
    rank = lora_a.shape[0] if lora_a.dim() == 2 else 0
    _check(op, _absent(lora_a) == _absent(lora_b), f"lora_a{part} and lora_b{part} belong together")
    _check(op, _absent(bias) or bias.dtype in (dtype, torch.float32), f"bias{part} is {bias.dtype}, x is {dtype}")
    shapes = {
        "bias": (bias, (rows,)),
        "lora_a": (lora_a, (rank, columns)),
        "lora_b": (lora_b, (rows, rank)),
        "magnitude": (magnitude, (rows,)),
        "norm": (norm, (rows,)),
    }
    for name, (tensor, shape) in shapes.items():
        if _absent(tensor):
            continue
        text = f"{name}{part} is {list(tensor.shape)}, {list(shape)} was expected"
        _check(op, tuple(tensor.shape) == shape, text)
        _check(op, tensor.dtype in COMPUTE, f"{name}{part} is {tensor.dtype}, not float32, float16 or bfloat16")


def _check_layer(op: str, x: Tensor, weight: Sequence[Any], adapter: Sequence[Any], part: str = "") -> None:
    rows, columns = weight[9:11]
    _check(op, 1 <= x.dim() <= 8, f"x has {x.dim()} dimensions, allowed are 1 to 8")
    _check(op, x.dtype in COMPUTE, f"x is {x.dtype}, not float32, float16 or bfloat16")
    text = f"x is {list(x.shape)}, its last dimension must be {columns}, that of w{part} [{rows}, {columns}]"
    _check(op, x.shape[-1] == columns, text)
    _check_weight(op, weight, part)
    _check_adapter(op, x.dtype, rows, columns, adapter, part)


def _like(x: Tensor, last: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], last))


def _saved(x: Tensor) -> Tensor:
    return x.new_empty((0,), dtype=torch.uint8)


def _gradient(of: Tensor, wanted: bool, dtype: torch.dtype = torch.float32) -> Tensor:
    return of.new_empty(of.shape if wanted and not _absent(of) else (0,), dtype=dtype)


@torch.library.register_fake("nibble::dequantize")
def dequantize(*args: Any) -> Tensor:
    weight, (dtype, transpose) = args[:WEIGHT], args[WEIGHT:]
    rows, columns = weight[9:11]
    _check_weight("dequantize", weight)
    _check("dequantize", dtype in COMPUTE, f"dtype is {dtype}, not float32, float16 or bfloat16")
    data: Tensor = weight[0]
    return data.new_empty((columns, rows) if transpose else (rows, columns), dtype=dtype)


@torch.library.register_fake("nibble::quantize")
def quantize(values: Tensor, form: int, block: int, nested: int) -> tuple[Tensor, ...]:
    count, columns = values.numel(), values.shape[-1]
    _check("quantize", values.dtype in COMPUTE, f"values are {values.dtype}, not float32, float16 or bfloat16")
    _check("quantize", NF4 <= form <= MXFP4, f"format is {form}, allowed are 1 to 4")
    fourbit = form in (NF4, FP4)
    blocks = -(-count // (block or 64)) if fourbit else 0
    sizes = {
        "data": {INT8: count, MXFP4: count // 2}.get(form, (count + 1) // 2),
        "scales": count // columns if form == INT8 else blocks if not nested else 0,
        "codes": count // 32 if form == MXFP4 else blocks if nested else 0,
        "nested": -(-blocks // 256) if nested else 0,
        "table": 256 if nested else 0,
        "offset": 1 if nested else 0,
    }
    dtypes = {"data": torch.int8 if form == INT8 else torch.uint8, "codes": torch.uint8}
    return tuple(values.new_empty((size,), dtype=dtypes.get(name, torch.float32)) for name, size in sizes.items())


@torch.library.register_fake("nibble::linear")
def linear(x: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    weight, adapter = args[:WEIGHT], args[WEIGHT : WEIGHT + ADAPTER]
    _check_layer("linear", x, weight, adapter)
    return _like(x, weight[9]), _saved(x)


@torch.library.register_fake("nibble::linear_backward")
def linear_backward(dy: Tensor, x: Tensor, saved: Tensor, *args: Any) -> tuple[Tensor, ...]:
    weight, adapter, wanted = args[:WEIGHT], args[WEIGHT : WEIGHT + ADAPTER], args[-1]
    _check_layer("linear_backward", x, weight, adapter)
    _check("linear_backward", dy.dtype == x.dtype, f"dy is {dy.dtype}, x is {x.dtype}")
    parts = (_gradient(tensor, bool(wanted >> i + 1 & 1)) for i, tensor in enumerate(adapter[:4]))
    return (x.new_empty(x.shape if wanted & 1 else (0,)), *parts)
