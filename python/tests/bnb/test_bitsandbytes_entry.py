"""How the backend gets into bitsandbytes, and how it stays out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bitsandbytes as bnb
import bitsandbytes.functional as functional
import nibble_torch
import nibble_torch._bitsandbytes_kernels as kernels
import nibble_torch.bitsandbytes as backend
import pytest
import torch
from bitsandbytes_common import counts, ours, same_bytes, stock
from torch import Tensor

ops: Any = torch.ops.bitsandbytes
SOURCES = Path(nibble_torch.__file__).resolve().parent
ENTRY = SOURCES.parent / "nibble_bitsandbytes"
EVERY = {
    "dequantize_4bit",
    "dequantize_4bit.out",
    "gemm_4bit",
    "gemv_4bit",
    "gemv_4bit.out",
    "int8_mm_dequant",
    "int8_vectorwise_quant",
    "quantize_4bit",
    "quantize_blockwise",
}
TORCH: Any = torch.__version__
if TORCH < (2, 10):
    EVERY -= set(backend._NEEDS_THREADS)


def computed() -> set[str]:
    return {op.name for op in backend.status().operators if op.ours and op.device == "cpu"}


@pytest.fixture(autouse=True)
def _own_kernels() -> Iterator[None]:
    """Tests begin without the backend."""
    backend.unregister()
    yield
    backend.unregister()


# ---- a process of its own: import bitsandbytes ----

# A process with torch, which takes long to import. It forks for each line of input, a dictionary.
DRIVER = """
import json, os, sys, tempfile, traceback
import torch, torch._dynamo, torch._inductor.compile_fx

def report():
    import bitsandbytes
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit
    data, state = quantize_4bit(torch.arange(4096.0).view(64, 64).sin(), quant_type="nf4")
    y = bitsandbytes.matmul_4bit(torch.ones(3, 64), data, state)
    assert (y - torch.ones(3, 64) @ dequantize_4bit(data, state).T).abs().max() < 1e-4
    backend = sys.modules.get("nibble_torch.bitsandbytes")
    status = backend.status() if backend else None
    print("registered", bool(status and status.registered))
    for op in status.operators if status else ():
        if op.calls:
            print("called", op.name)

def child(task, files):
    for number, file in enumerate(files, 1):
        os.dup2(file.fileno(), number)
    code = 1
    try:
        sys.path[:] = task["path"] + [task["others"].get(path, path) for path in sys.path]
        os.environ.update(task["env"])
        exec(task["before"])
        report()
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

for line in sys.stdin:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            child(json.loads(line), (out, err))
        code = os.waitpid(pid, 0)[1]
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    print(json.dumps([code, *texts]), flush=True)
"""


def others(folder: Path) -> dict[str, str]:
    """For each folder of sys.path with the package one of links to all else: there it is not installed."""
    replaced = {}
    for path in {path for path in sys.path if any(Path(path).glob("nibble_torch*"))}:
        links = folder / str(len(replaced))
        links.mkdir()
        for item in Path(path).iterdir():
            if not item.name.startswith("nibble_"):
                (links / item.name).symlink_to(item)
        replaced[path] = str(links)
    return replaced


class Driver:
    """Runs `import bitsandbytes` in new processes, in which the package is not installed."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": "", "PYTHONSAFEPATH": "1"}
        command = [sys.executable, "-c", DRIVER]
        self.others = others(folder)
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, path: Path | None, before: str = "", **env: str) -> tuple[list[str], list[str]]:
        """What the process prints, and what it logs, without bitsandbytes' own line."""
        task = {"path": [str(path)] if path else [], "others": self.others, "before": before, "env": env}
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        code, printed, logged = json.loads(self.process.stdout.readline())
        assert code == 0, logged
        return printed.splitlines(), [
            line for line in logged.splitlines() if line and "gemm_4bit_forward" not in line
        ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    driver = Driver(tmp_path_factory.mktemp("others"))
    yield driver
    assert driver.process.stdin
    driver.process.stdin.close()
    assert driver.process.wait(timeout=60) == 0


def installed(folder: Path, *, package: Path | None = SOURCES) -> Path:
    """A folder for sys.path, in which the wheel is installed as far as importlib knows."""
    info = folder / "nibble_torch-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nibble-torch\nVersion: 9.9\n")
    (info / "entry_points.txt").write_text("[bitsandbytes.backends]\nnibble = nibble_bitsandbytes:register\n")
    (folder / "nibble_bitsandbytes").symlink_to(ENTRY)
    if package:
        (folder / "nibble_torch").symlink_to(package)
    return folder


