"""Training runs: configurations, data, plans, and training with a callback that watches and stops."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from engine_common import SUMS, TINY, adapter_bytes, enter, sums

from nibble_torch.engine import (
    ArgumentError,
    BusyError,
    CancelledError,
    Context,
    FormatError,
    Model,
    NibbleError,
    Run,
    Status,
    TrainEvent,
)


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(tmp_path, monkeypatch)


def test_a_configuration_is_read_in_every_form() -> None:
    want = sums("out").info
    assert (want.base_model, want.output_dir, want.adapter, want.device) == (TINY, "out", True, "cpu")
    assert Run(SUMS, ["output_dir=out", "report=false"]).info == want
    keys = {
        "base_model": TINY,
        "adapter": "lora",
        "lora_r": 4,
        "lora_target_linear": True,
        "output_dir": Path("ö \"'"),
    }
    datasets = [{"path": "examples/train/sums.jsonl", "type": "chat_template"}]
    run = Run(
        {**keys, "learning_rate": 2e-05, "datasets": datasets}, {"datasets.0.path": Path("missing.jsonl")}
    )
    assert run.info.output_dir == "ö \"'"
    with pytest.raises(FileNotFoundError, match="missing.jsonl"):
        run.data()


def test_a_wrong_key_is_named_with_file_and_line() -> None:
    Path("run.yml").write_text("base_model: models/nibble-tiny\nlora_rr: 4\n")
    with pytest.raises(ArgumentError, match=r"run\.yml:2: .*lora_rr") as caught:
        Run("run.yml")
    assert caught.value.status is Status.ERROR_ARGUMENT and isinstance(caught.value, ValueError)
    with pytest.raises(NibbleError, match="lora_rr"):
        Run({"base_model": TINY, "lora_rr": 4})
    with pytest.raises(NibbleError, match="--set lora_rr"):
        Run(SUMS, {"lora_rr": 4})
    Path("broken.yml").write_text("a: [\n")
    with pytest.raises(FormatError, match=r"broken\.yml:"):
        Run("broken.yml")


def test_a_hint_is_in_the_exception() -> None:
    out = Path("out")
    out.mkdir()
    (out / "adapter_model.safetensors").write_text("of somebody else")
    with pytest.raises(FileExistsError, match="no run of nibble left them there") as caught:
        sums("out").train(samples=-1)
    assert isinstance(caught.value, NibbleError) and caught.value.hint == "choose another output_dir"
    assert str(caught.value).endswith("\nchoose another output_dir")


def test_the_data_are_counted_and_shown() -> None:
    run = Run(SUMS)
    data = run.data()
    rows = Path("examples/train/sums.jsonl").read_text().splitlines()
    assert data.examples + data.dropped == len(rows) and data.validation == round(0.05 * data.examples)
    previews = [run.preview(index) for index in (0, 1)]
    for row, preview in zip(rows, previews, strict=False):
        texts = [message["content"] for message in json.loads(row)["messages"]]
        assert all(text in "".join(part.text for part in preview.parts) for text in texts)
        assert sum(part.tokens for part in preview.parts) == len(preview.ids) == len(preview.labels)
        trained = preview.labels != -100
        assert (preview.labels[trained] == preview.ids[trained]).all()
        assert preview.trained_tokens == int(trained[1:].sum())
    assert previews[0].ids.tolist() != previews[1].ids.tolist(), "the memory of the first preview was reused"
    with pytest.raises(NibbleError):
        run.preview(data.examples + 5)


def test_a_plan_is_what_training_takes() -> None:
    run = sums("out", max_steps=1)
    plan = run.plan(batch=2)
    assert plan.total_bytes == run.train(samples=-1).memory_bytes
    assert plan.arenas.optimizer > 0 and plan.arenas.kv == 0


def test_events_tell_the_course_of_a_run() -> None:
    events: list[TrainEvent] = []
    steps: list[TrainEvent] = []
    summary = sums("out").train(on_event=events.append, on_step=steps.append, samples=1)
    kinds = [event.kind for event in events if event.kind != "phase"]
    assert kinds == ["begin", "step", "step", "saved"] + 2 * ["step", "step", "saved"][:3]
    assert [event for event in events if event.kind == "step"] == steps
    assert [event.step for event in steps] == [1, 2, 3, 4, 5, 6]
    assert all(event.steps == 6 and event.loss > 0 and event.grad_norm > 0 for event in steps)
    assert [event.text for event in events if event.kind == "saved"] == ["out"] * 3
    assert "reading data" in [event.text for event in events if event.kind == "phase"]
    assert (summary.step, summary.steps, summary.result_step, summary.stopped) == (6, 6, 6, False)
    records = [json.loads(line) for line in Path("out/metrics.jsonl").read_text().splitlines()]
    assert records[-1]["step"] == 6
    with Model(TINY, adapter="out") as model:
        assert model.logits([[1, 2, 3]])[0].isfinite().all()


def test_evaluations_are_events() -> None:
    events: list[TrainEvent] = []
    run = sums("out", val_set_size=0.05, eval_steps=2, max_steps=2, load_best_model_at_end=True)
    summary = run.train(on_event=events.append, samples=-1)
    evaluations = [event for event in events if event.kind == "evaluation"]
    assert [event.step for event in evaluations] == [2]
    assert evaluations[0].text == "the best so far"
    assert summary.eval_loss == summary.best_eval_loss == pytest.approx(evaluations[0].loss)


def stop_by_answer(event: TrainEvent) -> bool:
    return event.step == 3


def stop_by_exception(event: TrainEvent) -> None:
    if event.step == 3:
        raise LookupError("enough")


def stop_by_interrupt(event: TrainEvent) -> None:
    if event.step == 3:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("stop", "error"),
    [(stop_by_answer, None), (stop_by_exception, LookupError), (stop_by_interrupt, KeyboardInterrupt)],
)
def test_a_run_that_was_stopped_ends_with_the_same_bytes(
    stop: object, error: type[BaseException] | None
) -> None:
    whole = sums("whole").train(samples=-1)
    run = sums("parts")
    if error is None:
        summary = run.train(on_step=stop, samples=-1)  # type: ignore[arg-type]
        assert (summary.step, summary.steps, summary.stopped) == (3, 6, True)
    else:
        with pytest.raises(error) as caught:
            run.train(on_step=stop, samples=-1)  # type: ignore[arg-type]
        if sys.version_info >= (3, 11):
            assert caught.value.__notes__ == ["interrupted after step 3; saved in parts/checkpoint-3"]
    assert Path("parts/checkpoint-3").is_dir() and not Path("parts/adapter_model.safetensors").exists()
    seen: list[TrainEvent] = []
    summary = run.train(resume=True, on_event=seen.append, samples=-1)
    begin = next(event for event in seen if event.kind == "begin")
    assert (begin.step, begin.text) == (3, "parts/checkpoint-3")
    assert (summary.step, summary.loss, summary.stopped) == (6, whole.loss, False)
    assert adapter_bytes("parts") == adapter_bytes("whole")


def test_ctrl_c_between_callbacks_stops_after_the_step() -> None:
    """The signal comes while C works. Python's handler then runs at the entry of the next callback."""
    steps: list[int] = []
    sent = threading.Event()

    def on_step(event: TrainEvent) -> None:
        steps.append(event.step)
        if event.step == 2:
            threading.Timer(0.02, interrupt).start()

    def interrupt() -> None:
        sent.set()
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        sums("out", max_steps=2000, save_steps=2000, micro_batch_size=8).train(on_step=on_step, samples=-1)
    assert sent.is_set() and 2 <= steps[-1] < 2000
    last = Path(f"out/checkpoint-{steps[-1]}")
    after = Path(f"out/checkpoint-{steps[-1] + 1}")
    assert last.is_dir() or after.is_dir()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_handler_of_the_program_is_called_once_and_stays() -> None:
    seen: list[int] = []

    def handler(number: int, _frame: object) -> None:
        seen.append(number)
        raise TimeoutError("too long")

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(TimeoutError, match="too long"):
            sums("out").train(on_event=lambda event: signal.raise_signal(signal.SIGUSR1), samples=-1)
        assert seen == [signal.SIGUSR1] and signal.getsignal(signal.SIGUSR1) is handler
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_that_a_callback_sets_stays() -> None:
    def handler(_number: int, _frame: object) -> None:
        pass

    before = signal.getsignal(signal.SIGUSR1)
    try:
        sums("out", max_steps=1).train(
            on_step=lambda _: bool(signal.signal(signal.SIGINT, handler)) and None, samples=-1
        )
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert signal.getsignal(signal.SIGUSR1) is before


