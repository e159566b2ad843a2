"""Tool servers that restart: calls wait for them, and run as they were approved (P2, P4)."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.scenarios.conftest import Play
from tests.scenarios.test_tool_registry import call, listed, observer, offered, process, results
from tests.support.client import Client
from tests.support.system import ScriptedModel, System

from banksman.contracts.ids import new_id
from banksman.model_server import Reply
from banksman.sdk import ToolServer

__all__ = ["observer"]

pytestmark = pytest.mark.timeout(240)

WAIT_TIMEOUT_S = 60.0
"""Seconds, where processes start on a machine that has more to do."""
ENTER = """
import sys
from pathlib import Path
from banksman.sdk import ToolServer, tool

@tool(name=sys.argv[1], requires_approval={approval})
def enter(marker: str{more}) -> str:
    "Enter a marker into the ledger."
    with Path(sys.argv[2]).open("a") as ledger:
        ledger.write(f"{{marker}}\\n")
    return "entered"

ToolServer(sys.argv[1]).run()
"""


@dataclass
class Ledger:
    """A tool server in a process of its own, whose one tool leaves a trace."""

    system: System
    directory: Path
    observer: ToolServer
    name: str
    approval: bool = False

    def deployed(self, more: str = "") -> Any:
        """One process of it, for the length of a block; `more` are further parameters of the tool."""
        file = self.directory / "server.py"
        file.write_text(ENTER.format(approval=self.approval, more=more))
        return process(self.system, sys.executable, str(file), self.name, str(self.file))

    @property
    def file(self) -> Path:
        return self.directory / "ledger"

    @property
    def entries(self) -> list[str]:
        return self.file.read_text().split() if self.file.exists() else []

    async def serves(self, instances: int = 1) -> None:
        """Wait until so many processes serve it, as the registry knows."""
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while True:
                one = await listed(self.observer, self.name)
                if (one.instances if one else 0) == instances:
                    return
                await asyncio.sleep(0.05)

    async def end(self, running: asyncio.subprocess.Process) -> None:
        """`kill -9`, and wait until everybody knows."""
        running.kill()
        await running.wait()
        await self.serves(0)


@pytest.fixture
def ledger(system: System, client: Client, observer: ToolServer, tmp_path: Path) -> Ledger:
    client.timeout_s = WAIT_TIMEOUT_S
    return Ledger(system, tmp_path, observer, new_id("enter-"))


async def test_a_call_of_a_server_that_restarts_waits_for_it(
    client: Client, play: Play, model: ScriptedModel, ledger: Ledger
) -> None:
    """R57: while it is away it is not offered anew, and a model that calls it all the same is served."""
    name = play(Reply(tool_calls=(call(ledger.name, marker="a"),)), Reply(text="done"))
    conversation = await client.create(name)
    async with ledger.deployed() as first:
        await ledger.serves()
        await ledger.end(first)
        run_id = await client.chat(conversation, "go")
        await client.event("tool_call.requested", run_id=run_id)
    async with ledger.deployed():
        outcome = await client.finished(run_id)

    assert outcome["status"] == "completed"
    assert ledger.name not in offered(model, name, 0)
    assert [result["error_kind"] for result in results(client, conversation)] == [None]
    assert ledger.entries == ["a"]


async def test_a_conversation_keeps_the_tools_it_has_called_while_their_server_restarts(
    client: Client, play: Play, model: ScriptedModel, ledger: Ledger
) -> None:
    """The model is not told that a tool is gone which it used a moment ago."""
    steps = [Reply(tool_calls=(call(ledger.name, marker=marker),)) for marker in ("a", "b")]
    name = play(steps[0], Reply(text="one"), steps[1], Reply(text="two"))
    conversation = await client.create(name)
    async with ledger.deployed() as first:
        await ledger.serves()
        await client.run(conversation, "go")
        await ledger.end(first)
        run_id = await client.chat(conversation, "go on")
        await client.event("tool_call.requested", run_id=run_id)
    async with ledger.deployed():
        outcome = await client.finished(run_id)

    assert outcome["content"] == "two"
    assert ledger.name in offered(model, name, 2)
    assert ledger.entries == ["a", "b"]


async def test_what_was_approved_runs_once_though_its_server_was_redeployed_meanwhile(
    client: Client, play: Play, ledger: Ledger
) -> None:
    """P3, P4: decided while no process is there; the next one gets the call as it was approved."""
    ledger.approval = True
    conversation = await client.create(
        play(Reply(tool_calls=(call(ledger.name, marker="a"),)), Reply(text="done"))
    )
    async with ledger.deployed() as first:
        await ledger.serves()
        run_id = await client.chat(conversation, "go")
        asked = await client.question(run_id)
        await ledger.end(first)
        await client.approve(run_id)
        await client.resolved(asked["approval_id"])
    async with ledger.deployed():
        outcome = await client.finished(run_id)

    assert outcome["status"] == "completed"
    assert ledger.entries == ["a"]


async def test_what_was_approved_does_not_run_where_the_tool_has_become_another(
    client: Client, play: Play, ledger: Ledger
) -> None:
    """P4: the arguments that a person saw are no longer the tool's; none is filled in, and nothing runs."""
    ledger.approval = True
    conversation = await client.create(
        play(Reply(tool_calls=(call(ledger.name, marker="a"),)), Reply(text="It was refused."))
    )
    async with ledger.deployed() as first:
        await ledger.serves()
        run_id = await client.chat(conversation, "go")
        await client.question(run_id)
        await ledger.end(first)
    async with ledger.deployed(", page: int"):
        await ledger.serves()
        await client.approve(run_id)
        outcome = await client.finished(run_id)

    assert outcome["content"] == "It was refused."
    [result] = results(client, conversation)
    assert result["error_kind"] == "invalid_arguments"
    assert "page" in result["content"]["error"]
    assert ledger.entries == []
