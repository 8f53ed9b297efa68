"""The library in a process: loading, threads, fork, memory, two ranks."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nibble_torch
import pytest
import torch
from nibble_torch import Linear, _library
from oracle import layer, packed, parameters
from torch import nn

HERE = Path(__file__).resolve().parent


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process of its own."""
    paths = os.pathsep.join(path for path in [str(HERE), *sys.path] if path)
    command = [sys.executable, "-c", textwrap.dedent(code)]
    env = {**os.environ, "PYTHONPATH": paths, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=env)


# ---- loading ----


def test_loading_twice_is_harmless() -> None:
    first, second = _library.load(), _library.load()
    assert first._handle == second._handle
    x, weight = torch.randn(3, 96), packed(64, 96)
    assert nibble_torch.linear(x, weight).shape == (3, 64)


def test_a_second_copy_leaves_everything_to_the_first(tmp_path: Path) -> None:
    copy = tmp_path / "libnibble_torch.so"
    copy.write_bytes(_library.PATH.read_bytes())
    result = python(f"""
        import torch, nibble_torch
        from oracle import packed
        x, weight = torch.randn(3, 96), packed(64, 96)
        expected = nibble_torch.linear(x, weight)
        torch.ops.load_library({str(copy)!r})
        assert torch.equal(nibble_torch.linear(x, weight), expected)
    """)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("fault", ["missing", "broken", "old torch", "no torch"])
def test_an_import_that_fails_says_why(fault: str, tmp_path: Path) -> None:
    package = tmp_path / "nibble_torch"
    package.mkdir()
    for source in Path(nibble_torch.__file__).parent.glob("*.py"):
        (package / source.name).write_bytes(source.read_bytes())
    words = {"missing": "is missing", "broken": "cannot load its library"}.get(
        fault, "needs PyTorch 2.9 or later"
    )
    (package / "lib").mkdir()
    if fault == "broken":
        (package / "lib" / "libnibble_torch.so").write_bytes(b"\x7fELF, and nothing else")
    before = {
        "old torch": "import torch; torch.__version__ = '2.8.1'",
        "no torch": "sys.modules['torch'] = None",
    }.get(fault, "")
    result = python(f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        {before}
        try:
            import nibble_torch
        except ImportError as error:
            assert {words!r} in str(error), error
            assert "pip install" in str(error), error
        else:
            raise SystemExit("imported")
    """)
    assert result.returncode == 0, result.stderr


def test_what_is_imported_lazily() -> None:
    """`import nibble_torch` takes torch and nothing else that is large."""
    result = python("""
        import sys
        import nibble_torch
        assert not {"transformers", "peft", "bitsandbytes", "nibble_torch.engine"} & set(sys.modules)
        assert set(nibble_torch.__all__) <= {*dir(nibble_torch), "Report", "accelerate", "restore", "engine"}
        try:
            nibble_torch.nothing
        except AttributeError as error:
            assert "nothing" in str(error)
    """)
    assert result.returncode == 0, result.stderr


# ---- threads and processes ----


def test_eight_threads() -> None:
    of = layer(packed(64, 96, nested="grid"), 4, bias=True, dora=True)
    xs = [torch.randn(n, 96) for n in range(1, 9)]

    def step(i: int) -> list[torch.Tensor]:
        x = xs[i].clone().requires_grad_()
        y = nibble_torch.linear(x, *of[:6], scale=of.scale)
        return [y, *torch.autograd.grad(y.sum(), [x, *parameters(of)])]

    expected = [step(i) for i in range(8)]

    def often(i: int) -> bool:
        return all(torch.equal(a, b) for _ in range(100) for a, b in zip(step(i), expected[i], strict=True))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(often, range(8)))


def test_contexts_end_with_their_threads() -> None:
    weight, x = packed(64, 96), torch.randn(300, 96)

    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    def call(_: int) -> None:
        nibble_torch.linear(x, weight)

    call(0)
    before = threads()
    for _ in range(3):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(call, range(16)))
    deadline = time.monotonic() + 30  # Python's join does not wait until the system's thread has ended
    while threads() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threads() <= before


def test_a_forked_child_and_data_workers() -> None:
    """After a fork the parent's threads are gone. A DataLoader's worker computes with one thread."""
    result = python("""
        import os, signal, torch
        import nibble_torch
        from oracle import packed
        torch.set_num_threads(2)
        weight, x = packed(64, 96), torch.randn(300, 96)
        expected = nibble_torch.linear(x, weight)
        for _ in range(2):
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                right = torch.equal(nibble_torch.linear(x, weight), expected)
                os._exit(0 if right else 1)
            assert os.waitpid(child, 0)[1] == 0
        assert torch.equal(nibble_torch.linear(x, weight), expected)

        class Rows(torch.utils.data.Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, i):
                assert torch.get_num_threads() == 1
                return nibble_torch.linear(x[i], weight)
        rows = torch.cat(list(torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=2)))
        # one row takes another kernel than three hundred: other last bits
        assert torch.allclose(rows, expected[:8], rtol=1e-5, atol=1e-6)
    """)
    assert result.returncode == 0, result.stderr


def test_the_number_of_threads_changes_no_bit() -> None:
    of, x = layer(packed(64, 96), 4, dora=True), torch.randn(300, 96)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 1):
            torch.set_num_threads(threads)
            found.append(nibble_torch.linear(x, *of[:6]))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(y, found[0]) for y in found)


# ---- memory ----


def resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def tensors() -> int:
    gc.collect()
    return sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects())


def test_ten_thousand_calls_leak_nothing() -> None:
    of = layer(packed(64, 96, nested="grid"), 4, bias=True, dora=True)
    x = torch.randn(16, 96, requires_grad=True)

    def step() -> None:
        y = nibble_torch.linear(x, *of[:6], scale=of.scale)
        torch.autograd.grad(y.sum(), [x, *parameters(of)])

    def fails() -> None:
        with pytest.raises(RuntimeError):  # after outputs and scratch exist: label 50 of 48
            nibble_torch.cross_entropy(x[:, :64], packed_head, torch.full((16,), 50))

    packed_head = packed(48, 64)
    for warm in (True, False):
        if not warm:
            memory, count = resident(), tensors()
        for i in range(500 if warm else 10_000):
            step()
            if i % 5 == 0:
                fails()
    assert tensors() <= count
    # a leak of one tensor of x's size per call would be 60 MB
    assert resident() - memory < 8 << 20


# ---- two ranks ----

RANK = """
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as Parallel
import nibble_torch
rank, store = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
torch.manual_seed(0)
weight = nibble_torch.quantize(torch.randn(64, 96), nested="grid")
model = torch.nn.Sequential(nibble_torch.Linear(weight, rank=4, dora=True), torch.nn.Tanh())
torch.nn.init.normal_(model[0].lora_b)
x = torch.randn(8, 96)
halves = []
for half in x.chunk(2):
    model.zero_grad()
    model(half).square().mean().backward()
    halves.append([p.grad.clone() for p in model.parameters()])
