"""Gradients of the operators. The formulas call operators only, so that they can be traced as well.

A gradient that an operator does not compute is an error when forward runs. It is never a zero or a number
without that part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._fake import DENSE, LAYER, WEIGHT, is_given

_ops = torch.ops.nibble
Formula = Callable[..., "tuple[Tensor | None, ...]"]

_library: Any = torch.library.Library("nibble", "IMPL")  # type: ignore[no-untyped-call]


def _has_tangent(value: Any) -> bool:
    if not isinstance(value, Tensor):
        return False
    return forward_ad.unpack_dual(value).tangent is not None  # type: ignore[no-untyped-call]


def _register(name: str, differentiable: Sequence[int], setup: Callable[..., None], formula: Formula) -> None:
    """Registers the gradient of an operator: `formula` with what `setup` saves, for some of its arguments.

    It does what torch.library.register_autograd does, and more. It refuses gradients of other arguments. It
    refuses forward-mode derivatives, which would be 0. It says in plain words that torch.func does not work.
    """
    op = getattr(_ops, name).default
    arguments = [argument.name for argument in op._schema.arguments]
    expected = frozenset(differentiable)

    def run(keyset: Any, inputs: tuple[Any, ...]) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keyset & torch._C._after_autograd_keyset, *inputs)

    def forward(ctx: Any, keyset: Any, *inputs: Any) -> Any:
        for i, needed in enumerate(ctx.needs_input_grad[1:]):
            if needed and i not in expected:
                raise RuntimeError(
                    f"nibble: {name}: {arguments[i]} requires a gradient, but the operator has none for it: "
                    f"hand in {arguments[i]}.detach()"
                )
        output = run(keyset, inputs)
        setup(ctx, inputs, output)
        return output

    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, *formula(ctx, ctx.needs_input_grad[1:], *gradients)

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function: Any = type(f"nibble_{name}", (torch.autograd.Function,), members)

    def kernel(keyset: Any, *inputs: Any) -> Any:
        if forward_ad._current_level >= 0 and any(_has_tangent(value) for value in inputs):
            raise RuntimeError(
                f"nibble: {name}: forward-mode derivatives (torch.func.jvp, forward_ad) do not exist: "
                "call backward() or torch.autograd.grad()"
            )
        if not (torch.is_grad_enabled() and any(isinstance(v, Tensor) and v.requires_grad for v in inputs)):
            return run(keyset, inputs)
        if torch._C._are_functorch_transforms_active():
            raise RuntimeError(
                f"nibble: {name}: torch.func.grad and its relatives do not differentiate nibble's operators: "
                "call backward() or torch.autograd.grad()"
            )
        return function.apply(keyset, *inputs)

    _library.impl(name, kernel, "Autograd", with_keyset=True)


# ---- what is saved: tensors by save_for_backward, numbers beside them ----


def _save(ctx: Any, inputs: tuple[Any, ...], *outputs: Tensor) -> None:
    ctx.numbers = tuple(None if isinstance(value, Tensor) else value for value in inputs)
    ctx.count = len(outputs)
    ctx.save_for_backward(*outputs, *(value for value in inputs if isinstance(value, Tensor)))


def _saved(ctx: Any) -> tuple[list[Tensor], list[Any]]:
    """The outputs that were saved, and the inputs."""
    tensors = ctx.saved_tensors
    rest = iter(tensors[ctx.count :])
    return list(tensors[: ctx.count]), [next(rest) if number is None else number for number in ctx.numbers]


def _bits(flags: Sequence[bool]) -> int:
    return sum(1 << i for i, flag in enumerate(flags) if flag)


def _cast(gradient: Tensor, like: Tensor, wanted: bool) -> Tensor | None:
    """Gradients of parameters are f32. autograd expects the parameter's dtype."""
    return gradient.to(like.dtype) if wanted else None


def _adapter(first: int) -> range:
    """Arguments bias, lora_a, lora_b and magnitude of the layer whose data is argument `first`."""
    return range(first + WEIGHT, first + WEIGHT + 4)


def _layer_gradients(
    count: int,
    inputs: Sequence[Any],
    needs: Sequence[bool],
    parts: Sequence[int],
    dx: Tensor,
    rest: Sequence[Tensor],
) -> tuple[Tensor | None, ...]:
    """The gradients of all `count` arguments: dx of the first, `rest` of `parts`."""
    gradients: list[Tensor | None] = [None] * count
    gradients[0] = dx if needs[0] else None
    for i, gradient in zip(parts, rest, strict=True):
        gradients[i] = _cast(gradient, inputs[i], needs[i])
    return tuple(gradients)


# ---- linear, linear_group, mlp ----

_ONE = list(_adapter(1))
_THREE = [i for layer in range(3) for i in _adapter(1 + layer * LAYER)]


def _linear_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _save(ctx, inputs, output[1])


def _linear(ctx: Any, needs: Sequence[bool], dy: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    (saved,), inputs = _saved(ctx)
    wanted = _bits([needs[0], *(needs[i] for i in _ONE)])
    dx, *rest = _ops.linear_backward(dy, inputs[0], saved, *inputs[1:], wanted)
    return _layer_gradients(len(inputs), inputs, needs, _ONE, dx, rest)


def _group_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _save(ctx, inputs, output[3])


def _group(
    ctx: Any, needs: Sequence[bool], dy0: Tensor, dy1: Tensor, dy2: Tensor, _: Any
) -> tuple[Tensor | None, ...]:
    (saved,), inputs = _saved(ctx)
    wanted = _bits([needs[0], *(needs[i] for i in _THREE)])
    dx, *rest = _ops.linear_group_backward(dy0, dy1, dy2, inputs[0], saved, *inputs[1:], wanted)
    return _layer_gradients(len(inputs), inputs, needs, _THREE, dx, rest)


def _mlp_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1], output[2])
    _save(ctx, inputs, output[1], output[2])


