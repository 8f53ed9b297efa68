"""Training runs: a configuration, its data, its plan, and training."""

from __future__ import annotations

import ctypes
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref
from dataclasses import dataclass
from typing import Any

import torch

from ._abi import abi, lib
from ._arrays import Path, copy_of, path_of, utf8
from ._core import Owned
from ._records import record_of, string_of
from .context import Context
from .errors import CancelledError
from .plans import Plan, make_plan


@dataclass(frozen=True)
class RunInfo:
    """What a configuration says. `device` is "cpu" or "cuda"; `threads` is 0 if the file has none."""

    base_model: str
    output_dir: str
    adapter: bool
    report: bool
    mergeable: bool
    threads: int
    device: str


@dataclass(frozen=True)
class DataSummary:
    """What a run trains on. `dropped` is the sum of the last five."""

    examples: int
    tokens: int
    trained_tokens: int
    truncated: int
    validation: int
    dropped: int
    too_long: int
    bad: int
    untrained: int
    too_short: int
    duplicates: int


@dataclass(frozen=True)
class PreviewPart:
    """Text of consecutive tokens that are all trained, or all not."""

    text: str
    tokens: int
    trained: bool


@dataclass(frozen=True)
class Preview:
    """An example as the model sees it: ids and labels, i32, and the text in parts."""

    ids: torch.Tensor
    labels: torch.Tensor
    trained_tokens: int
    parts: tuple[PreviewPart, ...]


@dataclass(frozen=True)
class TrainEvent:
    """Something that happens in a run.

    kind  "begin": everything is planned; text: the checkpoint that is resumed, or None
          "step": after every step, with its loss, grad_norm, learning_rate and tokens_per_second
          "evaluation": loss: of the examples for validation; text: says if it is the best so far, or None
          "saved": the checkpoint of this step is complete; text: output_dir
          "phase": the run does something other than steps; text: what; part, parts: how far it is
    """

    kind: str
    step: int
    steps: int
    epoch: float
    loss: float
    grad_norm: float
    learning_rate: float
    tokens_per_second: float
    trained_tokens: int
    memory_bytes: int
    seconds: float
    seconds_left: float
    text: str | None
    part: int
    parts: int


@dataclass(frozen=True)
class TrainSummary:
    """What a run has done. A loss of 0: there is none. `stopped`: by a callback, before its last step."""

    step: int
    steps: int
    loss: float
    eval_loss: float
    result_step: int
    best_eval_loss: float
    seconds: float
    memory_bytes: int
    stopped: bool


