"""Snapshots limit the cost of a cold read, equal the fold of the log, and are not part of replays."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from banksman.bus.connection import Bus
from banksman.bus.names import SNAPSHOTS
from banksman.bus.storage.log import EventLog
from banksman.bus.storage.objects import Objects
from banksman.contracts.events import Commit, ConversationUpdated, RunStarted, Snapshot
from banksman.contracts.ids import new_id
from banksman.deployment.users import AGENT, GATEWAY, WORKFLOWS
from banksman.runs.conversation_log import ConversationLog
from banksman.runs.snapshots import SNAPSHOT_EVERY, object_name, snapshot_commit, snapshot_of
from banksman.runs.state import Conversation
from tests.runs.long.story import SETTINGS, Story, commit_of, received, whole_fold
from tests.support.fixtures import SecuredNats, connect
from tests.support.nats import NatsServer


@pytest.fixture
def log(bus: Bus) -> EventLog:
    return EventLog(bus)


@pytest.fixture
async def story(log: EventLog, tenant: str, conversation: str) -> Story:
    return Story(ConversationLog(log.bus), Conversation(tenant, conversation))


async def snapshots_in(log: EventLog, story: Story) -> list[Commit]:
    stored = await log.read(story.state.tenant, story.state.conversation_id, leader=True)
    return [one.commit for one in stored if one.commit.snapshot is not None]


async def runs(story: Story, commits: int) -> None:
    """Append runs until the log has that many commits, with compactions as an agent makes them."""
    written = 0
    while written < commits:
        await story.run()
        written += 8
        if story.runs % 12 == 0:
            await story.compact()
            written += 3


async def cold_read(server: NatsServer, story: Story) -> tuple[Conversation, int, int]:
    """Fold in a process without a cache; return the state, and the messages and bytes that it received."""
    name = new_id("reader")
    async with await connect(server, name=name) as bus:
        await bus.ready()
        before = received(server, name)
        state = await ConversationLog(bus).read(story.state.tenant, story.state.conversation_id)
        after = received(server, name)
    return state, after[0] - before[0], after[1] - before[1]


async def test_the_cost_of_a_cold_read_does_not_depend_on_the_length_of_the_log(
    nats_server: NatsServer, story: Story, log: EventLog
) -> None:
    messages: list[int] = []
    sizes: list[int] = []
    for more in (120, 4_900):
        await runs(story, more)
        state, count, size = await cold_read(nats_server, story)
        assert state == story.state
        messages.append(count)
        sizes.append(size)

    assert state == await whole_fold(log, state.tenant, state.conversation_id)
    assert max(messages) <= SNAPSHOT_EVERY + 20
    # A snapshot contains the ids of the last thousand ended runs.
    assert sizes[1] < 150_000
    stored = await log.read(state.tenant, state.conversation_id)
    assert len(stored) > 5_000
    assert sum(len(one.commit.model_dump_json()) for one in stored) > 10 * sizes[1]


async def test_a_snapshot_follows_every_fifty_commits_and_changes_nothing(
    log: EventLog, story: Story
) -> None:
    for _ in range(20):
        await story.run()

    stored = await log.read(story.state.tenant, story.state.conversation_id, leader=True)
    written = [one for one in stored if one.commit.snapshot is not None]

    assert 2 <= len(written) <= 3
    for snapshot in written:
        before = max(
            (one for one in stored if one.stream_seq < snapshot.stream_seq), key=lambda o: o.stream_seq
        )
        assert snapshot.commit.events == ()
        assert not snapshot.commit.claim
        assert snapshot.commit.owner == before.commit.owner
        assert snapshot.commit.owner_epoch == before.commit.owner_epoch
        assert snapshot.commit.last_seq == before.commit.last_seq
    assert stored[-1].snapshot == written[-1].stream_seq
    assert story.state == await whole_fold(log, story.state.tenant, story.state.conversation_id)


async def test_a_replay_contains_every_event_once_and_no_snapshot(log: EventLog, story: Story) -> None:
    for _ in range(15):
        await story.run()

    stored = await log.read(story.state.tenant, story.state.conversation_id)

    numbers = [event.seq for one in stored for event in one.commit.events]
    assert numbers == list(range(1, story.state.last_seq + 1))


async def test_an_owner_continues_under_its_claim_after_a_snapshot(log: EventLog, story: Story) -> None:
    for _ in range(6):
        await story.run()
    started = RunStarted(message_id="m", message="go", settings=SETTINGS)
    await story.commit(started, claim=True)
    await story.commit(ConversationUpdated(title="before"))
    owner = story.state
    written = snapshot_commit(owner, snapshot_of(owner), new_id("e"), datetime.now(UTC))
    assert await log.append(owner.tenant, owner.conversation_id, written, after=owner.stream_seq)

    other = ConversationLog(log.bus)
    mine = commit_of(owner, "c-r6", (ConversationUpdated(title="mine"),), owner=owner.owner)
    assert await other.append(owner, mine) is None
    met = await other.read(owner.tenant, owner.conversation_id)

    assert replace(met, stream_seq=0, snapshot_seq=0, since_snapshot=0) == replace(
        owner, stream_seq=0, snapshot_seq=0, since_snapshot=0
    )
    again = commit_of(met, "c-r6", (ConversationUpdated(title="mine"),), owner=met.owner)
    assert (await other.append(met, again) or met).title == "mine"


async def test_claims_in_a_row_are_counted_across_a_snapshot(log: EventLog, story: Story) -> None:
    await story.commit(RunStarted(message_id="m", message="go", settings=SETTINGS), claim=True)
    await story.commit(claim=True, agent="agent-2")
    counted = story.state.claims_in_row
    written = snapshot_commit(story.state, snapshot_of(story.state), new_id("e"), datetime.now(UTC))
    await log.append(story.state.tenant, story.state.conversation_id, written, after=story.state.stream_seq)

    state = await ConversationLog(log.bus).read(story.state.tenant, story.state.conversation_id)

    assert counted == 2
    assert state.claims_in_row == counted
    assert state.owner == story.state.owner


async def test_no_snapshot_is_written_between_claims_or_after_the_tombstone(
    log: EventLog, story: Story
) -> None:
    await story.commit(RunStarted(message_id="m", message="go", settings=SETTINGS), claim=True)
    for _ in range(SNAPSHOT_EVERY - 2):
        await story.commit(ConversationUpdated(title="again"))
    assert await snapshots_in(log, story) == []
    for _ in range(2):
        await story.commit(claim=True)
    assert story.state.since_snapshot > SNAPSHOT_EVERY
    assert await snapshots_in(log, story) == []
    await story.commit(ConversationUpdated(status="deleted"))
    for _ in range(20):
        await story.commit(ConversationUpdated(title="late"))
    assert await snapshots_in(log, story) == []


async def test_a_snapshot_whose_append_conflicts_is_written_later(log: EventLog, story: Story) -> None:
    """Eight processes append as fast as they can; the log stays complete and gets its snapshots."""

    async def write(process: ConversationLog, count: int) -> None:
        state = await process.read(story.state.tenant, story.state.conversation_id)
        while count:
            title = (ConversationUpdated(title=f"{count}"),)
            stored = await process.append(state, commit_of(state, None, title))
            count -= stored is not None
            state = stored or await process.read(state.tenant, state.conversation_id)

    await story.commit(ConversationUpdated(title="first"))
    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(write(ConversationLog(log.bus), 40))

    state = await ConversationLog(log.bus).read(story.state.tenant, story.state.conversation_id)
    assert state == await whole_fold(log, state.tenant, state.conversation_id)
    assert state.last_seq == 321
    assert len(await snapshots_in(log, story)) >= 3


async def append_by_hand(log: EventLog, state: Conversation, snapshot: Snapshot) -> None:
    """Append a snapshot as another version might write it, and one commit after it that names it."""
    written = snapshot_commit(state, snapshot, new_id("e"), datetime.now(UTC))
    at = await log.append(state.tenant, state.conversation_id, written, after=state.stream_seq)
    assert isinstance(at, int)
    last = commit_of(state, None, (ConversationUpdated(title="after it"),), owner=state.owner)
    assert isinstance(await log.append(state.tenant, state.conversation_id, last, after=at, snapshot=at), int)


@pytest.fixture(params=["newer form", "damaged", "missing object", "of another log", "neither"])
def unusable(request: pytest.FixtureRequest, story: Story) -> Snapshot:
    """Unusable snapshots. Their state differs from the log, so a reader that uses one is detected."""
    wrong = snapshot_of(replace(story.state, title="wrong", log_epoch="another"))
    match request.param:
        case "newer form":
            return wrong.model_copy(update={"form": "99-0123456789abcdef"})
        case "damaged":
            return wrong.model_copy(update={"state": (wrong.state or "")[:-40]})
        case "missing object":
            return wrong.model_copy(update={"state": None, "ref": "missing/missing"})
        case "of another log":
            return wrong
        case _:
            return wrong.model_copy(update={"state": None})


async def test_a_log_with_an_unusable_snapshot_is_folded_without_it(
    log: EventLog, story: Story, unusable: Snapshot
) -> None:
    for _ in range(3):
        await story.run()
    await story.commit(RunStarted(message_id="m", message="go", settings=SETTINGS), claim=True)
    await append_by_hand(log, story.state, unusable)

    state = await ConversationLog(log.bus).read(story.state.tenant, story.state.conversation_id)

    assert state == await whole_fold(log, state.tenant, state.conversation_id)
    assert (state.title, state.run is not None) == ("after it", True)


async def test_each_long_snapshot_replaces_the_one_object_of_its_conversation(
    log: EventLog, story: Story
) -> None:
    objects = Objects(log.bus, SNAPSHOTS)
    for number in range(8):
        # Text that does not compress.
        await story.run(output=secrets.token_urlsafe(30_000))
        assert number or story.state.snapshot_seq == 0
    first = await objects.get(object_name(story.state.tenant, story.state.conversation_id))
    for _ in range(8):
        await story.run()

    written = await snapshots_in(log, story)
    assert [one.snapshot.ref for one in written if one.snapshot] == [
        object_name(story.state.tenant, story.state.conversation_id)
    ] * len(written)
    assert len(written) >= 2
    assert all(len(one.model_dump_json()) < 1_000 for one in written)
    assert await objects.get(object_name(story.state.tenant, story.state.conversation_id)) != first
    assert len([info async for info in objects.list(story.state.tenant)]) == 1
    assert await ConversationLog(log.bus).read(story.state.tenant, story.state.conversation_id) == story.state


async def test_a_snapshot_object_newer_than_its_commit_is_usable(log: EventLog, story: Story) -> None:
    """Another commit may precede that of the object, or the writer of the object may have died."""
    objects = Objects(log.bus, SNAPSHOTS)
    for _ in range(2):
        await story.run()
    early = story.state
    name = object_name(early.tenant, early.conversation_id)
    referring = snapshot_of(early).model_copy(update={"state": None, "ref": name})
    await append_by_hand(log, early, referring)
    story.state = await ConversationLog(log.bus).read(early.tenant, early.conversation_id)
    await story.run()
    await objects.put(name, snapshot_of(story.state).model_dump_json().encode())
    await story.run()

    state = await ConversationLog(log.bus).read(early.tenant, early.conversation_id)

    assert replace(state, snapshot_seq=0) == replace(story.state, snapshot_seq=0)


async def test_a_process_far_behind_continues_from_the_snapshot(
    nats_server: NatsServer, story: Story
) -> None:
    await story.run()
    name = new_id("behind")
    async with await connect(nats_server, name=name) as bus:
        behind = ConversationLog(bus)
        await behind.read(story.state.tenant, story.state.conversation_id)
        await runs(story, 400)
        before = received(nats_server, name)
        state = await behind.read(story.state.tenant, story.state.conversation_id)
        after = received(nats_server, name)

    assert state == story.state
    assert after[0] - before[0] <= SNAPSHOT_EVERY + 20


@pytest.mark.parametrize("user", [AGENT, WORKFLOWS, GATEWAY])
async def test_the_permissions_of_each_service_suffice(
    secured_nats: SecuredNats, tenant: str, conversation: str, user: str
) -> None:
    """Agents and workflows write long snapshots; a gateway, which may not read them, folds without them."""
    writer = AGENT if user == GATEWAY else user
    async with await secured_nats.connect(writer) as bus, await secured_nats.connect(user) as other:
        story = Story(ConversationLog(bus), Conversation(tenant, conversation))
        for _ in range(8):
            await story.run(output=secrets.token_urlsafe(30_000))
        written = await snapshots_in(EventLog(bus), story)
        state = await ConversationLog(other).read(tenant, conversation)

    assert [one.snapshot.ref for one in written if one.snapshot] == [
        object_name(story.state.tenant, story.state.conversation_id)
    ]
    assert state == story.state
