"""Fixtures of the page's tests."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.e2e.stage import Stage, staged
from tests.support import privileged
from tests.support.timeouts import WAIT_TIMEOUT_S

AXE = Path(__file__).parent / "axe"


@pytest.fixture
async def stage() -> AsyncGenerator[Stage]:
    """The page behind a scripted gateway."""
    async with staged() as running:
        yield running


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core, which is pinned in `axe/` and never shipped."""
    npm = shutil.which("npm")
    privileged.require("npm", npm is not None, "the accessibility rules are an npm package")
    folder = tmp_path_factory.mktemp("axe") / "axe"
    shutil.copytree(AXE, folder, ignore=shutil.ignore_patterns("node_modules"))
    done = subprocess.run(
        ["npm", "ci", "--no-audit", "--no-fund", "--prefer-offline"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=2 * WAIT_TIMEOUT_S,
    )
    privileged.require("npm packages", done.returncode == 0, f"npm ci: {done.stderr[-300:]}")
    return (folder / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")
