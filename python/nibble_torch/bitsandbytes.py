"""The backend of bitsandbytes: its operators, computed by nibble.

With the package installed, `import bitsandbytes` calls register() at its end, and nothing else changes. An
operator is replaced if its schema is the one that is known here. A call with arguments that nibble does not
take goes to bitsandbytes' own kernel.

    NIBBLE_BITSANDBYTES=off python train.py      bitsandbytes keeps its own kernels
    print(nibble_torch.bitsandbytes.status())    who computes what, and why

The results of the quantizers, of dequantize_4bit and of the int8 operators are those of bitsandbytes, bit for
bit. Products sum in float32 and are rounded once.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import logging
import os
import sys
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch._compile import _disable_dynamo

from . import _bitsandbytes_kernels as kernels
from . import _library

__all__ = ["Operator", "Status", "register", "status", "unregister"]

_log = logging.getLogger("nibble_torch.bitsandbytes")
_SWITCH = "NIBBLE_BITSANDBYTES"
_OFF = ("off", "0", "false", "no")


@dataclass(frozen=True)
class Operator:
    """An operator of bitsandbytes on one type of device."""

    name: str  # "gemm_4bit", "dequantize_4bit.out"
    device: str  # "cpu" or "cuda"
    ours: bool  # nibble's kernel is registered
    reason: str  # why it is not; "" if it is
    calls: int = 0  # that nibble computed
    passed_on: int = 0  # that went to bitsandbytes' own kernel, because of their arguments


@dataclass(frozen=True)
class Status:
    """What register() has done."""

    registered: bool
    reason: str  # why nothing is registered; "" if something is
    bitsandbytes: str  # its version; "" if it is not installed
    operators: tuple[Operator, ...] = ()

    def __str__(self) -> str:
        if not self.registered:
            return f"bitsandbytes {self.bitsandbytes} keeps its own kernels: {self.reason}"
        lines = [f"bitsandbytes {self.bitsandbytes} with kernels of nibble:"]
        for op in self.operators:
            text = (
                f"nibble: {op.calls} calls, {op.passed_on} passed on"
                if op.ours
                else f"bitsandbytes: {op.reason}"
            )
            lines.append(f"  {op.device:4} {op.name:24} {text}")
        return "\n".join(lines)


# Schemas of bitsandbytes 0.50.0 to 0.50.2.
_WEIGHT = "Tensor absmax, int blocksize, str quant_type, int[] shape, ScalarType dtype"
_GEMV = "Tensor A, Tensor B, int[] shapeB, Tensor absmax, Tensor code, int blocksize"
SCHEMAS = {
    "dequantize_4bit": f"(Tensor A, {_WEIGHT}) -> Tensor",
    "dequantize_4bit.out": f"(Tensor A, {_WEIGHT}, Tensor! out) -> ()",
    "gemm_4bit": "(Tensor A, Tensor B, int[] shapeB, Tensor absmax, int blocksize, str quant_type, "
    "Tensor? bias=None, Tensor? absmax_8bit=None, Tensor? absmax_code=None, Tensor? absmax_offset=None) "
    "-> Tensor",
    "gemv_4bit": f"({_GEMV}) -> Tensor",
    "gemv_4bit.out": f"({_GEMV}, Tensor! out) -> ()",
    "quantize_4bit": "(Tensor A, int blocksize, str quant_type, ScalarType quant_storage) -> (Tensor, Tensor)",
    "quantize_blockwise": "(Tensor A, Tensor code, int blocksize) -> (Tensor, Tensor)",
    "int8_vectorwise_quant": "(Tensor A, float threshold=0.0) -> (Tensor, Tensor, Tensor?)",
    "int8_mm_dequant": "(Tensor A, Tensor row_stats, Tensor col_stats, ScalarType? dtype=None, "
    "Tensor? bias=None) -> Tensor",
}

_SLOWER = "it is as fast as nibble's: a load and a product for each value"
_THROUGH = "it calls int8_mm_dequant, which is nibble's on a CPU"
_ROUNDING = "GPUs round by rules of their own, and the bytes must stay the same"
# Operators that are left alone, by device, and why.
LEFT = {
    "cpu": {
        "dequantize_blockwise": _SLOWER,
        "int8_linear_matmul": "it is oneDNN's product of int8, which nibble has no operator for",
        "int8_scaled_mm": _THROUGH,
        "int8_mixed_scaled_mm": _THROUGH,
    },
    "cuda": {
        "gemv_4bit": "the type of the codes is known from a table on the device only",
        "gemv_4bit.out": "the type of the codes is known from a table on the device only",
        "quantize_4bit": _ROUNDING,
        "quantize_blockwise": _ROUNDING,
        "int8_vectorwise_quant": _ROUNDING,
        "int8_mm_dequant": "it rounds to float16 on a GPU",
    },
}
# They run on torch's threads, which the stable interface has since torch 2.10.
_NEEDS_THREADS = ("quantize_blockwise", "int8_vectorwise_quant", "int8_mm_dequant")


class _Registration:
    """What is registered, as long as it is."""

    def __init__(self) -> None:
        make: Any = torch.library.Library
        self.library: Any = make("bitsandbytes", "IMPL")
        self.operators: list[Operator | kernels.Kernel] = []

    def end(self) -> None:
        self.library._destroy()


_registration: _Registration | None = None
_reason = "register() was not called"


@functools.cache
def _version() -> str:
    try:
        return importlib.metadata.version("bitsandbytes")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _overload(name: str) -> Any:
    """The operator, or None."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.bitsandbytes, packet, None), overload or "default", None)


