"""Arrays and texts on their way into the library and out of it.

Ids come as anything with DLPack (torch, numpy, ...) or as a sequence of ints. One dimension, i32, in host
memory and without gaps is handed on without a copy. Results are torch tensors, which offer DLPack themselves.
"""

from __future__ import annotations

import array
import ctypes
import os
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils.dlpack import from_dlpack

from ._abi import abi, lib
from ._core import Handle, Session
from .errors import DtypeError, ShapeError


@runtime_checkable
class Array(Protocol):
    """Anything that offers its memory by DLPack: a tensor of torch, an array of numpy or jax."""

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, int]: ...


Path = str | os.PathLike[str]
Ids = Array | Sequence[int]
# A list of sequences, or one array of two dimensions.
Sequences = Array | Iterable[Ids]

_I32 = range(-(2**31), 2**31)


def path_of(path: Path | None) -> bytes | None:
    """A path for the library."""
    return None if path is None else _without_zero(os.fsencode(path), "a path")


def utf8(text: str) -> bytes:
    """A text for the library."""
    return _without_zero(text.encode(), "a text")


def _without_zero(data: bytes, what: str) -> bytes:
    if b"\0" in data:
        raise ValueError(f"{what} holds a zero byte: {data!r}")
    return data


def string(text: str | None) -> Any:
    """An nbl_string, which may hold zero bytes. It keeps its text alive."""
    if text is None:
        return abi.structs["nbl_string"]()
    data = text.encode()
    made: Any = abi.options(
        "nbl_string", text=ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), size=len(data)
    )
    made.kept = data
    return made


def strings(texts: Sequence[str]) -> Any:
    """nbl_string [count], which keeps its texts alive."""
    made = abi.array("nbl_string", one := [string(text) for text in texts])
    made.kept = one
    return made


def ids_tensor(ids: Ids, what: str) -> torch.Tensor:
    """A tensor of one dimension, i32, dense, in host memory."""
    tensor = _tensor(ids, what)
    if tensor.dim() != 1:
        raise ShapeError(f"{what} has shape {tuple(tensor.shape)}; it must have one dimension")
    if tensor.dtype == torch.bool or tensor.is_floating_point() or tensor.is_complex():
        raise DtypeError(f"{what} has dtype {tensor.dtype}; it must be integers")
    if tensor.dtype != torch.int32:
        small = tensor.to(torch.int64)
        if small.numel() and not (int(small.min()) in _I32 and int(small.max()) in _I32):
            raise ValueError(f"{what} has values outside of 32 bits")
        tensor = small.to(torch.int32)
    return tensor.cpu().contiguous()


def _tensor(ids: Ids, what: str) -> torch.Tensor:
    if isinstance(ids, torch.Tensor):
        return ids.detach()
    if isinstance(ids, Array):
        return from_dlpack(ids)
    if isinstance(ids, (str, bytes, int)):
        raise TypeError(
            f"{what} is {type(ids).__name__}; it must be integers: a sequence, or an array with DLPack"
        )
    values = array.array("q", ids)
    return torch.frombuffer(values, dtype=torch.int64) if values else torch.empty(0, dtype=torch.int64)


class IdLists:
    """nbl_ids [count], and the memory that they point to."""

    def __init__(self, sequences: Sequences, what: str, count: int | None = None) -> None:
        # Iterating a tensor of two dimensions gives views of its rows.
        rows: Any = from_dlpack(sequences) if isinstance(sequences, Array) else sequences
        self.tensors = [ids_tensor(row, f"{what}[{index}]") for index, row in enumerate(rows)]
        self.count = len(self.tensors)
        if count not in (None, self.count):
            raise ShapeError(f"{what} has {self.count} sequences; it must have {count}")
        self.lists = abi.array("nbl_ids", [ids_of(tensor) for tensor in self.tensors])


def ids_of(tensor: torch.Tensor, count: int | None = None) -> Any:
    """An nbl_ids that borrows the memory of an i32 tensor. `count`: how many ids are in it; None: all."""
    address = ctypes.cast(tensor.data_ptr(), ctypes.POINTER(ctypes.c_int32))
    return abi.structs["nbl_ids"](address, tensor.numel() if count is None else count)


def take_ids(session: Session, context: Handle, ids: Any) -> torch.Tensor:
    """A tensor of the ids that the library has allocated, which are freed."""
    try:
        return copy_of(ids.ids, ids.count, torch.int32)
    finally:
        session.read(lib.nbl_ids_free, context, ctypes.byref(ids))


def copy_of(address: Any, count: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor with a copy of `count` elements, which belong to the library."""
    made = torch.empty(count, dtype=dtype)
    if count:
        ctypes.memmove(made.data_ptr(), address, made.numel() * made.element_size())
    return made
