"""Cached folds: a process discards a fold of commits that the log no longer contains."""

from __future__ import annotations

import asyncio

import pytest

from banksman.bus.connection import Bus
from banksman.bus.jetstream import delete_message
from banksman.bus.names import EVENTS, SNAPSHOTS
from banksman.bus.storage.log import EventLog
from banksman.bus.storage.objects import Objects
from banksman.contracts.errors import NotFound
from banksman.contracts.events import ConversationUpdated
from banksman.contracts.work import DeleteConversation
from banksman.runs.conversation_log import ConversationLog
from banksman.runs.snapshots import object_name
from banksman.runs.state import Conversation
from tests.runs.long.conftest import Agent
from tests.runs.long.story import Story, commit_of
from tests.support.model_server import ModelServer
from tests.support.scripted_models import ScriptedReply


@pytest.fixture
def story(bus: Bus, tenant: str, conversation: str) -> Story:
    return Story(ConversationLog(bus), Conversation(tenant, conversation))


async def test_a_cached_fold_of_a_purged_log_is_detected_as_deleted(
    bus: Bus, story: Story, tenant: str, conversation: str
) -> None:
    """P1: a run whose start arrives late at this process has a terminal event."""
    await story.run()
    other = ConversationLog(bus)
    assert not (await other.read(tenant, conversation)).deleted

    await story.run()
    await story.commit(ConversationUpdated(status="deleted"))
    await EventLog(bus).purge(tenant, conversation, before=story.state.stream_seq)

    found = await other.read(tenant, conversation)
    assert (found.deleted, found.stream_seq) == (True, story.state.stream_seq)


async def test_the_snapshot_of_a_deleted_conversation_is_deleted(agent: Agent, server: ModelServer) -> None:
    """A long history is stored beside its log as an object."""
    server.play("once", [ScriptedReply(text="Here I am.")])
    await agent.run("go", "openai:scripted/once")
    snapshots = Objects(agent.log.bus, SNAPSHOTS)
    name = object_name(agent.tenant, agent.conversation)
    await snapshots.put(name, b"a long history")

    await agent.signal(DeleteConversation(tenant=agent.tenant, conversation_id=agent.conversation, by="ann"))

    assert [one.data.type for one in await agent.history()] == ["conversation.updated"]
    with pytest.raises(NotFound):
        await snapshots.get(name)


async def test_a_log_that_lost_its_last_commits_is_folded_again(
    bus: Bus, story: Story, tenant: str, conversation: str
) -> None:
    """A disk may lose acknowledged commits; a process that cached them must not retry its append without
    end."""
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
    assert stored.run is not None, "the lost commit still has an effect"
