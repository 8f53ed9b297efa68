"""Loads lib/libnibble_torch.so: torch's operators of the namespace nibble, and all of libnibble."""

from __future__ import annotations

import ctypes
from pathlib import Path

PATH = Path(__file__).resolve().parent / "lib" / "libnibble_torch.so"
OLDEST_TORCH = (2, 9)


def _torch_version(text: str) -> tuple[int, int]:
    """The first two numbers of "2.15.0+cu132" or "2.9.0a0"."""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def load() -> ctypes.CDLL:
    """Registers the operators. An ImportError says what is missing. Calling it again is harmless."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "nibble_torch needs PyTorch 2.9 or later, which is not installed: pip install torch"
        ) from error
    if _torch_version(torch.__version__) < OLDEST_TORCH:
        raise ImportError(
            f"nibble_torch needs PyTorch 2.9 or later, found {torch.__version__}: pip install -U torch"
        )
    if not PATH.exists():
        raise ImportError(
            f"nibble_torch is incomplete, {PATH} is missing: pip install --force-reinstall nibble-torch"
        )
    try:
        torch.ops.load_library(PATH)  # type: ignore[no-untyped-call]
        library = ctypes.CDLL(str(PATH))
    except OSError as error:
        reason = error.__cause__ or error
        raise ImportError(
            f"nibble_torch cannot load its library ({reason}): pip install --force-reinstall nibble-torch"
        ) from error
    if not hasattr(torch.ops.nibble, "linear_backward"):
        raise ImportError(
            "the operators of nibble are not registered: another library holds the namespace nibble"
        )
    return library
