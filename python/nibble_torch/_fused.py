"""What the fused layers compute: linear layers as the operators take them, alone or as a group.

A layer describes one call as a `Part`, or says in a sentence why it cannot: then the original forward runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import _library
from .modules import DEQUANTIZED
from .weight import Format

COMPUTE = (torch.float32, torch.float16, torch.bfloat16)
GROUP = 3  # members of nibble::linear_group
_CUDA = bool(_library.load().nbl_cuda_built() & 1)  # the library has its CUDA backend

_linear = torch.ops.nibble.linear.default
_linear_group = torch.ops.nibble.linear_group.default
_dora_norm = torch.ops.nibble.dora_norm.default


class Part(NamedTuple):
    """A linear layer in one call. None stands for an absent tensor."""

    dtype: torch.dtype  # x is cast to it
    output: torch.dtype  # y is cast to it
    weight: tuple[Any, ...]  # data ... columns
    bias: Tensor | None
    lora_a: Tensor | None = None
    lora_b: Tensor | None = None
    magnitude: Tensor | None = None
    norm: Tensor | None = None
    scale: float = 1.0
    dropout: float = 0.0
    threshold: float = 0.0


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype else x.to(dtype)


def _adapter(part: Part, none: Tensor) -> tuple[Any, ...]:
    return (
        none if part.bias is None else part.bias,
        none if part.lora_a is None else part.lora_a,
        none if part.lora_b is None else part.lora_b,
        none if part.magnitude is None else part.magnitude,
        none if part.norm is None else part.norm,
        part.scale,
    )


def _seed(x: Tensor) -> Tensor:
    """torch's generator draws it. So manual_seed, checkpointing and CUDA graphs do what they do elsewhere."""
    return torch.randint(2**62, (1,), dtype=torch.int64, device=x.device)


def compute(x: Tensor, part: Part) -> Tensor:
    """The output of a layer."""
    xc = _cast(x, part.dtype)
    none = xc.new_empty(0)
    if part.dropout > 0 and part.magnitude is not None:
        return _cast(_dora_with_dropout(xc, part, none), part.output)
    seed = _seed(xc) if part.dropout > 0 else none
    y: Tensor = _linear(xc, *part.weight, *_adapter(part, none), part.dropout, seed, part.threshold)[0]
    return _cast(y, part.output)


def _dora_with_dropout(x: Tensor, part: Part, none: Tensor) -> Tensor:
    """PEFT drops the input of the whole update, (m / norm - 1) W x + m / norm s B A x, not that of A alone.

    With d = drop(x) the output is W (x - d) + bias, and DoRA of d.
    """
    dropped = nn.functional.dropout(x, part.dropout)
    rest = part._replace(lora_a=None, lora_b=None, magnitude=None, norm=None)
    y: Tensor = _linear(x - dropped, *part.weight, *_adapter(rest, none), 0.0, none, part.threshold)[0]
    update = part._replace(bias=None)
    z: Tensor = _linear(dropped, *part.weight, *_adapter(update, none), 0.0, none, part.threshold)[0]
    return y + z


def can_group(parts: Sequence[Part]) -> bool:
    """Members share x, the compute dtype, dropout, and the threshold of int8."""
    first = parts[0]
    dropout = thresholds = None
    for part in parts:
        if part.dtype != first.dtype or part.weight[10] != first.weight[10]:
            return False
        if part.lora_a is not None:
            if part.dropout > 0 and part.magnitude is not None:
                return False
            if dropout is not None and part.dropout != dropout:
                return False
            dropout = part.dropout
        if part.weight[6] == Format.INT8:
            if thresholds is not None and part.threshold != thresholds:
                return False
            thresholds = part.threshold
    return True


def compute_group(x: Tensor, parts: Sequence[Part]) -> list[Tensor]:
    """The outputs of two or three layers with the same input. can_group(parts) holds."""
    xc = _cast(x, parts[0].dtype)
    none = xc.new_empty(0)
    arguments: list[Any] = []
    dropout = threshold = 0.0
    for part in parts:
        arguments += part.weight
        arguments += _adapter(part, none)
        if part.lora_a is not None:
            dropout = part.dropout
        if part.weight[6] == Format.INT8:
            threshold = part.threshold
    if len(parts) < GROUP:
        arguments += (*[none] * 6, 0, 0, 0, 0, 0, *[none] * 5, 0.0)
    seed = _seed(xc) if dropout > 0 else none
    ys = _linear_group(xc, *arguments, dropout, seed, threshold)
    return [_cast(ys[i], part.output) for i, part in enumerate(parts)]


