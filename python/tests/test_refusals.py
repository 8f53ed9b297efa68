"""What does not fit is a RuntimeError with nibble's message, when it runs and where shapes tell when it is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bitsandbytes as bnb
import nibble_torch
import pytest
import torch
from nibble_torch import Weight
from oracle import packed
from torch import Tensor

NONE = torch.empty(0)
NAMES = "data scales codes nested table offset format block nested_block rows columns".split()


def call(x: Tensor, weight: Weight, adapter: dict[str, Tensor] | None = None, **changes: Any) -> Tensor:
    """linear with some arguments replaced."""
    arguments = {**dict(zip(NAMES, weight.args, strict=True)), **changes}
    given = adapter or {}
    parts = [given.get(name, NONE) for name in ("bias", "lora_a", "lora_b", "magnitude", "norm")]
    y: Tensor = torch.ops.nibble.linear(x, *arguments.values(), *parts, 1.0, 0.0, NONE, 0.0)[0]
    return y


def runs(function: Callable[[], Tensor]) -> Tensor:
    return function()


def traces(function: Callable[[], Tensor]) -> Tensor:
    return torch.compile(function, backend="eager", fullgraph=True)()


def on_meta(function: Callable[[], Tensor]) -> Tensor:
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        return function()


PLAIN, NESTED = packed(64, 96), packed(64, 96, nested="grid")
INT8, MXFP4 = packed(64, 96, "int8"), packed(64, 96, "mxfp4")
X = torch.randn(5, 96)

WRONG: dict[str, tuple[Callable[[], Tensor], str]] = {
    "scales of bf16": (lambda: call(X, PLAIN, scales=PLAIN.args[1].bfloat16()), "scales.*(bf16|bfloat16)"),
    "scales of f64": (lambda: call(X, PLAIN, scales=PLAIN.args[1].double()), "scales.*(f64|float64)"),
    "too few scales": (lambda: call(X, PLAIN, scales=PLAIN.args[1][:-1]), "scales.*95.*96"),
    "too many scales": (lambda: call(X, PLAIN, scales=torch.zeros(97)), "scales.*97.*96"),
    "no scales": (lambda: call(X, PLAIN, scales=NONE), "scales"),
    "scales of int8": (lambda: call(X, INT8, scales=INT8.args[1].half()), "scales.*(f16|float16)"),
    "codes of int8": (lambda: call(X, NESTED, codes=NESTED.args[2].view(torch.int8)), "codes.*(i8|int8)"),
    "too few codes": (lambda: call(X, NESTED, codes=NESTED.args[2][:-1]), "codes.*95.*96"),
    "nested of f16": (lambda: call(X, NESTED, nested=NESTED.args[3].half()), "nested.*(f16|float16)"),
    "a short table": (lambda: call(X, NESTED, table=NESTED.args[4][:16]), "table.*16.*256"),
    "offset of bf16": (lambda: call(X, NESTED, offset=NESTED.args[5].bfloat16()), "offset.*(bf16|bfloat16)"),
    "two offsets": (lambda: call(X, NESTED, offset=torch.zeros(2)), "offset.*2"),
    "block 48": (lambda: call(X, PLAIN, block=48), "block.*48"),
    "block 8192": (lambda: call(X, PLAIN, block=8192), "block.*8192"),
    "format 9": (lambda: call(X, PLAIN, format=9), "format.*9"),
    "more rows": (lambda: call(X, PLAIN, rows=65), "data has 3072 bytes.*65.*3120"),
    "fewer rows": (lambda: call(X, PLAIN, rows=63), "data has 3072 bytes.*63.*3024"),
    "other columns": (lambda: call(X, PLAIN, rows=48, columns=128), "last dimension must be 128"),
    "data too short": (lambda: call(X, PLAIN, data=PLAIN.args[0][:-1]), "data has 3071 bytes"),
    "data that was cast": (lambda: call(X, PLAIN, data=PLAIN.args[0].float()), "data has 12288 bytes"),
    "no scale codes": (lambda: call(X, MXFP4, codes=NONE), "(codes|scale_codes)"),
    "x too narrow": (lambda: call(X[:, :95], PLAIN), r"x is \[5, 95\], its last dimension must be 96"),
    "x of f64": (lambda: call(X.double(), PLAIN), "(f64|float64)"),
    "x of int": (lambda: call(X.int(), PLAIN), "(i32|int32)"),
    "x of rank 0": (lambda: call(torch.tensor(1.0), PLAIN), "x"),
    "x of rank 9": (lambda: call(X.view(1, 1, 1, 1, 1, 1, 1, 5, 96), PLAIN), "9 dimensions"),
    "bias of f16": (
        lambda: call(X.bfloat16(), PLAIN, {"bias": torch.zeros(64).half()}),
        "(b|bias).*(f16|float16)",
    ),
    "bias too long": (lambda: call(X, PLAIN, {"bias": torch.zeros(65)}), r"(b|bias) is \[65\]"),
    "A without B": (lambda: call(X, PLAIN, {"lora_a": torch.zeros(4, 96)}), "lora_a"),
    "ranks that differ": (
        lambda: call(X, PLAIN, {"lora_a": torch.zeros(4, 96), "lora_b": torch.zeros(64, 5)}),
        r"lora_b is \[64, 5\]",
    ),
    "A of f64": (
        lambda: call(X, PLAIN, {"lora_a": torch.zeros(4, 96).double(), "lora_b": torch.zeros(64, 4)}),
        "lora_a.*(f64|float64)",
    ),
    "a short magnitude": (
        lambda: call(
            X,
            PLAIN,
            {"lora_a": torch.zeros(4, 96), "lora_b": torch.zeros(64, 4), "magnitude": torch.ones(63)},
        ),
        r"magnitude is \[63\]",
    ),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("way", [runs, on_meta])
def test_refused(way: Callable[[Callable[[], Tensor]], Tensor], case: str) -> None:
    function, words = WRONG[case]
    with pytest.raises(RuntimeError, match=f"nibble: linear: .*{words}"):
        way(function)


@pytest.mark.parametrize("case", ["scales of bf16", "too few scales", "block 48", "x too narrow", "x of f64"])
def test_refused_by_compile(case: str) -> None:
    function, words = WRONG[case]
    with pytest.raises(Exception, match=words):
        traces(function)


def test_refused_values() -> None:
    """What only values tell."""
    weight = packed(64, 96)
    a, b = torch.randn(4, 96), torch.randn(64, 4)
    with pytest.raises(RuntimeError, match="dropout 0.5 without a seed"):
        nibble_torch.linear(X, weight, lora_a=a, lora_b=b, dropout=0.5)
    with pytest.raises(RuntimeError, match="seed"):
        nibble_torch.linear(X, weight, lora_a=a, lora_b=b, dropout=0.5, seed=torch.tensor([1.0]))
    with pytest.raises(RuntimeError, match="dropout 1"):
        nibble_torch.linear(X, weight, lora_a=a, lora_b=b, dropout=1.0, seed=torch.tensor([1]))
    with pytest.raises(RuntimeError, match="scale is not finite"):
        nibble_torch.linear(X, weight, lora_a=a, lora_b=b, scale=float("nan"))
    with pytest.raises(RuntimeError, match=r"quantize: .*multiple of 32"):
        nibble_torch.quantize(torch.randn(4, 40), "mxfp4")
    with pytest.raises(RuntimeError, match="block"):
        nibble_torch.quantize(torch.randn(4, 40), block=48)
    with pytest.raises(KeyError):
        nibble_torch.quantize(torch.randn(4, 40), "nf5")
    with pytest.raises(ValueError, match="one to three layers"):
        nibble_torch.linear_group(X, [])
    with pytest.raises(RuntimeError, match="eps"):
        nibble_torch.rmsnorm(X, torch.ones(96), eps=-1.0)
    with pytest.raises(RuntimeError, match=r"weight|w is"):
        nibble_torch.rmsnorm(X, torch.ones(95))
    with pytest.raises(RuntimeError, match="residual"):
        nibble_torch.add_rmsnorm(X, X[:3], torch.ones(96))
    with pytest.raises(RuntimeError, match="labels"):
        nibble_torch.cross_entropy(X, weight, torch.zeros(4, dtype=torch.int64))


def test_a_gradient_of_another_dtype() -> None:
    x, weight = X.bfloat16(), packed(64, 96)
    saved = torch.empty(0, dtype=torch.uint8)
    rest = (*weight.args, *[NONE] * 5, 1.0, 0.0, NONE, 0.0, 1)
    with pytest.raises(RuntimeError, match="nibble: linear_backward: dy .*f32"):
        torch.ops.nibble.linear_backward(torch.randn(5, 64), x, saved, *rest)


def test_hints_come_along() -> None:
    with pytest.raises(RuntimeError, match=r"\(.*\)"):
        call(X, PLAIN, scales=PLAIN.args[1].bfloat16())


# ---- bitsandbytes' states ----


def fourbit(nested: bool = True) -> bnb.nn.Linear4bit:
    module = bnb.nn.Linear4bit(128, 64, bias=False, compress_statistics=nested, quant_type="nf4")
    return module.to("cpu")


def test_a_repacked_weight_is_refused_with_a_hint() -> None:
    module = fourbit().eval()
    state = module.weight.quant_state
    expected = Weight.from_bitsandbytes(module.weight).dequantize()
    with torch.no_grad():
        module(torch.randn(3, 128))
    if not getattr(module.weight.quant_state, "packing_format_for_cpu", False):
        state.packing_format_for_cpu = (
            True  # a machine without AVX512-BF16: bitsandbytes does not repack here
        )
    with pytest.raises(ValueError, match=r"repacked.*model.train\(\)"):
        Weight.from_bitsandbytes(module.weight)
    # a model that is loaded again and in train() when it first computes
    module = fourbit().train()
    kept = Weight.from_bitsandbytes(module.weight).dequantize()
    module(torch.randn(3, 128))
    assert torch.equal(Weight.from_bitsandbytes(module.weight).dequantize(), kept)
    assert expected.shape == kept.shape


def test_a_model_that_was_cast() -> None:
    """model.to(bfloat16) casts absmax where it is a tensor of a module. Here it would be refused."""
    state = fourbit(nested=False).weight.quant_state
    module = fourbit(nested=False)
    module.weight.quant_state.absmax = state.absmax.bfloat16()
    weight = Weight.from_bitsandbytes(module.weight)
    with pytest.raises(RuntimeError, match="scales.*bf16"):
        weight.dequantize()
    with pytest.raises(ValueError, match="quant_type 'int3'"):
        state.quant_type = "int3"
        Weight.from_bitsandbytes(torch.zeros(8, 1, dtype=torch.uint8), state)


def test_an_offset_of_another_dtype_is_widened() -> None:
    """bitsandbytes' loader may make the offset bf16. Its kernels widen it, and so does the weight."""
    module = fourbit()
    state = module.weight.quant_state
    state.offset = state.offset.bfloat16()
    weight = Weight.from_bitsandbytes(module.weight)
    assert weight.args[5].dtype == torch.float32 and weight.args[5].item() == state.offset.item()
