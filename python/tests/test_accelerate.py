"""nibble_torch.accelerate: losses and gradients beside PEFT and bitsandbytes."""

from __future__ import annotations

import copy
import threading
from typing import Any

import nibble_torch
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tiny_models import (
    adapt,
    base,
    counted,
    distance,
    eightbit,
    fourbit,
    logits,
    shake,
    step,
    stock_bitsandbytes,  # noqa: F401
    tokens,
    worst,
)
from torch import Tensor, nn

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16

# f32: the order of sums. bf16: PEFT rounds the base's output, the update and their sum, nibble rounds once.
LIMITS = {F32: 2e-6, BF16: 2e-2}

VARIANTS: dict[str, dict[str, Any]] = {
    "lora": {},
    "rslora": {"use_rslora": True, "lora_alpha": 8},
    "dora": {"use_dora": True},
}


def compare(model: PeftModel, limit: float) -> nibble_torch.Report:
    """A step of PEFT and one of nibble, of the same model."""
    loss, scores, gradients = step(model)
    report = nibble_torch.accelerate(model)
    with counted() as calls:
        fused_loss, fused_scores, fused_gradients = step(model)
    assert calls["linear"] == 4 and calls["linear_group"] == 4, calls  # 2 x (o, down), 2 x (qkv, gate and up)
    assert distance(fused_loss, loss) <= limit
    assert distance(fused_scores, scores) <= limit
    assert worst(fused_gradients, gradients) <= limit
    return report


# ---- numbers ----


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_losses_and_gradients_are_those_of_peft(
    kind: str, bits: int, variant: str, dtype: torch.dtype
) -> None:
    model = adapt(base(kind, bits, dtype=dtype), **VARIANTS[variant])
    report = compare(model, LIMITS[dtype])
    assert report.fused == {f"lora.Linear{'4bit' if bits == 4 else '8bitLt'}": 14}
    assert report.groups == {"q_proj, k_proj, v_proj": 2, "gate_proj, up_proj": 2}
    assert [left.reason for left in report.left] == ["it is not quantized"]


@pytest.mark.parametrize(
    "options",
    [
        {"nested": False},
        {"quant": "fp4"},
        {"block": 32},
        {"storage": BF16},
        {"bias": True, "deviation": 0.1},
        {"bias": True, "deviation": 0.1, "bits": 8},
    ],
    ids=str,
)
def test_every_storage(options: dict[str, Any]) -> None:
    compare(adapt(base(**options)), LIMITS[F32])


def test_blocks_that_span_rows() -> None:
    """bitsandbytes' CPU kernel takes the wrong scales for them. So the yardstick is the formula."""
    layer = fourbit(nn.Linear(64, 64, bias=False), F32, False, "nf4", 128, torch.uint8).to("cpu").train()
    state, packed = layer.weight.quant_state, layer.weight.data.flatten()
    codes = torch.stack([packed >> 4, packed & 15], 1).flatten().long()
    dense_weight = (state.code[codes] * state.absmax.repeat_interleave(128)).view(64, 64)
    nibble_torch.accelerate(layer)
    x = torch.randn(5, 64)
    assert distance(layer(x), x @ dense_weight.T) < 1e-6


def test_a_trained_bias_has_its_gradient() -> None:
    model = adapt(base(bias=True, deviation=0.1), bias="all")
    _, _, gradients = step(model)
    assert sum(key.endswith("base_layer.bias") for key in gradients) == 8
    compare(model, LIMITS[F32])


def test_adapters_in_bf16_over_a_model_in_bf16() -> None:
    model = base(dtype=BF16)
    torch.manual_seed(1)
    peft = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear"), autocast_adapter_dtype=False)
    shake(peft)
    assert {p.dtype for p in peft.parameters() if p.requires_grad} == {BF16}
    compare(peft.train(), 3e-2)  # here PEFT rounds A x as well, and gradients are stored in bf16


def test_x_is_cast_to_the_compute_dtype_and_y_back() -> None:
    model = adapt(base(dtype=F32, compute=BF16))
    layer = model.base_model.model.model.layers[0].mlp.down_proj
    x = torch.randn(2, 5, 128)
    expected = layer(x)
    nibble_torch.accelerate(model)
    y = layer(x)
    assert y.dtype == expected.dtype == F32
    assert distance(y, expected) < 1e-2
    assert distance(y.to(BF16).float(), y) == 0  # it was rounded to bf16


