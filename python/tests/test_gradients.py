"""Values and gradients of every operator beside f64 formulas."""

import nibble_torch
import oracle
import pytest
import torch
from nibble_torch import Layer, Weight
from oracle import compare, layer, packed, parameter, parameters
from torch import Tensor

F32 = 3e-6  # sums of f32 products: a few roundings of 6e-8 on top of each other
HALF = {torch.bfloat16: 2e-2, torch.float16: 4e-3}  # one rounding of inputs and results


def run(x: Tensor, of: Layer, **options: object) -> Tensor:
    y: Tensor = nibble_torch.linear(x, *of[:6], scale=of.scale, **options)  # type: ignore[arg-type]
    return y


@pytest.mark.parametrize("rank", [1, 8, 64])
@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("tokens", [1, 2, 7, 512])
def test_linear(rank: int, dora: bool, tokens: int) -> None:
    of = layer(packed(64, 96), rank, bias=True, dora=dora)
    x = parameter(tokens, 96)
    compare([run(x, of)], [oracle.linear(x.double(), of, torch.float32)], [x, *parameters(of)], F32)


@pytest.mark.parametrize("format", [*oracle.FORMATS, "dense", "nested"])
def test_formats(format: str) -> None:
    if format == "dense":
        weight = Weight.dense(torch.randn(64, 96))
    elif format == "nested":
        weight = packed(64, 96, nested="grid")
    else:
        weight = packed(64, 96, format)
    of = layer(weight, 8)
    x = parameter(5, 96)
    y = run(x, of, threshold=-1.0)  # int8: dequantized, as the formula is
    compare([y], [oracle.linear(x.double(), of, torch.float32)], [x, *parameters(of)], F32)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("dora", [False, True])
