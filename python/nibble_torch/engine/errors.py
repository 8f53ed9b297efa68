"""What a call that fails raises.

Every exception is a NibbleError. Each status of the library has a class of its own, which is also the
matching exception of Python:

    >>> from nibble_torch.engine import Model, NibbleError
    >>> try:
    ...     Model("no-such-folder")
    ... except FileNotFoundError as error:
    ...     print(isinstance(error, NibbleError), error.status.name)
    True ERROR_NOT_FOUND
"""

from __future__ import annotations

import enum

from ._abi import abi, lib


class Status(enum.IntEnum):
    """The library's status codes."""

    OK = 0
    ERROR_ARGUMENT = 1
    ERROR_MEMORY = 2
    ERROR_IO = 3
    ERROR_FORMAT = 4
    ERROR_DTYPE = 5
    ERROR_SHAPE = 6
    ERROR_UNSUPPORTED = 7
    ERROR_EXISTS = 8
    ERROR_NOT_FOUND = 9
    ERROR_NO_SPACE = 10
    ERROR_CANCELLED = 11
    ERROR_INTERNAL = 12

    @property
    def text(self) -> str:
        """What the status means, in a few words.

        >>> Status.ERROR_NO_SPACE.text
        'the disk is full'
        """
        text: bytes = lib.nbl_status_text(self)
        return text.decode()


class NibbleError(Exception):
    """A call that failed.

    status    what kind of failure it is
    message   names the file, the tensor, the dtypes and the shapes concerned
    hint      what the user can do about it, or ""
    """

    status = Status.ERROR_INTERNAL

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class ArgumentError(NibbleError, ValueError):
    """An argument is out of its range."""

    status = Status.ERROR_ARGUMENT


class OutOfMemoryError(NibbleError, MemoryError):
    """An allocation failed, or a plan needs more memory than it may take."""

    status = Status.ERROR_MEMORY


class FileError(NibbleError, OSError):
    """The system could not read or write."""

    status = Status.ERROR_IO


class FormatError(NibbleError, ValueError):
    """A file is not what it claims to be."""

    status = Status.ERROR_FORMAT


class DtypeError(NibbleError, TypeError):
    """Dtypes do not fit."""

    status = Status.ERROR_DTYPE


class ShapeError(NibbleError, ValueError):
    """Shapes do not fit."""

    status = Status.ERROR_SHAPE


class UnsupportedError(NibbleError, NotImplementedError):
    """Valid, but the library does not do it."""

    status = Status.ERROR_UNSUPPORTED


class ExistsError(FileError, FileExistsError):
    """The target exists already."""

    status = Status.ERROR_EXISTS


class NotFoundError(FileError, FileNotFoundError):
    """No such file, folder or tensor."""

    status = Status.ERROR_NOT_FOUND


class NoSpaceError(FileError):
    """The disk is full."""

    status = Status.ERROR_NO_SPACE


class CancelledError(NibbleError):
    """A callback asked to stop by returning True."""

    status = Status.ERROR_CANCELLED


class InternalError(NibbleError, RuntimeError):
    """A defect of the library."""

    status = Status.ERROR_INTERNAL


class ClosedError(ArgumentError):
    """An object is used after its close, or after that of its context."""


class BusyError(NibbleError, RuntimeError):
    """A callback calls the library with the context that called it."""

    status = Status.ERROR_ARGUMENT


_CLASSES = {
    kind.status: kind
    for kind in (
        *(ArgumentError, OutOfMemoryError, FileError, FormatError, DtypeError, ShapeError, UnsupportedError),
        *(ExistsError, NotFoundError, NoSpaceError, CancelledError, InternalError),
    )
}


def error_of(status: int, message: str, hint: str = "") -> NibbleError:
    """The exception of a status. A status that this package does not know is an InternalError."""
    kind = _CLASSES.get(
        Status(status) if status in abi.enums["nbl_status"].values() else Status.ERROR_INTERNAL
    )
    return (kind or InternalError)(message, hint)
