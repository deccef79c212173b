"""What all tests share: where the data lies, and a steady hypothesis."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

DATA = Path(__file__).parent / "data"

# Examples are the same on every run (a red suite can be repeated); EXPLORE=1 looks for new ones.
settings.register_profile(
    "kvfuse",
    deadline=None,
    derandomize=not os.environ.get("EXPLORE"),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("kvfuse")


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of test data."""
    return DATA


@pytest.fixture(scope="session")
def graphs() -> Path:
    """The folder of exported graphs, each with an .npz of recorded inputs and PyTorch's outputs."""
    return DATA / "graphs"
