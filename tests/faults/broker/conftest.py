"""Fixtures for the tests of stores and backups."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.system import ScriptedModel, scripted_model


@pytest.fixture
def place() -> Generator[Path]:
    """A directory that the sandbox's user can reach."""
    with tempfile.TemporaryDirectory(prefix="banksman-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture
def model() -> Generator[ScriptedModel]:
    with scripted_model() as scripted:
        yield scripted
