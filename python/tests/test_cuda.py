"""On a CUDA device: torch's current stream, CUDA graphs, torch's allocator, the same numbers as on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import nibble_torch as nt

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

COLUMNS, ROWS, RANK, TOKENS = 1024, 768, 16, 160


def weight(seed: int = 0, nested: str = "nearest", format: str = "nf4") -> nt.Weight:
    torch.manual_seed(seed)
    values = torch.randn(ROWS, COLUMNS) / COLUMNS**0.5
    options = {"nested": nested} if format in ("nf4", "fp4") else {}
    return nt.quantize(values, format, **options).to("cuda")


def adapter(seed: int = 1) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    a = torch.randn(RANK, COLUMNS) / COLUMNS**0.5
    b = torch.randn(ROWS, RANK) * 0.1
    return a.cuda().requires_grad_(), b.cuda().requires_grad_()


def step(x: Tensor, w: nt.Weight, a: Tensor, b: Tensor, dropout: float = 0.0, seed: Tensor | None = None) -> list[Tensor]:
    """y, dx, dA, dB"""
    x = x.detach().requires_grad_()
    y = nt.linear(x, w, lora_a=a, lora_b=b, scale=2.0, dropout=dropout, seed=seed)
    return [y.detach(), *torch.autograd.grad(y.float().square().sum(), [x, a, b])]


def distance(got: Tensor, want: Tensor) -> float:
    got, want = got.double().cpu(), want.double().cpu()
    return float((got - want).norm() / want.norm().clamp_min(1e-30))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("form", ["nf4", "fp4", "int8", "mxfp4"])
def test_dequantize_gives_the_bits_of_the_cpu(form: str, dtype: torch.dtype, transpose: bool) -> None:
    for nested in ("none", "nearest") if form in ("nf4", "fp4") else ("none",):
        w = weight(format=form, nested=nested)
        got = nt.dequantize(w, dtype, transpose)
        assert torch.equal(got.cpu(), nt.dequantize(w.to("cpu"), dtype, transpose))


def test_dequantize_gives_the_bits_of_bitsandbytes() -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    for nested in (False, True):
        for form in ("nf4", "fp4"):
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                values = torch.randn(ROWS, COLUMNS, dtype=dtype, device="cuda")
                data, state = functional.quantize_4bit(values, quant_type=form, compress_statistics=nested)
                w = nt.Weight.from_bitsandbytes(data, state)
                assert tuple(w.shape) == (ROWS, COLUMNS)
                want = functional.dequantize_4bit(data, state)
                assert torch.equal(nt.dequantize(w, dtype), want)
                assert torch.equal(nt.dequantize(w, dtype, transpose=True), want.t())


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-5), (torch.float16, 4e-3), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("tokens", [0, 1, 7, TOKENS])
def test_linear_agrees_with_the_cpu(dtype: torch.dtype, bound: float, tokens: int) -> None:
    w, (a, b) = weight(), adapter()
    x = torch.randn(tokens, COLUMNS, dtype=dtype, device="cuda")
    got = step(x, w, a, b)
    want = step(x.cpu(), w.to("cpu"), a.detach().cpu().requires_grad_(), b.detach().cpu().requires_grad_())
    for g, e in zip(got, want, strict=True):
        assert g.shape == e.shape
        assert g.dtype == e.dtype
        assert distance(g, e) <= bound


def test_operators_run_on_the_current_stream() -> None:
    w, (a, b) = weight(), adapter()
    x = torch.randn(TOKENS, COLUMNS, dtype=torch.bfloat16, device="cuda")
    want = step(x, w, a, b)
    side = torch.cuda.Stream()
    late = torch.zeros_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # about a tenth of a second: x exists only afterwards
        late.copy_(x)
        got = step(late, w, a, b)
    side.synchronize()
    for g, e in zip(got, want, strict=True):
        assert torch.equal(g, e)


def test_no_operator_waits_for_the_device() -> None:
    w, (a, b) = weight(), adapter()
    x = torch.randn(TOKENS, COLUMNS, dtype=torch.bfloat16, device="cuda")
    step(x, w, a, b)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(400_000_000)
        slept = torch.cuda.Event()
        slept.record()
        step(x, w, a, b)
        assert not slept.query(), "an operator waited for the device"
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one CUDA device")
def test_two_devices() -> None:
    x = torch.randn(TOKENS, COLUMNS, dtype=torch.bfloat16)
    results = []
    for device in ("cuda:0", "cuda:1"):
        w, (a, b) = weight().to(device), adapter()
        a, b = (t.detach().to(device).requires_grad_() for t in (a, b))
        results.append(step(x.to(device), w, a, b))
    for one, two in zip(*results, strict=True):
        assert torch.equal(one.cpu(), two.cpu())


def captured(function: Callable[[], list[Tensor]]) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = function()
    return graph, outputs


@pytest.mark.parametrize("tokens", [1, TOKENS])
def test_a_replayed_graph_gives_the_bits_of_a_call(tokens: int) -> None:
    w, (a, b) = weight(), adapter()
    x = torch.randn(tokens, COLUMNS, dtype=torch.bfloat16, device="cuda")
    graph, outputs = captured(lambda: step(x, w, a, b))
    for seed in (1, 2):
        torch.manual_seed(seed)
        x.copy_(torch.randn(tokens, COLUMNS, dtype=torch.bfloat16, device="cuda"))
        graph.replay()
        for got, want in zip(outputs, step(x, w, a, b), strict=True):
            assert torch.equal(got, want)


def test_dropout_in_a_graph_follows_the_seed_in_memory() -> None:
    w, (a, b) = weight(), adapter()
    x = torch.randn(TOKENS, COLUMNS, dtype=torch.bfloat16, device="cuda")
    seed = torch.tensor([7], device="cuda")
    graph, outputs = captured(lambda: step(x, w, a, b, 0.3, seed))
    seen = []
    for value in (11, 12, 11):
        seed.fill_(value)
        graph.replay()
        seen.append([output.clone() for output in outputs])
        for got, want in zip(outputs, step(x, w, a, b, 0.3, torch.tensor([value], device="cuda")), strict=True):
            assert torch.equal(got, want)
    assert not torch.equal(seen[0][0], seen[1][0])
    assert torch.equal(seen[0][0], seen[2][0])


def test_dropout_of_a_module_differs_between_replays() -> None:
    layer = nt.Linear(weight(), rank=RANK, dropout=0.5).cuda()
    nn.init.normal_(layer.lora_b)  # type: ignore[arg-type]
    x = torch.randn(TOKENS, COLUMNS, dtype=torch.bfloat16, device="cuda")
    with torch.no_grad():
        graph, (y,) = captured(lambda: [layer(x)])
    graph.replay()
    first = y.clone()
    graph.replay()
    assert not torch.equal(first, y)


def test_reduce_overhead_equals_eager() -> None:
    layer = nt.Linear(weight(), rank=RANK, dora=True).cuda()
    nn.init.normal_(layer.lora_b, std=0.1)  # type: ignore[arg-type]
    compiled = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(TOKENS, COLUMNS, dtype=torch.bfloat16, device="cuda")
        results = []
        for function in (layer, compiled):
            layer.zero_grad()
            torch.compiler.cudagraph_mark_step_begin()
            y = function(x)
            y.float().square().sum().backward()
            results.append([y.detach().clone(), *(p.grad.clone() for p in layer.parameters() if p.grad is not None)])
        for one, two in zip(*results, strict=True):
            assert torch.equal(one, two)


def test_memory_comes_from_torchs_allocator_alone() -> None:
    w, (a, b) = weight(), adapter()
    x = torch.randn(TOKENS, COLUMNS, dtype=torch.bfloat16, device="cuda")
    for _ in range(3):
        step(x, w, a, b)
    torch.cuda.synchronize()

    def outside() -> int:
        """Bytes of the device that torch has not reserved."""
        free, total = torch.cuda.mem_get_info()
        return total - free - torch.cuda.memory_reserved()

    before, allocated = outside(), torch.cuda.memory_allocated()
    for _ in range(200):
        step(x, w, a, b)
    torch.cuda.synchronize()
    assert outside() == before
    assert torch.cuda.memory_allocated() == allocated


def test_workspace_is_as_planned() -> None:
    w, (a, b) = weight(), adapter()
    x = torch.randn(TOKENS, COLUMNS, dtype=torch.bfloat16, device="cuda")
    step(x, w, a, b)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step(x, w, a, b)
    peak = torch.cuda.max_memory_allocated() - before
    # 64 MiB for libraries, the dequantized weight, and a few tensors like x, y and their f32 forms
    assert peak <= (64 << 20) + 2 * ROWS * COLUMNS * 2 + 16 * TOKENS * COLUMNS * 4


def test_tensors_of_two_devices_are_refused() -> None:
    w = weight()
    with pytest.raises(RuntimeError, match="Move them to one device"):
        nt.linear(torch.randn(2, COLUMNS, dtype=torch.bfloat16), w)
    parts = list(w.args)
    parts[3] = parts[3].cpu()
    with pytest.raises(RuntimeError, match="nested is on cpu"):
        torch.ops.nibble.dequantize(*parts, torch.bfloat16, False)


def test_ddp_with_nccl() -> None:
    if not torch.distributed.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
    try:
        layer = nt.Linear(weight(), rank=RANK).cuda()
        nn.init.normal_(layer.lora_b, std=0.1)  # type: ignore[arg-type]
        x = torch.randn(TOKENS, COLUMNS, dtype=torch.bfloat16, device="cuda")
        layer(x).float().square().sum().backward()
        want = [p.grad.clone() for p in layer.parameters() if p.grad is not None]
        layer.zero_grad()
        wrapped = nn.parallel.DistributedDataParallel(layer, device_ids=[0])
        wrapped(x).float().square().sum().backward()
        for p, gradient in zip((p for p in layer.parameters() if p.grad is not None), want, strict=True):
            assert p.grad is not None
            assert torch.equal(p.grad, gradient)
    finally:
        torch.distributed.destroy_process_group()


def test_accelerated_peft_model_agrees_with_peft() -> None:
    peft = pytest.importorskip("peft")
    bnb = pytest.importorskip("bitsandbytes")
    torch.manual_seed(3)
    base = nn.Sequential()
    layer = bnb.nn.Linear4bit(COLUMNS, ROWS, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
    base.add_module("q", layer)
    model = peft.get_peft_model(base.cuda(), peft.LoraConfig(r=RANK, target_modules=["q"], init_lora_weights=False))
    model.train()
    x = torch.randn(TOKENS, COLUMNS, dtype=torch.bfloat16, device="cuda")
    results = []
    for accelerated in (False, True):
        if accelerated:
            assert nt.accelerate(model).fused_count == 1
        model.zero_grad()
        y = model(x)
        y.float().square().sum().backward()
        results.append([y.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for one, two in zip(*results, strict=True):
        assert distance(two, one) <= 2e-2
