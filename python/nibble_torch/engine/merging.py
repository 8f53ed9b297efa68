"""One model out of a base and its adapter: a folder for transformers, or a GGUF file for llama.cpp."""

from __future__ import annotations

from ctypes import byref
from dataclasses import dataclass

from ._abi import abi, lib
from ._arrays import Path, path_of
from ._records import number_of, record_of
from .context import Context


@dataclass(frozen=True)
class MergeReport:
    """What merge has written. The last four: only with `verify`."""

    tensors: int
    changed: int
    bytes_in: int
    bytes_out: int
    files: int
    non_finite: int
    dtype: str
    verified: bool
    max_logit_deviation: float
    relative_deviation: float
    allowed_deviation: float


@dataclass(frozen=True)
class ExportReport:
    """What export has written. `fallen_back`: matrices that had to be f16."""

    tensors: int
    parameters: int
    fallen_back: int
    bytes: int


def merge(
    base: Path,
    adapter: Path,
    out: Path,
    *,
    dtype: str = "default",
    verify: bool = False,
    shard_size: int = 0,
    allow_non_finite: bool = False,
    context: Context | None = None,
) -> MergeReport:
    """Writes folder `out` from folder `base`, 16-bit or packed, and `adapter`, a folder as PEFT saves it.

    dtype             of all weights; "default": the one that config.json names, else bf16
    verify            compares logits of the result with those of the base with its adapter
    shard_size        bytes per file of weights; 0: 5 * 10^9
    allow_non_finite  NaN and infinities in a weight are a warning

        merge("models/nibble-tiny", "sums-out", "sums-merged", verify=True).verified
    """
    context = context or Context()
    report = abi.options("nbl_merge_report")
    options = abi.options(
        "nbl_merge_options",
        dtype=number_of("nbl_compute_dtype", dtype, "dtype"),
        verify=verify,
        shard_size=shard_size,
        allow_non_finite=allow_non_finite,
    )
    paths = path_of(base), path_of(adapter), path_of(out)
    context.session.call(lib.nbl_merge, context.handle, *paths, byref(options), byref(report))
    return record_of(MergeReport, report)


def export(
    model: Path,
    out: Path,
    *,
    type: str = "default",
    adapter: Path | None = None,
    ollama: bool = False,
    context: Context | None = None,
) -> ExportReport:
    """Writes the GGUF file `out` from folder `model`.

    type     of matrices: "f32", "f16", "bf16", "q8_0" or "q4_0"; "default": only with an adapter
    adapter  with a type it is merged into the weights; without one the file is a LoRA for the exported model
    ollama   writes a Modelfile into the same folder

    >>> export("models/nibble-tiny", "example.gguf", type="q8_0").parameters
    918656
    """
    context = context or Context()
    report = abi.options("nbl_export_report")
    options = abi.options(
        "nbl_export_options",
        type=number_of("nbl_export_type", type, "type"),
        adapter=path_of(adapter),
        ollama=ollama,
    )
    context.session.call(
        lib.nbl_export, context.handle, path_of(model), path_of(out), byref(options), byref(report)
    )
    return record_of(ExportReport, report)
