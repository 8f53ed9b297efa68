"""torch.library's own checks of every operator, and tracing: torch.compile and export."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibble_torch
import pytest
import torch
from nibble_torch import Layer, Linear, Weight
from oracle import layer, packed, parameter, parameters
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

pytestmark = pytest.mark.matrix

OPS = torch.ops.nibble
NONE = torch.empty(0)


def arguments(of: Layer) -> tuple[Any, ...]:
    return (*of.weight.args, *(NONE if t is None else t for t in of[1:6]), of.scale)


def detached(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.detach() if isinstance(value, Tensor) else value for value in values)


def linears() -> dict[str, tuple[Any, ...]]:
    full = layer(packed(32, 64, nested="grid"), 4, bias=True, dora=True)
    plain = layer(packed(48, 64, "fp4"), 4)
    down = layer(packed(64, 32, "mxfp4"), 4, bias=True)
    x = parameter(2, 5, 64)
    options = (0.25, torch.tensor([7]), 0.0)
    absent = (*[NONE] * 6, 0, 0, 0, 0, 0, *[NONE] * 5, 0.0)
    three = (*arguments(full), *arguments(plain), *absent)
    gate, up = layer(packed(32, 64), 4), layer(packed(32, 64), 4)
    block = (*arguments(gate), *arguments(up), *arguments(down), 0, *options, True)
    return {
        "linear": (x, *arguments(full), *options),
        "linear_group": (x, *three, *options),
        "mlp": (x, *block),
    }


def backward_linears() -> dict[str, tuple[Any, ...]]:
    forward = linears()
    x, *one = detached(forward["linear"])
    three, block = (detached(forward[name])[1:] for name in ("linear_group", "mlp"))
    dy, saved, kept = torch.randn(2, 5, 32), torch.empty(0, dtype=torch.uint8), torch.randn(2, 5, 32)
    return {
        "linear_backward": (dy, x, saved, *one, 31),
        "linear_group_backward": (dy, torch.randn(2, 5, 48), NONE, x, saved, *three, 0x1FFF),
        "mlp_backward": (torch.randn(2, 5, 64), x, kept, kept, *block, 0x1FFF),
    }


def others() -> dict[str, tuple[Any, ...]]:
    full = layer(packed(32, 64), 4)
    dense = Weight.dense(torch.randn(32, 64))
    x, w, residual = parameter(2, 5, 64), parameter(64), parameter(2, 5, 64)
    labels = torch.randint(32, (2, 5), dtype=torch.int32)
    heads, cos, sin = parameter(5, 4, 16), torch.randn(5, 8), torch.randn(5, 8)
    norm, loss = (1e-6, 0.0, 0), (0.0, 0.0, 0, True)
    lse, early = torch.randn(2, 10), torch.randn(2, 5, 64)
    return {
        "dequantize": (*full.weight.args, torch.bfloat16, True),
        "quantize": (torch.randn(32, 64), 1, 64, 2),
        "dora_norm": (*full.weight.args, full.lora_a, full.lora_b, 0.5, torch.float32),
        "rmsnorm": (x, w, residual, *norm),
        "rmsnorm_backward": (torch.randn(2, 5, 64), NONE, x.detach(), w.detach(), *norm, 3),
        "norm_rope": (heads, torch.rand(16), cos, sin, *norm),
        "norm_rope_backward": (torch.randn(5, 4, 16), heads.detach(), torch.rand(16), cos, sin, *norm),
        "cross_entropy": (x, *packed(32, 64).args, labels, NONE, *loss),
        "cross_entropy_backward": (
            *(torch.tensor(1.0), x.detach(), *dense.args, labels, NONE, lse, early, *loss, 1),
        ),
    }


CASES: dict[str, Callable[[], dict[str, tuple[Any, ...]]]] = {
    **dict.fromkeys(linears(), linears),
    **dict.fromkeys(backward_linears(), backward_linears),
    **dict.fromkeys(others(), others),
}


@pytest.mark.parametrize("name", CASES)
def test_opcheck(name: str) -> None:
    torch.library.opcheck(getattr(OPS, name).default, CASES[name]()[name])


@pytest.mark.parametrize("way", ["sliced", "transposed", "expanded"])
@pytest.mark.parametrize("name", ["linear", "linear_group", "mlp", "rmsnorm", "cross_entropy"])
def test_opcheck_of_strided_inputs(name: str, way: str) -> None:
    x, *rest = CASES[name]()[name]
    x = {
        "sliced": torch.randn(2, 5, 80)[..., :64],
        "transposed": torch.randn(5, 2, 64).transpose(0, 1),
        "expanded": torch.randn(5, 64).expand(2, 5, 64),
    }[way]
    torch.library.opcheck(getattr(OPS, name).default, (x.requires_grad_(), *rest))


cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


def on_cuda(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        value.detach().cuda().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value
        for value in values
    )


@cuda
@pytest.mark.parametrize("name", [name for name in CASES if name != "quantize"])
def test_opcheck_on_cuda(name: str) -> None:
    torch.library.opcheck(getattr(OPS, name).default, on_cuda(CASES[name]()[name]))


@cuda
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_opcheck_of_what_forward_saves_on_cuda(dropout: float, bias: bool) -> None:
    """bf16, many tokens, LoRA: forward leaves t and masks. Its size is a rule of _fake.py and of op_linear.c."""
    of, other = (layer(packed(64, 128), 20, bias=bias, dtype=torch.bfloat16) for _ in range(2))
    x = torch.randn(3, 32, 128).bfloat16().requires_grad_()
    absent = (*[NONE] * 6, 0, 0, 0, 0, 0, *[NONE] * 5, 0.0)
    options = (dropout, torch.tensor([7]), 0.0)
    one, two = (x, *arguments(of), *options), (x, *arguments(of), *arguments(other), *absent, *options)
    for op, values in ((OPS.linear, one), (OPS.linear_group, two)):
        values = on_cuda(values)
        torch.library.opcheck(op.default, values)
        saved = op(*values)[-1]
        assert saved.dtype == torch.uint8 and saved.shape[0] == 3 * 32 + 4 and saved.shape[1] >= 64


def test_every_operator_is_checked() -> None:
    names = {
        name.removeprefix("nibble::") for name in torch._C._dispatch_get_all_op_names() if "nibble::" in name
    }
    assert {name for name in names if not name.startswith("bnb_")} == set(CASES)


# ---- tracing ----


class Block(nn.Module):
    """A block of a decoder, of nibble's operators alone: sums are all that a compiler could compute otherwise."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.members = [layer(packed(hidden, hidden), 4, bias=True), layer(packed(hidden, hidden, "fp4"), 4)]
        self.block = [
            layer(packed(o, i, nested="grid"), 4, dora=True) for o, i in [(96, 64), (96, 64), (64, 96)]
        ]
        self.out = Linear(packed(hidden, hidden), torch.randn(hidden), rank=4, dora=True)
        nn.init.normal_(self.out.lora_b)  # type: ignore[arg-type]
        self.adapters = nn.ParameterList(parameters(*self.members, *self.block))
        self.norm = nn.Parameter(torch.rand(hidden))
        self.head = packed(50, hidden)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = nibble_torch.rmsnorm(x, self.norm)
        q, k = nibble_torch.linear_group(h, self.members)
        x = x + self.out(q + k)
        h, x = nibble_torch.add_rmsnorm(x, h, self.norm, rounding="after_weight")
        x = x + nibble_torch.mlp(h, *self.block)
        return nibble_torch.cross_entropy(x, self.head, labels)


