"""bitsandbytes' quantizers on a CPU: codes and scales are the same bytes, for every value."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import bitsandbytes.functional as functional
import nibble_torch.bitsandbytes as backend
import pytest
import torch
from bitsandbytes_common import (
    BLOCKS,
    DTYPES,
    STORAGES,
    TYPES,
    assert_same_bytes,
    ours,
    passed_on,
    same_bytes,
    stock,
)
from torch import Tensor

ops: Any = torch.ops.bitsandbytes
SHAPES = [(64, 64), (7, 63), (3, 1000), (1, 1), (1, 33), (5, 4097), (2, 3, 4), (65,)]
MAPS = [functional.create_dynamic_map(signed=signed) for signed in (True, False)]


@pytest.fixture(autouse=True)
def _backend() -> Iterator[None]:
    backend.register()
    yield
    backend.unregister()


def finite(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Normal numbers, a block of zeros, ties, a tiny number, a short block that may be zeros."""
    values = torch.randn(shape).to(dtype)
    flat = values.view(-1)
    flat[:128] = 0
    flat[200:209] = torch.linspace(-1, 1, 9).to(dtype)[: flat[200:209].numel()]
    flat[230:231] = 1e-7
    flat[-1] = 0
    return values


def special(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    values = finite(shape, dtype)
    flat = values.view(-1)
    for index, value in ((140, torch.nan), (300, torch.inf), (301, -torch.inf), (600, -torch.inf)):
        flat[index : index + 1] = value
    return values


@pytest.mark.matrix
@pytest.mark.parametrize("make", [finite, special])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_quantize_4bit(dtype: torch.dtype, kind: str, make: Any) -> None:
    tensors = [make(shape, dtype) for shape in SHAPES]
    assert_same_bytes("quantize_4bit", [(x, block, kind, torch.uint8) for x in tensors for block in BLOCKS])


@pytest.mark.parametrize("storage", STORAGES)
def test_quantize_4bit_in_every_storage(storage: torch.dtype) -> None:
    values = torch.randn(48, 64).T  # not contiguous
    assert_same_bytes("quantize_4bit", [(values, 64, kind, storage) for kind in TYPES])


@pytest.mark.parametrize("kind", TYPES)
def test_quantize_4bit_of_every_number_of_16_bits(kind: str) -> None:
    """As the largest of its block, and beside 1."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        column = every.view(dtype)
        alone = torch.stack((column, column / 3, -column / 2, column / 7), 1).repeat(1, 8)
        beside = torch.stack((column, torch.ones_like(column)), 1).repeat(1, 16)
        assert_same_bytes("quantize_4bit", [(values, 32, kind, torch.uint8) for values in (alone, beside)])


@pytest.mark.parametrize("make", [finite, special])
@pytest.mark.parametrize("dtype", DTYPES)
def test_quantize_blockwise(dtype: torch.dtype, make: Any) -> None:
    tensors, tables = [make(shape, dtype) for shape in SHAPES], (*MAPS, torch.linspace(-1, 1, 256))
    blocks = (32, 64, 256, 4096, 10000)
    assert_same_bytes(
        "quantize_blockwise", [(x, t, block) for x in tensors for t in tables for block in blocks]
    )


def test_quantize_blockwise_with_many_tables() -> None:
    """Codes of the first tables are kept. Others are computed for each call."""
    values, line = torch.randn(3, 700), torch.linspace(-1, 1, 256)
    tables = [line.sign() * line.abs() ** power for power in range(1, 9)]
    assert_same_bytes("quantize_blockwise", [(values, table, 256) for table in (*tables, *tables)])


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", TYPES)
def test_a_quantized_weight_is_the_same(kind: str, nested: bool) -> None:
    values = torch.randn(96, 640).bfloat16()

    def quantize() -> Any:
        data, state = functional.quantize_4bit(values, quant_type=kind, compress_statistics=nested)
        return (data, *(value for value in state.as_dict(packed=True).values() if isinstance(value, Tensor)))

    assert same_bytes(ours("quantize_4bit", quantize), stock(quantize))


@pytest.mark.parametrize("make", [finite, special])
@pytest.mark.parametrize("dtype", DTYPES)
def test_int8_vectorwise_quant(dtype: torch.dtype, make: Any) -> None:
    shapes = [(64, 64), (7, 63), (3, 1000), (1, 1), (1, 400), (5, 9000)]
    tensors = [make(shape, dtype) for shape in shapes]
    copies = [x.clone() for x in tensors]
    assert_same_bytes("int8_vectorwise_quant", [(x, t) for x in tensors for t in (0.0, 1.1, 2.5, 6.0, -1.0)])
    assert same_bytes(tensors, copies)


@pytest.mark.parametrize("dtype", [None, *DTYPES])
def test_int8_mm_dequant(dtype: torch.dtype | None) -> None:
    calls: list[tuple[Any, ...]] = []
    for rows, columns in [(4, 8), (33, 77), (6, 4099), (1, 1)]:
        sums = torch.randint(-(2**31), 2**31 - 1, (rows, columns), dtype=torch.int32)
        row, column = torch.rand(rows) * 3, torch.rand(columns)
        biases = [torch.randn(columns).to(kind) for kind in DTYPES]
        calls += [(sums, row, column, dtype, bias) for bias in (None, *biases)]
    assert_same_bytes("int8_mm_dequant", calls)


def test_empty_tensors_are_passed_on() -> None:
    assert (
        passed_on("quantize_4bit", lambda: ops.quantize_4bit(torch.empty(0), 64, "nf4", torch.uint8))[
            0
        ].numel()
        == 0
    )


SCALAR = """
import os, sys
sys.path[:0] = {path!r}
import test_bitsandbytes_bytes as tests
import torch
tests.backend.register()
torch.manual_seed(0)
for make in (tests.finite, tests.special):
    for dtype in tests.DTYPES:
        tests.test_quantize_4bit(dtype, "fp4", make)
        tests.test_quantize_blockwise(dtype, make)
        tests.test_int8_vectorwise_quant(dtype, make)
        tests.test_int8_mm_dequant(dtype)
print("same")
"""


def test_the_scalar_kernels_have_the_same_bytes() -> None:
    result = subprocess.run(
        [sys.executable, "-c", SCALAR.format(path=sys.path)],
        env={**os.environ, "NIBBLE_ISA": "scalar"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.stdout.strip() == "same", result.stderr
