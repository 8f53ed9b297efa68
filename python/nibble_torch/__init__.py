"""nibble for PyTorch: fine-tunes language models whose frozen weights stay in 4 or 8 bits.

import nibble_torch                          torch.ops.nibble.* exist from here on
weight = nibble_torch.quantize(matrix)       packed in 4 bits
y = nibble_torch.linear(x, weight, lora_a=a, lora_b=b)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _library

_library.load()

from . import _autograd, _fake  # noqa: E402, F401
from .modules import Linear  # noqa: E402
from .ops import (  # noqa: E402
    Layer,
    add_rmsnorm,
    cross_entropy,
    dequantize,
    dora_norm,
    linear,
    linear_group,
    mlp,
    norm_rope,
    quantize,
    rmsnorm,
)
from .weight import Format, Nested, Weight  # noqa: E402

if TYPE_CHECKING:
    from ._accelerate import Report, accelerate, restore

__all__ = [
    "Format",
    "Layer",
    "Linear",
    "Nested",
    "Report",
    "Weight",
    "accelerate",
    "add_rmsnorm",
    "cross_entropy",
    "dequantize",
    "dora_norm",
    "engine",
    "linear",
    "linear_group",
    "mlp",
    "norm_rope",
    "quantize",
    "restore",
    "rmsnorm",
]


def __getattr__(name: str) -> Any:
    """accelerate and engine need more than torch: they are imported when they are first used."""
    import importlib

    if name in ("Report", "accelerate", "restore"):
        return getattr(importlib.import_module("._accelerate", __name__), name)
    if name == "engine":
        return importlib.import_module(".engine", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
