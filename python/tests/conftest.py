"""What all tests share: the environment of torch, a seed for each test, the marker of slow ones."""

from __future__ import annotations

import os
import signal
import sys

import pytest

# A shell starts background jobs with Ctrl-C ignored, and Python then leaves it so. Tests of interruptions need it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# torch's own bf16 product dies with an illegal instruction on machines that announce AMX and do not have it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# Where the package is installed, bitsandbytes would compute with nibble what nibble is compared with.
os.environ["NIBBLE_BITSANDBYTES"] = "off"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes more than 20 seconds")


@pytest.fixture(autouse=True)
def _repeatable() -> None:
    """Tests that need no torch do not import it."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
