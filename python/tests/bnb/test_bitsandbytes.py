"""Each operator of bitsandbytes that nibble computes, against bitsandbytes' own kernel."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import bitsandbytes as bnb
import bitsandbytes.functional as functional
import nibble_torch.bitsandbytes as backend
import pytest
import torch
from bitsandbytes_common import BLOCKS, DTYPES, STORAGES, TYPES, counts, ours, passed_on, same_bytes, stock
from torch import Tensor

ops: Any = torch.ops.bitsandbytes


@pytest.fixture(autouse=True)
def _backend() -> Iterator[None]:
    """bitsandbytes compiles some of its Python code, for every shape. Here it runs as it is written."""
    backend.register()
    with torch.compiler.set_stance("force_eager"):
        yield
    backend.unregister()


def quantized(shape: tuple[int, ...], kind: str = "nf4", block: int = 64, **how: Any) -> tuple[Tensor, Any]:
    return functional.quantize_4bit(torch.randn(shape), quant_type=kind, blocksize=block, **how)


def unpacked(data: Tensor, scales: Tensor, code: Tensor, block: int, shape: tuple[int, ...]) -> Tensor:
    """bitsandbytes' definition in f32.

    Its own CPU kernels take wrong scales where rows are no whole blocks.
    """
    data, count = data.view(-1).view(torch.uint8), math.prod(shape)
    codes = torch.stack((data >> 4, data & 15), 1).flatten().long()[:count]
    return (code[codes] * scales.repeat_interleave(block)[:count]).reshape(shape)


# ---- dequantize ----


@pytest.mark.matrix
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("block", BLOCKS)
def test_dequantize_4bit_has_the_bits_of_bitsandbytes(kind: str, block: int) -> None:
    for shape in [(4, 4096), (64, 128), (3, 5, 64), (7, 62), (7, 63), (1, 33), (67, 144)]:
        data, state = quantized(shape, kind, block)
        for dtype in DTYPES:
            args = (data, state.absmax, block, kind, list(shape), dtype)
            found = ours("dequantize_4bit", lambda: ops.dequantize_4bit(*args))
            expected = unpacked(data, state.absmax, state.code, block, shape).to(dtype)
            assert torch.equal(found, expected) and found.dtype == dtype and found.shape == shape
            if shape[-1] % block == 0:
                assert torch.equal(found, stock(lambda: ops.dequantize_4bit(*args)))


@pytest.mark.parametrize("storage", STORAGES)
def test_dequantize_4bit_takes_every_storage_and_layout(storage: torch.dtype) -> None:
    data, state = quantized((48, 64), quant_storage=storage)
    assert data.dtype == storage
    args = (state.absmax, 64, "nf4", [48, 64], torch.float32)
    expected = stock(lambda: ops.dequantize_4bit(data, *args))
    strided = torch.stack((data, data), 1)[:, 0]
    assert not strided.is_contiguous()
    for layout in (data, data.t(), data.view(-1), strided):
        assert torch.equal(ours("dequantize_4bit", lambda: ops.dequantize_4bit(layout, *args)), expected)


def test_large_results_have_the_same_bits() -> None:
    """From 32 MiB on memory is asked for in huge pages."""
    data, state = quantized((4096, 2100), "fp4", 128)
    found = ours("dequantize_4bit", lambda: functional.dequantize_4bit(data, state))
    assert torch.equal(found, unpacked(data, state.absmax, state.code, 128, (4096, 2100)))


@pytest.mark.parametrize("nested", [False, True])
def test_dequantize_4bit_writes_to_out(nested: bool) -> None:
    data, state = quantized((48, 64), compress_statistics=nested)
    expected = stock(lambda: functional.dequantize_4bit(data, state))
    out = torch.full((48, 64), torch.nan)
    assert ours("dequantize_4bit.out", lambda: functional.dequantize_4bit(data, state, out=out)) is out
    assert torch.equal(out, expected)
    wide = torch.zeros(48, 128)
    args = (data, stock(lambda: scales_of(state)), 64, "nf4", [48, 64], torch.float32)
    passed_on("dequantize_4bit.out", lambda: ops.dequantize_4bit.out(*args, wide[:, ::2]))
    assert torch.equal(wide[:, ::2], expected) and not wide[:, 1::2].any()
    with pytest.raises(ValueError, match=r"out.shape == \(48, 64\), got \(64, 48\)"):
        ops.dequantize_4bit.out(*args, torch.empty(64, 48))
    with pytest.raises(ValueError, match="out.dtype == torch.float32, got torch.float16"):
        ops.dequantize_4bit.out(*args, torch.empty(48, 64).half())


def scales_of(state: Any) -> Tensor:
    if not state.nested:
        return state.absmax
    return functional.dequantize_blockwise(state.absmax, state.state2) + state.offset


# ---- products ----


def gemm_args(data: Tensor, state: Any, x: Tensor, bias: Tensor | None) -> tuple[Any, ...]:
    args = (x, data.view(-1, 1), state.shape)
    if not state.nested:
        return (*args, state.absmax, state.blocksize, state.quant_type, bias)
    nested = (state.absmax, state.state2.code, state.offset)
    return (*args, state.state2.absmax, state.blocksize, state.quant_type, bias, *nested)


def exact(weight: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    """In f64, with the weight that dequantize_4bit gives in the dtype of x."""
    y = x.double() @ weight.to(x.dtype).double().T
    return y if bias is None else y + bias.double()


# What one rounding of the result allows, and sums in f32 of 300 products.
ROUNDING = {torch.float32: 1e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}


def distance(found: Tensor, expected: Tensor) -> float:
    return ((found.double() - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", TYPES)
def test_gemm_4bit_is_exact_but_for_one_rounding(kind: str, nested: bool, dtype: torch.dtype) -> None:
    for rows, columns in [(96, 256), (33, 62), (7, 63), (1, 32)]:
        for block in (32, 64, 4096):
            data, state = quantized((rows, columns), kind, block, compress_statistics=nested)
            weight = unpacked(data, scales_of(state), state.code, block, (rows, columns))
            for tokens in ((1,), (3,), (2, 9), (70,)):
                x, bias = torch.randn(*tokens, columns).to(dtype), torch.randn(rows).to(dtype)
                for added in (None, bias):
                    args = gemm_args(data, state, x, added)
                    found = ours("gemm_4bit", lambda: ops.gemm_4bit(*args))
                    expected = exact(weight, x, added)
                    assert found.dtype == dtype and found.shape == (*tokens, rows)
                    assert distance(found, expected) <= ROUNDING[dtype]
    if state.shape[1] % block == 0:
        assert distance(found, stock(lambda: ops.gemm_4bit(*args)).double()) <= 2 * ROUNDING[dtype]


def test_no_tokens_give_no_results() -> None:
    """bitsandbytes' own gemv_4bit divides by zero then, on a processor with AVX512-BF16."""
    data, state = quantized((40, 64))
    for x in (torch.empty(0, 64), torch.empty(2, 0, 64)):
        assert ours("gemm_4bit", lambda: ops.gemm_4bit(*gemm_args(data, state, x, None))).shape == (
            *x.shape[:-1],
            40,
        )
        found = ours("gemv_4bit", lambda: functional.gemv_4bit(x, data, state=state))
        assert found.shape == (*x.shape[:-1], 40)