def norm_of(part: Part) -> Tensor:
    """DoRA's |W + scale B A| by rows. It is a constant in backward."""
    assert part.lora_a is not None and part.lora_b is not None
    a, b = part.lora_a.detach(), part.lora_b.detach()
    norm: Tensor = _dora_norm(*part.weight, a, b, part.scale, part.dtype)
    return norm


# ---- frozen weights ----


def fourbit_weight(module: Any) -> tuple[Any, ...] | str:
    """data ... columns of a Linear4bit, kept until its weight or quant state changes."""
    weight = module._parameters.get("weight")
    state = getattr(weight, "quant_state", None)
    if weight is not None and state is None and weight.shape[1:] == (1,):
        state = module.quant_state  # FSDP and torch.export make a plain tensor of the packed weight
    if weight is None or state is None:
        return "the weight is not quantized yet: move the model to its device first"
    if torch.compiler.is_compiling():
        return _fourbit_arguments(module, weight, state)
    with torch._C.DisableTorchFunctionSubclass():
        address = weight.data_ptr()
    kept = module.__dict__.get("nibble_weight")
    if (
        kept is not None
        and kept[0] is weight
        and kept[1] is state
        and kept[2] is state.absmax
        and kept[3] == address
    ):
        arguments: tuple[Any, ...] = kept[4]
        return arguments
    made = _fourbit_arguments(module, weight, state)
    if not isinstance(made, str):
        module.__dict__["nibble_weight"] = (weight, state, state.absmax, address, made)
    return made


_FOURBIT = {"nf4": int(Format.NF4), "fp4": int(Format.FP4)}


def _fourbit_arguments(module: Any, weight: Any, state: Any) -> tuple[Any, ...] | str:
    form = _FOURBIT.get(state.quant_type)
    if form is None:
        return f"quant_type is {state.quant_type!r}, neither 'nf4' nor 'fp4'"
    if getattr(state, "packing_format_for_cpu", False):
        return (
            "bitsandbytes repacked the weight for its CPU kernels and rounded its scales: "
            "load the model again, and call model.train() or accelerate(model) before the first forward"
        )
    if weight.dtype != getattr(module, "quant_storage", weight.dtype):
        return f"the packed weight was cast from {module.quant_storage} to {weight.dtype}"
    shape = (module.out_features, module.in_features)
    if state.shape is None or tuple(state.shape) != shape:
        return f"the quant state is that of a weight {state.shape}, the layer has {list(shape)}"
    with torch._C.DisableTorchFunctionSubclass():
        data = weight.detach()
    none = data.new_empty(0)
    if not state.nested:
        if state.absmax.dtype != torch.float32:
            return f"absmax is {state.absmax.dtype}, not float32"
        return (data, state.absmax, none, none, none, none, form, state.blocksize, 256, *shape)
    inner = state.state2
    parts = (inner.absmax, inner.code, state.offset)
    if state.absmax.dtype != torch.uint8 or any(part.dtype != torch.float32 for part in parts):
        return "the quant state was cast: its nested scales are not float32"
    offset = state.offset.reshape(1)
    nested = (none, state.absmax, inner.absmax, inner.code, offset)
    return (data, *nested, form, state.blocksize, inner.blocksize, *shape)


def int8_weight(module: Any) -> tuple[Any, ...] | str:
    """data ... columns of a Linear8bitLt."""
    weight, state = module.weight, module.state
    if state.has_fp16_weights:
        return "the weight is not quantized: has_fp16_weights is set"
    data, scales = getattr(weight, "CB", None), getattr(weight, "SCB", None)
    data = state.CB if data is None else data
    scales = state.SCB if scales is None else scales
    if data is None or scales is None:
        return "the weight is not quantized yet: move the model to its device first"
    if data.dtype != torch.int8 or scales.dtype != torch.float32:
        return f"the packed weight is {data.dtype} with scales of {scales.dtype}, not int8 with float32"
    shape = (module.out_features, module.in_features)
    if tuple(data.shape) != shape or scales.numel() != shape[0]:
        return f"the packed weight is {list(data.shape)}, the layer has {list(shape)}"
    none = scales.new_empty(0)
    with torch._C.DisableTorchFunctionSubclass():
        data = data.detach()
    return (data, scales.detach(), none, none, none, none, int(Format.INT8), 0, 0, *shape)


def int8_threshold(module: Any, x: Tensor) -> float:
    """bitsandbytes multiplies codes. In training on a CPU it dequantizes the weight instead."""
    if module.training and x.device.type == "cpu":
        return DEQUANTIZED
    return float(module.state.threshold)


def device_reason(x: Tensor, weight: tuple[Any, ...]) -> str | None:
    device = weight[0].device
    if x.device != device:
        return f"x is on {x.device}, the weight on {device}"
    if device.type == "cpu" or (device.type == "cuda" and _CUDA):
        return None
    return f"nibble has no operators for {device.type} in this build"
