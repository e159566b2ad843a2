"""Results that arrive at the same time, and calls that no runner survives (P1, P2, P12)."""

from __future__ import annotations

import asyncio

import pytest

from banksman.bus.connection import NatsSettings
from banksman.cli.local.plan import LOCAL
from banksman.contracts.ids import new_id
from banksman.runtime.failpoints import TESTING_VARIABLE, VARIABLE
from banksman.sdk import Toolbox, ToolServer
from tests.faults.chaos.conftest import WAIT_TIMEOUT_S, Stage
from tests.support.client import Client
from tests.support.scripted_models import ScriptedCall, ScriptedReply

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(420)]

CALLS = 24
LONG = "\x01" * 9_000
"""Six bytes per character in JSON: all results together exceed one message."""


async def test_results_that_arrive_without_an_agent_are_all_committed_in_several_messages(
    stage: Stage,
) -> None:
    """P1, P11: the next agent stores all of them at once."""
    box, begun, go_on = Toolbox(), asyncio.Semaphore(0), asyncio.Event()
    name = new_id("fill-")

    @box.tool(name=name, requires_approval=False)
    async def fill() -> str:
        """Return a large result."""
        begun.release()
        await go_on.wait()
        return LONG

    nats = NatsSettings(url=stage.fleet.nats.url, nkey_seed_file=stage.fleet.nats.seed_file(LOCAL.user))
    async with (
        ToolServer(new_id("filler-"), box, nats=nats, drain_s=0),
        stage.connected() as client,
    ):
        response = await stage.fleet.http.post(
            f"{stage.fleet.urls[0]}/context/assistants", json={"id": name, "tools": {"enabled": True}}
        )
        assert response.status_code == 201, response.text
        replies = (
            ScriptedReply(tool_calls=(ScriptedCall(name=name),) * CALLS),
            ScriptedReply(text="So much."),
        )
        conversation, run_id = await stage.run(client, *replies, assistant=name)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            for _ in range(CALLS):
                await begun.acquire()
        await stage.fleet["agent-1"].stop()
        go_on.set()
        stage.fleet["agent-1"].start()
        outcome = await client.finished(run_id)
        await stage.fleet.ready()

    assert (outcome["status"], outcome["content"]) == ("completed", "So much.")
    completed = client.events(conversation, "tool_call.completed")
    assert [event["data"]["error_kind"] for event in completed] == [None] * CALLS
    results = [m["content"] for m in stage.requests()[-1]["messages"] if m["role"] == "tool"]
    assert len(results) == CALLS


async def test_a_repeatable_call_is_given_up_after_three_lost_runners(
    stage: Stage,
) -> None:
    """P2, P12: a call without side effects is repeated elsewhere, a limited number of times."""
    runner = stage.fleet["tool-runner-1"]
    look = ScriptedReply(tool_calls=(ScriptedCall(name="read_file", arguments={"path": "none"}),))
    runner.environment = {VARIABLE: "runner.end:kill", TESTING_VARIABLE: "1"}
    await stage.restarted(runner.name)
    died = len(runner.exit_codes)
    try:
        # A process starts three times in the meantime, possibly on a busy machine.
        async with Client.connected(stage.fleet.urls[0], timeout_s=WAIT_TIMEOUT_S) as client:
            conversation = await stage.conversation(
                client, look, ScriptedReply(text="It is deadly."), assistant="default"
            )
            outcome = await client.run(conversation, "go")
        deaths = len(runner.exit_codes) - died
    finally:
        runner.environment = {}
        await stage.restarted(runner.name)

    assert (outcome["status"], outcome["content"]) == ("completed", "It is deadly.")
    [result] = client.events(conversation, "tool_call.completed")
    assert result["data"]["error_kind"] == "unavailable"
    assert "3 runners in a row" in str(result["data"]["content"])
    assert deaths == 3
