"""The entry point `bitsandbytes.backends`: `import bitsandbytes` calls register() at its end.

It is a package of its own because an exception here would make `import bitsandbytes` fail. So it imports
nothing but the standard library. What it does is in nibble_torch.bitsandbytes.
"""

from __future__ import annotations

import logging

__all__ = ["register"]


def register() -> None:
    """Gives bitsandbytes nibble's kernels. If that fails, it keeps its own, and one line is logged."""
    try:
        from nibble_torch import bitsandbytes

        bitsandbytes.register()
    except Exception as error:
        reason = str(error).split("\n", 1)[0] or type(error).__name__
        logging.getLogger("nibble_torch.bitsandbytes").warning(
            "bitsandbytes keeps its own kernels: %s", reason
        )
