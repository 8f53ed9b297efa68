"""nibble_torch.accelerate: groups of layers, what is left alone and why, copies, restore."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import bitsandbytes as bnb
import nibble_torch
import pytest
import torch
from peft import LoraConfig, PeftModel
from tiny_models import (
    adapt,
    base,
    counted,
    dense,
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


# ---- groups ----


def attention_of(model: Any) -> Any:
    return model.base_model.model.model.layers[0].self_attn


def test_a_hook_that_changes_the_input_of_one_member() -> None:
    model = adapt(base())
    handle = attention_of(model).k_proj.register_forward_pre_hook(lambda module, args: (args[0] * 0.5,))
    seen: list[int] = []
    attention_of(model).v_proj.register_forward_hook(lambda module, args, output: seen.append(1))
    loss, _, gradients = step(model)
    nibble_torch.accelerate(model)
    fused_loss, _, fused_gradients = step(model)
    assert distance(fused_loss, loss) < 2e-6 and worst(fused_gradients, gradients) < 2e-6
    assert len(seen) == 2
    handle.remove()


def test_an_exception_between_two_members_leaves_nothing() -> None:
    model = adapt(base())
    nibble_torch.accelerate(model)
    expected = logits(model)

    def fail(*_: Any) -> None:
        raise KeyError("between")

    handle = attention_of(model).q_proj.register_forward_hook(fail)
    with pytest.raises(KeyError, match="between"):
        logits(model)
    handle.remove()
    assert torch.equal(logits(model), expected)


class Odd(nn.Module):
    """Names of a group, other inputs than its members have as a rule."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(self, name, fourbit(nn.Linear(64, 64), F32, True, "nf4", 64, torch.uint8).to("cpu"))

    def forward(self, x: Tensor) -> Tensor:
        q = self.q_proj(x)
        if self.kind == "another input":
            return q + self.k_proj(x + 1) * self.v_proj(x)
        if self.kind == "an input changed in place":
            k = self.k_proj(x)
            return q + k * self.v_proj(x.mul_(2))
        if self.kind == "one is not called":
            return q + self.k_proj(x)
        if self.kind == "one is called twice":
            return q + self.k_proj(x) * self.v_proj(x) - self.k_proj(x)
        if self.kind == "attributes":
            self.seen = self.q_proj.in_features + self.k_proj.weight.quant_state.blocksize
            return q + self.k_proj(x) + self.v_proj(x).to(self.q_proj.bias.dtype)
        raise AssertionError(self.kind)


@pytest.mark.parametrize(
    ("kind", "stays"),
    [
        ("another input", False),
        ("an input changed in place", False),
        ("one is not called", False),
        ("one is called twice", True),
        ("attributes", True),
    ],
)
def test_members_that_do_not_behave(kind: str, stays: bool) -> None:
    model = Odd(kind).train()
    other = copy.deepcopy(model)
    report = nibble_torch.accelerate(model)
    assert report.groups == {"q_proj, k_proj, v_proj": 1}
    x = torch.randn(3, 64)
    for _ in range(2):
        assert distance(model(x.clone()), other(x.clone())) < 2e-6
    assert bool(model.nibble_groups) == stays
    assert nibble_torch.accelerate(model).groups == (report.groups if stays else {})
    assert kind != "attributes" or model.seen == 128