def test_an_unset_compute_dtype_is_that_of_the_first_input() -> None:
    for first, second in [(BF16, F32), (F32, BF16), (F16, F16)]:
        layer = fourbit(nn.Linear(64, 64, bias=False), None, True, "nf4", 64, torch.uint8).to("cpu")
        model = nn.Sequential(layer).train()
        other = copy.deepcopy(model)
        nibble_torch.accelerate(model)
        for dtype in (first, second):
            x = torch.randn(3, 64).to(dtype)
            y, expected = model(x), other(x)
            assert y.dtype == expected.dtype == dtype
            assert distance(y, expected) < 1e-2
        assert layer.compute_dtype == other[0].compute_dtype
        assert layer.compute_type_is_set


def test_a_bias_of_another_dtype_is_cast_for_good_as_in_bitsandbytes() -> None:
    layer = fourbit(nn.Linear(64, 64), F32, True, "nf4", 64, torch.uint8)
    layer.bias.data = torch.randn(64).to(BF16)
    model = nn.Sequential(layer.to("cpu")).train()
    other = copy.deepcopy(model)
    nibble_torch.accelerate(model)
    x = torch.randn(3, 64)
    assert distance(model(x), other(x)) < 2e-6
    assert model[0].bias.dtype == other[0].bias.dtype == F32


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_layers_without_an_adapter(bits: int, mode: str) -> None:
    linear = nn.Linear(64, 96, bias=False)
    layer = fourbit(linear, F32, True, "nf4", 64, torch.uint8) if bits == 4 else eightbit(linear)
    model = nn.Sequential(layer.to("cpu")).train(mode == "train")
    x = torch.randn(5, 64)
    x[:, 3] *= 20  # an outlier of int8
    x.requires_grad_()  # bitsandbytes would repack the weight otherwise
    expected = model(x)
    (dx,) = torch.autograd.grad(expected.square().sum(), x)
    assert nibble_torch.accelerate(model).fused == {type(layer).__name__: 1}
    with counted() as calls:
        y = model(x)
    assert calls == {"linear": 1}
    (dy,) = torch.autograd.grad(y.square().sum(), x)
    # In eval mode bitsandbytes rounds x to f16 before it quantizes it to int8.
    limit = 2e-3 if bits == 8 and mode == "eval" else 2e-6
    assert distance(y, expected) < limit and distance(dy, dx) < limit


@pytest.mark.parametrize("shape", [(64,), (0, 64), (1, 64), (2, 3, 64), (2, 1, 3, 64)], ids=str)
def test_shapes_of_x(shape: tuple[int, ...]) -> None:
    model = nn.Sequential(fourbit(nn.Linear(64, 32), F32, True, "nf4", 64, torch.uint8).to("cpu")).train()
    x = torch.randn(shape)
    expected = model(x)
    nibble_torch.accelerate(model)
    y = model(x)
    assert y.shape == expected.shape
    assert torch.allclose(y, expected, atol=1e-6)


def test_a_scale_of_zero() -> None:
    model = adapt(base())
    for module in model.modules():
        if hasattr(module, "set_scale"):
            module.set_scale("default", 0)
    expected = logits(model)
    nibble_torch.accelerate(model)
    assert distance(logits(model), expected) < 2e-6


# ---- dropout ----


def test_dropout_of_lora_has_its_mean_and_its_variance() -> None:
    model = adapt(base(layers=1), lora_dropout=0.3)
    layer = model.base_model.model.model.layers[0].mlp.down_proj
    x = torch.randn(1, 128)

    def moments() -> tuple[Tensor, Tensor]:
        y = torch.stack([layer(x)[0].detach() for _ in range(4000)])
        return y.mean(0), y.var(0)

    mean, variance = moments()
    nibble_torch.accelerate(model)
    fused_mean, fused_variance = moments()
    deviation = (2 * variance.max() / 4000).sqrt()
    assert (fused_mean - mean).abs().max() < 5 * deviation
    assert distance(fused_variance, variance) < 0.1
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_dropout_follows_torchs_generator_and_checkpointing() -> None:
    model = adapt(base(), lora_dropout=0.3)
    nibble_torch.accelerate(model)
    torch.manual_seed(5)
    loss, _, gradients = step(model)
    other, _, _ = step(model)
    assert other != loss
    for reentrant in (False, True):
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        torch.manual_seed(5)
        again, _, checkpointed = step(model)
        assert again == loss
        assert worst(checkpointed, gradients) == 0