def _unknown(name: str) -> str:
    """Why an operator is not the one that is known here; "" if it is."""
    op = _overload(name)
    if op is None:
        return "bitsandbytes does not have it"
    if op._schema != torch._C.parse_schema(f"bitsandbytes::{name}{SCHEMAS[name]}"):
        return f"its arguments are not known: {op._schema}"
    return ""


def _devices() -> list[str]:
    """The CPU, and CUDA if torch, the machine and the library have it."""
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return ["cpu"]
    built = _library.load().nbl_cuda_built
    built.restype = ctypes.c_bool
    return ["cpu", "cuda"] if built() else ["cpu"]


def _left(name: str, device: str, unknown: dict[str, str]) -> str:
    """Why an operator is left alone on a device; "" if it is not."""
    if name in LEFT[device]:
        return LEFT[device][name]
    if unknown[name]:
        return unknown[name]
    if name.startswith("quantize") and unknown["gemm_4bit"]:
        return "the rules of this version are not known"
    version: Any = torch.__version__
    if name in _NEEDS_THREADS and version < (2, 10):
        return "nibble's kernel needs torch 2.10 or later"
    key = kernels.KEYS[device]
    if name == "quantize_blockwise" and not torch._C._dispatch_has_kernel_for_dispatch_key(
        f"bitsandbytes::{name}", key
    ):
        return "the CPU library of bitsandbytes is not loaded, and its Python code has other rules"
    return ""


def _register() -> _Registration:
    if "bitsandbytes" not in sys.modules:
        import bitsandbytes  # noqa: F401  its entry point may register everything already

        if _registration is not None:
            return _registration
    unknown = {name: _unknown(name) for name in SCHEMAS}
    made = _Registration()
    try:
        for device in _devices():
            planned: list[kernels.Kernel] = []
            for name in sorted(SCHEMAS.keys() | LEFT[device].keys()):
                reason = _left(name, device, unknown)
                if reason:
                    made.operators.append(Operator(name, device, False, reason))
                else:
                    planned.append(kernels.Kernel(name, device))
            with warnings.catch_warnings():
                # torch 2.9 warns of the first kernel that overrides another.
                warnings.filterwarnings(
                    "ignore", "(?s).*Overriding a previously registered kernel", UserWarning
                )
                for kernel in planned:
                    # As torch.library.register_kernel, which does not override in torch 2.9.
                    made.library.impl(
                        kernel.name,
                        _disable_dynamo(kernel.function),
                        kernels.KEYS[device],
                        allow_override=True,
                    )
            made.operators += planned
    except Exception:
        made.end()
        raise
    lines = [f"{name}: {reason}" for name, reason in unknown.items() if reason]
    if lines:
        _log.warning("bitsandbytes %s keeps some of its own kernels: %s", _version(), "; ".join(lines))
    return made


def register() -> None:
    """Gives bitsandbytes nibble's kernels.

    It never fails: bitsandbytes then keeps its own, and one line is logged. Calling it again is harmless.
    """
    global _registration, _reason
    if _registration is not None:
        return
    if os.environ.get(_SWITCH, "").strip().lower() in _OFF:
        _reason = f"{_SWITCH} is {os.environ[_SWITCH]}"
        return
    try:
        _registration = _register()
        _reason = ""
    except Exception as error:
        _reason = str(error).split("\n", 1)[0] or type(error).__name__
        _log.warning("bitsandbytes keeps its own kernels: %s", _reason)


def unregister() -> None:
    """Gives bitsandbytes its own kernels back. Counts of calls are lost."""
    global _registration, _reason
    if _registration is not None:
        _registration.end()
        _registration = None
        _reason = "unregister() was called"


def status() -> Status:
    """Which operators nibble computes, how often it did, and why not the others."""
    if _registration is None:
        return Status(False, _reason, _version())
    operators = [
        item
        if isinstance(item, Operator)
        else Operator(item.name, item.device, not item.reason, item.reason, *item.counts)
        for item in _registration.operators
    ]
    return Status(True, "", _version(), tuple(sorted(operators, key=lambda op: (op.device, op.name))))
