"""Contexts, threads, closing, the end of the program: no crash, no lost exception, clear errors."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import weakref
from pathlib import Path

import pytest
import torch
from engine_common import TINY, adapter_bytes, enter, environment, sums

from nibble_torch.engine import (
    ArgumentError,
    BusyError,
    ChatEncoder,
    ChatTemplate,
    ClosedError,
    Context,
    Model,
    NibbleError,
    Progress,
    Run,
    StopMatcher,
    Tokenizer,
    UnsupportedError,
    cores,
    cuda_built,
    processor_name,
)


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(tmp_path, monkeypatch)


def test_a_context_has_the_threads_that_were_asked_for() -> None:
    context = Context(threads=3)
    assert context.threads == 3
    context.threads = 0
    assert context.threads == cores()
    with pytest.raises(ArgumentError, match="2000 threads"):
        context.threads = 2000
    assert context.threads == cores()
    with pytest.raises(NibbleError, match="threads"):
        Context(threads=2000)
    assert context.isa in [level.name for level in context.isa_levels() if level.used]
    assert isinstance(processor_name(), str)


def test_devices() -> None:
    assert Context(device="auto").device == ("cuda:0" if Context().cuda_usable() else "cpu")
    for wrong in ("gpu", "cpu:1", "cuda:x", "cuda:-1"):
        with pytest.raises(ArgumentError, match="it must be cpu, cuda, cuda:N or auto"):
            Context(device=wrong)
    if not cuda_built():
        with pytest.raises(UnsupportedError):
            Context(device="cuda")
        with pytest.raises(NotImplementedError):
            Context().cuda_devices()


def test_the_log_goes_to_a_logger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="nibble"):
        Run("examples/train/sums.yml", {"flash_attention": True})
    assert [(record.levelname, "flash_attention" in record.getMessage()) for record in caplog.records] == [
        ("INFO", True)
    ]
    with caplog.at_level(logging.DEBUG):
        other = Context(log=logging.getLogger("other"))
        Run("examples/train/sums.yml", {"flash_attention": True}, context=other)
    assert caplog.records[-1].name == "other"
    count = len(caplog.records)
    Run("examples/train/sums.yml", {"flash_attention": True}, context=Context(log=None))
    assert len(caplog.records) == count


def test_an_exception_of_a_log_handler_is_not_lost() -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise LookupError(record.getMessage())

    logger = logging.getLogger("broken")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(Broken())
    logger.propagate = False
    with pytest.raises(LookupError, match="flash_attention"):
        Run("examples/train/sums.yml", {"flash_attention": True}, context=Context(log=logger))


def test_progress_is_reported_and_may_not_call_back() -> None:
    seen: list[Progress] = []
    context = Context(progress=seen.append)
    Model(TINY, context=context, load="nf4")
    assert seen and all(0 <= at.done <= at.total for at in seen)

    def use(_: Progress) -> None:
        Tokenizer(TINY, context=other)

    other = Context(progress=use)
    with pytest.raises(BusyError, match="another Context"):
        Model(TINY, context=other, load="nf4")


def test_use_after_close() -> None:
    model = Model(TINY)
    tokenizer = model.tokenizer()
    stream = tokenizer.stream()
    model.close()
    model.close()
    assert model.closed and repr(model) == "<Model (closed)>" and not tokenizer.closed
    with pytest.raises(ClosedError, match="the model is closed"):
        model.logits([[1]])
    assert tokenizer.encode("3").numel() == 1
    tokenizer.close()
    with pytest.raises(ValueError, match="the text stream is closed"):
        stream.push(1)
    with pytest.raises(ClosedError, match="the tokenizer is closed"):
        tokenizer.stream()
    with pytest.raises(ClosedError), Model(TINY) as other:
        other.close()
        other.generate([[1]], max_tokens=1)


def test_a_context_closes_what_belongs_to_it() -> None:
    with Context() as context:
        model, matcher = Model(TINY, context=context), StopMatcher(["a"], context=context)
        tokenizer = model.tokenizer()
        encoder = ChatEncoder(model, tokenizer, ChatTemplate(TINY, context=context))
    for closed in (model, matcher, tokenizer, encoder):
        assert closed.closed
    with pytest.raises(ClosedError, match="the context is closed"):
        Model(TINY, context=context)
    assert repr(context) == "<Context (closed)>"


def test_a_borrower_goes_first() -> None:
    context = Context()
    model, template = Model(TINY, context=context), ChatTemplate(TINY, context=context)
    encoder = ChatEncoder(model, model.tokenizer(), template)  # the tokenizer lives as long as the encoder
    gc.collect()
    row = {"messages": [{"role": "user", "content": "3"}, {"role": "assistant", "content": "4"}]}
    assert len(encoder.row(row).ids) > 2
    template.close()
    with pytest.raises(ClosedError, match="the chat encoder is closed"):
        encoder.row(row)
    with pytest.raises(ArgumentError, match="one context"):
        ChatEncoder(model, Tokenizer(TINY), ChatTemplate(TINY, context=context))


def test_objects_are_closed_when_they_are_collected() -> None:
    context = Context()
    count = len(context.session.handles)
    model = Model(TINY, context=context)
    tokenizer = model.tokenizer()
    streams = [tokenizer.stream() for _ in range(5)]
    assert len(context.session.handles) == count + 7
    streams.clear()
    assert not tokenizer.handle.borrowers and len(context.session.handles) == count + 2
    tokenizer.me = model.me = [tokenizer, model]  # type: ignore[attr-defined]
    del tokenizer, model
    gc.collect()
    assert len(context.session.handles) == count
    lost = weakref.ref(Model(TINY).context)
    gc.collect()
    assert lost() is None


def test_a_thousand_objects_leave_no_memory_behind() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    tokenizer = Tokenizer(TINY)

    def work(times: int) -> None:
        for _ in range(times):
            Context(threads=1)
            ids = tokenizer.encode("What is 3 plus 4? " * 50)
            tokenizer.decode(ids)
            tokenizer.stream().push(1)
            with pytest.raises(NibbleError):
                Model("missing")

    work(100)
    before = resident()
    work(400)
    gc.collect()
    assert resident() - before < 4_000_000


def test_two_contexts_work_in_two_threads() -> None:
    def train(name: str) -> None:
        steps: list[int] = []
        sums(name, context=Context(threads=1)).train(
            on_step=lambda event: steps.append(event.step), samples=-1
        )
        assert steps == [1, 2, 3, 4, 5, 6]

    threads = [threading.Thread(target=train, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    train("alone")
    assert adapter_bytes("a") == adapter_bytes("b") == adapter_bytes("alone")


def test_threads_that_share_a_context_take_turns() -> None:
    model = Model(TINY, context=Context(threads=2))
    want = model.logits([[1, 2, 3]])[0]
    wrong: list[object] = []

    def work() -> None:
        for _ in range(50):
            try:
                if not torch.equal(model.logits([[1, 2, 3]])[0], want):
                    wrong.append("logits")
                with pytest.raises(NibbleError, match="the id 999"):
                    model.logits([[999]])
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_closing_in_another_thread_waits_for_the_work() -> None:
    model = Model(TINY, context=Context(threads=1))
    started, closed = threading.Event(), threading.Event()

    def close() -> None:
        started.wait()
        model.close()
        closed.set()

    thread = threading.Thread(target=close)
    thread.start()

    def on_token(_sequence: int, _token: int) -> None:
        started.set()
        closed.wait()  # close does not wait for the work, and the work goes on

    assert len(model.generate([[1]], max_tokens=5, ends=[], on_token=on_token)[0].ids) == 5
    thread.join()
    with pytest.raises(ClosedError):
        model.generate([[1]], max_tokens=1)


def test_a_fork_has_no_contexts() -> None:
    model = Model(TINY, context=Context(threads=2))
    model.logits([[1, 2]])
    results: multiprocessing.SimpleQueue[str] = multiprocessing.get_context("fork").SimpleQueue()

    def child() -> None:
        try:
            model.logits([[1, 2]])
        except ClosedError as error:
            results.put(str(error))
        model.close()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == 0 and "before a fork" in results.get()
    assert model.logits([[1, 2]])


# What a program does last, and its exit status.
ENDINGS = {
    "objects that are never closed": ("keep = [model, model.tokenizer(), model.tokenizer().stream()]", 0),
    "objects in a cycle": ("model.me = model", 0),
    "objects in another module": ("sys.kept = model", 0),
    "an exit in a callback": (
        "model.generate([[1]], max_tokens=9, ends=[], on_token=lambda *_: sys.exit(3))",
        3,
    ),
    "an exception in a callback": (
        "model.generate([[1]], max_tokens=9, ends=[], on_token=lambda *_: 1 / 0)",
        1,
    ),
    "a daemon thread at work": (
        """
        def work():
            model.generate([[1]], max_tokens=500, ends=[], on_token=lambda *_: started.set())
        threading.Thread(target=work, daemon=True).start()
        started.wait()
        """,
        0,
    ),
    "threads that wait for a context": (
        """
        def work():
            model.generate([[1]], max_tokens=20, ends=[], on_token=lambda *_: started.set())
        for _ in range(3):
            threading.Thread(target=work).start()
        started.wait()
        """,
        0,
    ),
}
# Each ending runs in a process of its own, which ends as programs do. Importing torch takes seconds: once.
PROGRAM = """
import os, sys, threading
from nibble_torch.engine import Context, Model
endings = eval(sys.stdin.read())
for name, (last, _) in endings.items():
    if os.fork() == 0:
        for stream, number in (("out", 1), ("err", 2)):
            os.dup2(os.open(f"{name}.{stream}", os.O_WRONLY | os.O_CREAT), number)
        model = Model("models/nibble-tiny", context=Context(threads=2))
        model.logits([[1, 2, 3]])
        started = threading.Event()
        exec(last)
        print("the end")
        break
    _, status = os.wait()
    print(f"{name}: {os.waitstatus_to_exitcode(status)}", flush=True)
"""


@pytest.mark.slow
def test_the_end_of_the_program() -> None:
    endings = {name: (textwrap.dedent(last), status) for name, (last, status) in ENDINGS.items()}
    line = [sys.executable, "-X", "faulthandler", "-W", "ignore::DeprecationWarning", "-c", PROGRAM]
    done = subprocess.run(
        line, input=repr(endings), capture_output=True, text=True, timeout=300, env=environment()
    )
    assert not done.stderr
    assert dict(line.split(": ") for line in done.stdout.splitlines()) == {
        name: str(status) for name, (_, status) in ENDINGS.items()
    }
    for name, (_, status) in ENDINGS.items():
        printed, errors = (Path(f"{name}.{stream}").read_text() for stream in ("out", "err"))
        if status == 0:
            assert (printed, errors) == ("the end\n", ""), name
        if status == 1:
            assert errors.rstrip().endswith("ZeroDivisionError: division by zero")