def test_a_progress_report_stops_reading() -> None:
    context = Context(threads=1, progress=lambda _: True)
    with pytest.raises(CancelledError) as caught:
        sums("out", context=context).train(samples=-1)
    assert caught.value.status is Status.ERROR_CANCELLED and not Path("out/adapter_config.json").exists()

    def fail(_: object) -> None:
        raise LookupError("no progress")

    with pytest.raises(LookupError, match="no progress"):
        sums("out", context=Context(threads=1, progress=fail)).train(samples=-1)


def test_a_callback_may_close_and_may_not_compute() -> None:
    context = Context(threads=2)
    run, model = sums("out", context=context), Model(TINY, context=context)
    tokenizer = model.tokenizer()

    def on_step(event: TrainEvent) -> None:
        assert tokenizer.decode(tokenizer.encode_batch(["3 plus 4"] * 40)[0]) == "3 plus 4"
        if event.step == 1:
            with pytest.raises(BusyError):
                model.logits([[1]])
            with pytest.raises(BusyError):
                run.data()
            model.close()
            run.close()  # takes effect when train has returned
            assert run.closed

    assert run.train(on_step=on_step, samples=-1).step == 6
    with pytest.raises(ArgumentError, match="the run is closed"):
        run.data()
    assert adapter_bytes("out") and tokenizer.decode([1]) is not None