def _mlp(ctx: Any, needs: Sequence[bool], dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    (gate_out, up_out), inputs = _saved(ctx)
    wanted = _bits([needs[0], *(needs[i] for i in _THREE)])
    dx, *rest = _ops.mlp_backward(dy, inputs[0], gate_out, up_out, *inputs[1:], wanted)
    return _layer_gradients(len(inputs), inputs, needs, _THREE, dx, rest)


_register("linear", [0, *_ONE], _linear_setup, _linear)
_register("linear_group", [0, *_THREE], _group_setup, _group)
_register("mlp", [0, *_THREE], _mlp_setup, _mlp)


# ---- norms ----


def _rmsnorm_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, residual, *ctx.numbers = inputs
    ctx.has_residual = is_given(residual)
    ctx.set_materialize_grads(False)
    # h = x + residual is what backward needs
    ctx.save_for_backward(output[1] if ctx.has_residual else x, weight)


def _rmsnorm(
    ctx: Any, needs: Sequence[bool], dy: Tensor | None, dh: Tensor | None
) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    wants_dx = needs[0] or needs[2]
    if dy is None:
        return (dh if needs[0] else None, None, dh if needs[2] else None, None, None, None)
    if dh is None or not ctx.has_residual:
        dh = x.new_empty(0)
    dx, dweight = _ops.rmsnorm_backward(dy, dh, x, weight, *ctx.numbers, _bits([wants_dx, needs[1]]))
    of_residual = dx if needs[2] else None
    return (dx if needs[0] else None, _cast(dweight, weight, needs[1]), of_residual, None, None, None)


def _norm_rope_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _save(ctx, inputs)


def _norm_rope(ctx: Any, needs: Sequence[bool], dy: Tensor) -> tuple[Tensor | None, ...]:
    _, inputs = _saved(ctx)
    return (_ops.norm_rope_backward(dy, *inputs), *[None] * 6)


_register("rmsnorm", [0, 1, 2], _rmsnorm_setup, _rmsnorm)
_register("norm_rope", [0], _norm_rope_setup, _norm_rope)


# ---- loss ----

_LOSS_DATA = (
    1  # x, then data ... columns, labels, denominator, softcap, smoothing, reduction, grad_in_forward
)


def _loss_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    if ctx.needs_input_grad[1 + _LOSS_DATA] and inputs[_LOSS_DATA + 6] != DENSE:
        raise RuntimeError("nibble: cross_entropy: data requires a gradient, but a packed weight has none")
    _, logprobs, lse, dx_in_forward = output
    ctx.mark_non_differentiable(logprobs, lse, dx_in_forward)
    _save(ctx, inputs, lse, dx_in_forward)


def _loss(ctx: Any, needs: Sequence[bool], dloss: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    (lse, dx_in_forward), inputs = _saved(ctx)
    trains = needs[_LOSS_DATA]
    labels = 1 + WEIGHT
    dx, dweight = _ops.cross_entropy_backward(
        dloss, *inputs[: labels + 2], lse, dx_in_forward, *inputs[labels + 2 :], _bits([needs[0], trains])
    )
    gradients: list[Tensor | None] = [None] * len(inputs)
    gradients[0] = dx if needs[0] else None
    if trains:
        data = inputs[_LOSS_DATA]
        gradients[_LOSS_DATA] = dweight.to(data.dtype).reshape(data.shape)
    return tuple(gradients)


_register("cross_entropy", [0, _LOSS_DATA], _loss_setup, _loss)


# ---- dequantize: a dense weight passes gradients on ----


def _dequantize_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    if inputs[6] != DENSE:
        raise RuntimeError("nibble: dequantize: data requires a gradient, but a packed weight has none")
    ctx.dtype, ctx.shape, ctx.transposed = inputs[0].dtype, inputs[0].shape, inputs[-1]


def _dequantize(ctx: Any, needs: Sequence[bool], dy: Tensor) -> tuple[Tensor | None, ...]:
    gradient = dy.t() if ctx.transposed else dy
    return (gradient.to(ctx.dtype).reshape(ctx.shape), *[None] * (WEIGHT + 1))


_register("dequantize", [0], _dequantize_setup, _dequantize)


# ---- operators without derivatives ----


def _no_gradient(ctx: Any, needs: Sequence[bool], *gradients: Any) -> NoReturn:
    raise RuntimeError(
        "nibble: second derivatives do not exist. The operators have first derivatives only: "
        "call backward() or torch.autograd.grad() without create_graph"
    )


def _constant(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.mark_non_differentiable(output)


def _nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


for _name in ("linear", "linear_group", "mlp", "rmsnorm", "norm_rope", "cross_entropy"):
    _backward = f"{_name}_backward"
    _count = len(getattr(_ops, _backward).default._schema.arguments)
    _register(_backward, range(_count), _nothing, _no_gradient)

# DoRA's norm is a constant of backward, as in PEFT. Codes have no derivative.
_register("dora_norm", range(WEIGHT + 2), _constant, _no_gradient)
_register("quantize", [], _nothing, _no_gradient)
