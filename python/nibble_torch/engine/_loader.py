"""Where the library lies."""
from pathlib import Path

import torch  # noqa: F401  (the library needs libtorch to be loaded)


def library_path() -> Path:
    return Path(__file__).resolve().parent.parent / "lib" / "libnibble_torch.so"
