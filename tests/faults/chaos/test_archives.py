"""Agents that die while they archive a conversation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from banksman.bus.jetstream import count_below
from banksman.bus.names import EVENTS
from banksman.bus.publish import RunQueue
from banksman.contracts import subjects
from banksman.contracts.work import ArchiveConversation
from banksman.runtime.failpoints import Failpoint
from tests.faults.chaos.conftest import WAIT_TIMEOUT_S, Stage, bash
from tests.support.polling import eventually
from tests.support.scripted_models import ScriptedReply

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]
"""Seconds; processes are restarted, which is slow on a busy machine."""

AGENTS = ("agent-1", "agent-2")
TENANT = "local"


async def events(stage: Stage, conversation: str) -> list[dict[str, object]]:
    url = f"{stage.fleet.urls[0]}/context/conversations/{conversation}/events"
    return (await stage.fleet.http.get(url)).json()["items"]


@pytest.mark.parametrize("step", ["agent.archive_stored", "agent.archived"])
async def test_agents_that_die_while_they_archive_lose_nothing(
    stage: Stage, marker: str, step: Failpoint
) -> None:
    """P16: agents are killed at the step; the next one continues, and the conversation continues."""
    async with stage.connected() as client:
        conversation, run_id = await stage.run(client, bash(marker), ScriptedReply(text="done"))
        await client.finished(run_id)
        before = await events(stage, conversation)
        await stage.arm(step, *AGENTS)
        starts = [stage.fleet[name].starts for name in AGENTS]
        async with stage.fleet.operator() as bus:
            later = datetime.now(UTC) + timedelta(hours=1)
            signal = ArchiveConversation(tenant=TENANT, conversation_id=conversation, unused_since=later)
            await RunQueue(bus).signal(signal, f"archive-{conversation}")

            async def is_archived() -> bool:
                assert await events(stage, conversation) == before
                return await count_below(bus, EVENTS, subjects.conversation(TENANT, conversation)) == 1

            await eventually(is_archived, 2 * WAIT_TIMEOUT_S, interval_s=0.2)
        assert [stage.fleet[name].starts for name in AGENTS] != starts, "an agent died at the step"
        await stage.disarm(*AGENTS)
        after = await client.run(conversation, "once more")
    assert after["status"] == "completed"
    assert (await events(stage, conversation))[: len(before)] == before
    assert stage.fleet.executions(marker) == 1
