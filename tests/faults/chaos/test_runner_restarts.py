"""Runners that restart, the only one or all at once: new calls wait for them."""

from __future__ import annotations

import signal

import pytest

from banksman.contracts.ids import new_id
from tests.faults.chaos.conftest import Stage, bash
from tests.support.scripted_models import ScriptedReply

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

SERVE_TOOLS = ("agent-1", "agent-2", "tool-runner-1", "tool-runner-2")


async def test_a_run_started_while_the_only_runner_drains_is_executed_by_the_next(
    stage: Stage, marker: str
) -> None:
    """P16: it accepts no more calls but still runs; its successor has not started yet."""
    only, other = stage.fleet["tool-runner-1"], stage.fleet["tool-runner-2"]
    await other.stop()
    try:
        async with stage.connected() as client:
            _, long = await stage.run(client, bash(new_id("long-"), 4), ScriptedReply(text="done"))
            await client.event("tool_call.started", run_id=long)
            ended = only.starts + 1
            only.send(signal.SIGTERM)
            await only.ready(wanted=False)
            conversation, run_id = await stage.run(client, bash(marker), ScriptedReply(text="done"))
            outcomes = [await client.finished(run) for run in (long, run_id)]
            await only.begun(ended)
    finally:
        other.start()
        await stage.fleet.ready()

    assert [outcome["status"] for outcome in outcomes] == ["completed"] * 2
    [result] = client.events(conversation, "tool_call.completed")
    assert result["data"]["error_kind"] is None
    assert stage.fleet.executions(marker) == 1


async def test_a_run_started_while_all_its_services_restart_is_executed_by_them(
    stage: Stage, marker: str
) -> None:
    """P1, P2: agents that have just started also expect that a runner returns."""
    async with stage.connected() as client:
        for name in SERVE_TOOLS:
            stage.fleet[name].kill()
        conversation, run_id = await stage.run(client, bash(marker), ScriptedReply(text="done"))
        outcome = await client.finished(run_id)
    await stage.fleet.ready()

    assert outcome["status"] == "completed"
    [result] = client.events(conversation, "tool_call.completed")
    assert result["data"]["error_kind"] is None
    assert stage.fleet.executions(marker) == 1
