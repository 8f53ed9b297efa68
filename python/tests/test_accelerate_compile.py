"""torch.compile of accelerated models: one graph, the same bits as without, few compilations."""

from __future__ import annotations

from typing import Any

import nibble_torch
import pytest
import torch
from tiny_models import (
    adapt,
    base,
    distance,
    logits,
    same,
    step,
    stock_bitsandbytes,  # noqa: F401
    tokens,
    worst,
)
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

LIMIT = 2e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "bits", "options"),
    [
        ("llama", 4, {}),
        ("qwen3", 4, {"use_dora": True}),
        ("qwen3", 8, {"lora_dropout": 0.2}),
        ("llama", 4, {"use_dora": True, "lora_dropout": 0.2}),
    ],
    ids=str,
)
def test_one_graph_with_the_bits_of_eager(kind: str, bits: int, options: dict[str, Any]) -> None:
    model = adapt(base(kind, bits, layers=1), **options)
    nibble_torch.accelerate(model)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for count, compilations in [(24, 1), (17, 2), (9, 2), (33, 2)]:
        torch.manual_seed(5)
        loss, scores, gradients = step(model, tokens(count))
        torch.manual_seed(5)
        again, compiled_scores, compiled_gradients = step(compiled, tokens(count))
        assert torch.equal(again, loss) and torch.equal(compiled_scores, scores)
        assert same(compiled_gradients, gradients)
        assert counter.frame_count == compilations


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_explain_reports_no_break_with_dora(kind: str) -> None:
    model = adapt(base(kind), use_dora=True)
    nibble_torch.accelerate(model)
    explained = torch._dynamo.explain(model)(input_ids=tokens(), labels=tokens())
    assert explained.graph_break_count == 0 and explained.graph_count == 1
    calls = [str(node.target) for graph in explained.graphs for node in graph.graph.nodes]
    assert calls.count("nibble.linear_group.default") == 4
    assert calls.count("nibble.linear.default") == 4


@pytest.mark.slow
def test_inductor_compiles_the_whole_model() -> None:
    model = adapt(base(layers=1), use_dora=True)
    nibble_torch.accelerate(model)
    loss, _, gradients = step(model)
    compiled_loss, _, compiled_gradients = step(torch.compile(model, fullgraph=True))
    # Inductor sums in norms and attention in another order.
    assert distance(compiled_loss, loss) < LIMIT and worst(compiled_gradients, gradients) < LIMIT


class Products(nn.Module):
    """The projections of a model's first layer, and nothing that inductor would compute differently."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        layer = model.base_model.model.model.layers[0]
        self.q_proj, self.k_proj, self.v_proj = (
            layer.self_attn.q_proj,
            layer.self_attn.k_proj,
            layer.self_attn.v_proj,
        )
        self.up_proj, self.down_proj = layer.mlp.up_proj, layer.mlp.down_proj

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.q_proj(x), self.k_proj(x), self.v_proj(x), self.down_proj(self.up_proj(x))


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "mode"), [(4, "train"), (8, "train"), (8, "eval")])
def test_inductor_keeps_every_bit_of_the_layers(bits: int, mode: str) -> None:
    model = Products(adapt(base(bits=bits, layers=1), use_dora=bits == 4)).train(mode == "train")
    nibble_torch.accelerate(model)
    compiled = torch.compile(model, fullgraph=True)

    def run(of: Any) -> list[Tensor]:
        x = torch.randn(2, 7, 64, generator=torch.Generator().manual_seed(1)).requires_grad_()
        parameters = [p for p in model.parameters() if p.requires_grad]
        outputs = of(x)
        gradients = torch.autograd.grad(sum(y.square().sum() for y in outputs), [x, *parameters])
        return [*outputs, *gradients]

    assert all(torch.equal(a, b) for a, b in zip(run(model), run(compiled), strict=True))


@pytest.mark.slow
def test_checkpointing_inside_a_graph() -> None:
    model = adapt(base(), lora_dropout=0.2)
    nibble_torch.accelerate(model)
    torch.manual_seed(5)
    loss, _, gradients = step(model)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.disable_input_require_grads()
    torch.manual_seed(5)
    again, _, compiled_gradients = step(torch.compile(model, fullgraph=True, backend="aot_eager"))
    assert torch.equal(again, loss)
    assert worst(compiled_gradients, gradients) < LIMIT


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Merge lora module:UserWarning")
def test_a_compiled_model_follows_its_adapters() -> None:
    model = adapt(base(layers=1))
    nibble_torch.accelerate(model)
    compiled = torch.compile(model, backend="eager")
    for change in (
        lambda: None,
        lambda: model.base_model.disable_adapter_layers(),
        lambda: model.base_model.enable_adapter_layers(),
        lambda: model.merge_adapter(),
        lambda: model.unmerge_adapter(),
        lambda: [m.set_scale("default", 3.0) for m in model.modules() if hasattr(m, "set_scale")],
        lambda: model.eval(),
    ):
        change()
        assert torch.equal(logits(compiled), logits(model))


def test_autocast_inside_a_graph() -> None:
    layer = adapt(base(layers=1)).base_model.model.model.layers[0].mlp.down_proj
    nibble_torch.accelerate(layer)
    x = torch.randn(2, 5, 128)

    def run(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y: Tensor = layer(x)
        return y

    expected = run(x)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")(x)
    assert compiled.dtype == expected.dtype and torch.equal(compiled, expected)


def test_export() -> None:
    model = Products(adapt(base(layers=1), use_dora=True)).eval()
    nibble_torch.accelerate(model)
    x = torch.randn(2, 7, 64)
    batch = torch.export.Dim("tokens", min=2, max=64)
    with torch.no_grad():
        program = torch.export.export(model, (x,), dynamic_shapes=({1: batch},), strict=False)
        y = torch.randn(2, 11, 64)
        assert all(torch.equal(a, b) for a, b in zip(program.module()(y), model(y), strict=True))
