"""Packed weights have the values of bitsandbytes and transformers, bit for bit."""

import math
from typing import Any

import bitsandbytes.functional as bnb
import pytest
import torch
from nibble_torch import Format, Weight, dequantize, quantize
from torch import Tensor

pytestmark = pytest.mark.matrix

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def unpacked(data: Tensor, state: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """bitsandbytes' definition: its table times its scales, in f32, rounded once.

    Its own CPU kernels take wrong scales where the last dimension is no multiple of the block.
    """
    scales = state.absmax
    if state.nested:
        scales = bnb.dequantize_blockwise(scales, state.state2) + state.offset
    codes = torch.stack((data.flatten() >> 4, data.flatten() & 15), 1).flatten().long()
    count = math.prod(shape)
    values = state.code[codes[:count]] * scales.repeat_interleave(state.blocksize)[:count]
    return values.to(dtype).reshape(shape)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("block", [32, 64, 128, 1024, 4096])
def test_fourbit_is_that_of_bitsandbytes(kind: str, nested: bool, block: int) -> None:
    for shape in [(64, 128), (7, 63), (1, 33), (67, 130)]:  # whole blocks; ragged, odd
        for dtype in DTYPES:
            values = torch.randn(shape).to(dtype)
            data, state = bnb.quantize_4bit(
                values, quant_type=kind, compress_statistics=nested, blocksize=block
            )
            weight = Weight.from_bitsandbytes(data, state)
            assert weight.dtype == dtype
            for other in DTYPES:
                expected = unpacked(data, state, shape, other)
                assert torch.equal(dequantize(weight, other), expected)
                assert torch.equal(dequantize(weight, other, transpose=True), expected.T)
            if shape[1] % block == 0:
                assert torch.equal(weight.dequantize(), bnb.dequantize_4bit(data, state))


@pytest.mark.parametrize("storage", [torch.uint8, torch.bfloat16, torch.float16, torch.float32])
def test_bytes_may_be_stored_in_any_dtype(storage: torch.dtype) -> None:
    values = torch.randn(64, 128)
    data, state = bnb.quantize_4bit(values, quant_type="nf4", quant_storage=storage)
    assert data.dtype == storage
    weight = Weight.from_bitsandbytes(data, state)
    assert torch.equal(weight.dequantize(), bnb.dequantize_4bit(data, state))


@pytest.mark.parametrize("nested", ["none", "grid"])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_quantize_is_that_of_bitsandbytes(kind: str, nested: str) -> None:
    values = torch.randn(48, 128).bfloat16()
    weight = quantize(values, kind, nested=nested)
    data, state = bnb.quantize_4bit(
        values, quant_type=kind, compress_statistics=nested != "none", blocksize=64
    )
    parts = weight.parts()
    if nested == "none":
        assert torch.equal(parts["scales"], state.absmax)
        assert torch.equal(parts["data"], data.flatten()) or kind == "fp4"  # ties of fp4: see below
    else:
        assert torch.equal(parts["table"], state.state2.code)
        # the mean of the scales, which is subtracted, depends on the order of its sum
        assert torch.allclose(parts["offset"], state.offset, rtol=3e-7, atol=0)
    # bitsandbytes' CPU takes code 8, -0, for tiny positive values. Their value is the same.
    data, state = bnb.quantize_4bit(values, quant_type=kind, blocksize=64)
    assert torch.equal(quantize(values, kind).dequantize(), unpacked(data, state, (48, 128), torch.bfloat16))


@pytest.mark.parametrize("dtype", DTYPES)
def test_int8_is_that_of_bitsandbytes(dtype: torch.dtype) -> None:
    values = torch.randn(48, 72).half()
    codes, scales, _ = bnb.int8_vectorwise_quant(values.clone())
    weight = Weight(codes, (48, 72), Format.INT8, scales=scales)
    expected = bnb.int8_vectorwise_dequant(codes, scales).to(dtype)
    assert torch.equal(weight.dequantize(dtype), expected)
    assert torch.equal(weight.dequantize(dtype, transpose=True), expected.T)
    mine = quantize(values, "int8").parts()
    assert torch.equal(mine["scales"], scales)
    assert (mine["data"].view(48, 72).int() - codes.int()).abs().max() <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mxfp4_is_that_of_transformers(dtype: torch.dtype) -> None:
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    blocks = torch.randint(256, (1, 6, 4, 16), dtype=torch.uint8)
    scales = torch.randint(110, 140, (1, 6, 4), dtype=torch.uint8)
    expected = mxfp4._convert_moe_packed_tensors(blocks, scales, dtype=dtype)[0].T  # it transposes experts
    weight = Weight(blocks[0], (6, 128), Format.MXFP4, codes=scales[0], block=32)
    assert torch.equal(weight.dequantize(dtype), expected)


def test_a_weight_of_another_shape_is_refused() -> None:
    data, state = bnb.quantize_4bit(torch.randn(2, 32, 32), quant_type="nf4")
    with pytest.raises(ValueError, match=r"the shape \[2, 32, 32\]"):
        Weight.from_bitsandbytes(data, state)
    with pytest.raises(ValueError, match="no quant_state"):
        Weight.from_bitsandbytes(data)


def test_empty_weights_dequantize() -> None:
    weight = Weight.dense(torch.empty(0, 5))
    assert weight.dequantize(torch.float32).shape == (0, 5)
    assert weight.dequantize(torch.float32, transpose=True).shape == (5, 0)


def test_a_dense_weight_passes_gradients_on() -> None:
    values = torch.randn(4, 6, requires_grad=True)
    none = torch.empty(0)
    arguments = (values, none, none, none, none, none, 0, 0, 0, 4, 6)
    y = torch.ops.nibble.dequantize(*arguments, torch.float32, True)
    cotangent = torch.randn(6, 4)
    y.backward(cotangent)
    assert values.grad is not None and torch.equal(values.grad, cotangent.T)