@pytest.mark.matrix
def test_installed_it_is_called(run: Driver, tmp_path: Path) -> None:
    printed, logged = run(installed(tmp_path))
    assert printed == [
        "registered True",
        "called dequantize_4bit",
        "called gemm_4bit",
        "called quantize_4bit",
    ]
    assert logged == []


def test_not_installed_bitsandbytes_keeps_its_own_kernels(run: Driver) -> None:
    assert run(None) == (["registered False"], [])


@pytest.mark.parametrize("value", ["off", "0"])
def test_the_environment_switches_it_off(run: Driver, tmp_path: Path, value: str) -> None:
    assert run(installed(tmp_path), NIBBLE_BITSANDBYTES=value) == (["registered False"], [])


def broken(folder: Path, library: bytes | None) -> Path:
    """The package with another library, or with none."""
    package = folder / "package"
    shutil.copytree(SOURCES, package, ignore=shutil.ignore_patterns("lib", "__pycache__"))
    if library is not None:
        (package / "lib").mkdir()
        (package / "lib/libnibble_torch.so").write_bytes(library)
    return package


def test_without_its_library_import_works_with_one_line(run: Driver, tmp_path: Path) -> None:
    printed, (line,) = run(installed(tmp_path, package=broken(tmp_path, None)))
    assert printed == ["registered False"]
    assert line.startswith("bitsandbytes keeps its own kernels: nibble_torch is incomplete, ")


def test_with_a_broken_library_import_works_with_one_line(run: Driver, tmp_path: Path) -> None:
    printed, (line,) = run(installed(tmp_path, package=broken(tmp_path, b"\x7fELF no library")))
    assert printed == ["registered False"]
    assert line.startswith("bitsandbytes keeps its own kernels: nibble_torch cannot load its library (")


def test_without_a_function_of_torch_import_works_with_one_line(run: Driver, tmp_path: Path) -> None:
    printed, (line,) = run(installed(tmp_path), "del torch.library.get_kernel")
    assert printed == ["registered False"]
    assert line == "bitsandbytes keeps its own kernels: module 'torch.library' has no attribute 'get_kernel'"


def test_without_the_package_import_works_with_one_line(run: Driver, tmp_path: Path) -> None:
    printed, (line,) = run(installed(tmp_path, package=None))
    assert printed == ["registered False"]
    assert line == "bitsandbytes keeps its own kernels: No module named 'nibble_torch'"


# ---- operators that are not known ----


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "nibble_torch.bitsandbytes"]


@pytest.mark.matrix
def test_all_operators_of_this_version_are_known(caplog: pytest.LogCaptureFixture) -> None:
    assert backend.status().registered is False and computed() == set()
    backend.register()
    backend.register()
    assert backend.status().registered and computed() == EVERY and lines(caplog) == []
    reasons = {op.name: op.reason for op in backend.status().operators if not op.ours and op.device == "cpu"}
    assert set(reasons) - set(backend.SCHEMAS) == set(backend.LEFT["cpu"])
    assert set(reasons) == {op.name for op in backend.status().operators if op.device == "cpu"} - EVERY
    assert all(reasons.values())
    assert "gemm_4bit" in str(backend.status())


def test_an_operator_with_other_arguments_is_left_alone_with_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data, state = functional.quantize_4bit(torch.randn(64, 64), quant_type="nf4")
    x = torch.randn(3, 64)
    expected = bnb.matmul_4bit(x, data, state)
    changed = backend.SCHEMAS["gemm_4bit"].replace(", Tensor? bias=None", "")
    monkeypatch.setitem(backend.SCHEMAS, "gemm_4bit", changed)
    backend.register()
    assert computed() == EVERY - {"gemm_4bit", "quantize_4bit", "quantize_blockwise"}
    (line,) = lines(caplog)
    assert "gemm_4bit: its arguments are not known: bitsandbytes::gemm_4bit(Tensor A, " in line
    assert torch.equal(bnb.matmul_4bit(x, data, state), expected)


