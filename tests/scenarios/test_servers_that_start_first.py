"""Tool and workflow servers that start before the system, or stay while it moves to another address."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from banksman.cli.machine import bind_error
from tests.support.polling import eventually
from tests.support.system import System
from tests.support.timeouts import WAIT_TIMEOUT_S

pytestmark = pytest.mark.timeout(300)

SERVERS = {
    "tool": """
from banksman.sdk import ToolServer, tool

@tool(requires_approval=False)
def early() -> str:
    "Return a word."
    return "early"

ToolServer("early").run()
""",
    "workflow": """
from banksman.sdk import WorkflowContext, WorkflowServer, workflow

@workflow(category="test")
async def early(context: WorkflowContext) -> str:
    "Return a word."
    return "early"

WorkflowServer("early", [early]).run()
""",
}


@asynccontextmanager
async def running(kind: str, data: Path) -> AsyncGenerator[tuple[asyncio.subprocess.Process, Path]]:
    """Run a server beside a system whose data directory may be empty; yield it and its output."""
    output = data.with_name(f"{kind}.out")
    environment = {**os.environ, "BANKSMAN_DATA_DIR": str(data)}
    with output.open("wb") as out:
        command = (sys.executable, "-c", SERVERS[kind])
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=out, stderr=out)
    try:
        yield process, output
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def occupied(port: int) -> socket.socket:
    """Listen on a port as soon as the killed server has left it."""

    def free() -> bool:
        return bind_error("127.0.0.1", port, reuse=True) is None

    await eventually(free, WAIT_TIMEOUT_S)
    return socket.create_server(("127.0.0.1", port))


async def ended(process: asyncio.subprocess.Process) -> None:
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        assert await process.wait() == 0


async def waits(output: Path) -> None:
    def said() -> bool:
        return "does not exist: start `banksman up`" in output.read_text()

    await eventually(said, WAIT_TIMEOUT_S)


def serves(system: System) -> Callable[[], Awaitable[bool]]:
    """Return whether the tool can be called and the workflow runs."""

    async def found() -> bool:
        async with httpx.AsyncClient(base_url=system.url, timeout=90, trust_env=False) as http:
            tools = (await http.get("/context/tools")).text
            started = await http.post("/workflows/early/runs", json={"parameters": {}})
            if '"early"' not in tools or started.status_code != 202:
                return False
            run = await http.get(f"/context/runs/{started.json()['run_id']}", params={"wait_s": 60})
            return run.json().get("status") == "completed"

    return found


@pytest.fixture
def system(tmp_path: Path) -> Generator[System]:
    """A system that has not started."""
    tmp_path.chmod(0o711)
    system = System(tmp_path / "data", None)
    yield system
    system.close()


async def test_servers_wait_for_the_system_and_follow_it_to_another_port(system: System) -> None:
    async with (
        running("tool", system.data_dir) as (tool, said),
        running("workflow", system.data_dir) as (
            workflow,
            also_said,
        ),
    ):
        await waits(said)
        await waits(also_said)
        await asyncio.to_thread(system.start)
        await eventually(serves(system), 2 * WAIT_TIMEOUT_S)
        before = _address(system)
        system.kill_everything()
        with await occupied(int(before.rpartition(":")[2])):
            await asyncio.to_thread(system.start)
            assert _address(system) != before
            await eventually(serves(system), 2 * WAIT_TIMEOUT_S)
        for process in (tool, workflow):
            await ended(process)
        for output in (said, also_said):
            assert output.read_text().count("does not exist: start") == 1
            assert "Traceback" not in output.read_text()


def _address(system: System) -> str:
    return str(json.loads((system.data_dir / "nats-context.json").read_text())["url"])
