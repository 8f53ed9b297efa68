"""Folders of weights on disk: quantize, dequantize and compare them, and look into them."""

from __future__ import annotations

from ctypes import byref
from dataclasses import dataclass

from ._abi import abi, lib
from ._arrays import Path, path_of, utf8
from ._records import number_of, record_of, records_of, texts_of
from .context import Context


@dataclass(frozen=True)
class ConvertReport:
    """What a conversion has written."""

    tensors: int
    converted: int
    bytes_in: int
    bytes_out: int
    files: int
    non_finite: int


@dataclass(frozen=True)
class TensorDiff:
    """The comparison of two weights by value. With `same_shape` False the numbers are NaN."""

    name: str
    same_shape: bool
    equal: bool
    max_abs: float
    rel_norm: float
    cosine: float


@dataclass(frozen=True)
class Diff:
    """A comparison of two checkpoints. `equal`: nothing is missing, and no bit differs."""

    tensors: tuple[TensorDiff, ...]
    missing_in_a: tuple[str, ...]
    missing_in_b: tuple[str, ...]
    equal: bool
    within: bool


def quantize(
    model: Path,
    out: Path,
    *,
    format: str,
    block: int = 0,
    nested: str = "none",
    skip: str | None = None,
    compute_dtype: str = "default",
    shard_size: int = 0,
    allow_non_finite: bool = False,
    context: Context | None = None,
) -> ConvertReport:
    """Writes folder `out` with the matrices quantized that transformers would quantize.

    format         "nf4", "fp4", "int8" or "mxfp4"
    block          nf4, fp4: values per scale; 0: 64
    nested         nf4, fp4: how scales are quantized, too: "none", "nearest" or "grid"
    skip           a regular expression: weights with a match in their name stay as they are
    compute_dtype  nf4, fp4: what config.json tells readers to compute in

    >>> report = quantize("models/nibble-tiny", "example-nf4", format="nf4", nested="nearest")
    >>> report.converted, report.bytes_out < report.bytes_in
    (28, True)
    """
    context = context or Context()
    report = abi.options("nbl_convert_report")
    options = abi.options(
        "nbl_quantize_options",
        format=number_of("nbl_format", format, "format"),
        block=block,
        nested=number_of("nbl_nested", nested, "nested"),
        skip=None if skip is None else utf8(skip),
        compute_dtype=number_of("nbl_compute_dtype", compute_dtype, "compute_dtype"),
        shard_size=shard_size,
        allow_non_finite=allow_non_finite,
    )
    paths = path_of(model), path_of(out)
    context.session.call(lib.nbl_checkpoint_quantize, context.handle, *paths, byref(options), byref(report))
    return record_of(ConvertReport, report)


def dequantize(
    model: Path, out: Path, *, dtype: str = "default", shard_size: int = 0, context: Context | None = None
) -> ConvertReport:
    """The way back: packed weights become dense. `dtype` is theirs; "default": f32."""
    context = context or Context()
    report = abi.options("nbl_convert_report")
    options = abi.options(
        "nbl_dequantize_options", dtype=number_of("nbl_compute_dtype", dtype, "dtype"), shard_size=shard_size
    )
    paths = path_of(model), path_of(out)
    context.session.call(lib.nbl_checkpoint_dequantize, context.handle, *paths, byref(options), byref(report))
    return record_of(ConvertReport, report)


def diff(a: Path, b: Path, *, tolerance: float = 0, context: Context | None = None) -> Diff:
    """Compares two checkpoints. `within`: nothing is missing and every weight's rel_norm <= tolerance.

    >>> diff("models/nibble-tiny", "models/nibble-tiny").equal
    True
    """
    context = context or Context()
    session = context.session
    kind = "diff", lib.nbl_diff_free, lib.nbl_checkpoint_diff
    handle = session.open(*kind, context.handle, path_of(a), path_of(b))
    try:
        with session.work(handle) as (found,):
            return Diff(
                tensors=records_of(TensorDiff, lib.nbl_diff_get_tensor, found),
                missing_in_a=texts_of(lib.nbl_diff_get_missing_in_a, found),
                missing_in_b=texts_of(lib.nbl_diff_get_missing_in_b, found),
                equal=lib.nbl_diff_equal(found),
                within=lib.nbl_diff_within(found, tolerance),
            )
    finally:
        handle.close()
