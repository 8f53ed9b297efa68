"""Kernels of bitsandbytes' operators. Calls that nibble does not take go to bitsandbytes' own kernels."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ._fake import COMPUTE, FP4, NF4

_log = logging.getLogger("nibble_torch.bitsandbytes")
_ops = torch.ops.nibble

KEYS = {"cpu": "CPU", "cuda": "CUDA"}
_FORMATS = {"nf4": NF4, "fp4": FP4}
_BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
_STORAGES = {torch.uint8: 1, torch.bfloat16: 2, torch.float16: 2, torch.float32: 4}
_NESTED_BLOCK = 256
_NONE = torch.empty(0, device="cpu")  # an absent argument, on every device

Function = Callable[..., Any]


class Kernel:
    """A kernel of nibble for one operator on one device, and bitsandbytes' own behind it."""

    def __init__(self, name: str, device: str) -> None:
        self.name, self.device = name, device
        self.reason = ""  # why nibble computes it no longer
        self.counts = [0, 0]  # calls that nibble computed, and that were passed on
        key = getattr(torch._C.DispatchKey, KEYS[device])
        self.keys = torch._C.DispatchKeySet(key)
        qualified = f"bitsandbytes::{name}"
        exists = torch._C._dispatch_has_computed_kernel_for_dispatch_key(qualified, KEYS[device])
        self.own: Any = torch.library.get_kernel(qualified, key) if exists else None
        self.function: Function = _MAKERS[name](self)

    def pass_on(self, *args: Any) -> Any:
        """bitsandbytes' own kernel."""
        self.counts[1] += 1
        if self.own is not None:
            return self.own.call_boxed(self.keys, *args)
        # Its CPU backend has no kernels that write to `out`.
        packet = getattr(torch.ops.bitsandbytes, self.name.partition(".")[0])
        args[-1].copy_(packet.default(*args[:-1]))
        return None

    def leave(self, reason: str) -> None:
        """From now on all calls are passed on."""
        self.reason = reason
        _log.warning("bitsandbytes keeps its own kernel of %s: %s", self.name, reason)


# ---- weights of 4 bits ----


