"""The client for JavaScript, packed and installed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.gateway.clients.drivers import install


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with programs and the installed package."""
    return install(tmp_path_factory.mktemp("client") / "node")
