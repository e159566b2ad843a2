"""The clients for Python and JavaScript against the whole system."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from banksman import sdk
from tests.gateway.clients.drivers import install
from tests.scenarios.conftest import Play, nats_url, operator_seed
from tests.support.paths import ROOT
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import System
from tests.support.timeouts import WAIT_TIMEOUT_S

BLOCK = re.compile(r"```(python|js)\n(.*?)```", re.DOTALL)
SCRIPT = (
    ScriptedReply(tool_calls=(ScriptedCall(name="bash", arguments={"command": "echo hello"}),)),
    ScriptedReply(text="It printed hello."),
)
PROGRAMS = dict(BLOCK.findall((ROOT / "docs/clients.md").read_text(encoding="utf-8")))


async def output_of(program: str, folder: Path, command: str) -> str:
    """Run a program of the page and return its output."""
    file = folder / ("program.mjs" if command == "node" else "program.py")
    file.write_text(program, encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        command, str(file), cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return output.decode()


def adapted(program: str, system: System, model: str) -> str:
    """Return the program with the system's address and a scripted model."""
    separator = "=" if "asyncio" in program else ": "
    titled = re.compile(r"(['\"])A first run['\"]")
    return titled.sub(rf"\g<0>, model{separator}\1{model}\1", program).replace(
        "http://127.0.0.1:8080", system.url
    )


async def test_the_ten_lines_in_python_complete_a_run(system: System, play: Play, tmp_path: Path) -> None:
    model = play(*SCRIPT)
    program = adapted(PROGRAMS["python"], system, model)
    assert await output_of(program, tmp_path, sys.executable) == "completed\n"


async def test_the_ten_lines_in_javascript_complete_a_run(system: System, play: Play, tmp_path: Path) -> None:
    model = play(*SCRIPT)
    program = adapted(PROGRAMS["js"], system, model)
    assert await output_of(program, install(tmp_path / "node"), "node") == "completed\n"


@pytest.fixture(params=["websocket", "nats"])
async def connected(request: pytest.FixtureRequest, system: System) -> AsyncGenerator[sdk.Client]:
    """A client over each interface."""
    if request.param == "nats":
        connecting = sdk.connect(nats_url(system), "local", nkey_seed_file=operator_seed(system))
    else:
        connecting = sdk.connect(system.url)
    async with connecting as client:
        yield client


async def test_files_are_stored_read_listed_and_deleted(connected: sdk.Client) -> None:
    conversation_id = await connected.create_conversation(title="Files")
    large = bytes(range(256)) * 6_000
    await connected.write_file(conversation_id, "notes/größe 1.txt", b"one")
    await connected.write_file(conversation_id, "large.bin", large)
    listed = {entry.path: entry.size for entry in await connected.files(conversation_id)}
    read = [await connected.read_file(conversation_id, path) for path in ("notes/größe 1.txt", "large.bin")]
    await connected.delete_file(conversation_id, "large.bin")

    assert (listed, read) == ({"notes/größe 1.txt": 3, "large.bin": len(large)}, [b"one", large])
    assert [entry.path for entry in await connected.files(conversation_id)] == ["notes/größe 1.txt"]
    with pytest.raises(sdk.RemoteError):
        await connected.read_file(conversation_id, "large.bin")
