"""Fixtures of the page's tests. Those with a browser share it, and its event loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.e2e.stage import Stage, staged
from tests.support.browser import shared_browser
from tests.support.node import packages_of

FOLDER = Path(__file__).parent
AXE = FOLDER / "axe"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests with a shared browser on one event loop, to which it is bound."""
    for item in items:
        if item.path.is_relative_to(FOLDER) and "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncGenerator[None]:
    """The browser of all pages that tests open."""
    async with shared_browser():
        yield


@pytest_asyncio.fixture(loop_scope="session")
async def stage(browser: None) -> AsyncGenerator[Stage]:
    """The page behind a scripted gateway."""
    async with staged() as running:
        yield running


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which is pinned in `axe/` and never shipped."""
    return (packages_of(AXE) / "axe-core/axe.min.js").read_text(encoding="utf-8")
