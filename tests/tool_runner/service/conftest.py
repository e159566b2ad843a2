"""A server and a runner for all tests, and runners for single tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.docker_engine import DockerEngine
from tests.support.fixtures import SecuredNats, secured_server
from tests.support.forks import ServiceForks
from tests.tool_runner.service.owner import Owner, owning
from tests.tool_runner.service.processes import RunnerProcess, Runners


@pytest.fixture(scope="session")
def runners_nats(tmp_path_factory: pytest.TempPathFactory) -> Generator[SecuredNats]:
    """A server for all tests in this folder. No test stops it."""
    with secured_server(tmp_path_factory.mktemp("keys")) as secured:
        yield secured


@pytest.fixture(scope="session")
def session_runners(runners_nats: SecuredNats, forks: ServiceForks) -> Iterator[Runners]:
    made = Runners(runners_nats, forks)
    yield made
    made.close()


@pytest.fixture
def runners(runners_nats: SecuredNats, forks: ServiceForks) -> Iterator[Runners]:
    """Creates runners for one test, which may kill them."""
    made = Runners(runners_nats, forks)
    yield made
    made.close()


@pytest.fixture
def own_runners(tmp_path: Path, forks: ServiceForks) -> Iterator[Runners]:
    """Creates runners on a separate server, which the test may freeze."""
    with secured_server(tmp_path) as secured:
        made = Runners(secured, forks)
        yield made
        made.close()


@pytest.fixture
def north(tmp_path: Path, forks: ServiceForks) -> Iterator[Runners]:
    """Creates runners on a server where only the runner `north` has a key."""
    with secured_server(tmp_path, runners=("north",)) as secured:
        made = Runners(secured, forks)
        yield made
        made.close()


@pytest.fixture(params=["bwrap", "docker"])
def backend(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The settings of a runner, once per sandbox backend."""
    if request.param == "bwrap":
        return {}
    return request.getfixturevalue("docker")


@pytest.fixture
def docker(docker_engine: DockerEngine, base_image: str) -> dict[str, Any]:
    """The settings of a runner with the Docker backend."""
    return {
        "DOCKER_HOST": docker_engine.host,
        "BANKSMAN_TOOL_RUNNER__SANDBOX": "docker",
        "BANKSMAN_TOOL_RUNNER__DOCKER__IMAGE": base_image,
    }


@pytest.fixture(scope="session")
def runner(session_runners: Runners) -> RunnerProcess:
    """A runner for all tests. No test ends it; each test has its own tenant."""
    return session_runners.start()


@pytest.fixture
async def owner(runners_nats: SecuredNats, runner: RunnerProcess) -> AsyncGenerator[Owner]:
    """An owner that sends its calls to the shared runner."""
    async with owning(runners_nats, runner) as made:
        yield made