def _takes(data: Tensor, absmax: Tensor, count: int, blocksize: int, quant_type: str) -> bool:
    """Is this a packed weight in bitsandbytes' layout, with plain scales?

    bitsandbytes repacks weights for its own CPU kernels. Their absmax is a bfloat16 matrix.
    """
    return (
        quant_type in _FORMATS
        and blocksize in _BLOCKS
        and _holds(data, count)
        and absmax.dtype == torch.float32
        and absmax.dim() == 1
        and absmax.numel() == -(-count // blocksize)
        and absmax.device == data.device
    )


def _holds(data: Tensor, count: int) -> bool:
    """Are the bytes those of `count` codes of 4 bits?"""
    size = _STORAGES.get(data.dtype, 0)
    spare = data.numel() * size - (count + 1) // 2
    return count > 0 and 0 <= spare < size


def _make_dequantize_4bit(kernel: Kernel) -> Function:
    dequantize = _ops.bnb_dequantize_4bit.default.redispatch

    def dequantize_4bit(
        A: Tensor, absmax: Tensor, blocksize: int, quant_type: str, shape: Sequence[int], dtype: torch.dtype
    ) -> Any:
        # bitsandbytes gives a vector the shape [1, n] on a CPU.
        if (
            len(shape) < 2
            or dtype not in COMPUTE
            or not _takes(A, absmax, math.prod(shape), blocksize, quant_type)
        ):
            return kernel.pass_on(A, absmax, blocksize, quant_type, shape, dtype)
        kernel.counts[0] += 1
        out = torch.empty(shape, dtype=dtype, device=A.device)
        dequantize(kernel.keys, A, absmax, out, _FORMATS[quant_type], blocksize, True)
        return out

    return dequantize_4bit


def _make_dequantize_4bit_out(kernel: Kernel) -> Function:
    dequantize = _ops.bnb_dequantize_4bit.default.redispatch

    def dequantize_4bit_out(
        A: Tensor,
        absmax: Tensor,
        blocksize: int,
        quant_type: str,
        shape: Sequence[int],
        dtype: torch.dtype,
        out: Tensor,
    ) -> None:
        if out.shape != tuple(shape):
            raise ValueError(f"Expected out.shape == {tuple(shape)}, got {tuple(out.shape)}")
        if out.dtype != dtype:
            raise ValueError(f"Expected out.dtype == {dtype}, got {out.dtype}")
        if (
            out.dim() == 0
            or dtype not in COMPUTE
            or out.device != A.device
            or not out.is_contiguous()
            or not _takes(A, absmax, out.numel(), blocksize, quant_type)
        ):
            kernel.pass_on(A, absmax, blocksize, quant_type, shape, dtype, out)
            return
        kernel.counts[0] += 1
        dequantize(kernel.keys, A, absmax, out, _FORMATS[quant_type], blocksize, False)

    return dequantize_4bit_out


def _gemm(
    keys: Any,
    x: Tensor,
    data: Tensor,
    absmax: Tensor,
    codes: Tensor,
    table: Tensor,
    offset: Tensor,
    bias: Tensor | None,
    shape: Sequence[int],
    format: int,
    blocksize: int,
) -> Any:
    """x W' + bias. `codes`: absmax are the scales of scales, which are double-quantized."""
    added = _NONE if bias is None else bias
    if torch.is_grad_enabled() and (x.requires_grad or added.requires_grad):
        nested = codes.numel() > 0
        scales = (_NONE, codes, absmax, table, offset) if nested else (absmax, _NONE, _NONE, _NONE, _NONE)
        weight = (data, *scales, format, blocksize, _NESTED_BLOCK, *shape)
        return _ops.linear.default(x, *weight, added, _NONE, _NONE, _NONE, _NONE, 1.0, 0.0, _NONE, 0.0)[0]
    return _ops.bnb_gemm_4bit.default.redispatch(
        keys, x, data, absmax, codes, table, offset, added, shape[0], format, blocksize
    )


def _takes_x(x: Tensor, data: Tensor, shape: Sequence[int]) -> bool:
    return (
        len(shape) == 2
        and x.dtype in COMPUTE
        and 1 <= x.dim() <= 8
        and x.shape[-1] == shape[1]
        and x.device == data.device
    )


def _takes_nested(
    codes: Tensor, absmax: Tensor, table: Tensor | None, offset: Tensor | None, count: int, blocksize: int
) -> bool:
    blocks = -(-count // blocksize)
    return (
        table is not None
        and offset is not None
        and codes.dtype == torch.uint8
        and codes.numel() == blocks
        and absmax.dtype == torch.float32
        and absmax.numel() == -(-blocks // _NESTED_BLOCK)
        and table.dtype == torch.float32
        and table.numel() == 256
        and offset.numel() == 1
        and offset.dtype in COMPUTE
        and codes.device == absmax.device == table.device == offset.device
    )


def _make_gemm_4bit(kernel: Kernel) -> Function:
    def gemm_4bit(
        A: Tensor,
        B: Tensor,
        shapeB: Sequence[int],
        absmax: Tensor,
        blocksize: int,
        quant_type: str,
        bias: Tensor | None = None,
        absmax_8bit: Tensor | None = None,
        absmax_code: Tensor | None = None,
        absmax_offset: Tensor | None = None,
    ) -> Any:
        takes = _takes_x(A, B, shapeB) and (
            bias is None or (bias.dtype == A.dtype and bias.shape == (shapeB[0],) and bias.device == A.device)
        )
        if takes and absmax_8bit is None:
            if _takes(B, absmax, shapeB[0] * shapeB[1], blocksize, quant_type):
                kernel.counts[0] += 1
                form = _FORMATS[quant_type]
                return _gemm(kernel.keys, A, B, absmax, _NONE, _NONE, _NONE, bias, shapeB, form, blocksize)
        elif takes and absmax_8bit is not None and quant_type in _FORMATS and blocksize in _BLOCKS:
            count = shapeB[0] * shapeB[1]
            if (
                _holds(B, count)
                and _takes_nested(absmax_8bit, absmax, absmax_code, absmax_offset, count, blocksize)
                and absmax.device == B.device
            ):
                assert absmax_code is not None and absmax_offset is not None
                kernel.counts[0] += 1
                form, offset = _FORMATS[quant_type], absmax_offset.float()
                nested = (absmax, absmax_8bit, absmax_code, offset)
                return _gemm(kernel.keys, A, B, *nested, bias, shapeB, form, blocksize)
        return kernel.pass_on(
            A, B, shapeB, absmax, blocksize, quant_type, bias, absmax_8bit, absmax_code, absmax_offset
        )

    return gemm_4bit


@functools.cache
def _tables() -> dict[str, Tensor]:
    """The 16 values of each type, as bitsandbytes hands them to gemv_4bit."""
    import bitsandbytes.functional

    table_of: Any = bitsandbytes.functional.get_4bit_type
    return {quant_type: table_of(quant_type, device="cpu") for quant_type in _FORMATS}


def _type_of(code: Tensor) -> str:
    if code.dtype == torch.float32 and code.numel() == 16:
        for quant_type, table in _tables().items():
            if torch.equal(code, table):
                return quant_type
    return ""


def _gemv_4bit(
    kernel: Kernel, A: Tensor, B: Tensor, shapeB: Sequence[int], absmax: Tensor, code: Tensor, blocksize: int
) -> Any:
    """The product, or None if nibble does not take it."""
    if not _takes_x(A, B, shapeB):
        return None
    quant_type = _type_of(code)
    if not _takes(B, absmax, shapeB[0] * shapeB[1], blocksize, quant_type):
        return None
    kernel.counts[0] += 1
    form = _FORMATS[quant_type]
    return _gemm(kernel.keys, A, B, absmax, _NONE, _NONE, _NONE, None, shapeB, form, blocksize)


def _make_gemv_4bit(kernel: Kernel) -> Function:
    def gemv_4bit(
        A: Tensor, B: Tensor, shapeB: Sequence[int], absmax: Tensor, code: Tensor, blocksize: int
    ) -> Any:
        y = _gemv_4bit(kernel, A, B, shapeB, absmax, code, blocksize)
        return kernel.pass_on(A, B, shapeB, absmax, code, blocksize) if y is None else y

    return gemv_4bit


def _make_gemv_4bit_out(kernel: Kernel) -> Function:
    def gemv_4bit_out(
        A: Tensor, B: Tensor, shapeB: Sequence[int], absmax: Tensor, code: Tensor, blocksize: int, out: Tensor
    ) -> None:
        expected = (*A.shape[:-1], shapeB[0])
        if out.shape != expected:
            raise ValueError(f"Expected out.shape == {expected}, got {tuple(out.shape)}")
        if out.dtype != A.dtype:
            raise ValueError(f"Expected out.dtype == {A.dtype}, got {out.dtype}")
        y = _gemv_4bit(kernel, A, B, shapeB, absmax, code, blocksize)
        if y is None:
            kernel.pass_on(A, B, shapeB, absmax, code, blocksize, out)
        else:
            out.copy_(y)

    return gemv_4bit_out


# ---- what has the bytes of bitsandbytes ----


def _same(ours: Sequence[Tensor | None], own: Sequence[Tensor | None]) -> bool:
    return all(
        a is b if a is None or b is None else a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
        for a, b in zip(ours, own)
    )


def _checked(
    kernel: Kernel, takes: Callable[..., bool], ours: Function, probes: Callable[[], list[Any]]
) -> Function:
    """Compares with bitsandbytes' own kernel at the first call. A difference leaves the operator to it.

    The rules by which bitsandbytes quantizes stand in no schema. They have changed between versions, and the
    compilers of processors other than x86-64 round some steps otherwise.
    """
    compared = False

    def agree() -> bool:
        for probe in probes():
            results = [kernel.own.call_boxed(kernel.keys, *probe), ours(*probe)]
            own, mine = ((result,) if isinstance(result, Tensor) else result for result in results)
            if not _same(mine, own):
                return False
        return True

    def call(*args: Any) -> Any:
        nonlocal compared
        if not kernel.reason and takes(*args):
            if not compared and not agree():
                kernel.leave("its results are not those that are known")
                return kernel.pass_on(*args)
            compared = True
            kernel.counts[0] += 1
            return ours(*args)
        return kernel.pass_on(*args)

    return call


def _probe(columns: int) -> Tensor:
    """Some blocks, one of them of zeros, the last one short."""
    values = torch.linspace(-1.5, 2.0, 5 * columns, device="cpu").sin() * 3
    values[columns : 2 * columns] = 0
    return values


@functools.cache
def _bounds(quant_type: str) -> tuple[Tensor, Tensor]:
    """The values between the codes in ascending order, and the codes in that order."""
    table = _tables()[quant_type]
    order = torch.argsort(table)
    return (table[order[:-1]] + table[order[1:]]) / 2, order.to(torch.uint8)


def _make_quantize_4bit(kernel: Kernel) -> Function:
    def takes(A: Tensor, blocksize: int, quant_type: str, quant_storage: torch.dtype) -> bool:
        bytes_ = (A.numel() + 1) // 2
        return (
            A.dtype in COMPUTE
            and A.numel() > 0
            and blocksize in _BLOCKS
            and quant_type in _FORMATS
            and quant_storage in _STORAGES
            and bytes_ % _STORAGES[quant_storage] == 0
            and (bytes_ > 1 or quant_storage == torch.uint8)
        )

    def ours(A: Tensor, blocksize: int, quant_type: str, quant_storage: torch.dtype) -> tuple[Tensor, Tensor]:
        data, absmax = _ops.bnb_quantize_4bit.default.redispatch(
            kernel.keys, A, *_bounds(quant_type), blocksize
        )
        if quant_storage != torch.uint8:
            data = data.view(-1).view(quant_storage).unsqueeze(1)
        return data, absmax

    def probes() -> list[Any]:
        return [(_probe(64)[: 64 * 5 - 3], 64, quant_type, torch.uint8) for quant_type in _FORMATS]

    return _checked(kernel, takes, ours, probes)


def _make_quantize_blockwise(kernel: Kernel) -> Function:
    def takes(A: Tensor, code: Tensor, blocksize: int) -> bool:
        return (
            A.dtype in COMPUTE
            and A.dim() > 0
            and A.numel() > 0
            and code.dtype == torch.float32
            and code.numel() == 256
            and code.device == A.device
            and blocksize > 0
        )

    def ours(A: Tensor, code: Tensor, blocksize: int) -> Any:
        return _ops.bnb_quantize_8bit.default.redispatch(kernel.keys, A, code, blocksize)

    def probes() -> list[Any]:
        table = torch.linspace(-1, 1, 256, device="cpu")
        return [(_probe(256)[: 256 * 5 - 3], table * table.abs(), 256)]

    return _checked(kernel, takes, ours, probes)


@functools.lru_cache(maxsize=64)
def _rounded(threshold: float, dtype: torch.dtype) -> float:
    """torch compares a tensor with a number in the tensor's dtype."""
    return torch.tensor(threshold, dtype=dtype, device="cpu").item()


def _make_int8_vectorwise_quant(kernel: Kernel) -> Function:
    def takes(A: Tensor, threshold: float = 0.0) -> bool:
        return A.dtype in COMPUTE and A.dim() == 2 and A.numel() > 0

    def ours(A: Tensor, threshold: float = 0.0) -> tuple[Tensor, Tensor, Tensor | None]:
        splits = threshold > 0
        limit = _rounded(threshold, A.dtype) if splits else 0.0
        codes, absmax, outliers = _ops.bnb_quantize_rows.default.redispatch(kernel.keys, A, limit)
        return codes, absmax, outliers if splits else None

    def probes() -> list[Any]:
        return [(_probe(64).view(5, 64), threshold) for threshold in (0.0, 2.5)]

    return _checked(kernel, takes, ours, probes)


def _make_int8_mm_dequant(kernel: Kernel) -> Function:
    def takes(
        A: Tensor,
        row_stats: Tensor,
        col_stats: Tensor,
        dtype: torch.dtype | None = None,
        bias: Tensor | None = None,
    ) -> bool:
        return (
            A.dtype == torch.int32
            and A.dim() == 2
            and A.numel() > 0
            and row_stats.dtype == torch.float32
            and row_stats.numel() == A.shape[0]
            and col_stats.dtype == torch.float32
            and col_stats.numel() == A.shape[1]
            and (dtype is None or dtype in COMPUTE)
            and (bias is None or (bias.dtype in COMPUTE and bias.shape == (A.shape[1],)))
        )

    def ours(
        A: Tensor,
        row_stats: Tensor,
        col_stats: Tensor,
        dtype: torch.dtype | None = None,
        bias: Tensor | None = None,
    ) -> Any:
        args = (A, row_stats, col_stats, _NONE if bias is None else bias, dtype or torch.float16)
        return _ops.bnb_dequantize_product.default.redispatch(kernel.keys, *args)

    def probes() -> list[Any]:
        values = _probe(32)
        sums = (values * 123456).to(torch.int32).view(5, 32)
        return [(sums, values[:5].abs(), values[-32:].abs(), torch.float32, values[:32])]

    return _checked(kernel, takes, ours, probes)


_MAKERS: dict[str, Callable[[Kernel], Function]] = {
    "dequantize_4bit": _make_dequantize_4bit,
    "dequantize_4bit.out": _make_dequantize_4bit_out,
    "gemm_4bit": _make_gemm_4bit,
    "gemv_4bit": _make_gemv_4bit,
    "gemv_4bit.out": _make_gemv_4bit_out,
    "quantize_4bit": _make_quantize_4bit,
    "quantize_blockwise": _make_quantize_blockwise,
    "int8_vectorwise_quant": _make_int8_vectorwise_quant,
    "int8_mm_dequant": _make_int8_mm_dequant,
}
