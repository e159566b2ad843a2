"""One fleet for all tests of this folder that leave it intact."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from banksman.contracts.ids import new_id
from banksman.runtime.failpoints import TESTING_VARIABLE, VARIABLE, Failpoint
from tests.support.chaos.fleet import Fleet
from tests.support.chaos.plans import ASSISTANTS, AUTO, command
from tests.support.client import Client
from tests.support.model_server import ModelServer
from tests.support.polling import eventually
from tests.support.scripted_models import ScriptedCall, ScriptedReply

SEED = int(os.environ.get("SEED", "2026"))
"""The seed of the randomized fault tests: the same in every run, unless SEED sets another."""
WAIT_TIMEOUT_S = 60.0
"""Seconds to wait for a short action while processes restart on a busy machine."""


@dataclass
class Stage:
    """A running fleet, its model, and operations on them."""

    fleet: Fleet
    model: ModelServer
    scripts: list[str] = field(default_factory=list)

    def connected(self, gateway: int = 0) -> Any:
        """Connect a websocket client to a gateway during the context."""
        return Client.connected(self.fleet.urls[gateway], timeout_s=WAIT_TIMEOUT_S)

    async def run(self, client: Client, *replies: ScriptedReply, assistant: str = AUTO) -> tuple[str, str]:
        """Start a run in a new conversation; return both ids."""
        conversation = await self.conversation(client, *replies, assistant=assistant)
        return conversation, await client.chat(conversation, "go")

    async def conversation(self, client: Client, *replies: ScriptedReply, assistant: str = AUTO) -> str:
        """Create a conversation whose model gives these replies."""
        self.scripts.append(new_id("s"))
        self.model.play(self.scripts[-1], replies, at_end="repeat")
        return await client.create(f"openai:scripted/{self.scripts[-1]}", assistant=assistant)

    def requests(self) -> list[dict[str, Any]]:
        """Return the bodies of the requests to the model of the latest conversation."""
        return [dict(request.body) for request in self.model.requests(self.scripts[-1])]

    async def arm(self, point: Failpoint, *members: str) -> None:
        """Restart members with an armed failpoint, which kills each of them once."""
        for name in members:
            member = self.fleet[name]
            member.once(**{VARIABLE: f"{point}:kill", TESTING_VARIABLE: "1"})
            member.kill()
            await member.begun(member.starts + 1)
        for name in members:
            await self.fleet[name].ready()

    async def disarm(self, *members: str) -> None:
        """Restart armed members that have not died."""
        for name in members:
            if self.fleet[name].armed:
                await self.restarted(name)

    async def restarted(self, name: str) -> None:
        """Kill a member, and wait until it is ready again."""
        member = self.fleet[name]
        member.kill()
        await member.begun(member.starts + 1)
        await member.ready()

    async def driver(self, run_id: str) -> str:
        """Return the agent that claimed a run last."""

        def drives(name: str) -> bool:
            log = self.fleet[name].log.read_text(errors="replace")
            return any("this agent drives the run" in line and run_id in line for line in log.splitlines())

        await until(lambda: any(drives(name) for name in ("agent-1", "agent-2")))
        return next(name for name in ("agent-1", "agent-2") if drives(name))


async def until(holds: Callable[[], bool]) -> None:
    """Wait for a state that sends no event: a log line, a file."""
    await eventually(holds, WAIT_TIMEOUT_S, interval_s=0.05)


def bash(marker: str, seconds: float = 0.0) -> ScriptedReply:
    """Return a reply that calls a command, which appends its marker to a file of the workspace."""
    return ScriptedReply(
        tool_calls=(ScriptedCall(name="bash", arguments={"command": command(marker, seconds)}),)
    )


async def make_assistants(fleet: Fleet) -> None:
    for name, fields in ASSISTANTS.items():
        response = await fleet.http.post(f"{fleet.urls[0]}/context/assistants", json={"id": name, **fields})
        assert response.status_code in (201, 409), response.text


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stage]:
    """The fleet that all tests share. Each test leaves it running, as it found it."""
    async with ModelServer.running() as model:
        async with Fleet(tmp_path_factory.mktemp("fleet"), model.url) as fleet:
            await make_assistants(fleet)
            yield Stage(fleet, model)
        assert model.violations == []


@pytest.fixture
def marker() -> str:
    """The marker of the only command of a test."""
    return new_id("mark-")
