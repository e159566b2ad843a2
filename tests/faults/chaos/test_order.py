"""What was acknowledged first runs first, while agents die (P19)."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.chaos.conftest import Stage
from tests.support.scripted_models import ScriptedReply

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

NUMBER = 50
KILLED_AT = {10: "agent-1", 20: "agent-2", 30: "agent-1", 40: "agent-2"}


async def test_a_burst_keeps_its_order_while_agents_are_killed(stage: Stage) -> None:
    """P19: two agents die twice each while 50 messages arrive in each of three conversations."""
    async with stage.connected() as client:
        conversations = [await stage.conversation(client, ScriptedReply(text="Fine.")) for _ in range(3)]
        sent: dict[str, list[str]] = {one: [] for one in conversations}

        async def burst(conversation: str, *, kills: bool) -> None:
            for number in range(NUMBER):
                sent[conversation].append(await client.chat(conversation, f"{number}"))
                if kills and number in KILLED_AT:
                    stage.fleet[KILLED_AT[number]].kill()

        async with asyncio.TaskGroup() as bursts:
            for conversation in conversations:
                bursts.create_task(burst(conversation, kills=conversation == conversations[0]))
        for conversation, runs in sent.items():
            for run in runs:
                assert (await client.finished(run))["status"] == "completed"
            begun = [event["run_id"] for event in client.events(conversation, "run.started")]
            assert begun == runs
        await stage.fleet.ready()
