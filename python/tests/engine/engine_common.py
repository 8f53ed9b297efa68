"""What the tests of nibble_torch.engine share: where things are, and runs of a few steps."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

import nibble_torch
from nibble_torch.engine import Context, Run

REPOSITORY = Path(__file__).resolve().parents[3]
TINY = "models/nibble-tiny"
SUMS = "examples/train/sums.yml"


def enter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Works in a folder of the test, in which the repository's models and examples are found."""
    for name in ("models", "examples"):
        (folder / name).symlink_to(REPOSITORY / name)
    monkeypatch.chdir(folder)


def command() -> str:
    """The command nibble: the one that was installed with the package, else one of a build."""
    places = [Path(sys.executable).parent, REPOSITORY / "build/py", REPOSITORY / "build"]
    found = shutil.which("nibble", path=os.pathsep.join(map(str, places)))
    if found is None:
        pytest.skip("the command nibble is neither installed nor built")
    return found


def environment() -> dict[str, str]:
    """For another Python: it finds the same package, also where PYTHONPATH is relative."""
    return {**os.environ, "PYTHONPATH": str(Path(nibble_torch.__file__).parents[1])}


def sums(output_dir: str, *, context: Context | None = None, **keys: object) -> Run:
    """A run on examples/train/sums.yml, shorter: six steps, with a checkpoint after every second one."""
    shorter = {"max_steps": 6, "save_steps": 2, "eval_steps": None, "warmup_steps": 1, "micro_batch_size": 2}
    quick = {"report": False, "val_set_size": 0, "output_dir": output_dir}
    return Run(SUMS, shorter | quick | keys, context=context)


def adapter_bytes(folder: str) -> bytes:
    return Path(folder, "adapter_model.safetensors").read_bytes()
