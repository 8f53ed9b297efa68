"""The engine of nibble in Python: opens models, plans, trains, generates, merges and exports.

Each function and method calls one function of libnibble's public interface. include/nibble.h says more.

    from nibble_torch.engine import Model, Run, merge

    run = Run("examples/train/sums.yml")
    run.train(on_step=lambda event: print(event.step, event.loss))

    with Model("models/nibble-tiny", adapter="sums-out") as model:
        tokenizer = model.tokenizer()
        answer = model.generate([tokenizer.encode("What is 3 plus 4?")], max_tokens=16)[0]
        print(tokenizer.decode(answer.ids))

    merge("models/nibble-tiny", "sums-out", "sums-merged", verify=True)

A failure is a NibbleError with `status` and `hint`, which is also Python's matching exception, such as
FileNotFoundError. A callback that raises stops the work. The exception is raised when the library has
stopped.
"""

from __future__ import annotations

from .chats import ChatEncoder, ChatRow, ChatTemplate, Rendering
from .checkpoints import ConvertReport, Diff, TensorDiff, dequantize, diff, quantize
from .context import (
    Context,
    CudaDevice,
    IsaLevel,
    Library,
    Progress,
    cores,
    cuda_built,
    guard_mapped_files,
    libraries,
    processor_name,
    version,
)
from .errors import (
    ArgumentError,
    BusyError,
    CancelledError,
    ClosedError,
    DtypeError,
    ExistsError,
    FileError,
    FormatError,
    InternalError,
    NibbleError,
    NoSpaceError,
    NotFoundError,
    OutOfMemoryError,
    ShapeError,
    Status,
    UnsupportedError,
)
from .inspecting import (
    AdapterInfo,
    AdapterSummary,
    AdapterTensor,
    CheckpointInfo,
    CheckpointSummary,
    GgufEntry,
    GgufInfo,
    GgufSpecial,
    GgufSummary,
    GgufTensor,
    TensorInfo,
    Weight,
    inspect_adapter,
    inspect_checkpoint,
    inspect_gguf,
)
from .merging import ExportReport, MergeReport, export, merge
from .models import Evaluation, Generated, Gradients, Model, check_result
from .plans import Arenas, Plan, PlannedCast, PlannedOp, PlannedValue, PlanSummary
from .runs import DataSummary, Preview, PreviewPart, Run, RunInfo, TrainEvent, TrainSummary
from .text import StopMatcher, TextStream, Tokenizer

__all__ = [
    "AdapterInfo",
    "AdapterSummary",
    "AdapterTensor",
    "Arenas",
    "ArgumentError",
    "BusyError",
    "CancelledError",
    "ChatEncoder",
    "ChatRow",
    "ChatTemplate",
    "CheckpointInfo",
    "CheckpointSummary",
    "ClosedError",
    "Context",
    "ConvertReport",
    "CudaDevice",
    "DataSummary",
    "Diff",
    "DtypeError",
    "Evaluation",
    "ExistsError",
    "ExportReport",
    "FileError",
    "FormatError",
    "Generated",
    "GgufEntry",
    "GgufInfo",
    "GgufSpecial",
    "GgufSummary",
    "GgufTensor",
    "Gradients",
    "InternalError",
    "IsaLevel",
    "Library",
    "MergeReport",
    "Model",
    "NibbleError",
    "NoSpaceError",
    "NotFoundError",
    "OutOfMemoryError",
    "Plan",
    "PlanSummary",
    "PlannedCast",
    "PlannedOp",
    "PlannedValue",
    "Preview",
    "PreviewPart",
    "Progress",
    "Rendering",
    "Run",
    "RunInfo",
    "ShapeError",
    "Status",
    "StopMatcher",
    "TensorDiff",
    "TensorInfo",
    "TextStream",
    "Tokenizer",
    "TrainEvent",
    "TrainSummary",
    "UnsupportedError",
    "Weight",
    "check_result",
    "cores",
    "cuda_built",
    "dequantize",
    "diff",
    "export",
    "guard_mapped_files",
    "inspect_adapter",
    "inspect_checkpoint",
    "inspect_gguf",
    "libraries",
    "merge",
    "processor_name",
    "quantize",
    "version",
]
