"""torch's autograd around the operators: checkpointing, hooks, second derivatives, autocast, transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import nibble_torch
import oracle
import pytest
import torch
from nibble_torch import Layer, Linear, Weight
from oracle import layer, packed, parameter, parameters
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def run(x: Tensor, of: Layer) -> Tensor:
    return nibble_torch.linear(x, *of[:6], scale=of.scale)


@pytest.fixture
def of() -> Layer:
    return layer(packed(64, 96, nested="grid"), 4, bias=True, dora=True)


def gradients(function: Callable[[Tensor], Tensor], x: Tensor, of: Layer) -> list[Tensor]:
    inputs = [x, *parameters(of)]
    for tensor in inputs:
        tensor.grad = None
    function(x).square().sum().backward()
    return [tensor.grad for tensor in inputs if tensor.grad is not None]


@contextmanager
def compiled_autograd() -> Iterator[None]:
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)):
        yield


@pytest.mark.parametrize(
    "way", ["reentrant", "non-reentrant", "save_on_cpu", "compiled_autograd", "in compile"]
)
def test_the_same_gradients(way: str, of: Layer) -> None:
    x = parameter(5, 96)
    expected = gradients(lambda x: run(x, of), x, of)
    if way == "save_on_cpu":
        with torch.autograd.graph.save_on_cpu():
            found = gradients(lambda x: run(x, of), x, of)
    elif way == "compiled_autograd":
        with compiled_autograd():
            found = gradients(lambda x: run(x, of), x, of)
    elif way == "in compile":
        inside = torch.compile(
            lambda x: checkpoint(run, x, of, use_reentrant=False), backend="aot_eager", fullgraph=True
        )
        found = gradients(inside, x, of)
    else:
        found = gradients(lambda x: checkpoint(run, x, of, use_reentrant=way == "reentrant"), x, of)
    assert len(found) == len(expected) == 5
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_two_backwards_of_one_graph(of: Layer) -> None:
    x = parameter(5, 96)
    y = run(x, of)
    inputs = [x, *parameters(of)]
    first = torch.autograd.grad(y.sum(), inputs, retain_graph=True)
    second = torch.autograd.grad(y.sum(), inputs)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y.sum(), inputs)


def test_dropout_under_checkpointing() -> None:
    """The seed is drawn from torch's generator, whose state checkpointing restores."""
    module = Linear(packed(64, 96), rank=4, dropout=0.5)
    torch.nn.init.normal_(module.lora_b)  # type: ignore[arg-type]
    x = parameter(50, 96)
    found = []
    for function in (module, lambda x: checkpoint(module, x, use_reentrant=False)):
        torch.manual_seed(3)
        found.append(torch.autograd.grad(function(x).sum(), [x, module.lora_a, module.lora_b]))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert not torch.equal(module(x), module(x))  # each call draws a mask
    assert torch.equal(module.eval()(x), module(x))


