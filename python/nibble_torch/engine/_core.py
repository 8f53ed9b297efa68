"""Calls to the library: callbacks that may raise, handles that may be closed at any time.

Session   a context of the library, and all that belongs to it. Its lock lets one thread at a time work.
Handle    a pointer to an object of the library, until it is closed

Callbacks. C cannot pass an exception on. So a callback catches what its Python function raises, asks the
library to stop, and the exception is raised again when the call returns. A signal may arrive while C works:
its Python handler then runs at the beginning of the next callback, before any `try` of that callback. ctypes
would print the exception and drop it. Session therefore replaces the handlers while the library works, and
catches there, too.

Closing. An object is closed by the user or by the garbage collector, in any thread, even in a callback. It
counts as closed at once. The library closes it when the context is idle. What is open at the end of the
program stays open.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator
from ctypes import byref, c_void_p
from types import FrameType
from typing import Any

from typing_extensions import Self

from ._abi import lib
from .errors import BusyError, ClosedError, NibbleError, error_of

# Those that programs handle. Asking for the handlers of all signals would take a quarter of a millisecond.
SIGNALS = tuple(
    int(number)
    for number in (
        *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
        *(signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2),
    )
)
# Callbacks may call these functions with the context that is at work: they keep no state in it.
TEXT_FUNCTIONS = ("nbl_tokenizer_", "nbl_text_", "nbl_stop_matcher_", "nbl_ids_free")


class Handle:
    """A pointer to an object of the library. None after close."""

    def __init__(
        self,
        session: Session,
        kind: str,
        pointer: int,
        close: Callable[[int], object],
        borrows: tuple[Handle, ...] = (),
    ) -> None:
        self.session = session
        self.kind = kind
        self.pointer: int | None = pointer
        self.borrows = borrows  # closing one of them closes this object first
        self.borrowers: dict[int, Handle] = {}
        self._close = close
        for handle in borrows:
            handle.borrowers[id(self)] = self
        session.handles[id(self)] = self

    def get(self) -> int:
        if self.pointer is None:
            raise ClosedError(f"the {self.kind} is closed")
        return self.pointer

    def close(self) -> None:
        if self.session.handles.pop(id(self), None) is None:
            return  # closed before
        pointer, self.pointer = self.get(), None
        for handle in self.borrows:
            handle.borrowers.pop(id(self), None)
        for handle in list(self.borrowers.values()):
            handle.close()
        self.session.ended.append(lambda: self._close(pointer))
        self.session.sweep()


class Session:
    """A context of the library."""

    def __init__(self) -> None:
        self.handles: dict[int, Handle] = {}
        self.ended: deque[Callable[[], object]] = deque()  # what is closed, but not yet by the library
        self.keep: list[object] = []  # callbacks of C, which must live as long as the context
        self.steps = False  # a run trains: see stop_reading
        self.context: Handle | None = None
        self._address = 0
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._depth = 0  # calls at work; more than one: from a callback
        self._busy: list[Handle] = []  # their arguments
        self._sealed = False  # in a callback that may come from the middle of parallel work
        self._in_callback: bool = False  # in code of the user
        self._sweeping = False
        self._caught: list[BaseException] = []

    # ---- life ----

    def begin(self, create: Callable[[], int]) -> None:
        """Makes the context itself."""
        self._address = create()
        self.context = Handle(self, "context", self._address, lib.nbl_context_destroy)

    def end(self) -> None:
        """Closes all objects, the last one first. The context is the first one."""
        for handle in reversed(list(self.handles.values())):
            handle.close()

    def sweep(self) -> None:
        """Lets the library close what has ended, unless it is at work."""
        if self._process != os.getpid():
            return  # after a fork: the threads of the context are not in this process
        while self.ended and self._lock.acquire(blocking=False):
            try:
                if self._depth > 0 or self._sweeping:
                    return
                self._sweeping = True
                try:
                    while self.ended:
                        self.ended.popleft()()
                finally:
                    self._sweeping = False
            finally:
                self._lock.release()

    # ---- calls ----

    def call(self, function: Any, *arguments: Any, result: Callable[[], Any] | None = None) -> Any:
        """Calls a function that returns a status. Raises its failure, or what a callback raised.

        result  copies what the library has handed out, before another thread can call it
        """
        with self.work(*arguments, text=_is_text(function)) as plain:
            with self._signals():
                status: int = function(*plain)
            self._raise(status)
            return result() if result else None

    def read(self, function: Any, *arguments: Any) -> Any:
        """Calls a function that cannot fail, and returns its result."""
        with self.work(*arguments, text=_is_text(function)) as plain:
            found = function(*plain)
            self._raise(0)
            return found

    def open(
        self,
        kind: str,
        close: Callable[[int], object],
        function: Any,
        *arguments: Any,
        borrows: tuple[Handle, ...] = (),
    ) -> Handle:
        """Calls a function whose last argument is the address of a new object."""
        made = c_void_p()
        try:
            self.call(function, *arguments, byref(made))
        except BaseException:
            if made.value:  # what was raised came from a callback
                Handle(self, kind, made.value, close).close()
            raise
        assert made.value
        return Handle(self, kind, made.value, close, borrows)

    def _raise(self, status: int) -> None:
        """Raises what a callback or a signal handler raised, else the failure that the status stands for."""
        caught = self._caught[0] if self._caught else None
        try:
            if caught is not None:
                if status and sys.version_info >= (3, 11):
                    # Such as: interrupted after step 3; saved in out/checkpoint-3
                    caught.add_note(self.failure(status).message)
                raise caught
            if status:
                raise self.failure(status)
        finally:
            # Or the exception and this frame would keep each other alive, and the caller's objects.
            del caught

    def failure(self, status: int) -> NibbleError:
        """The exception for a status that the library has just returned."""
        message: bytes = lib.nbl_error_message(self._address) or lib.nbl_status_text(status)
        hint: bytes = lib.nbl_error_hint(self._address)
        return error_of(status, message.decode(errors="replace"), hint.decode(errors="replace"))

    @contextlib.contextmanager
    def work(self, *arguments: Any, text: bool = False) -> Generator[list[Any], None, None]:
        """Takes the context for one call, and gives its arguments with pointers instead of handles.

        text  callbacks may make the call, too
        """
        if self._process != os.getpid():
            raise ClosedError("the context was made before a fork: make another one in this process")
        handles = [argument for argument in arguments if isinstance(argument, Handle)]
        with self._lock:
            plain = [a.get() if isinstance(a, Handle) else a for a in arguments]
            self._admit(handles, text)
            outside: tuple[int, list[BaseException], bool] = self._depth, self._caught, self._in_callback
            busy = len(self._busy)
            try:
                self._depth, self._caught, self._in_callback = outside[0] + 1, [], False
                self._busy += handles
                yield plain
            finally:
                del self._busy[busy:]
                self._depth, self._caught, self._in_callback = outside
        self.sweep()

    def _admit(self, handles: list[Handle], text: bool) -> None:
        """Refuses a call from a callback that the library cannot serve."""
        if self._depth == 0:
            return
        if text and not self._sealed and not any(h in self._busy for h in handles if h is not self.context):
            return
        raise BusyError(
            f"a callback uses the {handles[0].kind} while its context is at work",
            "use an object of another Context, or wait until the call has returned",
        )

    # ---- callbacks ----

    def receiver(
        self,
        kind: Any,
        body: Callable[..., object],
        stop: Any,
        *,
        ends: Callable[[], bool] | None = None,
        always: bool = False,
        sealed: bool = False,
    ) -> Any:
        """A callback of C. It returns `stop` if body returns True, or if something was raised; else 0.

        ends     whether what was raised ends the work; None: it does
        always   body is called also after something was raised
        sealed   the callback may come from the middle of parallel work: it must not call the library
        """

        def receive(*arguments: Any) -> Any:
            if always or not self._caught:
                try:
                    self._in_callback, self._sealed = True, sealed
                    if body(*arguments):
                        return stop
                except BaseException as error:
                    self._in_callback = False
                    self._caught = self._caught or [error]
                finally:
                    self._in_callback = self._sealed = False
            return stop if (ends() if ends else self._caught) else 0

        return kind(receive)

    def stop_reading(self) -> bool:
        """Whether what was raised ends the work at a progress report.

        While a run trains, the first exception waits for the end of the step, which is saved. Another signal
        leaves out the save.
        """
        return len(self._caught) > (1 if self.steps else 0)

    @contextlib.contextmanager
    def _signals(self) -> Generator[None, None, None]:
        """Catches what Python's signal handlers raise while C works."""
        if self._depth > 1 or threading.current_thread() is not threading.main_thread():
            yield  # handlers are replaced already, or run in another thread
            return
        handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}

        def handle(number: int, frame: FrameType | None) -> None:
            if self._in_callback:
                handlers[number](number, frame)
                return
            try:
                handlers[number](number, frame)
            except BaseException as error:
                self._caught.append(error)

        try:
            for number in SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    handlers[number] = handler
                    signal.signal(number, handle)
            yield
        finally:
            for number, handler in handlers.items():
                if signal.getsignal(number) is handle:  # no callback has set another one
                    signal.signal(number, handler)


def when_collected(owner: object, close: Callable[[], object]) -> None:
    """Calls `close` when the owner is collected. Not at the end of the program: threads may be at work."""
    weakref.finalize(owner, close).atexit = False


def _is_text(function: Any) -> bool:
    name: str = function.__name__
    return name.startswith(TEXT_FUNCTIONS)


class Owned:
    """An object of the library. It is a context manager, and is closed at the latest when it is collected."""

    session: Session
    handle: Handle

    def _own(self, handle: Handle) -> None:
        self.session, self.handle = handle.session, handle
        when_collected(self, handle.close)

    @property
    def closed(self) -> bool:
        """Whether the object is closed. Using it then is a ClosedError."""
        return self.handle.pointer is None

    def close(self) -> None:
        """Gives back memory and files. A second close does nothing."""
        self.handle.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{' (closed)' if self.closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
