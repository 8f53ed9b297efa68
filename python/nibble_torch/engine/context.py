"""Contexts, and the machine they compute on."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from ctypes import byref, c_void_p
from dataclasses import dataclass
from typing import Any

from ._abi import abi, lib
from ._core import Handle, Session, when_collected
from ._records import record_of
from .errors import ArgumentError, error_of

_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)  # by nbl_log_level


@dataclass(frozen=True)
class Progress:
    """How far a call is that reads files: bytes done, bytes in all, and what is being worked on."""

    done: int
    total: int
    what: str


@dataclass(frozen=True)
class IsaLevel:
    """An instruction set: whether the processor has it, and whether the context uses it."""

    name: str
    enables: str
    found: bool
    used: bool


@dataclass(frozen=True)
class Library:
    """A library that nibble is linked with."""

    name: str
    enables: str
    version: str


@dataclass(frozen=True)
class CudaDevice:
    """A CUDA device: compute capability major.minor, and its whole memory."""

    name: str
    major: int
    minor: int
    memory_bytes: int


class Context:
    """Threads, the device, the log and progress reports of the objects that are made with it.

    One context serves one thread at a time: a call waits until the call of another thread has returned.
    Threads that shall work at once take a context each. Every class and function of this package takes
    `context=`. Without it the object has a context of its own, with the defaults.

    threads    1 to 1024; 0: all cores of this process
    device     "cpu"; "cuda" or "cuda:N"; "auto": device 0 if it can be used, else the CPU
    log        a logger; None: no log
    progress   is called every few megabytes of input. True ends the call with a CancelledError. It cannot use
               objects of this context.

    >>> with Context(threads=2) as context:
    ...     context.threads, context.device
    (2, 'cpu')
    """

    def __init__(
        self,
        *,
        threads: int = 0,
        device: str = "cpu",
        log: logging.Logger | None = logging.getLogger("nibble"),
        progress: Callable[[Progress], bool | None] | None = None,
    ) -> None:
        session = self.session = Session()

        def on_log(_user: object, level: int, line: bytes) -> None:
            if log:
                log.log(_LEVELS[level], "%s", line.decode(errors="replace"))

        def on_progress(_user: object, at: Any) -> object:
            return progress(record_of(Progress, at.contents)) if progress else None

        logs = session.receiver(abi.callbacks["nbl_log_fn"], on_log, None, always=True, sealed=True)
        reports = session.receiver(
            abi.callbacks["nbl_progress_fn"], on_progress, True, ends=session.stop_reading, sealed=True
        )
        session.keep += [logs, reports]
        session.begin(
            lambda: _create(abi.options("nbl_context_options", threads=threads, log=logs, progress=reports))
        )
        assert session.context
        self.handle: Handle = session.context
        when_collected(self, session.end)
        self._device = "cpu"
        self._threads = int(session.read(lib.nbl_threads, self.handle))
        try:
            self._use(device)
        except BaseException:
            self.close()
            raise

    def _use(self, device: str) -> None:
        kind, _, index = device.partition(":")
        if kind not in ("cpu", "cuda", "auto") or (index and (kind != "cuda" or not index.isdecimal())):
            raise ArgumentError(f"device is {device!r}; it must be cpu, cuda, cuda:N or auto")
        if kind == "cuda" or (kind == "auto" and self.cuda_usable()):
            self.session.call(lib.nbl_context_use_cuda, self.handle, int(index or 0))
            self._device = f"cuda:{index or 0}"

    def follow(self, *, threads: int, device: str) -> None:
        """Takes what a run's configuration asks for."""
        if threads:
            self.threads = threads
        self._use(device)

    @property
    def device(self) -> str:
        """What the context computes on: "cpu" or "cuda:N"."""
        return self._device

    @property
    def threads(self) -> int:
        """How many threads compute. Set it before models and runs are opened; 0 takes all cores."""
        return self._threads

    @threads.setter
    def threads(self, threads: int) -> None:
        self.session.call(lib.nbl_context_set_threads, self.handle, threads)
        self._threads = int(self.session.read(lib.nbl_threads, self.handle))

    @property
    def isa(self) -> str:
        """The instruction set that the kernels use, such as "avx512bf16"."""
        name: bytes = self.session.read(lib.nbl_isa_name, self.handle)
        return name.decode()

    def isa_levels(self) -> list[IsaLevel]:
        """The instruction sets of this processor architecture.

        >>> [level.name for level in Context().isa_levels()][0]
        'scalar'
        """
        found: list[IsaLevel] = []
        level = abi.options("nbl_isa_level")
        while self.session.read(lib.nbl_isa_level_get, self.handle, len(found), byref(level)):
            found.append(record_of(IsaLevel, level))
        return found

    def cuda_devices(self) -> list[CudaDevice]:
        """The CUDA devices. An UnsupportedError says whether backend, driver or device is missing."""
        count = ctypes.c_int()
        device = abi.options("nbl_cuda_device")
        self.session.call(lib.nbl_cuda_device_count, self.handle, byref(count))
        found: list[CudaDevice] = []
        for index in range(count.value):
            self.session.call(lib.nbl_cuda_device_get, self.handle, index, byref(device))
            found.append(record_of(CudaDevice, device))
        return found

    def cuda_usable(self) -> bool:
        """Whether device="auto" takes the CUDA device 0."""
        usable: bool = self.session.read(lib.nbl_cuda_usable, self.handle)
        return usable

    @property
    def closed(self) -> bool:
        """Whether the context is closed, and with it all its objects."""
        return self.handle.pointer is None

    def close(self) -> None:
        """Closes the objects of the context and ends its threads."""
        self.session.end()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            "<Context (closed)>" if self.closed else f"<Context threads={self.threads} device={self.device}>"
        )


def _create(options: Any) -> int:
    made = c_void_p()
    status = lib.nbl_context_create(byref(options), byref(made))
    if status or made.value is None:
        hint = (
            ""
            if status == abi.enums["nbl_status"]["NBL_ERROR_MEMORY"]
            else "threads must be 0 to 1024, NIBBLE_ISA a name"
        )
        raise error_of(status, f"a context cannot be made: {lib.nbl_status_text(status).decode()}", hint)
    return made.value


def version() -> str:
    """The version of the library.

    >>> version().count(".")
    2
    """
    text: bytes = lib.nbl_version()
    return text.decode()


def guard_mapped_files() -> None:
    """Turns a crash into an error: if another process truncates a mapped file, reading it fails.

    Call it once, before files are opened. It installs a handler of SIGBUS.
    """
    status = lib.nbl_guard_mapped_files()
    if status:
        raise error_of(status, "the handler of SIGBUS cannot be installed")


def cores() -> int:
    """The processor's cores that this process may use."""
    count: int = lib.nbl_cores()
    return count


def processor_name() -> str:
    """The processor's name as the system tells it, or ""."""
    name = ctypes.create_string_buffer(256)
    lib.nbl_processor_name(name, len(name))
    return name.value.decode(errors="replace")


def libraries() -> list[Library]:
    """The libraries that nibble is linked with, as loaded.

    >>> "PCRE2" in [library.name for library in libraries()]
    True
    """
    found: list[Library] = []
    library = abi.options("nbl_library")
    while lib.nbl_library_get(len(found), byref(library)):
        found.append(record_of(Library, library))
    return found


def cuda_built() -> bool:
    """Whether the library was built with the CUDA backend."""
    built: bool = lib.nbl_cuda_built()
    return built
