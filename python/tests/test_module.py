"""nibble_torch.Linear as a torch.nn.Module: casts, devices, copies, state dicts, bitsandbytes' layers."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path

import bitsandbytes as bnb
import pytest
import torch
from nibble_torch import Format, Linear, Weight, quantize
from oracle import error, packed, parameter
from safetensors.torch import load_file, save_file
from torch import nn

KINDS = ["nf4", "fp4", "nested", "int8", "mxfp4", "dense"]


def weight_of(kind: str) -> Weight:
    if kind == "dense":
        return Weight.dense(torch.randn(64, 96))
    if kind == "nested":
        return packed(64, 96, nested="grid")
    return packed(64, 96, kind)


def module_of(kind: str = "nested", **options: object) -> Linear:
    module = Linear(weight_of(kind), torch.randn(64), rank=4, dora=True, **options)  # type: ignore[arg-type]
    nn.init.normal_(module.lora_b)  # type: ignore[arg-type]
    return module


def same_parts(a: Weight, b: Weight) -> bool:
    return a.args[6:] == b.args[6:] and all(
        p.dtype == q.dtype and torch.equal(p, q) for p, q in zip(a.args[:6], b.args[:6], strict=True)
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["nf4", "nested", "int8", "mxfp4"])
def test_casts_leave_the_weight_alone(kind: str, dtype: torch.dtype) -> None:
    module = module_of(kind)
    before = Weight.apply(module.weight, torch.clone)
    wide = nn.Sequential(module).to(dtype)[0]
    assert same_parts(module.weight, before)
    assert module.lora_a is not None and module.lora_a.dtype == dtype
    x = torch.randn(5, 96)
    if dtype == torch.float64:
        with pytest.raises(RuntimeError, match="lora_a.*f64"):
            wide(x)
    else:
        assert wide(x.to(dtype)).dtype == dtype
        other = torch.bfloat16 if dtype == torch.float16 else torch.float16
        assert wide(x.to(other)).dtype == other


def test_a_packed_weight_stored_as_bf16_survives_casts() -> None:
    data, state = bnb.functional.quantize_4bit(
        torch.randn(64, 96), quant_type="nf4", quant_storage=torch.bfloat16
    )
    module = Linear(Weight.from_bitsandbytes(data, state))
    expected = module.weight.dequantize()
    module.float().half()
    assert module.weight.args[0].dtype == torch.bfloat16
    assert torch.equal(module.weight.dequantize(), expected)


def test_a_dense_weight_is_cast() -> None:
    module = module_of("dense").half()
    assert module.weight.args[0].dtype == torch.float16 and module.weight.dtype == torch.float16
    assert module(torch.randn(5, 96).half()).dtype == torch.float16


@pytest.mark.parametrize("kind", KINDS)
def test_the_meta_device(kind: str) -> None:
    module = module_of(kind).to("meta")
    assert module.weight.device.type == "meta"
    assert module(torch.empty(5, 96, device="meta")).shape == (5, 64)


@pytest.mark.parametrize("kind", KINDS)
def test_copies(kind: str) -> None:
    module = module_of(kind).eval()
    x = torch.randn(5, 96)
    expected = module(x)
    stored = io.BytesIO()
    torch.save(module, stored)
    stored.seek(0)
    copies = [
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(stored, weights_only=False),
    ]
    for other in copies:
        assert torch.equal(other(x), expected)
        assert same_parts(other.weight, module.weight)
        other.weight.args[0].view(torch.uint8).fill_(17)  # memory of its own
    assert torch.equal(module(x), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_state_dicts(kind: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Identity(), module_of(kind)).eval()
    x = torch.randn(5, 96)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    other = nn.Sequential(nn.Identity(), module_of(kind)).eval()
    assert not torch.equal(other(x), model(x))
    result = other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert not result.missing_keys and not result.unexpected_keys
    assert torch.equal(other(x), model(x))


def test_a_state_dict_of_another_format_is_taken() -> None:
    source, target = module_of("nested").eval(), module_of("fp4").eval()
    target.load_state_dict(source.state_dict())
    assert target.weight.format == Format.NF4
    x = torch.randn(5, 96)
    assert torch.equal(source(x), target(x))


def test_the_keys_are_those_of_bitsandbytes() -> None:
    for nested in (False, True):
        for kind in ("nf4", "fp4"):
            theirs = bnb.nn.Linear4bit(96, 64, compress_statistics=nested, quant_type=kind).to("cpu").train()
            mine = Linear.from_bitsandbytes(theirs)
            a, b = theirs.state_dict(), mine.state_dict()
            assert set(a) == set(b)
            for key in a:
                assert a[key].dtype == b[key].dtype and torch.equal(a[key], b[key]), key


def test_state_dicts_that_do_not_fit() -> None:
    module = module_of("nested")
    state = module.state_dict()
    cast = {key: value.bfloat16() if value.is_floating_point() else value for key, value in state.items()}
    with pytest.raises(RuntimeError, match="weight.nested_absmax is torch.bfloat16, not torch.float32"):
        module.load_state_dict(cast)
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "weight"'):
        module.load_state_dict({key: value for key, value in state.items() if not key.startswith("weight")})
    with pytest.raises(RuntimeError, match=r"weight is \[32, 96\], this layer's is \[64, 96\]"):
        module.load_state_dict({**state, **Linear(packed(32, 96, nested="grid")).state_dict()})
    with pytest.raises(RuntimeError, match="quant_state.bitsandbytes__nf4 is missing"):
        module.load_state_dict({key: value for key, value in state.items() if "quant_state" not in key})
    with pytest.raises(RuntimeError, match='Unexpected key.*"other"'):
        module.load_state_dict({**state, "other": torch.zeros(1)})
    module.load_state_dict({**state, "other": torch.zeros(1)}, strict=False)


@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16, torch.float16])
def test_a_layer_of_bitsandbytes(compute: torch.dtype) -> None:
    # 128: a multiple of the block, without which bitsandbytes' CPU kernels take wrong scales
    theirs = bnb.nn.Linear4bit(128, 64, compute_dtype=compute, quant_type="nf4").to("cpu").train()
    mine = Linear.from_bitsandbytes(theirs)
    assert mine.compute_dtype == compute
    x = parameter(5, 128)
    y, expected = mine(x), theirs(x)
    assert y.dtype == expected.dtype == torch.float32
    tolerance = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}[compute]
    assert error(y, expected) < tolerance
    (a,), (b,) = torch.autograd.grad(y.sum(), [x]), torch.autograd.grad(expected.sum(), [x])
    assert error(a, b) < tolerance


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("threshold", [0.0, 6.0])
def test_an_int8_layer_of_bitsandbytes(threshold: float, training: bool) -> None:
    theirs = (
        bnb.nn.Linear8bitLt(96, 64, has_fp16_weights=False, threshold=threshold).to("cpu").train(training)
    )
    x = torch.randn(5, 96)
    x[:, 11] = 8.0
    expected = theirs(x.half())
    mine = Linear.from_bitsandbytes(theirs).train(training)
    y = mine(x.half())
    assert mine.threshold == threshold and mine.weight.format == Format.INT8
    assert error(y, expected) < 2e-3
    # a model that trains multiplies the dequantized weight on a CPU, and one that generates multiplies codes
    other = mine.train(not training)(x.half())
    assert error(other, y) > 1e-3


def test_what_a_module_shows() -> None:
    module = module_of()
    assert "nf4, nested, [64, 96]" in repr(module) and "rank=4" in repr(module) and "dora" in repr(module)
    assert (module.in_features, module.out_features) == (96, 64)
    assert not list(module.buffers())
    trained = [name for name, p in module.named_parameters() if p.requires_grad]
    assert trained == ["lora_a", "lora_b", "magnitude"]
    assert (
        module.weight.nbytes == 64 * 96 // 2 + 96 + 4 + 256 * 4 + 4
    )  # codes, scale codes, nested, table, offset
    with pytest.raises(ValueError, match="DoRA needs an adapter"):
        Linear(packed(64, 96), dora=True)
    with pytest.raises(ValueError, match="dropout"):
        Linear(packed(64, 96), rank=4, dropout=1.0)


def test_a_fresh_adapter_changes_nothing() -> None:
    weight = quantize(torch.randn(64, 96))
    x = torch.randn(5, 96)
    plain = Linear(weight)(x)
    assert torch.equal(Linear(weight, rank=4)(x), plain)
    assert error(Linear(weight, rank=4, dora=True)(x), plain) < 1e-6
    assert Linear(weight, rank=16, alpha=32, rslora=True).scale == 8


def test_inference_computes_a_norm_once() -> None:
    module = module_of("nested").eval()
    assert module.lora_a is not None
    x = torch.randn(5, 96)
    expected = module(x).detach()
    with torch.no_grad():
        assert torch.equal(module(x), expected)
        kept = module._norm
        assert torch.equal(module(x), expected) and module._norm is kept is not None
        module.lora_a.mul_(1.5)  # as an optimizer changes it
        changed = module(x)
        assert module._norm is not kept
        module.train()
        assert module._norm is None
        module.lora_a.data.mul_(0.5)  # as an optimizer without version counters
        again = module.eval()(x)
    assert not torch.equal(changed, expected) and not torch.equal(again, changed)
    assert torch.equal(again, module(x))
    with torch.no_grad():
        module(x)
        assert module.half()._norm is None
