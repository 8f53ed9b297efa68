"""What is in a checkpoint, a GGUF file or an adapter, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

from ._abi import abi, lib
from ._arrays import Path, path_of
from ._records import record_of, records_of, texts_of
from .context import Context


@dataclass(frozen=True)
class CheckpointSummary:
    """The numbers of a checkpoint. `quantization` is "nf4", "int8", ... as the files tell it, or None."""

    architecture: str | None
    tensors: int
    parameters: int
    bytes: int
    quantization: str | None
    block: int
    nested: bool
    compute_dtype: str | None
    skipped: int
    problems: int


@dataclass(frozen=True)
class Weight:
    """How a weight is stored: its format, the dtype of dense values or of the original, values per scale."""

    format: str
    dtype: str
    shape: tuple[int, ...]
    block: int


@dataclass(frozen=True)
class TensorInfo:
    """A logical weight: its name, its file, its shape, its bytes on disk, and how it is stored."""

    name: str
    file: str
    shape: tuple[int, ...]
    bytes: int
    weight: Weight
    transposed: bool


@dataclass(frozen=True)
class CheckpointInfo:
    """What is in a checkpoint. `skipped`: modules whose matrices were not quantized."""

    summary: CheckpointSummary
    tensors: tuple[TensorInfo, ...]
    skipped: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class GgufSummary:
    """The numbers of a GGUF file. 0 and None: the file does not say."""

    kind: str
    architecture: str | None
    name: str | None
    version: int
    tensors: int
    entries: int
    parameters: int
    bytes: int
    file_bytes: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    context: int
    tokenizer: str | None
    pre: str | None
    vocabulary: int
    chat_templates: int
    problems: int


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of a GGUF file. The slowest dimension comes first. 0 bytes: the format is unknown."""

    name: str
    format: str
    shape: tuple[int, ...]
    elements: int
    bytes: int


@dataclass(frozen=True)
class GgufEntry:
    """An entry of the metadata. `value` is JSON; `cut`: there is more."""

    key: str
    type: str
    count: int
    value: str
    cut: bool


@dataclass(frozen=True)
class GgufSpecial:
    """A token that the metadata name, such as "bos"."""

    name: str
    id: int
    text: str | None


@dataclass(frozen=True)
class GgufInfo:
    """What is in a GGUF file."""

    summary: GgufSummary
    tensors: tuple[GgufTensor, ...]
    entries: tuple[GgufEntry, ...]
    specials: tuple[GgufSpecial, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class AdapterSummary:
    """The numbers of an adapter. `dtype` means something only with `same_dtype`."""

    type: str | None
    base_model: str | None
    task: str | None
    r: int
    alpha: float
    dropout: float
    rslora: bool
    dora: bool
    lora_bias: bool
    target: str | None
    modules: int
    replaced: int
    tensors: int
    parameters: int
    bytes: int
    same_dtype: bool
    dtype: str
    non_finite: int
    problems: int
    base_problems: int


@dataclass(frozen=True)
class AdapterTensor:
    """A tensor of an adapter."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    parameters: int
    bytes: int
    non_finite: int


@dataclass(frozen=True)
class AdapterInfo:
    """What is in an adapter: its tensors, target_modules, target_parameters, modules_to_save."""

    summary: AdapterSummary
    tensors: tuple[AdapterTensor, ...]
    targets: tuple[str, ...]
    parameters: tuple[str, ...]
    saved: tuple[str, ...]
    problems: tuple[str, ...]


def inspect_checkpoint(
    path: Path, *, check_values: bool = False, context: Context | None = None
) -> CheckpointInfo:
    """Looks into a folder in Hugging Face layout, or a .safetensors file. `problems` says what is wrong.

    check_values  also reads every value and looks for NaN and infinities

    >>> info = inspect_checkpoint("models/nibble-tiny")
    >>> info.summary.parameters, info.tensors[0].weight.dtype, info.problems
    (918656, 'bf16', ())
    """
    context = context or Context()
    session, tolerant = context.session, abi.enums["nbl_open_mode"]["NBL_OPEN_TOLERANT"]
    kind = "checkpoint", lib.nbl_checkpoint_close, lib.nbl_checkpoint_open
    handle = session.open(*kind, context.handle, path_of(path), tolerant)
    try:
        if check_values:
            session.call(lib.nbl_checkpoint_check_values, handle)
        with session.work(handle) as (checkpoint,):
            return CheckpointInfo(
                summary=record_of(CheckpointSummary, lib.nbl_checkpoint_get_summary(checkpoint).contents),
                tensors=records_of(TensorInfo, lib.nbl_checkpoint_get_tensor, checkpoint),
                skipped=texts_of(lib.nbl_checkpoint_get_skipped, checkpoint),
                problems=texts_of(lib.nbl_checkpoint_get_problem, checkpoint),
            )
    finally:
        handle.close()


def inspect_gguf(path: Path, *, context: Context | None = None) -> GgufInfo:
    """Looks into a GGUF file. Only its head is read.

    info = inspect_gguf("model.gguf")
    info.summary.architecture, info.tensors[0].format
    """
    context = context or Context()
    session = context.session
    kind = "gguf", lib.nbl_gguf_close, lib.nbl_gguf_open
    handle = session.open(*kind, context.handle, path_of(path))
    try:
        with session.work(handle) as (gguf,):
            return GgufInfo(
                summary=record_of(GgufSummary, lib.nbl_gguf_get_summary(gguf).contents),
                tensors=records_of(GgufTensor, lib.nbl_gguf_get_tensor, gguf),
                entries=records_of(GgufEntry, lib.nbl_gguf_get_entry, gguf),
                specials=records_of(GgufSpecial, lib.nbl_gguf_get_special, gguf),
                problems=texts_of(lib.nbl_gguf_get_problem, gguf),
            )
    finally:
        handle.close()


def inspect_adapter(path: Path, *, base: Path | None = None, context: Context | None = None) -> AdapterInfo:
    """Looks into an adapter, a folder as PEFT saves it, and reads all its values.

    base  a model that the adapter is compared with

        inspect_adapter("sums-out", base="models/nibble-tiny").problems
    """
    context = context or Context()
    session = context.session
    kind = "adapter", lib.nbl_adapter_close, lib.nbl_adapter_open
    handle = session.open(*kind, context.handle, path_of(path), path_of(base))
    try:
        with session.work(handle) as (adapter,):
            return AdapterInfo(
                summary=record_of(AdapterSummary, lib.nbl_adapter_get_summary(adapter).contents),
                tensors=records_of(AdapterTensor, lib.nbl_adapter_get_tensor, adapter),
                targets=texts_of(lib.nbl_adapter_get_target, adapter),
                parameters=texts_of(lib.nbl_adapter_get_parameter, adapter),
                saved=texts_of(lib.nbl_adapter_get_saved, adapter),
                problems=texts_of(lib.nbl_adapter_get_problem, adapter),
            )
    finally:
        handle.close()
