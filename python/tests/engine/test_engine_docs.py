"""The examples in the docstrings, and the notebook in examples/python, as a user would run them."""

from __future__ import annotations

import doctest
import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_common import REPOSITORY, enter, environment

from nibble_torch import engine

MODULES = sorted(path.stem for path in Path(engine.__file__).parent.glob("[a-z]*.py"))
NOTEBOOK = REPOSITORY / "examples/python/nibble.ipynb"


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(tmp_path, monkeypatch)
    module = importlib.import_module(f"nibble_torch.engine.{name}")
    found = doctest.testmod(module)
    assert found.failed == 0


def test_every_class_and_function_is_explained() -> None:
    for name in engine.__all__:
        kind = getattr(engine, name)
        members = {name: kind, **(vars(kind) if inspect.isclass(kind) else {})}
        for member, value in members.items():
            if not member.startswith("_") and (callable(value) or isinstance(value, property)):
                assert (value.__doc__ or "").strip(), f"{name}.{member}"


def cells() -> list[dict[str, Any]]:
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"] >= 5) == (4, True)
    found: list[dict[str, Any]] = notebook["cells"]
    return found


def test_the_notebook_is_valid() -> None:
    keys = {
        "markdown": {"cell_type", "id", "metadata", "source"},
        "code": {"cell_type", "id", "metadata", "source", "execution_count", "outputs"},
    }
    ids = [cell["id"] for cell in cells()]
    assert len(set(ids)) == len(ids)
    for cell in cells():
        assert set(cell) == keys[str(cell["cell_type"])]
        assert isinstance(cell["source"], list) and all(isinstance(line, str) for line in cell["source"])
    text = NOTEBOOK.read_text()
    assert not any(place in text for place in ("/home", "/work", "/tmp", "/root", "file:")), "a local path"
    assert len(text) < 32_000, "outputs are short"


@pytest.mark.slow
def test_the_cells_of_the_notebook_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(tmp_path, monkeypatch)
    sources = ["".join(cell["source"]) for cell in cells() if cell["cell_type"] == "code"]
    Path("notebook.py").write_text("\n\n".join(sources))
    line = [sys.executable, "notebook.py"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, env=environment())
    assert done.returncode == 0, done.stderr
    shown = "".join("".join(output["text"]) for cell in cells() for output in cell.get("outputs", []))
    assert words(done.stdout) == words(shown) != ""
    assert "3 + 4 = 7" in done.stdout and "7 + 8 = 15" in done.stdout


def words(printed: str) -> str:
    """Without numbers, which differ with the processor."""
    return " ".join(re.sub(r"[\d.]+", "#", printed).split())
