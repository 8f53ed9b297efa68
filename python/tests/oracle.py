"""The operators' formulas in f64, dense, with torch's autograd."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from nibble_torch import Layer, Weight
from torch import Tensor, nn

FORMATS = ["nf4", "fp4", "int8", "mxfp4"]


def packed(rows: int, columns: int, format: str = "nf4", nested: str = "none", block: int = 64) -> Weight:
    return Weight.quantize(torch.randn(rows, columns) / columns**0.5, format, block=block, nested=nested)


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape).to(dtype))


def layer(
    weight: Weight,
    rank: int = 0,
    *,
    bias: bool = False,
    dora: bool = False,
    scale: float = 0.5,
    dtype: torch.dtype = torch.float32,
) -> Layer:
    rows, columns = weight.shape
    a = parameter(rank, columns, dtype=dtype) if rank else None
    b = parameter(rows, rank, dtype=dtype) if rank else None
    m = nn.Parameter((torch.rand(rows) + 0.5).to(dtype)) if dora else None
    return Layer(weight, parameter(rows) if bias else None, a, b, m, None, scale)


def parameters(*layers: Layer) -> list[Tensor]:
    return [tensor for of in layers for tensor in of[1:6] if isinstance(tensor, Tensor)]


def linear(x: Tensor, of: Layer, dtype: torch.dtype) -> Tensor:
    """In f64, of a weight that is rounded to `dtype`. x is f64."""
    w = of.weight.dequantize(dtype).double()
    y = x @ w.T
    if of.lora_a is not None and of.lora_b is not None:
        a, b = of.lora_a.double(), of.lora_b.double()
        y = y + of.scale * (x @ a.T) @ b.T
        if of.magnitude is not None:
            norm = (w + of.scale * b @ a).detach().norm(dim=1)
            y = y * (of.magnitude.double() / norm)
    return y if of.bias is None else y + of.bias.double()


def error(found: Tensor, expected: Tensor) -> float:
    """|found - expected| / |expected|."""
    if expected.numel() == 0:
        return 0.0 if found.shape == expected.shape else float("inf")
    size = expected.double().norm().item()
    return (found.double() - expected.double()).norm().item() / (size or 1.0)


def compare(
    found: Sequence[Tensor], expected: Sequence[Tensor], inputs: Sequence[Tensor], tolerance: float
) -> None:
    """Values, and gradients of random cotangents. `expected` is computed from the same inputs, in f64."""
    cotangents = [torch.randn_like(y) for y in found]
    mine = torch.autograd.grad(found, inputs, cotangents, retain_graph=True)
    theirs = torch.autograd.grad(expected, inputs, [c.double() for c in cotangents], retain_graph=True)
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert a.shape == b.shape
        assert error(a, b) <= tolerance, f"output {i}: {error(a, b)}"
    for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        assert a.shape == b.shape
        assert a.dtype == inputs[i].dtype
        assert error(a, b) <= tolerance, f"gradient of input {i}: {error(a, b)}"