class Run(Owned):
    """A training run. Opening it checks the whole configuration; neither the model nor the data is read.

    configuration  a YAML file (docs/CONFIG.md), or its keys as a dict
    overrides      keys that replace those of the file: a dict, or texts "key=value". A key may be a path such
                   as "datasets.0.path".
    context        without one, the run follows `threads` and `device` of its configuration

    >>> run = Run("examples/train/sums.yml", {"max_steps": 4, "output_dir": "run-example", "report": False})
    >>> run.info.base_model
    'models/nibble-tiny'
    >>> losses = []
    >>> summary = run.train(on_step=lambda event: losses.append(event.loss), samples=-1)
    >>> summary.step, len(losses), losses[3] < losses[0]
    (4, 4, True)
    """

    def __init__(
        self,
        configuration: Path | Mapping[str, object],
        overrides: Mapping[str, object] | Sequence[str] = (),
        *,
        context: Context | None = None,
    ) -> None:
        self.context = context or Context()
        session = self.context.session
        if isinstance(overrides, Mapping):
            overrides = [f"{key}={_yaml(value)}" for key, value in overrides.items()]
        texts = (ctypes.c_char_p * len(overrides))(*map(utf8, overrides))

        def opened(path: Path) -> None:
            kind = "run", lib.nbl_run_close, lib.nbl_run_open
            self._own(session.open(*kind, self.context.handle, path_of(path), texts, len(texts)))

        if isinstance(configuration, Mapping):
            # The library reads a file. It needs it only now.
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "run.yml")
                with open(path, "w", encoding="utf-8") as file:
                    file.writelines(f"{_yaml(key)}: {_yaml(value)}\n" for key, value in configuration.items())
                opened(path)
        else:
            opened(configuration)
        with session.work(self.handle) as (run,):
            self._info = record_of(RunInfo, lib.nbl_run_get_info(run).contents)
        if context is None:
            self.context.follow(threads=self.info.threads, device=self.info.device)

    @property
    def info(self) -> RunInfo:
        """What the configuration says."""
        return self._info

    def data(self) -> DataSummary:
        """Reads all rows of the data once, and counts them.

        >>> Run("examples/train/sums.yml").data().examples
        900
        """
        summary = abi.options("nbl_data_summary")
        self.session.call(lib.nbl_run_data, self.handle, byref(summary))
        return record_of(DataSummary, summary)

    def preview(self, index: int) -> Preview:
        """Example `index`, in the order of the files.

        >>> preview = Run("examples/train/sums.yml").preview(0)
        >>> [part.trained for part in preview.parts], len(preview.ids) == len(preview.labels)
        ([False, True, False], True)
        """
        preview = abi.options("nbl_preview")

        def copied() -> Preview:
            return Preview(
                copy_of(preview.ids, preview.count, torch.int32),
                copy_of(preview.labels, preview.count, torch.int32),
                preview.trained_tokens,
                tuple(_part(preview.parts[part]) for part in range(preview.part_count)),
            )

        found: Preview = self.session.call(
            lib.nbl_run_preview, self.handle, index, byref(preview), result=copied
        )
        return found

    def plan(self, *, model: Path | None = None, tokens: int = 0, batch: int = 0, memory: int = 0) -> Plan:
        """What a training step of this run takes.

        model   instead of base_model
        tokens  of each sequence; 0: of the largest that the data hold
        batch   sequences of a step; 0: one, or with tokens=0 those of the data
        memory  bytes, instead of the run's `memory`

        >>> Run("examples/train/sums.yml").plan(tokens=128).arenas.optimizer > 0
        True
        """
        return make_plan(
            self.session, lib.nbl_run_make_plan, self.handle, path_of(model), tokens, batch, memory
        )

    def train(
        self,
        *,
        on_step: Callable[[TrainEvent], bool | None] | None = None,
        on_event: Callable[[TrainEvent], bool | None] | None = None,
        resume: bool = False,
        samples: int = 0,
        allow_changes: bool = False,
    ) -> TrainSummary:
        """Trains. info.output_dir then holds the adapter or the model, checkpoints, metrics and a report.

        A callback that returns True ends the run after the step, with a checkpoint: the summary says
        `stopped`. So does an exception, also KeyboardInterrupt, which is raised again when the checkpoint is
        saved. `resume` then goes on, and ends with the same bytes.

        on_step        is called after every step
        on_event       is called with every event
        resume         goes on from the newest whole checkpoint in output_dir, if there is one
        samples        prompts that the model continues before and after training, for the report: 1 to 8; 0:
                       three, or none above 10^9 parameters; below 0: none
        allow_changes  a resumed run may have another learning rate, schedule, dtype or device
        """
        stopped = False

        def receive(_user: object, pointer: Any) -> bool:
            nonlocal stopped
            event = record_of(TrainEvent, pointer.contents)
            self.session.steps |= event.kind == "begin"
            answers = [call(event) for call in (on_event, on_step if event.kind == "step" else None) if call]
            stopped |= event.kind != "phase" and any(answers)
            return stopped

        options = abi.options(
            "nbl_train_options",
            resume=resume,
            event=self.session.receiver(abi.callback("nbl_train_options", "event"), receive, True),
            samples=samples,
            allow_changes=allow_changes,
        )
        summary = abi.options("nbl_train_summary")
        try:
            self.session.call(lib.nbl_run_train, self.handle, byref(options), byref(summary))
        except CancelledError:
            if not stopped:
                raise
        finally:
            self.session.steps = False
        return record_of(TrainSummary, summary, stopped=stopped and summary.step < summary.steps)


def _part(part: Any) -> PreviewPart:
    return PreviewPart(string_of(part.text), part.tokens, part.trained)


def _yaml(value: object) -> str:
    """A value as JSON, which YAML reads."""
    return json.dumps(value, ensure_ascii=False, default=os.fspath)