def test_an_operator_that_does_not_exist_is_left_alone_with_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(backend.SCHEMAS, "gemm_3bit", "(Tensor A) -> Tensor")
    backend.register()
    assert computed() == EVERY
    assert len(lines(caplog)) == 1 and "gemm_3bit: bitsandbytes does not have it" in lines(caplog)[0]


def test_a_failure_while_registering_leaves_everything_to_bitsandbytes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    register, names = torch.library.Library.impl, []

    def fail(library: Any, name: str, *args: Any, **how: Any) -> None:
        names.append(name)
        if len(names) == 3:
            raise RuntimeError("no kernel today\nand more lines")
        register(library, name, *args, **how)

    data, state = functional.quantize_4bit(torch.randn(64, 64))
    monkeypatch.setattr(torch.library.Library, "impl", fail)
    backend.register()
    assert names == ["dequantize_4bit", "dequantize_4bit.out", "gemm_4bit"]
    assert backend.status() == backend.Status(False, "no kernel today", backend.status().bitsandbytes)
    assert lines(caplog) == ["bitsandbytes keeps its own kernels: no kernel today"]
    with pytest.raises(NotImplementedError):  # bitsandbytes has no such kernel on a CPU
        functional.dequantize_4bit(data, state, out=torch.empty(64, 64))


def test_a_quantizer_with_other_bytes_is_left_alone_with_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A later version may quantize by other rules. The first call finds out."""
    bounds, order = kernels._bounds("nf4")
    monkeypatch.setattr(kernels, "_bounds", lambda kind: (bounds + 0.01, order))
    values = torch.randn(64, 64)
    expected = ops.quantize_4bit(values, 64, "nf4", torch.uint8)
    backend.register()
    assert computed() == EVERY
    for _ in range(2):
        assert same_bytes(ops.quantize_4bit(values, 64, "nf4", torch.uint8), expected)
    assert computed() == EVERY - {"quantize_4bit"}
    assert lines(caplog) == [
        "bitsandbytes keeps its own kernel of quantize_4bit: its results are not those that are known"
    ]


def test_without_its_cpu_library_bitsandbytes_has_other_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """quantize_blockwise then takes the nearest code, and not that of a grid."""
    monkeypatch.setattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", lambda name, key: False)
    backend.register()
    assert computed() == EVERY - {"quantize_blockwise"}


def test_on_cuda_the_weights_are_nibbles_and_the_rounding_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_devices", lambda: ["cpu", "cuda"])
    backend.register()
    found = {op.name for op in backend.status().operators if op.device == "cuda" and op.ours}
    assert found == {"dequantize_4bit", "dequantize_4bit.out", "gemm_4bit"}
    assert computed() == EVERY
    for name in found:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"bitsandbytes::{name}", "CUDA")


# ---- torch.compile ----


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_matmul_4bit_compiles_to_one_graph(compiler: str) -> None:
    weight = torch.randn(64, 128)
    data, state = functional.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    values, bias, dy = torch.randn(3, 128), torch.randn(64), torch.randn(3, 64)

    def step(x: Tensor, added: Tensor) -> Tensor:
        return bnb.matmul_4bit(x, data, state, bias=added).relu()

    def gradients(function: Any) -> tuple[Tensor, ...]:
        x, added = values.clone().requires_grad_(), bias.clone().requires_grad_()
        y = function(x, added)
        return (y, *torch.autograd.grad(y, (x, added), dy))

    backend.register()
    compiled = torch.compile(step, fullgraph=True, backend=compiler)
    found = ours("gemm_4bit", lambda: gradients(compiled))
    before = counts("gemm_4bit")
    expected = gradients(step)
    assert counts("gemm_4bit") == (before[0] + 1, before[1])
    for result, right in zip(found, expected):
        assert torch.equal(result, right)
    for result, right in zip(found, stock(lambda: gradients(step))):
        assert torch.allclose(result, right, rtol=1e-5, atol=1e-5)
