"""The operators with plain arguments: weights as Weight, absent tensors as None."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .weight import Format, Nested, Weight

_ops = torch.ops.nibble

Activation = Literal["silu", "gelu", "gelu_tanh"]
Reduction = Literal["mean", "none"]
Rounding = Literal["before_weight", "after_weight"]

_ACTIVATIONS: dict[Activation, int] = {"silu": 0, "gelu": 1, "gelu_tanh": 2}
_REDUCTIONS: dict[Reduction, int] = {"mean": 0, "none": 1}
_ROUNDINGS: dict[Rounding, int] = {"before_weight": 0, "after_weight": 1}


class Layer(NamedTuple):
    """A linear layer: y = (x W' + scale (drop(x) A') B') * magnitude / norm + bias.

    The weight is frozen. Without lora_a and lora_b there is no adapter. With a magnitude the adapter is DoRA.
    `norm` is |W + scale B A| by rows, if it is known (see dora_norm). Else each call computes it.
    """

    weight: Weight
    bias: Tensor | None = None
    lora_a: Tensor | None = None
    lora_b: Tensor | None = None
    magnitude: Tensor | None = None
    norm: Tensor | None = None
    scale: float = 1.0


def _arguments(layer: Layer, none: Tensor) -> tuple[Any, ...]:
    tensors = (none if tensor is None else tensor for tensor in layer[1:6])
    return (*layer.weight.args, *tensors, layer.scale)


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
    """The output of a layer: see Layer for its arguments.

    x and the result have one dtype: float32, float16 or bfloat16. A, B and the magnitude have any of these.
    The bias has the dtype of x or float32.

    dropout    of the adapter's input. It needs a seed
    seed       one int64 on the device of x. The same seed gives the same mask
    threshold  int8: columns of x with a value of that size are not quantized. 0: all are.
               Negative: the weight is dequantized instead, as bitsandbytes trains on a CPU
    """
    none = x.new_empty(0)
    layer = _arguments(Layer(weight, bias, lora_a, lora_b, magnitude, norm, scale), none)
    y: Tensor = _ops.linear(x, *layer, dropout, none if seed is None else seed, threshold)[0]
    return y


def linear_group(
    x: Tensor,
    layers: Sequence[Layer],
    *,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    threshold: float = 0.0,
) -> tuple[Tensor, ...]:
    """The outputs of two or three layers with the same input: q, k and v, or gate and up.

    They cost less together. The gradient of x is their sum, rounded once. Each layer draws a dropout mask of
    its own.
    """
    if not 1 <= len(layers) <= 3:
        raise ValueError(f"a group has one to three layers, not {len(layers)}")
    none = x.new_empty(0)
    absent = (*[none] * 6, 0, 0, 0, 0, 0, *[none] * 5, 0.0)
    arguments: list[Any] = []
    for i in range(3):
        arguments += _arguments(layers[i], none) if i < len(layers) else absent
    ys = _ops.linear_group(x, *arguments, dropout, none if seed is None else seed, threshold)
    return tuple(ys[: len(layers)])


def mlp(
    x: Tensor,
    gate: Layer,
    up: Layer,
    down: Layer,
    activation: Activation = "silu",
    *,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    threshold: float = 0.0,
    keep: bool = False,
) -> Tensor:
    """y = down(act(gate(x)) * up(x)). Values between the layers exist for 512 tokens at a time.

    `keep` stores the outputs of gate and up for backward: 8 bytes per token and inner feature. It saves two
    of backward's five large products. The result has the same bits.
    """
    none = x.new_empty(0)
    parts = (*_arguments(gate, none), *_arguments(up, none), *_arguments(down, none))
    act = _ACTIVATIONS[activation]
    y: Tensor = _ops.mlp(x, *parts, act, dropout, none if seed is None else seed, threshold, keep)[0]
    return y


def dora_norm(weight: Weight, lora_a: Tensor, lora_b: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """|W + scale B A| by rows, float32: DoRA's norm for layers that compute in `dtype`.

    It is a constant in backward, as in PEFT.
    """
    norm: Tensor = _ops.dora_norm(*weight.args, lora_a, lora_b, scale, dtype)
    return norm


def rmsnorm(
    x: Tensor, weight: Tensor, *, eps: float = 1e-6, offset: float = 0.0, rounding: Rounding = "before_weight"
) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * (weight + offset), in the dtype of x.

    rounding  "before_weight" (Llama): x / rms is rounded to the dtype, then multiplied.
              "after_weight" (Gemma): rounded once, at the end
    """
    y: Tensor = _ops.rmsnorm(x, weight, x.new_empty(0), eps, offset, _ROUNDINGS[rounding])[0]
    return y


def add_rmsnorm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    rounding: Rounding = "before_weight",
) -> tuple[Tensor, Tensor]:
    """rmsnorm of h = x + residual, and h."""
    y, h = _ops.rmsnorm(x, weight, residual, eps, offset, _ROUNDINGS[rounding])
    return y, h


def norm_rope(
    x: Tensor,
    weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    rounding: Rounding = "before_weight",
) -> Tensor:
    """rmsnorm of each head, and its rotary embedding in the layout of Hugging Face's models.

    x         [.., heads, dim]
    weight    [dim], frozen
    cos, sin  float32 [tokens, rotated / 2]
    """
    y: Tensor = _ops.norm_rope(x, weight, cos, sin, eps, offset, _ROUNDINGS[rounding])
    return y


def cross_entropy(
    x: Tensor,
    weight: Weight | Tensor,
    labels: Tensor,
    *,
    softcap: float = 0.0,
    smoothing: float = 0.0,
    reduction: Reduction = "mean",
    denominator: Tensor | None = None,
    grad_in_forward: bool | None = None,
) -> Tensor:
    """The output head and the loss: cross entropy of x W' without storing logits. float32.

    weight           [vocabulary, hidden]. A Tensor may be trained, a Weight is frozen
    labels           one per token. -100 is not trained. Where no token is trained the loss is 0
    softcap          > 0: logits become cap * tanh(logits / cap)
    denominator      mean: the divisor, float32 [1]. Default: the number of trained tokens
    grad_in_forward  forward also computes the gradient of x, and saves backward a product. Default: where x
                     needs a gradient, the weight does not, and the reduction is "mean"
    """
    none = x.new_empty(0)
    if isinstance(weight, Tensor):
        rows, columns = weight.shape
        arguments: tuple[Any, ...] = (weight, *[none] * 5, int(Format.DENSE), 0, 0, rows, columns)
    else:
        arguments = weight.args
    if grad_in_forward is None:
        needed = torch.is_grad_enabled() and x.requires_grad
        grad_in_forward = needed and reduction == "mean" and not arguments[0].requires_grad
    if labels.dtype != torch.int32:
        # a label that i32 does not hold stays out of range
        labels = labels.clamp(-(2**31), 2**31 - 1).to(torch.int32)
    loss: Tensor = _ops.cross_entropy(
        x,
        *arguments,
        labels,
        none if denominator is None else denominator,
        softcap,
        smoothing,
        _REDUCTIONS[reduction],
        grad_in_forward,
    )[0]
    return loss
