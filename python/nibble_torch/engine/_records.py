"""Frozen dataclasses out of structs of the library.

A dataclass has fields of its struct, under the same names; `from` is `from_`. A text becomes a str, a
constant of an enum its word ("bf16"), a shape a tuple, a struct in a struct a dataclass.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, get_type_hints

from ._abi import abi, lib
from .errors import ArgumentError

Record = TypeVar("Record")


def text_of(data: bytes | None) -> str | None:
    """A text of the library. The library's texts are UTF-8, but names of files may be any bytes."""
    return None if data is None else data.decode(errors="replace")


def string_of(string: Any) -> str:
    """The text of an nbl_string."""
    return ctypes.string_at(string.text, string.size).decode(errors="replace") if string.text else ""


def record_of(kind: Callable[..., Record], struct: Any, **others: object) -> Record:
    """A dataclass with the values of a struct. `others` are fields that the struct has not."""
    types = abi.fields[type(struct).__name__]
    values = dict(others)
    for field, hint in _hints(kind):
        if field not in values:
            name = field.rstrip("_")
            values[field] = _value(struct, name, types[name], hint)
    return kind(**values)


def records_of(
    kind: Callable[..., Record], get: Callable[[int, int], Any], pointer: int
) -> tuple[Record, ...]:
    """The records of a list: get(pointer, index) returns a struct's address, or NULL past the end."""
    return tuple(record_of(kind, item.contents) for item in _items(get, pointer))


def texts_of(get: Callable[[int, int], Any], pointer: int) -> tuple[str, ...]:
    """The texts of a list."""
    return tuple(item.decode(errors="replace") for item in _items(get, pointer))


def _items(get: Callable[[int, int], Any], pointer: int) -> Iterator[Any]:
    index = 0
    while (item := get(pointer, index)) is not None and (isinstance(item, bytes) or item):
        yield item
        index += 1


@functools.cache
def _hints(kind: Any) -> list[tuple[str, Any]]:
    """Name and type of each field of a dataclass."""
    hints = get_type_hints(kind)
    return [(field.name, hints[field.name]) for field in dataclasses.fields(kind)]


def _value(struct: Any, field: str, spelled: str, hint: Any) -> object:
    value: Any = getattr(struct, field)
    if field == "dtype" and getattr(struct, "rank", 1) == 0:
        return None  # scratch of a plan
    if spelled in abi.enums:
        return word_of(spelled, value)
    if field == "shape":
        return tuple(value)[: struct.rank]
    if spelled == "nbl_string":
        return string_of(value)
    if spelled in abi.structs:
        return record_of(hint, value)
    return text_of(value) if isinstance(value, bytes) else value


def word_of(enum: str, number: int) -> str:
    """The word for a constant: "nf4" for NBL_FORMAT_NF4. Without a name: the constant's last word."""
    if hasattr(lib, f"{enum}_name"):
        name: bytes = getattr(lib, f"{enum}_name")(number)
        return name.decode()
    return next(name.rpartition("_")[2].lower() for name, value in abi.enums[enum].items() if value == number)


def number_of(enum: str, word: str, what: str) -> int:
    """The constant for a word. `what` names the argument."""
    words = {word_of(enum, number): number for number in abi.enums[enum].values()}
    words.pop("unknown", None)  # NBL_DTYPE_COUNT
    if word not in words:
        raise ArgumentError(f"{what} is {word!r}; it must be one of {', '.join(words)}")
    return words[word]