class Cross(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(self, name, fourbit(nn.Linear(64, 64), F32, True, "nf4", 64, torch.uint8).to("cpu"))

    def forward(self, x: Tensor, key_value_states: Tensor | None = None) -> Tensor:
        other = x if key_value_states is None else key_value_states
        return self.q_proj(x) + self.k_proj(other) * self.v_proj(other)


class Super(Odd):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


@pytest.mark.parametrize("model", [Cross(), Super("one is called twice")], ids=["cross attention", "super()"])
def test_parents_whose_forward_is_left_alone(model: nn.Module) -> None:
    model.train()
    x = torch.randn(3, 64)
    expected = model(x)
    report = nibble_torch.accelerate(model)
    assert report.groups == {} and report.fused_count == 3
    assert distance(model(x), expected) < 2e-6


def test_members_of_several_formats() -> None:
    model = base()
    for layer in model.model.layers:
        layer.self_attn.k_proj = eightbit(dense().model.layers[0].self_attn.k_proj).to("cpu")
    model = adapt(model, target_modules=["q_proj", "down_proj"])  # k and v have none
    loss, _, gradients = step(model)
    nibble_torch.accelerate(model)
    with counted() as calls:
        fused_loss, _, fused_gradients = step(model)
    assert calls["linear_group"] == 4
    assert distance(fused_loss, loss) < 2e-6 and worst(fused_gradients, gradients) < 2e-6


# ---- what is left, and why ----


def reasons(model: nn.Module) -> str:
    return " ".join(left.reason for left in nibble_torch.accelerate(model).left)


def test_a_repacked_weight_is_refused_with_a_hint() -> None:
    model = nn.Sequential(fourbit(nn.Linear(64, 64), F32, True, "nf4", 64, torch.uint8).to("cpu"))
    layer = model[0]
    before = copy.deepcopy(model.state_dict())
    layer.support_avx512bf16_for_cpu = True  # as on a machine with AVX512-BF16
    with torch.no_grad():
        model.eval()(torch.randn(2, 64))
    if not layer.weight.quant_state.packing_format_for_cpu:
        pytest.skip("bitsandbytes does not repack here")
    assert "load the model again, and call model.train() or accelerate(model)" in reasons(model)
    x = torch.randn(2, 64)
    with counted() as calls:
        model(x)
    assert calls == {}
    # loaded again: fused, and never repacked
    fresh = nn.Sequential(fourbit(nn.Linear(64, 64), F32, True, "nf4", 64, torch.uint8).to("cpu"))
    assert fresh.state_dict().keys() == before.keys()
    nibble_torch.accelerate(fresh)
    with torch.no_grad(), counted() as calls:
        fresh.eval()(x)
    assert calls == {"linear": 1}
    assert not getattr(fresh[0].weight.quant_state, "packing_format_for_cpu", False)


def fallback(model: PeftModel, expected_reason: str, limit: float = 0.0) -> None:
    """With and without accelerate the model computes the same, in spite of what is not fused."""
    loss, scores, gradients = step(model)
    assert expected_reason in reasons(model)
    fused_loss, fused_scores, fused_gradients = step(model)
    assert distance(fused_scores, scores) <= limit
    assert worst(fused_gradients, gradients) <= limit


def test_two_active_adapters() -> None:
    model = adapt(base())
    model.add_adapter("second", LoraConfig(r=4, target_modules="all-linear"))
    shake(model, "second")
    model.base_model.set_adapter(["default", "second"])
    fallback(model, "several adapters are active", 2e-6)


def test_a_bias_of_b() -> None:
    fallback(adapt(base(bias=True), target_modules=["q_proj"], lora_bias=True), "lora_bias", 2e-6)


def test_another_variant() -> None:
    model = adapt(base(), alora_invocation_tokens=[1, 2])
    assert "its variant is ALoraLinearVariant" in reasons(model)


def test_hooks_inside_an_adapter_run() -> None:
    model = adapt(base())
    seen: list[int] = []
    attention_of(model).o_proj.lora_A["default"].register_forward_hook(lambda *_: seen.append(1))
    fallback(model, "hooks", 2e-6)
    assert len(seen) == 2


def test_a_patched_forward_is_kept() -> None:
    model = adapt(base())
    layer = attention_of(model).o_proj
    original = layer.forward
    layer.forward = lambda x: original(x) * 2
    fallback(model, "its forward is patched", 2e-6)


def test_a_scaling_that_is_a_tensor() -> None:
    from peft.utils.hotswap import prepare_model_for_compiled_hotswap

    model = adapt(base())
    prepare_model_for_compiled_hotswap(model)
    fallback(model, "its scaling is a Tensor", 2e-6)


def test_a_mixed_batch() -> None:
    model = adapt(base())
    model.add_adapter("second", LoraConfig(r=4, target_modules="all-linear"))
    shake(model, "second")
    model.eval()
    names = ["default", "second"]
    x = tokens()

    def mixed() -> Tensor:
        for module in model.modules():
            if isinstance(module, bnb.nn.Linear4bit):
                module.train()  # keeps bitsandbytes from repacking
        with torch.no_grad():
            result: Tensor = model(input_ids=x, adapter_names=names).logits
        return result

    expected = mixed()
    nibble_torch.accelerate(model)
    assert distance(mixed(), expected) < 2e-6


def test_weights_that_are_not_packed_yet() -> None:
    layer = fourbit(nn.Linear(64, 64), F32, True, "nf4", 64, torch.uint8)
    model = nn.Sequential(layer).train()
    assert "not quantized yet" in reasons(model)
    model.to("cpu")
    assert nibble_torch.accelerate(model).fused == {"Linear4bit": 1}
    with counted() as calls:
        model(torch.randn(2, 64))
    assert calls == {"linear": 1}


def test_an_unknown_subclass_is_left() -> None:
    class Mine(bnb.nn.Linear4bit):
        pass

    model = nn.Sequential(Mine(64, 64)).to("cpu")
    assert "is not among the classes that are fused" in reasons(model)
    assert type(model[0]) is Mine


# ---- in and out ----


def test_the_report_can_be_read() -> None:
    text = str(nibble_torch.accelerate(adapt(base())))
    assert text.splitlines() == [
        "fused: 14 lora.Linear4bit",
        "groups: 2 of q_proj, k_proj, v_proj, 2 of gate_proj, up_proj",
        "left: 1 Linear (base_model.model.lm_head): it is not quantized",
    ]
    assert str(nibble_torch.accelerate(nn.Sequential(nn.ReLU()))) == "fused: none"


def test_twice_is_once_and_restore_undoes_it() -> None:
    model = adapt(base(), use_dora=True)
    classes = [type(module) for module in model.modules()]
    names = [repr(model), list(model.state_dict())]
    loss, _, gradients = step(model)
    first, second = nibble_torch.accelerate(model), nibble_torch.accelerate(model)
    assert first == second
    assert [repr(model), list(model.state_dict())] == names
    fused_loss, _, _ = step(model)
    model.eval()
    logits(model)
    model.train()
    assert nibble_torch.restore(model) == 14 * 2 + 4
    assert [type(module) for module in model.modules()] == classes
    assert not any(key.startswith("nibble") for module in model.modules() for key in module.__dict__)
    with counted() as calls:
        again, _, restored = step(model)
    assert calls == {} and again == loss and worst(restored, gradients) == 0
    assert nibble_torch.restore(model) == 0
    nibble_torch.accelerate(model)
    assert torch.equal(step(model)[0], fused_loss)


def test_a_parent_keeps_its_signature() -> None:
    model = adapt(base())
    before = inspect.signature(attention_of(model).forward)
    nibble_torch.accelerate(model)
    assert inspect.signature(attention_of(model).forward) == before


def test_before_get_peft_model() -> None:
    model = base()
    assert nibble_torch.accelerate(model).fused == {"Linear4bit": 14}
    before = adapt(model)
    report = nibble_torch.accelerate(adapt(base()))
    with counted() as calls:
        loss, _, gradients = step(before)
    assert calls["linear"] == 4 and calls["linear_group"] == 4
    assert nibble_torch.accelerate(before) == report
    after = adapt(base())
    nibble_torch.accelerate(after)
    after_loss, _, after_gradients = step(after)
    assert after_loss == loss and worst(after_gradients, gradients) == 0


@pytest.mark.parametrize("bits", [4, 8])
def test_copies_and_pickles_stay_fused(bits: int) -> None:
    model = adapt(base(bits=bits), use_dora=bits == 4)
    nibble_torch.accelerate(model)
    model.eval()
    expected = logits(model)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    copied = copy.deepcopy(model)
    assert torch.equal(logits(copied), expected)
    if bits == 8:
        return  # bitsandbytes' Int8Params loses its scales when it is pickled
    data = pickle.dumps(model)
    assert len(data) < 2 * size + 200_000  # nothing is stored twice
    loaded = pickle.loads(data)
    with counted() as calls:
        assert torch.equal(logits(loaded), expected)
    assert calls["linear_group"] == 4
    assert nibble_torch.restore(loaded) == 14 * 2 + 4


def test_modules_that_move_forget_what_was_kept() -> None:
    model = adapt(base())
    nibble_torch.accelerate(model)
    expected = logits(model)
    model.to(torch.float64).to(torch.float32)
    assert torch.equal(logits(model), expected)
    assert "absmax is torch.float64" not in reasons(model)
    with torch.no_grad():
        layer = attention_of(model).q_proj.base_layer
        other = fourbit(nn.Linear(64, 64, bias=False), F32, True, "nf4", 64, torch.uint8).to("cpu")
        layer.weight = other.weight  # as merging does
    changed = logits(model)
    nibble_torch.restore(model)
    assert not torch.equal(changed, expected)
    assert distance(logits(model), changed) < 2e-6


def test_hugging_face_hooks_that_place_inputs() -> None:
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    model = base()
    for module in model.modules():
        if isinstance(module, bnb.nn.Linear4bit):
            add_hook_to_module(module, AlignDevicesHook(execution_device="cpu", io_same_device=True))
    peft = adapt(model)
    loss, _, gradients = step(peft)
    nibble_torch.accelerate(peft)
    with counted() as calls:
        fused_loss, _, fused_gradients = step(peft)
    assert calls["linear"] == 4 and calls["linear_group"] == 4
    assert distance(fused_loss, loss) < 2e-6 and worst(fused_gradients, gradients) < 2e-6
    nibble_torch.restore(peft)
    with counted() as calls:
        step(peft)
    assert calls == {}
