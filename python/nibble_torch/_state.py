"""Weights in state dicts, with the keys of Hugging Face's checkpoints. `name` is the weight's full name.

dense     name
nf4, fp4  name, name.absmax, name.quant_map, name.quant_state.bitsandbytes__nf4 (or fp4);
          nested: name.nested_absmax and name.nested_quant_map, too. bitsandbytes' Linear4bit
int8      name, SCB, weight_format beside it. bitsandbytes' Linear8bitLt
mxfp4     name_blocks, name_scales. gpt-oss
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .weight import Format, Weight

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_FOURBIT = {Format.NF4: "nf4", Format.FP4: "fp4"}


def _beside(name: str, other: str) -> str:
    """The name of a tensor of the same module."""
    return f"{name.rpartition('.')[0]}.{other}" if "." in name else other


def _codebook(format: Format) -> Tensor:
    """The 16 values of a 4-bit format."""
    data = torch.tensor([2 * i << 4 | 2 * i + 1 for i in range(8)], dtype=torch.uint8)
    values = Weight(data, (1, 16), format, scales=torch.ones(1), block=32).dequantize(torch.float32).flatten()
    return values + 0.0  # bitsandbytes stores code 8 of fp4, -0, as 0


def save_weight(weight: Weight, name: str) -> dict[str, Tensor]:
    """The tensors of a weight, by key."""
    parts = weight.parts()
    if weight.format == Format.DENSE:
        return {name: parts["data"]}
    if weight.format == Format.INT8:
        form = torch.zeros((), dtype=torch.uint8)
        return {
            name: parts["data"],
            _beside(name, "SCB"): parts["scales"],
            _beside(name, "weight_format"): form,
        }
    if weight.format == Format.MXFP4:
        return {f"{name}_blocks": parts["data"], f"{name}_scales": parts["codes"]}
    kind, nested = _FOURBIT[weight.format], parts["nested"].numel() > 0
    state: dict[str, Any] = {
        "quant_type": kind,
        "blocksize": weight.args[7],
        "dtype": str(weight.dtype).removeprefix("torch."),
        "shape": list(weight.shape),
    }
    saved = {
        name: parts["data"],
        f"{name}.absmax": parts["codes"] if nested else parts["scales"],
        f"{name}.quant_map": _codebook(weight.format).to(weight.device),
    }
    if nested:
        saved |= {f"{name}.nested_absmax": parts["nested"], f"{name}.nested_quant_map": parts["table"]}
        state |= {
            "nested_blocksize": weight.args[8],
            "nested_dtype": "float32",
            "nested_offset": parts["offset"].item(),
        }
    text = json.dumps(state).encode()
    saved[f"{name}.quant_state.bitsandbytes__{kind}"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return saved


def keys_of_weight(state: Mapping[str, Tensor], name: str) -> list[str]:
    """The keys of a weight in a state dict, whatever its format."""
    beside = {name, _beside(name, "SCB"), _beside(name, "weight_format"), f"{name}_blocks", f"{name}_scales"}
    return [key for key in state if key in beside or key.startswith(f"{name}.")]


def _check(key: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.dtype != dtype:
        raise ValueError(
            f"{key} is {tensor.dtype}, not {dtype}: the state dict was cast, and the weight is lost"
        )
    return tensor


def _load_fourbit(state: Mapping[str, Tensor], name: str, key: str) -> Weight:
    text = bytes(_check(key, state[key], torch.uint8).cpu().tolist())
    about = json.loads(text)
    form = {"nf4": Format.NF4, "fp4": Format.FP4}[about["quant_type"]]
    shape = (about["shape"][0], about["shape"][1])
    dtype, block = _DTYPES[about["dtype"]], about["blocksize"]
    data, scales = state[name], f"{name}.absmax"
    if f"{name}.nested_absmax" not in state:
        return Weight(
            data, shape, form, scales=_check(scales, state[scales], torch.float32), block=block, dtype=dtype
        )
    nested, table = f"{name}.nested_absmax", f"{name}.nested_quant_map"
    return Weight(
        data,
        shape,
        form,
        codes=_check(scales, state[scales], torch.uint8),
        nested=_check(nested, state[nested], torch.float32),
        table=_check(table, state[table], torch.float32),
        offset=torch.tensor([about["nested_offset"]], dtype=torch.float32, device=data.device),
        block=block,
        nested_block=about["nested_blocksize"],
        dtype=dtype,
    )


def load_weight(state: Mapping[str, Tensor], name: str, like: Weight) -> Weight | None:
    """The weight `name` of a state dict. None if it is not there. `like` has its shape."""
    shape = (like.shape[0], like.shape[1])
    for kind in _FOURBIT.values():
        key = f"{name}.quant_state.bitsandbytes__{kind}"
        if key in state and name in state:
            return _load_fourbit(state, name, key)
    scales = _beside(name, "SCB")
    if name in state and scales in state:
        data = _check(name, state[name], torch.int8)
        return Weight(
            data, shape, Format.INT8, scales=_check(scales, state[scales], torch.float32), dtype=torch.float16
        )
    blocks, codes = f"{name}_blocks", f"{name}_scales"
    if blocks in state and codes in state:
        data = _check(blocks, state[blocks], torch.uint8)
        return Weight(data, shape, Format.MXFP4, codes=_check(codes, state[codes], torch.uint8), block=32)
    if name not in state:
        return None
    if state[name].dtype not in _DTYPES.values():
        raise ValueError(
            f"{name} is {state[name].dtype}, and {name}.quant_state.bitsandbytes__nf4 is missing"
        )
    return Weight.dense(state[name])