expected = [(a + b) / 2 for a, b in zip(*halves, strict=True)]
sent = []
broadcast = dist._broadcast_coalesced
def counted(group, tensors, *rest):
    sent.extend(tensors)
    return broadcast(group, tensors, *rest)
for compiled in (False, True):
    parallel = Parallel(model)
    assert parallel.broadcast_buffers and not list(model.buffers())
    dist._broadcast_coalesced = counted
    model.zero_grad()
    step = torch.compile(parallel, backend="aot_eager") if compiled else parallel
    step(x[4 * rank : 4 * rank + 4]).square().mean().backward()
    dist._broadcast_coalesced = broadcast
    assert not sent, [t.shape for t in sent]
    for p, g in zip(model.parameters(), expected, strict=True):
        assert torch.equal(p.grad, g), (compiled, p.shape, (p.grad - g).norm() / g.norm())
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_ranks_have_the_gradients_of_one(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])}
    commands = [[sys.executable, "-c", RANK, str(rank), str(tmp_path / "store")] for rank in range(2)]
    ranks = [subprocess.Popen(command, env=env, stderr=subprocess.PIPE) for command in commands]
    errors = [rank.communicate(timeout=300)[1] for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), b"".join(errors).decode()


def test_buffers_of_a_model() -> None:
    model = nn.Sequential(Linear(packed(64, 96), torch.zeros(64), rank=4), Linear(packed(32, 64)))
    assert not list(model.buffers())
    assert sum(p.numel() for p in model.parameters()) == 64 + 4 * (64 + 96)
