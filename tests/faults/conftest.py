"""Every test below this folder injects faults into a broker or a process."""

import pytest


@pytest.fixture(autouse=True)
def fault_injection() -> None:
    """Marks the test `faults`, see tests/support/needs.py."""
