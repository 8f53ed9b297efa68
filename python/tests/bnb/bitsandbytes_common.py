"""What the tests of the bitsandbytes backend share."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import bitsandbytes  # noqa: F401  it has its own kernels now, see conftest.py
import nibble_torch.bitsandbytes as backend
import torch
from torch import Tensor

os.environ.pop("NIBBLE_BITSANDBYTES", None)

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
TYPES = ("nf4", "fp4")
STORAGES = (torch.uint8, torch.bfloat16, torch.float16, torch.float32)

T = TypeVar("T")


def stock(call: Callable[[], T]) -> T:
    """What bitsandbytes computes without nibble."""
    backend.unregister()
    try:
        return call()
    finally:
        backend.register()


def counts(name: str) -> tuple[int, int]:
    """Calls of an operator that nibble computed, and that were passed on."""
    (operator,) = (op for op in backend.status().operators if op.name == name and op.device == "cpu")
    assert operator.ours, operator.reason
    return operator.calls, operator.passed_on


def ours(name: str, call: Callable[[], T]) -> T:
    """What the call gives with nibble, which must have computed it."""
    calls, passed_on = counts(name)
    result = call()
    assert counts(name) == (calls + 1, passed_on)
    return result


def passed_on(name: str, call: Callable[[], T]) -> T:
    """What the call gives with nibble, which must have passed it on."""
    calls, before = counts(name)
    result = call()
    assert counts(name) == (calls, before + 1)
    return result


def bytes_of(tensor: Tensor) -> Tensor:
    """The bytes, with every NaN as one of them."""
    if tensor.is_floating_point():
        tensor = torch.where(tensor.isnan(), torch.full_like(tensor, torch.nan), tensor)
    return tensor.contiguous().view(-1).view(torch.uint8)


def same_bytes(a: Any, b: Any) -> bool:
    """Two tensors, or tuples of tensors and None."""
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(same_bytes(x, y) for x, y in zip(a, b))
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bytes_of(a), bytes_of(b))


def assert_same_bytes(name: str, calls: list[tuple[Any, ...]]) -> None:
    """An operator gives for each list of arguments what bitsandbytes gives, and nibble has computed it."""
    operator = getattr(torch.ops.bitsandbytes, name)
    expected = stock(lambda: [operator(*args) for args in calls])
    before = counts(name)
    found = [operator(*args) for args in calls]
    assert counts(name) == (before[0] + len(calls), before[1])
    for args, right, result in zip(calls, expected, found):
        shown = [list(arg.shape) if isinstance(arg, Tensor) else arg for arg in args]
        assert same_bytes(result, right), f"{name}{shown}"
