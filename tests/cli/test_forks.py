"""The services of one machine are forked from a process that has imported them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from banksman.cli.local.forks import ForkedProcess, ForkRequest, ServiceTemplate
from banksman.cli.machine import free_port
from banksman.cli.state import readiness_problem
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

SERVICE = "model-server"
TITLE = f"{sys.executable} -m banksman.cli {SERVICE}"


@pytest.fixture
async def template() -> AsyncGenerator[ServiceTemplate]:
    template = ServiceTemplate((SERVICE,), {"PATH": os.environ["PATH"]})
    yield template
    await template.close()


async def test_a_forked_service_is_ready_has_its_own_name_and_ends_with_its_exit_code(
    template: ServiceTemplate, tmp_path: Path
) -> None:
    port = free_port()
    process = await _forked(template, tmp_path, BANKSMAN_MODEL_SERVER__PORT=str(port))
    await _ready(port)

    command = _proc(process, "cmdline")
    os.kill(process.pid, signal.SIGTERM)

    assert command.replace("\0", " ").strip() == TITLE
    assert await _ended(process) == 0


async def test_the_environment_of_a_forked_service_is_readable_for_no_other_process(
    template: ServiceTemplate, tmp_path: Path
) -> None:
    """The memory that /proc shows holds the environment of the template, which has no secret."""
    port = free_port()
    process = await _forked(
        template, tmp_path, BANKSMAN_MODEL_SERVER__PORT=str(port), OPENAI_API_KEY="sk-canary"
    )
    await _ready(port)

    assert "canary" not in _proc(process, "environ")
    os.kill(process.pid, signal.SIGKILL)
    assert await _ended(process) == -signal.SIGKILL


async def test_a_service_with_an_invalid_setting_ends_with_its_own_sentence(
    template: ServiceTemplate, tmp_path: Path
) -> None:
    process = await _forked(template, tmp_path, BANKSMAN_MODEL_SERVER__PORT="none")

    assert await _ended(process) == 2
    assert "BANKSMAN_MODEL_SERVER__PORT" in (tmp_path / "output").read_text()


async def test_services_end_with_their_template_and_the_next_one_has_a_new_template(
    template: ServiceTemplate, tmp_path: Path
) -> None:
    """A `kill -9` leaves no service without a supervisor."""
    first_port, second_port = free_port(), free_port()
    first = await _forked(template, tmp_path, BANKSMAN_MODEL_SERVER__PORT=str(first_port))
    await _ready(first_port)

    os.kill(_parent(first), signal.SIGKILL)
    code = await _ended(first)
    second = await _forked(template, tmp_path, BANKSMAN_MODEL_SERVER__PORT=str(second_port))
    await _ready(second_port)

    assert code == -signal.SIGKILL
    await eventually(lambda: not Path(f"/proc/{first.pid}").exists() or None, WAIT_TIMEOUT_S)
    os.kill(second.pid, signal.SIGTERM)
    assert await _ended(second) == 0


async def _forked(template: ServiceTemplate, directory: Path, **environment: str) -> ForkedProcess:
    request = ForkRequest(SERVICE, TITLE, {"PATH": os.environ["PATH"], **environment})
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        with (directory / "output").open("wb") as output:
            return await template.fork(request, output.fileno())


async def _ready(port: int) -> None:
    async def ready() -> bool:
        return await readiness_problem(f"http://127.0.0.1:{port}/readyz") is None

    await eventually(ready, WAIT_TIMEOUT_S)


async def _ended(process: ForkedProcess) -> int:
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        return await process.wait()


def _proc(process: ForkedProcess, name: str) -> str:
    return Path(f"/proc/{process.pid}/{name}").read_text()


def _parent(process: ForkedProcess) -> int:
    return int(_proc(process, "stat").rpartition(")")[2].split()[1])
