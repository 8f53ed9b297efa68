"""PEFT's own functions on an accelerated model: the same files, the same logits as without."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import nibble_torch
import pytest
import torch
from peft import LoraConfig, PeftModel
from tiny_models import (
    adapt,
    base,
    counted,
    distance,
    logits,
    same,
    shake,
    step,
    stock_bitsandbytes,  # noqa: F401
    tokens,
)
from torch import nn

LIMIT = 2e-6


def pair(bits: int = 4, **options: Any) -> tuple[PeftModel, PeftModel]:
    """Two equal models, the second accelerated."""
    stock, fused = adapt(base(bits=bits), **options), adapt(base(bits=bits), **options)
    nibble_torch.accelerate(fused)
    return stock, fused


def assert_same_logits(stock: nn.Module, fused: nn.Module) -> None:
    """In training mode: bitsandbytes repacks weights at the first forward in eval mode."""
    assert distance(logits(fused.train()), logits(stock.train())) < LIMIT


def second(model: PeftModel) -> None:
    torch.manual_seed(6)
    model.add_adapter(
        "second", LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"])
    )
    shake(model, "second", seed=7)


def assert_same_files(stock: Path, fused: Path) -> None:
    names = sorted(str(path.relative_to(stock)) for path in stock.rglob("*") if path.is_file())
    assert names == sorted(str(path.relative_to(fused)) for path in fused.rglob("*") if path.is_file())
    assert any(name.endswith("adapter_model.safetensors") for name in names)
    for name in names:
        assert (stock / name).read_bytes() == (fused / name).read_bytes(), name


@pytest.mark.parametrize("options", [{}, {"use_dora": True}, {"use_rslora": True}], ids=str)
def test_save_pretrained_writes_the_same_bytes(tmp_path: Path, options: dict[str, Any]) -> None:
    stock, fused = pair(**options)
    second(stock)
    second(fused)
    step(fused)
    stock.save_pretrained(tmp_path / "stock")
    fused.save_pretrained(tmp_path / "fused")
    assert_same_files(tmp_path / "stock", tmp_path / "fused")
    assert list(stock.state_dict()) == list(fused.state_dict())


def test_bias_and_modules_to_save_are_saved(tmp_path: Path) -> None:
    options = {"bias": "all", "modules_to_save": ["lm_head"], "target_modules": ["q_proj", "down_proj"]}
    stock, fused = adapt(base(bias=True), **options), adapt(base(bias=True), **options)
    nibble_torch.accelerate(fused)
    step(fused)
    stock.save_pretrained(tmp_path / "stock")
    fused.save_pretrained(tmp_path / "fused")
    assert_same_files(tmp_path / "stock", tmp_path / "fused")
    assert_same_logits(stock, fused)


@pytest.mark.parametrize(("bits", "dora"), [(4, False), (4, True), (8, False), (8, True)])
@pytest.mark.filterwarnings("ignore:Merge lora module:UserWarning", "ignore:Unmerge lora module:UserWarning")
def test_merge_and_unmerge(bits: int, dora: bool) -> None:
    stock, fused = pair(bits, use_dora=dora)
    assert_same_logits(stock, fused)
    for model in (stock, fused):
        model.merge_adapter()
    assert_same_logits(stock, fused)
    with counted() as calls:
        logits(fused)
    assert calls["linear_group"] == 4  # merged layers compute without an adapter
    with fused.disable_adapter(), stock.disable_adapter():  # PEFT unmerges
        assert_same_logits(stock, fused)
    for model in (stock, fused):
        if any(getattr(module, "merged", False) for module in model.modules()):
            model.unmerge_adapter()
    assert_same_logits(stock, fused)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.filterwarnings("ignore:Merge lora module:UserWarning")
def test_merge_and_unload(bits: int) -> None:
    stock, fused = pair(bits)
    merged_stock, merged_fused = stock.merge_and_unload(), fused.merge_and_unload()
    assert_same_logits(merged_stock, merged_fused)
    # repr and keys as of a model that was never accelerated
    assert repr(merged_stock) == repr(merged_fused)
    assert same(dict(merged_stock.state_dict()), dict(merged_fused.state_dict()))
    assert nibble_torch.restore(merged_fused) == 14 + 4


def test_unload_gives_the_base_model_back() -> None:
    stock, fused = pair()
    assert_same_logits(stock.unload(), fused.unload())


def test_disabled_adapters_are_fused_base_layers() -> None:
    stock, fused = pair()
    with stock.disable_adapter(), fused.disable_adapter():
        assert_same_logits(stock, fused)
        with counted() as calls:
            logits(fused)
        assert calls == {"linear_group": 4, "linear": 4}
    assert_same_logits(stock, fused)


def test_two_adapters() -> None:
    stock, fused = pair()
    for model in (stock, fused):
        second(model)
    for name in ("second", "default", "second"):
        stock.set_adapter(name)
        fused.set_adapter(name)
        assert_same_logits(stock, fused)
        with counted() as calls:
            logits(fused)
        assert calls == {"linear_group": 4, "linear": 4}
        gradients, fused_gradients = step(stock)[2], step(fused)[2]
        assert gradients.keys() == fused_gradients.keys() and all(f".{name}." in key for key in gradients)
    for model in (stock, fused):
        model.base_model.set_adapter(["default", "second"])
    assert_same_logits(stock, fused)
    for model in (stock, fused):
        model.add_weighted_adapter(["default", "second"], [0.5, 0.5], "both", combination_type="svd")
        model.set_adapter("both")
    assert_same_logits(stock, fused)
    for model in (stock, fused):
        model.delete_adapter("default")
        model.set_adapter("second")
    assert_same_logits(stock, fused)


def test_an_adapter_added_later_is_fused() -> None:
    stock, fused = pair(target_modules=["q_proj"])
    for model in (stock, fused):
        second(model)
        model.set_adapter("second")
    assert_same_logits(stock, fused)
    with counted() as calls:
        logits(fused)
    assert calls == {"linear_group": 4, "linear": 4}


@pytest.mark.parametrize("options", [{}, {"use_dora": True}], ids=str)
def test_load_adapter(tmp_path: Path, options: dict[str, Any]) -> None:
    stock, fused = pair(**options)
    fused.save_pretrained(tmp_path / "adapter")
    for model in (stock, fused):
        shake(model, seed=11)
        model.load_adapter(tmp_path / "adapter", "loaded")
        model.set_adapter("loaded")
    assert_same_logits(stock, fused)
    plain = base()
    assert_same_logits(PeftModel.from_pretrained(plain, tmp_path / "adapter"), fused)


def train(model: nn.Module, steps: int = 20) -> list[float]:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    losses = []
    for i in range(steps):
        ids = tokens(16, seed=100 + i % 4)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("options", [{}, {"use_dora": True}], ids=str)
def test_twenty_steps_and_the_adapter_in_plain_peft(
    tmp_path: Path, options: dict[str, Any], dtype: torch.dtype
) -> None:
    stock, fused = adapt(base(dtype=dtype), **options), adapt(base(dtype=dtype), **options)
    nibble_torch.accelerate(fused)
    losses, fused_losses = train(stock), train(fused)
    assert losses[-1] < losses[0] - 0.1
    assert all(abs(b / a - 1) < 1e-3 for a, b in zip(losses, fused_losses, strict=True))
    fused.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(base(dtype=dtype), tmp_path).train()
    assert type(loaded.base_model.model.model.layers[0].mlp.up_proj).__module__ == "peft.tuners.lora.bnb"
    limit = LIMIT if dtype == torch.float32 else 2e-2
    assert distance(logits(loaded), logits(fused)) < limit


def test_a_copy_trains_as_the_original() -> None:
    fused = adapt(base(), use_dora=True)
    nibble_torch.accelerate(fused)
    copied = copy.deepcopy(fused)
    assert train(fused, 3) == train(copied, 3)