def step(function: Callable[..., Tensor], model: Block, tokens: int) -> list[Tensor]:
    torch.manual_seed(tokens)
    x, labels = torch.randn(2, tokens, 64, requires_grad=True), torch.randint(50, (2, tokens))
    loss = function(x, labels)
    inputs = [x, *(p for p in model.parameters() if p.requires_grad)]
    return [loss.detach(), *torch.autograd.grad(loss, inputs)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_bits_are_those_of_eager(backend: str, dynamic: bool) -> None:
    model = Block()
    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=dynamic)
    for tokens in (5, 8) if backend == "inductor" else (5, 8, 3):
        mine, expected = step(compiled, model, tokens), step(model, model, tokens)
        assert all(torch.equal(a, b) for a, b in zip(mine, expected, strict=True))


def test_another_number_of_tokens_compiles_nothing() -> None:
    model = Block()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for tokens in (5, 8):  # the second makes the dimension dynamic
        step(compiled, model, tokens)
    compilations = counter.frame_count
    assert compilations <= 2
    for tokens in (13, 6, 21):
        step(compiled, model, tokens)
    assert counter.frame_count == compilations


def test_no_graph_breaks() -> None:
    model = Block()
    explained = torch._dynamo.explain(model)(torch.randn(2, 5, 64), torch.randint(50, (2, 5)))
    assert explained.graph_break_count == 0 and explained.graph_count == 1


def test_export() -> None:
    model = Block().eval()
    example = (torch.randn(2, 5, 64), torch.randint(50, (2, 5)))
    tokens = torch.export.Dim("tokens", min=2, max=1000)
    shapes = {"x": {1: tokens}, "labels": {1: tokens}}
    with torch.no_grad():
        program = torch.export.export(model, example, dynamic_shapes=shapes).module()
        for count in (5, 9):
            x, labels = torch.randn(2, count, 64), torch.randint(50, (2, count))
            assert torch.equal(program(x, labels), model(x, labels))


RUN_PACKAGE = """
import sys, torch
import nibble_torch
model = torch._inductor.aoti_load_package(sys.argv[1])
x, expected = torch.load(sys.argv[2])
assert torch.equal(model(x), expected)
"""


@pytest.mark.slow
def test_a_package_runs_in_another_process(tmp_path: Path) -> None:
    model = Linear(packed(32, 64, nested="grid"), torch.randn(32), rank=4, dora=True).eval()
    x = torch.randn(5, 64)
    with torch.no_grad():
        program = torch.export.export(model, (x,))
        package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
        torch.save((x, model(x)), tmp_path / "values.pt")
    command = [sys.executable, "-c", RUN_PACKAGE, package, str(tmp_path / "values.pt")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
