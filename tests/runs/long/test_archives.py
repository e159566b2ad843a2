"""The commits of unused conversations move to an archive, which readers of the log do not notice."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from banksman.bus.connection import Bus
from banksman.bus.errors import LogDamaged
from banksman.bus.jetstream import count_below, delete_message
from banksman.bus.names import ARCHIVE, EVENTS
from banksman.bus.storage.log import ArchivedCommits
from banksman.bus.storage.objects import Objects
from banksman.contracts import subjects
from banksman.contracts.events import Event, RunStarted
from banksman.contracts.work import ArchiveConversation, DeleteConversation
from banksman.log_integrity.check import check_logs
from banksman.log_integrity.damage import DamagedLogs
from banksman.log_integrity.heads import lost_ends
from banksman.runs.conversation_log import ConversationLog
from banksman.runs.state import Conversation
from banksman.runtime.failpoints import TESTING_VARIABLE, VARIABLE, arm
from tests.runs.long.conftest import Agent
from tests.runs.long.story import SETTINGS, Story
from tests.support.model_server import ModelServer
from tests.support.scripted_models import ScriptedReply

NOW = datetime.now(UTC) + timedelta(days=1)


def signal(agent: Agent, unused_since: datetime = NOW) -> ArchiveConversation:
    return ArchiveConversation(
        tenant=agent.tenant, conversation_id=agent.conversation, unused_since=unused_since
    )


def subject(agent: Agent) -> str:
    return subjects.conversation(agent.tenant, agent.conversation)


async def said(agent: Agent, server: ModelServer, text: str) -> list[Event]:
    """Run a message and its reply, and return all events."""
    server.play("says", [ScriptedReply(text=f"You wrote {text}.")])
    await agent.run(text, "openai:scripted/says")
    return await agent.history()


async def objects(bus: Bus, agent: Agent) -> int:
    return len([one async for one in Objects(bus, ARCHIVE).list(f"{agent.tenant}/")])


async def problems(bus: Bus, agent: Agent) -> list[str]:
    found = [problem async for _, problem in check_logs(bus, subject(agent))]
    lost = await lost_ends(bus)
    return found + [problem for log, problem in lost.items() if log.endswith(agent.conversation)]


async def test_an_archived_conversation_is_read_continued_and_archived_again(
    agent: Agent, server: ModelServer, bus: Bus
) -> None:
    before = await said(agent, server, "one")
    await agent.signal(signal(agent))
    assert await count_below(bus, EVENTS, subject(agent)) == 1, "only the name of the archive is left"
    assert await agent.history() == before

    after = await said(agent, server, "two")
    assert after[: len(before)] == before
    assert "You wrote one." in str(server.requests("says")[-1]), "the model reads the archived messages"

    await agent.signal(signal(agent))
    await agent.signal(signal(agent))
    assert await count_below(bus, EVENTS, subject(agent)) == 1
    assert await agent.history() == after
    assert [event.seq for event in after] == list(range(1, len(after) + 1))
    cold = await ConversationLog(bus).read(agent.tenant, agent.conversation)
    assert cold.history == (await agent.worker.log.read(agent.tenant, agent.conversation)).history
    assert not await problems(bus, agent)


async def test_readers_that_stopped_anywhere_in_the_log_continue(agent: Agent, bus: Bus) -> None:
    """P1: each reader gets what it lacks, from an archive of several parts, once each."""
    story = Story(ConversationLog(bus), Conversation(agent.tenant, agent.conversation))
    for _ in range(4):
        await story.run(output=secrets.token_hex(300_000))
    commits = await agent.log.read(agent.tenant, agent.conversation)
    await agent.signal(signal(agent))
    assert await objects(bus, agent) > 1
    ids = agent.tenant, agent.conversation
    for number, stored in enumerate(commits):
        later = await agent.log.read(*ids, after=stored.stream_seq, leader=number % 2 == 0)
        assert later[:-1] == commits[number + 1 :]
    assert await agent.log.at(*ids, commits[2].stream_seq) == commits[2]


async def test_a_conversation_that_is_used_stays_in_its_log(
    agent: Agent, server: ModelServer, bus: Bus
) -> None:
    await said(agent, server, "one")
    stored = await count_below(bus, EVENTS, subject(agent))
    await agent.signal(signal(agent, unused_since=datetime.now(UTC) - timedelta(hours=1)))
    assert await count_below(bus, EVENTS, subject(agent)) == stored, "it was used within the hour"

    story = Story(ConversationLog(bus), await agent.worker.log.read(agent.tenant, agent.conversation))
    await story.commit(RunStarted(message_id="m1", message="open", settings=SETTINGS), claim=True)
    await agent.signal(signal(agent))
    assert await count_below(bus, EVENTS, subject(agent)) == stored + 1, "its run is open"
    assert await objects(bus, agent) == 0


async def test_a_log_with_a_gap_is_not_archived(agent: Agent, bus: Bus) -> None:
    """Damage stays visible: the archive of an incomplete log would look complete."""
    story = Story(ConversationLog(bus), Conversation(agent.tenant, agent.conversation))
    await story.run()
    commits = await agent.log.read(agent.tenant, agent.conversation)
    await delete_message(bus, EVENTS, commits[1].stream_seq)
    await agent.signal(signal(agent))
    assert await objects(bus, agent) == 0
    assert await problems(bus, agent)


@pytest.mark.parametrize("step", ["agent.archive_stored", "agent.archived"])
async def test_an_interrupted_archiving_loses_nothing_and_continues(
    agent: Agent, server: ModelServer, bus: Bus, step: str
) -> None:
    """P1: at each step, the log is complete, and the next signal ends what was begun."""
    before = await said(agent, server, "one")
    with failing(step):
        await agent.signal(signal(agent))
    assert await agent.history() == before
    assert not await problems(bus, agent)

    if step == "agent.archived":
        # The server removes commits one by one.
        first = (await agent.log.read(agent.tenant, agent.conversation))[0]
        await delete_message(bus, EVENTS, first.stream_seq)
        assert await agent.history() == before
        assert not await problems(bus, agent)
    await agent.signal(signal(agent))
    assert await count_below(bus, EVENTS, subject(agent)) == 1
    assert await agent.history() == before
    assert not await problems(bus, agent)


@contextmanager
def failing(step: str) -> Generator[None]:
    arm({VARIABLE: f"{step}:error", TESTING_VARIABLE: "1"})
    try:
        yield
    finally:
        arm({})


async def test_a_lost_archive_is_damage(agent: Agent, server: ModelServer, bus: Bus) -> None:
    await said(agent, server, "one")
    await agent.signal(signal(agent))
    await ArchivedCommits(bus).remove(agent.tenant, agent.conversation)
    async with DamagedLogs(bus) as damaged:
        with pytest.raises(LogDamaged):
            await ConversationLog(bus, damaged).read(agent.tenant, agent.conversation)
        await damaged.clear(f"{agent.tenant}.{agent.conversation}")


async def test_the_archive_of_a_deleted_conversation_is_deleted(
    agent: Agent, server: ModelServer, bus: Bus
) -> None:
    await said(agent, server, "one")
    await agent.signal(signal(agent))
    await agent.signal(DeleteConversation(tenant=agent.tenant, conversation_id=agent.conversation, by="ann"))
    assert [one.data.type for one in await agent.history()] == ["conversation.updated"]
    assert await objects(bus, agent) == 0
    assert not await problems(bus, agent)