def test_half_precision(dtype: torch.dtype, dora: bool) -> None:
    of = layer(packed(64, 96), 8, bias=True, dora=dora)
    x = parameter(33, 96, dtype=dtype)
    y = run(x, of)
    assert y.dtype == dtype
    compare([y], [oracle.linear(x.double(), of, dtype)], [x, *parameters(of)], HALF[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("adapter", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("before", [torch.float16, torch.bfloat16, torch.float32])
def test_every_pair_of_dtypes(dtype: torch.dtype, adapter: torch.dtype, before: torch.dtype) -> None:
    """HAZARDS A: the dtype before packing, of activations and of the adapter are independent."""
    values = torch.randn(64, 96).to(before)
    of = layer(nibble_torch.quantize(values, nested="grid"), 4, dora=True, dtype=adapter)
    x = parameter(6, 96, dtype=dtype)
    y = run(x, of)
    assert y.dtype == dtype
    tolerance = F32 if dtype == torch.float32 and adapter == torch.float32 else 2e-2
    compare([y], [oracle.linear(x.double(), of, dtype)], [x, *parameters(of)], tolerance)


@pytest.mark.parametrize("shape", [(96,), (3, 96), (2, 3, 96), (2, 1, 3, 96), (0, 96), (2, 0, 96)])
def test_ranks_and_empty_batches(shape: tuple[int, ...]) -> None:
    of = layer(packed(64, 96), 4, bias=True, dora=True)
    x = parameter(*shape)
    y = run(x, of)
    compare([y], [oracle.linear(x.double(), of, torch.float32)], [x, *parameters(of)], F32)


def test_magnitudes_of_zero() -> None:
    of = layer(packed(64, 96), 4, dora=True)
    assert of.magnitude is not None
    with torch.no_grad():
        of.magnitude[::3] = 0
    x = parameter(5, 96)
    compare([run(x, of)], [oracle.linear(x.double(), of, torch.float32)], [x, *parameters(of)], F32)


def test_a_known_norm_changes_no_bit() -> None:
    of = layer(packed(64, 96), 4, dora=True)
    assert of.lora_a is not None and of.lora_b is not None
    norm = nibble_torch.dora_norm(of.weight, of.lora_a, of.lora_b, of.scale, torch.float32)
    assert not norm.requires_grad
    x = parameter(5, 96)
    known = of._replace(norm=norm)
    assert torch.equal(run(x, known), run(x, of))
    inputs = [x, *parameters(of)]
    a = torch.autograd.grad(run(x, of).sum(), inputs)
    b = torch.autograd.grad(run(x, known).sum(), inputs)
    assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


def test_only_wanted_gradients() -> None:
    of = layer(packed(64, 96), 4, bias=True, dora=True)
    x = parameter(5, 96)
    inputs = [x, *parameters(of)]
    everything = torch.autograd.grad(run(x, of).sum(), inputs)
    for i, tensor in enumerate(inputs):
        (alone,) = torch.autograd.grad(run(x, of).sum(), [tensor])
        assert torch.equal(alone, everything[i])
    frozen = layer(of.weight, 0)
    (dx,) = torch.autograd.grad(run(x, frozen).sum(), [x])
    assert dx.shape == x.shape


@pytest.mark.parametrize("way", ["sum", "transposed", "slice", "expanded", "view"])
def test_gradients_with_strides(way: str) -> None:
    of = layer(packed(64, 96), 4)
    x = parameter(2, 5, 96)
    factor = torch.randn(64, 5, 2)

    def after(y: Tensor) -> Tensor:
        if way == "sum":
            return y.sum()
        if way == "transposed":
            return (y.transpose(0, 2) * factor).sum()
        if way == "slice":
            return (y[:, 1:4, ::2] * factor.transpose(0, 2)[:, 1:4, ::2]).sum()
        if way == "expanded":
            return (y.mean(dim=(0, 1)).expand(5, 64) * factor[..., 0].T).sum()
        return (y.reshape(-1).view(10, 64)[3:7] * factor[:, :4, 1].T).sum()

    mine = torch.autograd.grad(after(run(x, of)), [x, *parameters(of)])
    theirs = torch.autograd.grad(after(oracle.linear(x.double(), of, torch.float32)), [x, *parameters(of)])
    for a, b in zip(mine, theirs, strict=True):
        assert oracle.error(a, b) < F32


@pytest.mark.parametrize("way", ["slice", "rows", "transposed", "expanded", "qkv"])
def test_inputs_with_strides(way: str) -> None:
    """Sliced, transposed and expanded tensors give the bits of contiguous ones."""
    of = layer(packed(64, 96), 4, bias=True)
    wide = torch.randn(4, 6, 3 * 96)
    x = {
        "slice": wide[::2, 1:4, :96],
        "rows": wide[..., 96:192],
        "transposed": torch.randn(96, 6, 4).transpose(0, 2),
        "expanded": torch.randn(6, 96).expand(4, 6, 96),
        "qkv": wide.view(24, 288)[:, 192:],
    }[way]
    assert not x.is_contiguous()
    plain, strided = x.contiguous().requires_grad_(), x.detach().requires_grad_()
    y, expected = run(strided, of), run(plain, of)
    assert y.is_contiguous() and torch.equal(y, expected)
    cotangent = torch.randn(*y.shape, 2)[..., 0]  # not dense either
    a = torch.autograd.grad(y, [strided, *parameters(of)], cotangent)
    b = torch.autograd.grad(expected, [plain, *parameters(of)], cotangent.contiguous())
    assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


def test_a_transposed_adapter() -> None:
    of = layer(packed(64, 96), 4)
    a, b = parameter(96, 4), parameter(4, 64)
    turned = of._replace(lora_a=a.T, lora_b=b.T)
    x = parameter(5, 96)
    compare([run(x, turned)], [oracle.linear(x.double(), turned, torch.float32)], [x, a, b], F32)


def test_dropout_follows_its_seed() -> None:
    of = layer(packed(64, 96), 4)
    x = parameter(200, 96)
    seeds = [torch.tensor([seed]) for seed in (5, 6)]
    first, again, other = (run(x, of, dropout=0.25, seed=seeds[i]) for i in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    # the adapter's input is a masked x: with the identity as A and B the mask is seen
    one = torch.eye(96)
    eye = Layer(Weight.dense(torch.zeros(96, 96)), None, one, one, scale=1.0)
    mask = run(torch.ones(200, 96), eye, dropout=0.25, seed=seeds[0])
    assert set(mask.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert abs((mask == 0).float().mean().item() - 0.25) < 0.02  # 19200 draws: 6 standard deviations
    expected = oracle.linear(x.double(), layer(of.weight), torch.float32)
    assert of.lora_a is not None and of.lora_b is not None
    masked = (x * mask).double() @ of.lora_a.double().T @ of.lora_b.double().T
    compare([first], [expected + of.scale * masked], [x, *parameters(of)], F32)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_linear_group(count: int) -> None:
    layers = [layer(packed(rows, 96), 4, bias=rows == 64, dora=rows == 64) for rows in (64, 32, 48)][:count]
    x = parameter(2, 5, 96)
    ys = nibble_torch.linear_group(x, layers)
    expected = [oracle.linear(x.double(), of, torch.float32) for of in layers]
    compare(ys, expected, [x, *parameters(*layers)], F32)


def test_a_member_that_is_not_used() -> None:
    layers = [layer(packed(32, 96), 4) for _ in range(3)]
    x = parameter(5, 96)
    ys = nibble_torch.linear_group(x, layers)
    (dx,) = torch.autograd.grad(ys[1].sum(), [x])
    (expected,) = torch.autograd.grad(run(x, layers[1]).sum(), [x])
    assert oracle.error(dx, expected) < F32


def test_a_scale_of_zero_in_a_group() -> None:
    first, second = layer(packed(32, 96), 4), layer(packed(32, 96), 4, scale=0.0)
    x = parameter(5, 96)
    y = nibble_torch.linear_group(x, [first, second])[1]
    assert torch.equal(y, run(x, second))
    assert oracle.error(y, oracle.linear(x.double(), second, torch.float32)) < F32


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_mlp(activation: str) -> None:
    gate, up, down = (
        layer(packed(o, i), 4, bias=o == 96, dora=o == 64) for o, i in [(96, 64), (96, 64), (64, 96)]
    )
    x = parameter(2, 9, 64)

    def act(y: Tensor) -> Tensor:
        if activation == "silu":
            return torch.nn.functional.silu(y)
        return torch.nn.functional.gelu(y, approximate="tanh" if activation == "gelu_tanh" else "none")

    def formula() -> Tensor:
        g, u = (oracle.linear(x.double(), of, torch.float32) for of in (gate, up))
        return oracle.linear(act(g) * u, down, torch.float32)

    inputs = [x, *parameters(gate, up, down)]
    ys = [nibble_torch.mlp(x, gate, up, down, activation, keep=keep) for keep in (False, True)]  # type: ignore[arg-type]
    assert torch.equal(*ys)
    for y in ys:
        compare([y], [formula()], inputs, F32)


@pytest.mark.parametrize("rounding", ["before_weight", "after_weight"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rmsnorm(rounding: str, dtype: torch.dtype) -> None:
    x, residual, weight = parameter(2, 5, 64, dtype=dtype), parameter(2, 5, 64, dtype=dtype), parameter(64)

    def formula(h: Tensor) -> Tensor:
        h, w = h.double(), weight.double()
        return h / (h.square().mean(-1, keepdim=True) + 1e-5).sqrt() * (w + 1.0)

    tolerance = F32 if dtype == torch.float32 else 1e-2
    options = {"eps": 1e-5, "offset": 1.0, "rounding": rounding}
    y = nibble_torch.rmsnorm(x, weight, **options)  # type: ignore[arg-type]
    assert y.dtype == dtype
    compare([y], [formula(x)], [x, weight], tolerance)
    y, h = nibble_torch.add_rmsnorm(x, residual, weight, **options)  # type: ignore[arg-type]
    assert torch.equal(h, x + residual)
    total = x.double() + residual.double()
    compare([y, h], [formula(total), total], [x, residual, weight], tolerance)
    # h alone, y alone
    assert torch.equal(torch.autograd.grad(h.sum(), [residual], retain_graph=True)[0], torch.ones_like(x))
    compare([y], [formula(total)], [x, residual, weight], tolerance)


@pytest.mark.parametrize("strided", [False, True])
def test_norm_rope(strided: bool) -> None:
    wide = parameter(6, 4, 16) if not strided else parameter(6, 8 * 16)
    x = wide if not strided else wide.view(6, 8, 16)[:, 2:6]
    weight, cos, sin = torch.rand(16), torch.randn(6, 6), torch.randn(6, 6)

    def formula() -> Tensor:
        h = x.double()
        h = h / (h.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
        a, b, rest = h[..., :6], h[..., 6:12], h[..., 12:]
        c, s = cos[:, None].double(), sin[:, None].double()
        return torch.cat((a * c - b * s, b * c + a * s, rest), -1)

    compare([nibble_torch.norm_rope(x, weight, cos, sin)], [formula()], [wide], F32)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize("trains", [False, True])
def test_cross_entropy(reduction: str, softcap: float, trains: bool) -> None:
    x, head = parameter(2, 7, 64), parameter(50, 64)
    labels = torch.randint(50, (2, 7))
    labels[0, 1:3] = -100

    def formula() -> Tensor:
        logits = x.double() @ head.double().T
        if softcap:
            logits = softcap * torch.tanh(logits / softcap)
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), reduction=reduction, label_smoothing=0.1
        )
        return loss if reduction == "mean" else loss.view(2, 7)

    weight = head if trains else Weight.dense(head)
    options = {"softcap": softcap, "smoothing": 0.1, "reduction": reduction}
    loss = nibble_torch.cross_entropy(x, weight, labels, **options)  # type: ignore[arg-type]
    assert loss.dtype == torch.float32
    compare([loss], [formula()], [x, head] if trains else [x], F32)


def test_cross_entropy_of_a_packed_head() -> None:
    x, weight = parameter(9, 64), packed(50, 64)
    labels = torch.randint(50, (9,))
    dense = weight.dequantize(torch.float32)
    expected = torch.nn.functional.cross_entropy(x.double() @ dense.double().T, labels, reduction="sum") / 4
    for early in (False, True):
        loss = nibble_torch.cross_entropy(
            x, weight, labels, denominator=torch.tensor([4.0]), grad_in_forward=early
        )
        compare([loss], [expected], [x], F32)
    none = nibble_torch.cross_entropy(x, weight, torch.full((9,), -100))
    assert none.item() == 0
    with pytest.raises(RuntimeError, match="labels.0. is"):
        nibble_torch.cross_entropy(x, weight, torch.full((9,), 2**32 + 5))


def test_int8_is_llm_int8() -> None:
    """Class E of LLM.int8: the product of codes, outlier columns in full."""
    import bitsandbytes as bnb

    values, x = torch.randn(64, 96).half(), torch.randn(5, 96)
    x[:, 7] = 9.0
    codes, scales, _ = bnb.functional.int8_vectorwise_quant(values.clone())
    weight = Weight.from_bitsandbytes(codes, scales)
    state = bnb.MatmulLtState()
    state.CB, state.SCB, state.threshold, state.has_fp16_weights, state.is_training = (
        codes,
        scales,
        6.0,
        False,
        False,
    )
    expected = bnb.matmul(x.half(), codes, state=state, threshold=6.0)
    y = nibble_torch.linear(x.half(), weight, threshold=6.0)
    # the constant of bitsandbytes' CPU path is off by 1.8e-5; f16 rounds by 5e-4
    assert oracle.error(y, expected) < 1e-3
    without = nibble_torch.linear(x.half(), weight, threshold=0.0)
    dense = x.double() @ weight.dequantize(torch.float32).double().T
    assert oracle.error(y, dense) < oracle.error(without, dense)  # the outlier's column cost precision
