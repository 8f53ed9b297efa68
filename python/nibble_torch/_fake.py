"""Shapes and dtypes of the operators' outputs, for torch.compile, export and the meta device.

They check what shapes tell. The library checks everything once more, with values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

# Arguments of a packed weight (data ... columns) and of an adapter (bias ... scale).
WEIGHT, ADAPTER = 11, 6
LAYER = WEIGHT + ADAPTER
COMPUTE = (torch.float32, torch.float16, torch.bfloat16)
DENSE, NF4, FP4, INT8, MXFP4 = range(5)


Rule = TypeVar("Rule", bound=Callable[..., Any])


def _fake(name: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        torch.library.register_fake(f"nibble::{name}", rule)
        return rule

    return register


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
    text = (
        f"data{part} has {held} bytes of {data.dtype}, a weight of shape [{rows}, {columns}] takes {needed}"
    )
    _check(op, needed <= held < needed + size, text)
    if form == DENSE:
        _check(op, data.dtype in COMPUTE, f"data{part} is {data.dtype}, not float32, float16 or bfloat16")
        return
    blocks = {INT8: rows, MXFP4: count // 32}.get(form, -(-count // block) if block > 0 else 0)
    if form == MXFP4 or not _absent(codes):
        _check(op, codes.dtype == torch.uint8, f"codes{part} is {codes.dtype}, not uint8")
        _check(
            op, codes.numel() == blocks, f"codes{part} has {codes.numel()} elements, {blocks} were expected"
        )
    parts = [("scales", scales, blocks)]
    if not _absent(codes):
        parts = [("nested", nested, -(-blocks // nested_block)), ("table", table, 256), ("offset", offset, 1)]
    if form == MXFP4:
        parts = []
    for name, tensor, expected in parts:
        _check(op, tensor.dtype == torch.float32, f"{name}{part} is {tensor.dtype}, not float32")
        text = f"{name}{part} has {tensor.numel()} elements, {expected} were expected"
        _check(op, tensor.numel() == expected, text)


def _check_adapter(
    op: str, dtype: torch.dtype, rows: int, columns: int, adapter: Sequence[Any], part: str = ""
) -> None:
    bias, lora_a, lora_b, magnitude, norm, _ = adapter
    rank = lora_a.shape[0] if lora_a.dim() == 2 else 0
    _check(op, _absent(lora_a) == _absent(lora_b), f"lora_a{part} and lora_b{part} belong together")
    _check(
        op, _absent(bias) or bias.dtype in (dtype, torch.float32), f"bias{part} is {bias.dtype}, x is {dtype}"
    )
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
        _check(
            op, tensor.dtype in COMPUTE, f"{name}{part} is {tensor.dtype}, not float32, float16 or bfloat16"
        )


def _check_x(op: str, x: Tensor) -> None:
    _check(op, 1 <= x.dim() <= 8, f"x has {x.dim()} dimensions, allowed are 1 to 8")
    _check(op, x.dtype in COMPUTE, f"x is {x.dtype}, not float32, float16 or bfloat16")


def _check_columns(op: str, x: Tensor, rows: int, columns: int, part: str = "") -> None:
    text = f"x is {list(x.shape)}, its last dimension must be {columns}, that of w{part} [{rows}, {columns}]"
    _check(op, x.shape[-1] == columns, text)


def _check_layer(op: str, x: Tensor, layer: Sequence[Any], part: str = "") -> None:
    weight, adapter = layer[:WEIGHT], layer[WEIGHT:LAYER]
    rows, columns = weight[9:11]
    _check_weight(op, weight, part)
    _check_columns(op, x, rows, columns, part)
    _check_adapter(op, x.dtype, rows, columns, adapter, part)


def _like(x: Tensor, last: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], last))


def _tokens(x: Tensor) -> Any:
    tokens: Any = 1
    for size in x.shape[:-1]:
        tokens = tokens * size
    return tokens


def _saved(x: Tensor, layers: Sequence[Sequence[Any]], dropout: float) -> Tensor:
    """What linear leaves for backward on a CUDA device: op_linear.c has the same formula."""
    ranks = row = 0
    for layer in layers:
        bias, lora_a, _, magnitude, _, _ = layer[WEIGHT:LAYER]
        rank = 0 if _absent(lora_a) else lora_a.shape[0]
        if not _absent(magnitude):
            return x.new_empty((0,), dtype=torch.uint8)
        ranks += rank
        row += (rank + (0 if _absent(bias) else 2) + 15) // 16 * 32
        if rank > 0 and dropout > 0:
            row += (layer[10] + 63) // 64 * 8
    if x.device.type != "cuda" or x.dtype != torch.bfloat16 or ranks == 0:
        return x.new_empty((0,), dtype=torch.uint8)
    return x.new_empty((_tokens(x) + 4, row), dtype=torch.uint8)


def _none(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.new_empty((0,), dtype=dtype)


def _if(wanted: bool, shape: Sequence[Any], like: Tensor, dtype: torch.dtype) -> Tensor:
    return like.new_empty(shape if wanted else (0,), dtype=dtype)


def _gradients(layer: Sequence[Any], wanted: int) -> list[Tensor]:
    """Of bias, lora_a, lora_b and magnitude: bits 0 to 3."""
    return [
        _if(bool(wanted >> i & 1) and not _absent(of), of.shape, of, torch.float32)
        for i, of in enumerate(layer[WEIGHT : WEIGHT + 4])
    ]


@_fake("dequantize")
def dequantize(*args: Any) -> Tensor:
    weight, (dtype, transpose) = args[:WEIGHT], args[WEIGHT:]
    rows, columns = weight[9:11]
    _check_weight("dequantize", weight)
    _check("dequantize", dtype in COMPUTE, f"dtype is {dtype}, not float32, float16 or bfloat16")
    data: Tensor = weight[0]
    return data.new_empty((columns, rows) if transpose else (rows, columns), dtype=dtype)


@_fake("quantize")
def quantize(values: Tensor, form: int, block: int, nested: int) -> tuple[Tensor, ...]:
    count, columns = values.numel(), values.shape[-1]
    _check(
        "quantize", values.dtype in COMPUTE, f"values are {values.dtype}, not float32, float16 or bfloat16"
    )
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
    return tuple(
        values.new_empty((size,), dtype=dtypes.get(name, torch.float32)) for name, size in sizes.items()
    )


def _layers(args: Sequence[Any], count: int) -> list[Sequence[Any]]:
    return [args[i * LAYER : (i + 1) * LAYER] for i in range(count)]


@_fake("linear")
def linear(x: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    dropout = args[LAYER]
    _check_x("linear", x)
    _check_layer("linear", x, args)
    return _like(x, args[9]), _saved(x, [args], dropout)


@_fake("linear_backward")
def linear_backward(dy: Tensor, x: Tensor, saved: Tensor, *args: Any) -> tuple[Tensor, ...]:
    wanted = args[-1]
    _check_x("linear_backward", x)
    _check_layer("linear_backward", x, args)
    _check("linear_backward", dy.dtype == x.dtype, f"dy is {dy.dtype}, x is {x.dtype}")
    return (_if(bool(wanted & 1), x.shape, x, x.dtype), *_gradients(args, wanted >> 1))


def _members(op: str, x: Tensor, args: Sequence[Any]) -> list[Sequence[Any]]:
    """The layers of a group. The third may be absent: it has no rows."""
    layers = _layers(args, 3)
    _check_x(op, x)
    for i, layer in enumerate(layers):
        if layer[9] > 0 or i == 0:
            _check_layer(op, x, layer, str(i))
    return layers


@_fake("linear_group")
def linear_group(x: Tensor, *args: Any) -> tuple[Tensor, ...]:
    layers = _members("linear_group", x, args)
    dropout = args[3 * LAYER]
    ys = (_like(x, layer[9]) if layer[9] > 0 else _none(x, x.dtype) for layer in layers)
    return (*ys, _saved(x, [layer for layer in layers if layer[9] > 0], dropout))


@_fake("linear_group_backward")
def linear_group_backward(
    dy0: Tensor, dy1: Tensor, dy2: Tensor, x: Tensor, saved: Tensor, *args: Any
) -> tuple[Tensor, ...]:
    layers, wanted = _members("linear_group_backward", x, args), args[-1]
    gradients = [part for i, layer in enumerate(layers) for part in _gradients(layer, wanted >> 1 + 4 * i)]
    return (_if(bool(wanted & 1), x.shape, x, x.dtype), *gradients)


def _check_mlp(op: str, x: Tensor, args: Sequence[Any]) -> list[Sequence[Any]]:
    gate, up, down = _layers(args, 3)
    _check_x(op, x)
    _check_layer(op, x, gate, "0")
    _check_layer(op, x, up, "1")
    inner = gate[9]
    _check(op, up[9] == inner, f"w1 has {up[9]} rows, w0 has {inner}")
    _check(op, down[10] == inner, f"w2 has {down[10]} columns, w0 has {inner} rows")
    _check_weight(op, down[:WEIGHT], "2")
    _check_adapter(op, x.dtype, down[9], down[10], down[WEIGHT:LAYER], "2")
    return [gate, up, down]


@_fake("mlp")
def mlp(x: Tensor, *args: Any) -> tuple[Tensor, ...]:
    gate, _, down = _check_mlp("mlp", x, args)
    kept = (*x.shape[:-1], gate[9])
    return (_like(x, down[9]), *(_if(args[-1], kept, x, torch.float32) for _ in range(2)))


@_fake("mlp_backward")
def mlp_backward(dy: Tensor, x: Tensor, gate_out: Tensor, up_out: Tensor, *args: Any) -> tuple[Tensor, ...]:
    layers, wanted = _check_mlp("mlp_backward", x, args), args[-1]
    gradients = [part for i, layer in enumerate(layers) for part in _gradients(layer, wanted >> 1 + 4 * i)]
    return (_if(bool(wanted & 1), x.shape, x, x.dtype), *gradients)


@_fake("dora_norm")
def dora_norm(*args: Any) -> Tensor:
    weight, (lora_a, lora_b, _, dtype) = args[:WEIGHT], args[WEIGHT:]
    rows, columns = weight[9:11]
    _check_weight("dora_norm", weight)
    _check("dora_norm", dtype in COMPUTE, f"dtype is {dtype}, not float32, float16 or bfloat16")
    none = lora_a.new_empty(0)
    _check_adapter("dora_norm", dtype, rows, columns, (none, lora_a, lora_b, none, none, 1.0))
    data: Tensor = weight[0]
    return data.new_empty((rows,), dtype=torch.float32)


def _check_norm(op: str, x: Tensor, weight: Tensor) -> None:
    _check_x(op, x)
    expected = f"weight is {list(weight.shape)}, [{x.shape[-1]}] was expected"
    _check(op, weight.dim() == 1, expected)
    _check(op, weight.shape[0] == x.shape[-1], expected)
    _check(op, weight.dtype in COMPUTE, f"weight is {weight.dtype}, not float32, float16 or bfloat16")


def is_given(activation: Tensor) -> bool:
    """Whether an optional activation is there: an absent one has the shape [0]."""
    return not (activation.dim() == 1 and activation.shape[0] == 0)


@_fake("rmsnorm")
def rmsnorm(
    x: Tensor, weight: Tensor, residual: Tensor, eps: float, offset: float, round: int
) -> tuple[Tensor, ...]:
    _check_norm("rmsnorm", x, weight)
    if not is_given(residual):
        return x.new_empty(x.shape), _none(x, x.dtype)
    _check("rmsnorm", residual.dtype == x.dtype, f"residual is {residual.dtype}, x is {x.dtype}")
    same = f"residual is {list(residual.shape)}, x is {list(x.shape)}"
    _check("rmsnorm", residual.dim() == x.dim(), same)
    for a, b in zip(residual.shape, x.shape, strict=True):
        _check("rmsnorm", a == b, same)
    return x.new_empty(x.shape), x.new_empty(x.shape)


@_fake("rmsnorm_backward")
def rmsnorm_backward(
    dy: Tensor, dresidual: Tensor, x: Tensor, weight: Tensor, *args: Any
) -> tuple[Tensor, ...]:
    wanted = args[-1]
    _check_norm("rmsnorm_backward", x, weight)
    dx = _if(bool(wanted & 1), x.shape, x, x.dtype)
    return dx, _if(bool(wanted & 2), weight.shape, x, torch.float32)


def _check_rope(op: str, x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> None:
    _check_norm(op, x, weight)
    _check(op, x.dim() >= 2, f"x is {list(x.shape)}, not [tokens, heads, dimension]")
    for name, table in (("cos", cos), ("sin", sin)):
        _check(op, table.dtype == torch.float32, f"{name} is {table.dtype}, not float32")
        _check(op, table.dim() == 2, f"{name} is {list(table.shape)}, not [tokens, rotated / 2]")


@_fake("norm_rope")
def norm_rope(
    x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float, offset: float, round: int
) -> Tensor:
    _check_rope("norm_rope", x, weight, cos, sin)
    return x.new_empty(x.shape)


@_fake("norm_rope_backward")
def norm_rope_backward(dy: Tensor, x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, *args: Any) -> Tensor:
    _check_rope("norm_rope_backward", x, weight, cos, sin)
    return x.new_empty(x.shape)


def _check_loss(op: str, x: Tensor, weight: Sequence[Any], labels: Tensor) -> None:
    _check_x(op, x)
    _check_weight(op, weight)
    _check_columns(op, x, weight[9], weight[10])
    _check(op, labels.dtype == torch.int32, f"labels are {labels.dtype}, not int32")


@_fake("cross_entropy")
def cross_entropy(x: Tensor, *args: Any) -> tuple[Tensor, ...]:
    weight, labels, reduction, grad_in_forward = args[:WEIGHT], args[WEIGHT], args[-2], args[-1]
    _check_loss("cross_entropy", x, weight, labels)
    f32 = torch.float32
    loss = x.new_empty(() if reduction == 0 else labels.shape, dtype=f32)
    lse = x.new_empty((2, labels.numel()), dtype=f32)
    return loss, x.new_empty(labels.shape, dtype=f32), lse, _if(grad_in_forward, x.shape, x, f32)


@_fake("cross_entropy_backward")
def cross_entropy_backward(dloss: Tensor, x: Tensor, *args: Any) -> tuple[Tensor, ...]:
    weight, labels, wanted = args[:WEIGHT], args[WEIGHT], args[-1]
    _check_loss("cross_entropy_backward", x, weight, labels)
    dx = _if(bool(wanted & 1), x.shape, x, x.dtype)
    return dx, _if(bool(wanted & 2), (weight[9], weight[10]), x, torch.float32)
