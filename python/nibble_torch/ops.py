"""The operators with plain arguments: weights as Weight, absent tensors as None."""

from __future__ import annotations

import torch
from torch import Tensor

from .weight import Format, Nested, Weight

_ops = torch.ops.nibble


def _none(like: Tensor) -> Tensor:
    """An absent tensor."""
    return like.new_empty(0)


def dequantize(weight: Weight, dtype: torch.dtype | None = None, transpose: bool = False) -> Tensor:
    """The dense matrix of a weight: see Weight.dequantize."""
    return weight.dequantize(dtype, transpose)


def quantize(
    values: Tensor, format: Format | str = Format.NF4, *, block: int = 64, nested: Nested | str = Nested.NONE
) -> Weight:
    """Packs a matrix: see Weight.quantize."""
    return Weight.quantize(values, format, block=block, nested=nested)


def linear(
    x: Tensor,
    weight: Weight,
    bias: Tensor | None = None,
    lora_a: Tensor | None = None,
    lora_b: Tensor | None = None,
    magnitude: Tensor | None = None,
    norm: Tensor | None = None,
    *,
    scale: float = 1.0,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    threshold: float = 0.0,
) -> Tensor:
    """y = (x W' + scale (drop(x) A') B') * magnitude / norm + bias. The weight is frozen.

    x and the result have one dtype: float32, float16 or bfloat16.

    dropout  of the adapter's input; it needs `seed`, a tensor of one int64
    norm     |W + scale B A| by rows, if it is known (dora_norm)
    threshold  int8: columns of x with a value of that size are not quantized; 0: all are;
               negative: the weight is dequantized instead, as bitsandbytes trains on a CPU
    """
    none = _none(x)
    parts = (none if part is None else part for part in (bias, lora_a, lora_b, magnitude, norm))
    y: Tensor = _ops.linear(x, *weight.args, *parts, scale, dropout, none if seed is None else seed, threshold)[0]
    return y
