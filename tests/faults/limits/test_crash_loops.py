"""A run whose agents all die is given up and dead-lettered, and affects no other run."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest

from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.dead import dead_letters
from tests.scenarios.conftest import nats_url, operator_seed
from tests.support.client import Client
from tests.support.connections import sockets_connected_to, sockets_of
from tests.support.polling import eventually
from tests.support.scripted_models import Gate, ScriptedReply
from tests.support.system import ScriptedModel, System, kill, scripted_model

pytestmark = pytest.mark.timeout(400)

DEADLY = "deadly"
WAIT_TIMEOUT_S = 200.0
"""Seconds for five agents to start and die, while the supervisor waits longer before each start."""
CRASH_LOOP_TIMEOUT_S = 200.0


@pytest.fixture(scope="module")
def deadly() -> Generator[ScriptedModel]:
    """The model of the run that kills its agents: only that run has a connection to it."""
    with scripted_model() as model:
        yield model


@pytest.fixture
def own_system(model: ScriptedModel, deadly: ScriptedModel, tmp_path: Path) -> Generator[System]:
    """A system for this test, with a separate model server for one vendor."""
    system = System(tmp_path / "data", model, {"ANTHROPIC_BASE_URL": deadly.url})
    try:
        system.start()
        yield system
    finally:
        system.close()


async def test_only_the_run_that_kills_agents_is_given_up(
    own_system: System, model: ScriptedModel, deadly: ScriptedModel
) -> None:
    """P1, P10: five agents in a row; other runs wait for their model and complete."""
    quiet = model.play("quiet", [ScriptedReply(text="Here I am.", gate=Gate(name="quiet"))], at_end="repeat")
    deadly.play(DEADLY, [ScriptedReply(text="never", gate=Gate(name="never"))], at_end="repeat")
    async with Client.connected(own_system.url, timeout_s=WAIT_TIMEOUT_S) as client:
        others = [await client.chat(await client.create(quiet), "go") for _ in range(3)]
        conversation = await client.create(f"anthropic:scripted/{DEADLY}")
        run_id = await client.chat(conversation, "go")

        ended = asyncio.create_task(client.finished(run_id))
        killed = await _kill_agents_of(own_system, deadly, ended)
        outcome = await ended
        model.open_gate("quiet")
        outcomes = [await client.finished(other) for other in others]

    assert (outcome["status"], outcome["error"]["code"]) == ("failed", "crash_loop")
    assert killed >= 4
    assert [other["content"] for other in outcomes] == ["Here I am."] * len(others)
    assert await _dead_letter_reasons(own_system, conversation) == [f"crash_loop: run {run_id} was given up"]


async def _kill_agents_of(system: System, deadly: ScriptedModel, ended: asyncio.Task[object]) -> int:
    """Kill each agent that calls this model, until the run has ended."""
    port = int(deadly.url.rpartition(":")[2])
    killed: set[int] = set()

    def run_has_ended() -> bool:
        # Reading the table of connections is fast, unlike walking over all processes.
        inodes = sockets_connected_to(port)
        for pid in system.service_pids("agent") if inodes else ():
            if pid not in killed and inodes & sockets_of(pid):
                kill(pid)
                killed.add(pid)
        return ended.done()

    await eventually(run_has_ended, CRASH_LOOP_TIMEOUT_S, interval_s=0.05)
    return len(killed)


async def _dead_letter_reasons(system: System, conversation: str) -> list[str]:
    settings = NatsSettings(url=nats_url(system), nkey_seed_file=operator_seed(system), connect_timeout_s=60)
    async with await Bus(settings, name="operator", inbox_prefix="_INBOX_operator").open() as bus:
        return [
            one.letter.reason async for one in dead_letters(bus) if one.letter.subject.endswith(conversation)
        ]
