"""What all tests share: the environment of torch, threads, and the marker of slow tests."""

import os

# torch's own bf16 product dies with an illegal instruction on machines that announce AMX and do not have it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes more than 20 seconds")


@pytest.fixture(autouse=True)
def _repeatable() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