DOWN = layer(packed(96, 64))
OPERATORS: dict[str, Callable[[Tensor, Layer], Tensor]] = {
    "linear": run,
    "linear_group": lambda x, of: torch.cat(nibble_torch.linear_group(x, [of, of])),
    "mlp": lambda x, of: nibble_torch.mlp(x, of, of, DOWN),
    "rmsnorm": lambda x, of: nibble_torch.rmsnorm(x, torch.ones(96)),
    "norm_rope": lambda x, of: nibble_torch.norm_rope(
        x.view(5, 6, 16), torch.ones(16), torch.ones(5, 8), torch.ones(5, 8)
    ),
    "cross_entropy": lambda x, of: nibble_torch.cross_entropy(
        x, of.weight, torch.arange(5), grad_in_forward=False
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_second_derivatives_are_refused(name: str, of: Layer) -> None:
    x = parameter(5, 96)
    y = OPERATORS[name](x, of)
    (dx,) = torch.autograd.grad(y.square().sum(), [x], create_graph=True)
    assert oracle.error(dx, torch.autograd.grad(OPERATORS[name](x, of).square().sum(), [x])[0]) == 0
    with pytest.raises(RuntimeError, match="nibble: second derivatives do not exist"):
        torch.autograd.grad(dx.sum(), [x])


@pytest.mark.parametrize("name", OPERATORS)
def test_transforms_are_refused(name: str, of: Layer) -> None:
    x = torch.randn(5, 96)
    for transform in (torch.func.grad, torch.func.jacrev, lambda f: lambda x: torch.func.vjp(f, x)):
        with pytest.raises(RuntimeError, match=f"nibble: {name}: torch.func.grad"):
            transform(lambda x: OPERATORS[name](x, of).sum())(x)
    with pytest.raises(RuntimeError, match=f"nibble: {name}: forward-mode"):
        torch.func.jvp(lambda x: OPERATORS[name](x, of), (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        for tensor in (x, parameter(5, 96)):
            dual = torch.autograd.forward_ad.make_dual(tensor, torch.ones_like(tensor))
            with pytest.raises(RuntimeError, match=f"nibble: {name}: forward-mode"):
                OPERATORS[name](dual, of)
        OPERATORS[name](x, of)  # without a tangent


def test_a_gradient_that_does_not_exist_is_refused(of: Layer) -> None:
    x = parameter(5, 96)
    ops, none = torch.ops.nibble, torch.empty(0)
    dense = parameter(64, 96)
    arguments = (dense, *[none] * 5, 0, 0, 0, 64, 96)
    with pytest.raises(RuntimeError, match="linear: data requires a gradient.*detach"):
        ops.linear(x, *arguments, *[none] * 5, 1.0, 0.0, none, 0.0)
    with pytest.raises(RuntimeError, match="linear: offset requires a gradient"):
        parts = list(of.weight.args)
        parts[5] = parameter(1)
        ops.linear(x, *parts, *[none] * 5, 1.0, 0.0, none, 0.0)
    with pytest.raises(RuntimeError, match="norm_rope: weight requires a gradient"):
        nibble_torch.norm_rope(x.view(5, 6, 16), parameter(16), torch.ones(5, 8), torch.ones(5, 8))
    _, logprobs, _, _ = ops.cross_entropy(
        x, *of.weight.args, torch.zeros(5, dtype=torch.int32), none, 0.0, 0.0, 0, False
    )
    assert not logprobs.requires_grad


# ---- autocast ----


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("compute", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("entered", ["forward", "backward", "nested", "disabled inside"])
def test_autocast_changes_nothing(entered: str, compute: torch.dtype | None, dtype: torch.dtype) -> None:
    module = Linear(packed(64, 96, nested="grid"), torch.randn(64), rank=4, dora=True, compute_dtype=compute)
    torch.nn.init.normal_(module.lora_b)  # type: ignore[arg-type]
    x = parameter(5, 96)
    inputs = [x, module.lora_a, module.lora_b, module.magnitude]
    expected = module(x)
    wanted = torch.autograd.grad(expected.sum(), inputs)
    cast = torch.autocast("cpu", dtype)
    if entered == "backward":
        y = module(x)
        with cast:
            found = torch.autograd.grad(y.sum(), inputs)
    else:
        inside = (
            torch.autocast("cpu", enabled=False)
            if entered == "disabled inside"
            else torch.autocast("cpu", dtype)
        )
        with cast:
            if entered == "forward":
                y = module(x)
            else:
                with inside:
                    y = module(x)
        found = torch.autograd.grad(y.sum(), inputs)
    assert y.dtype == x.dtype and torch.equal(y, expected)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert all(part.dtype in (torch.uint8, torch.float32) for part in module.weight.parts().values())


def test_inference_mode_and_no_grad(of: Layer) -> None:
    x = parameter(5, 96)
    expected = run(x, of).detach()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            y = run(x, of)
        assert torch.equal(y, expected) and not y.requires_grad


def test_models_of_two_dtypes_in_turn_and_at_once() -> None:
    """HAZARDS A1: what one model leaves behind does not reach the other."""
    from concurrent.futures import ThreadPoolExecutor

    dtypes = [torch.bfloat16, torch.float16, torch.float32]
    models = [
        Linear(packed(n, 96, nested="grid"), rank=4, adapter_dtype=d) for d, n in zip(dtypes, (64, 96, 32))
    ]
    xs = [torch.randn(7, 96, dtype=d) for d in dtypes]
    expected = [model(x) for model, x in zip(models, xs, strict=True)]
    for _ in range(3):
        for model, x, y in zip(models, xs, expected, strict=True):
            assert torch.equal(model(x), y) and y.dtype == x.dtype

    def often(i: int) -> bool:
        return all(torch.equal(models[i % 3](xs[i % 3]), expected[i % 3]) for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(often, range(12)))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_goes_through_torchs_loop(of: Layer) -> None:
    frozen = layer(of.weight)
    x = torch.randn(3, 5, 96)
    with torch.no_grad():
        assert torch.equal(
            torch.vmap(lambda x: run(x, frozen))(x), torch.stack([run(row, frozen) for row in x])
        )


def test_the_meta_device() -> None:
    weight = packed(64, 96, nested="grid").to("meta")
    y = nibble_torch.linear(torch.empty(5, 96, device="meta"), weight)
    assert y.shape == (5, 64) and y.device.type == "meta"
    assert weight.dequantize().shape == (64, 96)
    assert isinstance(weight, Weight)