def test_dora_with_dropout_has_the_masks_of_torch() -> None:
    model = adapt(base(), use_dora=True, lora_dropout=0.3)
    torch.manual_seed(5)
    loss, _, gradients = step(model)
    nibble_torch.accelerate(model)
    torch.manual_seed(5)
    fused_loss, _, fused_gradients = step(model)
    assert distance(fused_loss, loss) < 2e-6
    assert worst(fused_gradients, gradients) < 2e-6


# ---- the same layers, other circumstances ----


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant: bool) -> None:
    model = adapt(base(), use_dora=True)
    nibble_torch.accelerate(model)
    loss, _, gradients = step(model)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    again, _, checkpointed = step(model)
    assert again == loss
    assert worst(checkpointed, gradients) == 0


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("to", [BF16, F16])
def test_autocast(bits: int, to: torch.dtype) -> None:
    model = adapt(base(bits=bits))
    layer = model.base_model.model.model.layers[0].mlp.down_proj
    x = torch.randn(2, 5, 128, requires_grad=True)

    def outputs() -> list[Tensor]:
        with torch.autocast("cpu", to):
            y = layer(x)
            with torch.autocast("cpu", enabled=False):
                z = layer(x)
        return [y, z, *torch.autograd.grad(y.float().sum() + z.sum(), x)]

    expected = outputs()
    nibble_torch.accelerate(model)
    fused = outputs()
    assert [t.dtype for t in fused] == [t.dtype for t in expected]
    assert all(distance(a, b) < 1e-2 for a, b in zip(fused, expected, strict=True))
    assert distance(fused[1], expected[1]) < 2e-6


def test_attentions_and_hidden_states_come_out() -> None:
    model = adapt(base())
    model.base_model.model.set_attn_implementation("eager")
    expected = model(input_ids=tokens(), output_attentions=True, output_hidden_states=True)
    nibble_torch.accelerate(model)
    output = model(input_ids=tokens(), output_attentions=True, output_hidden_states=True)
    for name, count in (("attentions", 2), ("hidden_states", 3)):
        assert len(output[name]) == len(expected[name]) == count
        assert all(distance(a, b) < 2e-6 for a, b in zip(output[name], expected[name], strict=True))


def test_generation() -> None:
    model = adapt(base())
    expected = model.generate(
        input_ids=tokens(5), max_new_tokens=8, do_sample=False, use_cache=True, pad_token_id=0
    )
    nibble_torch.accelerate(model)
    model.eval()
    ids = model.generate(
        input_ids=tokens(5), max_new_tokens=8, do_sample=False, use_cache=True, pad_token_id=0
    )
    assert torch.equal(ids, expected)


def test_inference_mode_then_training() -> None:
    model = adapt(base(), use_dora=True)
    expected = step(model)[2]
    nibble_torch.accelerate(model)
    with torch.inference_mode():
        model.eval()(input_ids=tokens())
    assert worst(step(model.train())[2], expected) < 2e-6


def test_dora_norms_are_kept_in_inference_until_the_adapter_changes() -> None:
    model = adapt(base(), use_dora=True)
    nibble_torch.accelerate(model)
    model.eval()
    logits(model)
    with counted() as calls:
        before = logits(model)
    assert "dora_norm" not in calls
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.mul_(2)
    after = logits(model)
    model.train()
    assert torch.equal(logits(model), after) and not torch.equal(before, after)


def test_threads() -> None:
    model = adapt(base(), use_dora=True)
    nibble_torch.accelerate(model)
    model.eval()
    inputs = [tokens(7 + i, seed=i) for i in range(4)]
    expected = [logits(model, ids) for ids in inputs]
    wrong = []

    def work(i: int) -> None:
        for _ in range(5):
            if not torch.equal(logits(model, inputs[i]), expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
