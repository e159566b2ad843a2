"""Tool servers that restart: calls wait for them, and run as they were approved (P2, P4)."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from banksman.contracts.ids import new_id
from banksman.sdk import ToolServer
from tests.scenarios.conftest import Play
from tests.scenarios.test_tool_registry import call, listed, observer, offered, process, results
from tests.support.client import Client
from tests.support.polling import eventually
from tests.support.scripted_models import ScriptedReply
from tests.support.system import ScriptedModel, System

__all__ = ["observer"]

pytestmark = pytest.mark.timeout(240)

WAIT_TIMEOUT_S = 60.0
"""Seconds for the start of processes on a busy machine."""
ENTER = """
import sys
from pathlib import Path
from banksman.sdk import ToolServer, tool

@tool(name=sys.argv[1], requires_approval={approval})
def enter(marker: str{more}) -> str:
    "Append a marker to the file."
    with Path(sys.argv[2]).open("a") as appender:
        appender.write(f"{{marker}}\\n")
    return "entered"

ToolServer(sys.argv[1]).run()
"""


@dataclass
class AppendServer:
    """A tool server in its own process, whose one tool appends to a file."""

    system: System
    directory: Path
    observer: ToolServer
    name: str
    approval: bool = False

    def deployed(self, more: str = "") -> Any:
        """Run one process of it during the context; `more` are further parameters of the tool."""
        file = self.directory / "server.py"
        file.write_text(ENTER.format(approval=self.approval, more=more))
        return process(self.system, sys.executable, str(file), self.name, str(self.file))

    @property
    def file(self) -> Path:
        return self.directory / "appender"

    @property
    def entries(self) -> list[str]:
        return self.file.read_text().split() if self.file.exists() else []

    async def serves(self, instances: int = 1) -> None:
        """Wait until the registry lists `instances` processes for it."""

        async def serves() -> bool:
            one = await listed(self.observer, self.name)
            return (one.instances if one else 0) == instances

        await eventually(serves, WAIT_TIMEOUT_S, interval_s=0.05)

    async def end(self, running: asyncio.subprocess.Process) -> None:
        """`kill -9`, and wait until the registry has removed the process."""
        running.kill()
        await running.wait()
        await self.serves(0)


@pytest.fixture
def appender(system: System, client: Client, observer: ToolServer, tmp_path: Path) -> AppendServer:
    client.timeout_s = WAIT_TIMEOUT_S
    return AppendServer(system, tmp_path, observer, new_id("enter-"))


async def test_a_call_waits_for_a_restarting_server(
    client: Client, play: Play, model: ScriptedModel, appender: AppendServer
) -> None:
    """R57: while it restarts it is not offered again, but a call of a model waits for it."""
    name = play(ScriptedReply(tool_calls=(call(appender.name, marker="a"),)), ScriptedReply(text="done"))
    conversation = await client.create(name)
    async with appender.deployed() as first:
        await appender.serves()
        await appender.end(first)
        run_id = await client.chat(conversation, "go")
        await client.event("tool_call.requested", run_id=run_id)
    async with appender.deployed():
        outcome = await client.finished(run_id)

    assert outcome["status"] == "completed"
    assert appender.name not in offered(model, name, 0)
    assert [result["error_kind"] for result in results(client, conversation)] == [None]
    assert appender.entries == ["a"]


async def test_a_conversation_keeps_the_tools_it_has_called_while_their_server_restarts(
    client: Client, play: Play, model: ScriptedModel, appender: AppendServer
) -> None:
    """A tool that the model has just used does not disappear from its requests."""
    steps = [ScriptedReply(tool_calls=(call(appender.name, marker=marker),)) for marker in ("a", "b")]
    name = play(steps[0], ScriptedReply(text="one"), steps[1], ScriptedReply(text="two"))
    conversation = await client.create(name)
    async with appender.deployed() as first:
        await appender.serves()
        await client.run(conversation, "go")
        await appender.end(first)
        run_id = await client.chat(conversation, "go on")
        await client.event("tool_call.requested", run_id=run_id)
    async with appender.deployed():
        outcome = await client.finished(run_id)

    assert outcome["content"] == "two"
    assert appender.name in offered(model, name, 2)
    assert appender.entries == ["a", "b"]


async def test_an_approved_call_runs_once_after_its_server_was_redeployed(
    client: Client, play: Play, appender: AppendServer
) -> None:
    """P3, P4: the decision arrives while no process runs; the next one gets the call as it was approved."""
    appender.approval = True
    conversation = await client.create(
        play(ScriptedReply(tool_calls=(call(appender.name, marker="a"),)), ScriptedReply(text="done"))
    )
    async with appender.deployed() as first:
        await appender.serves()
        run_id = await client.chat(conversation, "go")
        request = await client.approval_request(run_id)
        await appender.end(first)
        await client.approve(run_id)
        await client.resolved(request["approval_id"])
    async with appender.deployed():
        outcome = await client.finished(run_id)

    assert outcome["status"] == "completed"
    assert appender.entries == ["a"]


async def test_an_approved_call_does_not_run_if_its_tool_has_changed(
    client: Client, play: Play, appender: AppendServer
) -> None:
    """P4: the arguments that a user saw no longer fit the tool; none is added, and nothing runs."""
    appender.approval = True
    conversation = await client.create(
        play(
            ScriptedReply(tool_calls=(call(appender.name, marker="a"),)),
            ScriptedReply(text="It was refused."),
        )
    )
    async with appender.deployed() as first:
        await appender.serves()
        run_id = await client.chat(conversation, "go")
        await client.approval_request(run_id)
        await appender.end(first)
    async with appender.deployed(", page: int"):
        await appender.serves()
        await client.approve(run_id)
        outcome = await client.finished(run_id)

    assert outcome["content"] == "It was refused."
    [result] = results(client, conversation)
    assert result["error_kind"] == "invalid_arguments"
    assert "page" in result["content"]["error"]
    assert appender.entries == []