def test_gemm_4bit_takes_sliced_and_transposed_activations() -> None:
    data, state = quantized((40, 64))
    wide, tall = torch.randn(5, 128), torch.randn(64, 5)
    for x in (wide[:, :64], wide[:, ::2], tall.T, torch.randn(64).expand(5, 64)):
        found = ours("gemm_4bit", lambda: ops.gemm_4bit(*gemm_args(data, state, x, None)))
        assert torch.equal(found, ops.gemm_4bit(*gemm_args(data, state, x.contiguous(), None)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_offset_of_16_bits_is_taken_as_float32(dtype: torch.dtype) -> None:
    """A loader may make it in torch's default dtype."""
    data, state = quantized((40, 64), compress_statistics=True)
    x = torch.randn(3, 64)
    state.offset = state.offset.to(dtype)
    found = ours("gemm_4bit", lambda: ops.gemm_4bit(*gemm_args(data, state, x, None)))
    assert distance(found, stock(lambda: ops.gemm_4bit(*gemm_args(data, state, x, None))).double()) <= 1e-6
    state.offset = state.offset.float()
    assert torch.equal(found, ops.gemm_4bit(*gemm_args(data, state, x, None)))


def test_a_direct_call_of_gemm_4bit_has_gradients_as_in_bitsandbytes() -> None:
    data, state = quantized((40, 64), compress_statistics=True)
    values, bias, dy = torch.randn(3, 64), torch.randn(40), torch.randn(3, 40)

    def gradients() -> tuple[Tensor, ...]:
        x, added = values.clone().requires_grad_(), bias.clone().requires_grad_()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of operators without an autograd formula
            return torch.autograd.grad(ops.gemm_4bit(*gemm_args(data, state, x, added)), (x, added), dy)

    expected = stock(gradients)
    for found, right in zip(ours("gemm_4bit", gradients), expected):
        assert distance(found, right.double()) <= 1e-6


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", TYPES)
def test_gemv_4bit_is_exact_but_for_one_rounding(kind: str, dtype: torch.dtype) -> None:
    for nested in (False, True):
        data, state = quantized((96, 128), kind, 32, compress_statistics=nested)
        weight = unpacked(data, scales_of(state), state.code, 32, (96, 128))
        for tokens in ((1, 1), (3,)):
            x = torch.randn(*tokens, 128).to(dtype)
            found = ours("gemv_4bit", lambda: functional.gemv_4bit(x, data, state=state))
            assert distance(found, exact(weight, x, None)) <= ROUNDING[dtype]
            out = torch.empty(*tokens, 96, dtype=dtype)
            ours("gemv_4bit.out", lambda: functional.gemv_4bit(x, data, out=out, state=state))
            assert torch.equal(out, found)


def test_gemv_4bit_with_another_table_is_passed_on() -> None:
    data, state = quantized((96, 128))
    x = torch.randn(1, 128)
    args = (x, data, [96, 128], state.absmax, state.code * 2, 64)
    assert torch.equal(
        passed_on("gemv_4bit", lambda: ops.gemv_4bit(*args)), stock(lambda: ops.gemv_4bit(*args))
    )


def test_weights_that_bitsandbytes_has_repacked_stay_its_own() -> None:
    """It repacks for its CPU kernels at the first forward in eval mode, where the processor has them."""
    data, state = quantized((64, 128))
    packed, state = functional._convert_weight_packed_for_cpu(data, state)
    assert state.packing_format_for_cpu and state.absmax.dtype == torch.bfloat16
    x = torch.randn(2, 128).bfloat16()
    if functional.has_avx512bf16():
        expected = stock(lambda: bnb.matmul_4bit(x, packed, state))
        assert torch.equal(passed_on("gemv_4bit", lambda: bnb.matmul_4bit(x, packed, state)), expected)
    else:
        with pytest.raises(RuntimeError):
            stock(lambda: bnb.matmul_4bit(x, packed, state))
    args = (packed, state.absmax, 64, "nf4", [64, 128], torch.float32)
    expected = stock(lambda: ops.dequantize_4bit(*args))
    assert torch.equal(passed_on("dequantize_4bit", lambda: ops.dequantize_4bit(*args)), expected)


# ---- calls that are passed on ----


def test_what_nibble_does_not_take_gives_what_bitsandbytes_gives() -> None:
    data, state = quantized((48, 64))
    longer = torch.cat((state.absmax, torch.ones(5)))
    x = torch.randn(3, 64)
    bias = torch.randn(48)
    calls = [
        ("dequantize_4bit", (data, state.absmax, 64, "nf4", [48 * 64], torch.float32)),
        ("dequantize_4bit", (data, longer, 64, "nf4", [48, 64], torch.float32)),
        ("dequantize_4bit", (data, state.absmax.double(), 64, "nf4", [48, 64], torch.float32)),
        ("dequantize_4bit", (torch.cat((data, data)), state.absmax, 64, "nf4", [48, 64], torch.float32)),
        ("gemm_4bit", (x, data, [48, 64], longer, 64, "nf4")),
        ("gemm_4bit", (x, data, [48, 64], state.absmax, 64, "nf4", bias.view(1, 48))),
        ("quantize_blockwise", (x, torch.linspace(-1, 1, 256), 0)),
        ("int8_vectorwise_quant", (x.double(), 0.0)),
        ("int8_mm_dequant", (torch.ones(2, 3, 4, dtype=torch.int32), torch.ones(6), torch.ones(4))),
    ]
    for name, args in calls:
        operator = getattr(ops, name)
        results = []
        for how in (stock, lambda call: passed_on(name, call)):
            try:
                results.append(how(lambda: operator(*args)))
            except (RuntimeError, ValueError, ZeroDivisionError) as error:
                results.append((type(error).__name__, str(error).split("\n")[0]))
        assert isinstance(results[0], Tensor) == isinstance(results[1], Tensor), (name, results)
        if isinstance(results[0], Tensor):
            assert same_bytes(*results), name
        else:
            assert repr(results[0]) == repr(results[1]), name


# ---- layers ----


def layer(bias: bool, nested: bool, kind: str, dtype: torch.dtype, storage: torch.dtype) -> bnb.nn.Linear4bit:
    made = bnb.nn.Linear4bit(
        128,
        64,
        bias=bias,
        compute_dtype=dtype,
        compress_statistics=nested,
        quant_type=kind,
        quant_storage=storage,
    )
    return made.to("cpu").train()


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", TYPES)
def test_linear4bit_forward_and_backward(kind: str, nested: bool, dtype: torch.dtype) -> None:
    for bias, storage in ((False, torch.uint8), (True, torch.bfloat16)):
        made = layer(bias, nested, kind, dtype, storage)
        values, dy = torch.randn(2, 9, 128).to(dtype), torch.randn(2, 9, 64).to(dtype)

        def step() -> tuple[Tensor, ...]:
            x = values.clone().requires_grad_()
            y = made(x)
            wanted = [x] if made.bias is None else [x, made.bias]
            return (y, *torch.autograd.grad(y, wanted, dy))

        expected = stock(step)
        before = counts("dequantize_4bit")[0]
        found = ours("gemm_4bit", step)
        assert counts("dequantize_4bit")[0] == before + 1  # backward
        assert distance(found[0], expected[0].double()) <= 2 * ROUNDING[dtype]
        for gradient, right in zip(found[1:], expected[1:]):
            assert torch.equal(gradient, right)  # dequantize_4bit has the same bits


def test_linear4bit_in_eval_mode() -> None:
    """Where the processor has AVX512-BF16, bitsandbytes repacks the weight, and computes it itself."""
    made = layer(True, True, "nf4", torch.bfloat16, torch.uint8)
    x = torch.randn(3, 128).bfloat16()
    with torch.no_grad():
        before = made(x)
        name = "gemv_4bit" if functional.has_avx512bf16() else "gemm_4bit"
        calls = counts(name)
        y = made.eval()(x)
        assert counts(name) == (
            (calls[0], calls[1] + 1) if functional.has_avx512bf16() else (calls[0] + 1, calls[1])
        )
        assert distance(y, before.double()) < 0.02  # its scales are bfloat16
        assert torch.equal(y, stock(lambda: made(x)))


@pytest.mark.parametrize("threshold", [0.0, 2.5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_linear8bit_has_the_bits_of_bitsandbytes(dtype: torch.dtype, threshold: float) -> None:
    made = bnb.nn.Linear8bitLt(96, 64, has_fp16_weights=False, threshold=threshold)
    made.weight = bnb.nn.Int8Params(torch.randn(64, 96), requires_grad=False, has_fp16_weights=False)
    made = made.to("cpu").eval()
    x = torch.randn(2, 9, 96).to(dtype)

    def forward() -> Tensor:
        with torch.no_grad():
            return made(x)

    expected = stock(forward)
    before = counts("int8_mm_dequant")[0]
    assert torch.equal(ours("int8_vectorwise_quant", forward), expected)
    assert counts("int8_mm_dequant")[0] == before + 1
