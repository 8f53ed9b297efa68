"""Gradients of the operators. The formulas call operators only, so that they can be traced as well."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from ._fake import ADAPTER, WEIGHT

_ops = torch.ops.nibble


def _split(values: tuple[Any, ...]) -> tuple[list[Tensor], tuple[Any, ...]]:
    """Tensors, and the values with None in the tensors' places."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    return tensors, tuple(None if isinstance(value, Tensor) else value for value in values)


def _join(tensors: tuple[Tensor, ...], numbers: tuple[Any, ...]) -> list[Any]:
    rest = iter(tensors)
    return [next(rest) if number is None else number for number in numbers]


def _save(ctx: Any, inputs: tuple[Any, ...], *outputs: Tensor) -> None:
    tensors, ctx.numbers = _split(inputs)
    ctx.count = len(outputs)
    ctx.save_for_backward(*outputs, *tensors)


def _saved(ctx: Any) -> tuple[list[Tensor], list[Any]]:
    """The outputs that were saved, and the inputs."""
    tensors = ctx.saved_tensors
    return list(tensors[: ctx.count]), _join(tensors[ctx.count :], ctx.numbers)


def _bits(flags: list[bool]) -> int:
    return sum(1 << i for i, flag in enumerate(flags) if flag)


def _of_dtype(gradient: Tensor, like: Tensor, wanted: bool) -> Tensor | None:
    """Gradients of parameters are f32. autograd expects the parameter's dtype."""
    return gradient.to(like.dtype) if wanted else None


def _no_second(ctx: Any, *gradients: Any) -> NoReturn:
    raise RuntimeError(
        "nibble: second derivatives do not exist. The operators have first derivatives only: "
        "call backward() or torch.autograd.grad() without create_graph"
    )


def _nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


def _linear_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _save(ctx, inputs, output[1])


def _linear(ctx: Any, dy: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    (saved,), inputs = _saved(ctx)
    needs = ctx.needs_input_grad
    first = 1 + WEIGHT  # bias, lora_a, lora_b, magnitude
    wanted = [needs[0], *needs[first : first + 4]]
    dx, *rest = _ops.linear_backward(dy, inputs[0], saved, *inputs[1:], _bits(wanted))
    parts = [_of_dtype(rest[i], inputs[first + i], wanted[1 + i]) for i in range(4)]
    return dx if wanted[0] else None, *[None] * WEIGHT, *parts, *[None] * (ADAPTER - 4 + 3)


torch.library.register_autograd("nibble::linear", _linear, setup_context=_linear_setup)
for _name in ("linear_backward",):
    torch.library.register_autograd(f"nibble::{_name}", _no_second, setup_context=_nothing)
