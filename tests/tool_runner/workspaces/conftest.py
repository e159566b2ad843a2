"""A server without runners for tests that create their own, and a shared server with one runner."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterator
from pathlib import Path

import pytest
from tests.support.fixtures import SecuredNats, secured_server
from tests.support.forks import ServiceForks
from tests.tool_runner.service.processes import RunnerProcess, Runners
from tests.tool_runner.workspaces.platform import Platform, platform, started


@pytest.fixture
def secured(tmp_path: Path) -> Generator[SecuredNats]:
    """A server for one test, so that all its runners belong to the test."""
    with secured_server(tmp_path) as server:
        yield server


@pytest.fixture
def runners(secured: SecuredNats, forks: ServiceForks) -> Iterator[Runners]:
    made = Runners(secured, forks)
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared_nats(tmp_path_factory: pytest.TempPathFactory) -> Generator[SecuredNats]:
    with secured_server(tmp_path_factory.mktemp("keys")) as server:
        yield server


@pytest.fixture(scope="module")
def quick_runner(shared_nats: SecuredNats, forks: ServiceForks) -> Iterator[RunnerProcess]:
    """A runner that snapshots a changed workspace immediately. No test ends it."""
    made = Runners(shared_nats, forks)
    yield started(made, 1)[0]
    made.close()


@pytest.fixture
async def here(shared_nats: SecuredNats, quick_runner: RunnerProcess) -> AsyncGenerator[Platform]:
    """The platform with the shared runner and a tenant for one test."""
    async with platform(shared_nats) as made:
        await made.sees(quick_runner)
        yield made
