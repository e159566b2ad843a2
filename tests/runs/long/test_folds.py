"""A fold that a process keeps is only a head start: what the log no longer holds is not held on to."""

from __future__ import annotations

import asyncio

import pytest

from banksman.bus.connection import Bus
from banksman.bus.jetstream import delete_message
from banksman.bus.log import EventLog
from banksman.bus.names import EVENTS, SNAPSHOTS
from banksman.bus.objects import Objects
from banksman.contracts.errors import NotFound
from banksman.contracts.events import ConversationUpdated
from banksman.contracts.work import DeleteConversation
from banksman.model_server import ModelServer, Reply
from banksman.runs.folded_log import FoldedLog
from banksman.runs.snapshots import object_name
from banksman.runs.state import Conversation
from tests.runs.long.conftest import Agent
from tests.runs.long.making import Story, commit_of


@pytest.fixture
def story(bus: Bus, tenant: str, conversation: str) -> Story:
    return Story(FoldedLog(EventLog(bus)), Conversation(tenant, conversation))


async def test_a_process_that_kept_the_fold_of_a_purged_log_finds_it_deleted(
    bus: Bus, story: Story, tenant: str, conversation: str
) -> None:
    """P1: a start that this process is given late still gets its end."""
    await story.run()
    other = FoldedLog(EventLog(bus))
    assert not (await other.read(tenant, conversation)).deleted

    await story.run()
    await story.commit(ConversationUpdated(status="deleted"))
    await EventLog(bus).purge(tenant, conversation, before=story.state.stream_seq)

    found = await other.read(tenant, conversation)
    assert (found.deleted, found.stream_seq) == (True, story.state.stream_seq)


async def test_nothing_of_a_deleted_conversation_stays_in_its_snapshot(
    agent: Agent, server: ModelServer
) -> None:
    """A long history is kept beside its log, all of it."""
    server.play("once", [Reply(text="Here I am.")])
    await agent.run("go", "openai:scripted/once")
    snapshots = Objects(agent.log.bus, SNAPSHOTS)
    name = object_name(Conversation(agent.tenant, agent.conversation))
    await snapshots.put(name, b"what was said")

    await agent.signal(DeleteConversation(tenant=agent.tenant, conversation_id=agent.conversation, by="ann"))

    assert [one.data.type for one in await agent.history()] == ["conversation.updated"]
    with pytest.raises(NotFound):
        await snapshots.get(name)


async def test_a_log_that_lost_its_last_commits_is_folded_anew(
    bus: Bus, story: Story, tenant: str, conversation: str
) -> None:
    """A disk may lose what was acknowledged: whoever kept it must not try for ever to append behind it."""
    await story.run()
    lost = story.state
    await delete_message(bus, EVENTS, lost.stream_seq)

    async with asyncio.timeout(30):
        stored = None
        while stored is None:
            state = await story.log.read(tenant, conversation)
            draft = commit_of(state, None, (ConversationUpdated(title="Pumps"),))
            stored = await story.log.append(state, draft)
    assert stored.title == "Pumps"
    assert stored.run is not None, "what the lost commit told did not happen"
