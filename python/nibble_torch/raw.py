"""torch.ops.nibble with types: the operators as they are registered. raw.pyi has their signatures.

    from nibble_torch import raw
    y, saved = raw.linear(x, *weight.args, bias, a, b, magnitude, norm, scale, dropout, seed, threshold)

An absent tensor has no elements. The names are those of libnibble's header, section 14.
"""

from __future__ import annotations

from typing import Any

import torch


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(torch.ops.nibble, name)
