"""A loss of a store is detected before any process works on it; intended removals are no loss."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from banksman.agent.logs.heads_recorder import SCRUB_AFTER_S, HeadsRecorder
from banksman.agent.logs.usage_ledger import UsageLedger
from banksman.bus.connection import Bus
from banksman.bus.dead import dead_letters
from banksman.bus.errors import LogDamaged
from banksman.bus.jetstream import call
from banksman.bus.names import EVENTS, HEADS, RUNS, api, kv_stream
from banksman.bus.publish import durable
from banksman.bus.queues.handling import Done, FailureCounts, Later, WorkMessage, handle
from banksman.bus.storage.log import AppendConflict, EventLog
from banksman.bus.storage.tail import last_sequence
from banksman.contracts import subjects
from banksman.contracts.errors import BanksmanError
from banksman.contracts.events import Commit, ConversationUpdated, Event
from banksman.contracts.ids import new_id
from banksman.deployment.topology import app_topology
from banksman.log_integrity.check import check_logs
from banksman.log_integrity.damage import DamagedLogs
from banksman.log_integrity.heads import SEGMENT_COMMITS, Heads, LogHeads, later, lost_ends
from banksman.runs.conversation_log import ConversationLog
from tests.bus.builders import commit, now
from tests.faults.broker.stores import (
    Damage,
    blocks,
    cut_the_tail,
    flip_a_bit,
    lose_everything,
    lose_meta_inf,
    stream_of,
)
from tests.support.fixtures import BUDGET, connect, provision_all
from tests.support.nats import NatsServer
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_server]
COMMITS = 10
KEEP_S = 0.1
EARLY, MIDDLE, LATE = "c-early", "c-middle", "c-late"


@pytest.mark.parametrize(
    ("damage", "hurt"),
    [
        pytest.param(flip_a_bit, {MIDDLE, LATE}, id="a bit flips in the middle of a block"),
        pytest.param(cut_the_tail, {LATE}, id="the end of a block is cut off"),
        pytest.param(lose_everything, {EARLY, MIDDLE, LATE}, id="the stream's directory is gone"),
    ],
)
async def test_logs_lost_by_a_store_are_reported_before_work_begins(
    own_nats: NatsServer, tenant: str, damage: Damage, hurt: set[str]
) -> None:
    """M18: the server reports nothing, and assigns the lost sequences again."""
    last = await _filled(own_nats, tenant)
    await _altered(own_nats, damage)
    async with _guarded(own_nats) as (bus, damaged):
        assert damaged.logs.keys() == {f"{tenant}.{conversation}" for conversation in hurt}
        assert all("its end is lost, message" in problem for problem in damaged.logs.values())
        assert await last_sequence(bus, EVENTS) < last
        assert f"{tenant}/{min(hurt)}" in (await damaged.warning() or "")
        for conversation in {EARLY, MIDDLE, LATE} - hurt:
            assert damaged.damage(tenant, conversation) is None
    async with _guarded(own_nats) as (bus, damaged):
        assert damaged.logs.keys() == {f"{tenant}.{conversation}" for conversation in hurt}, (
            "it was forgotten"
        )
        assert (await lost_ends(bus)).keys() == damaged.logs.keys()


async def test_a_stream_without_its_meta_inf_has_its_logs_again_after_provisioning(
    own_nats: NatsServer, tenant: str
) -> None:
    """M18: the server no longer knows the stream, but its messages are still on disk."""
    last = await _filled(own_nats, tenant)
    await _altered(own_nats, lose_meta_inf)
    async with _guarded(own_nats) as (bus, damaged):
        assert damaged.logs == {}
        assert await last_sequence(bus, EVENTS) == last
        assert [damage async for damage in check_logs(bus)] == []
        await _write(bus, tenant, LATE, 1)


async def test_an_older_version_of_a_stream_is_detected(own_nats: NatsServer, tenant: str) -> None:
    copy = own_nats.directory / "copy"

    async def keep_a_copy() -> None:
        own_nats.stop()
        shutil.copytree(stream_of(own_nats.directory / "store"), copy)
        own_nats.start()

    def roll_back(stream: object) -> None:
        shutil.rmtree(stream_of(own_nats.directory / "store"))
        shutil.copytree(copy, str(stream))

    await _filled(own_nats, tenant)
    await keep_a_copy()
    async with _guarded(own_nats) as (bus, _):
        await _write(bus, tenant, "c-new", 3)
        await _write(bus, tenant, MIDDLE, 2)
        await _counted(bus)
    await _altered(own_nats, roll_back)
    async with _guarded(own_nats) as (_, damaged):
        assert damaged.logs.keys() == {f"{tenant}.c-new", f"{tenant}.{MIDDLE}"}
        assert "its end is lost, message" in damaged.logs[f"{tenant}.c-new"]
        assert "its end is lost" in damaged.logs[f"{tenant}.{MIDDLE}"]


async def test_no_acknowledged_commit_is_reported_lost_after_a_kill(
    own_nats: NatsServer, tenant: str
) -> None:
    """M1: the server is killed repeatedly while commits are stored and counted."""
    for round_ in range(3):
        async with _guarded(own_nats) as (bus, damaged):
            assert damaged.logs == {}
            killed = asyncio.Event()
            writer = asyncio.create_task(_write_until(bus, tenant, f"c{round_}", killed))
            await eventually(partial(_is_counted, bus, f"{tenant}.c{round_}"), WAIT_TIMEOUT_S)
            own_nats.kill()
            killed.set()
            own_nats.start()
            await writer
    async with _guarded(own_nats) as (bus, damaged):
        assert damaged.logs == {}
        await _counted(bus)
        assert await lost_ends(bus) == {}


async def test_commits_that_the_product_removes_are_no_loss(own_nats: NatsServer, tenant: str) -> None:
    """A deleted conversation retains only its tombstone, and possibly late commits."""
    async with _guarded(own_nats) as (bus, _):
        await _write(bus, tenant, "c1", 5)
        await _write(bus, tenant, "c2", 5)
        await _counted(bus)
        log = EventLog(bus)
        for conversation in ("c1", "c2"):
            end = (await log.read(tenant, conversation, leader=True))[-1]
            stored = await log.append(tenant, conversation, tombstone(6), after=end.stream_seq)
            assert await log.purge(tenant, conversation) == 5
            if conversation == "c2":
                assert isinstance(stored, int)
                await log.append(tenant, conversation, commit(7), after=stored)
        await _counted(bus)
        assert await lost_ends(bus) == {}
    own_nats.kill()
    own_nats.start()
    async with _guarded(own_nats) as (_, damaged):
        assert damaged.logs == {}


async def test_expired_commits_are_no_loss(own_nats: NatsServer, tenant: str) -> None:
    async with _guarded(own_nats) as (bus, _):
        await _write(bus, tenant, "c1", 3)
        await _counted(bus)
        config = app_topology(BUDGET).stream(EVENTS).config() | {"max_age": 100_000_000}
        await call(bus, api("STREAM.UPDATE", EVENTS), {**config, "duplicate_window": 100_000_000})

        async def expired() -> bool:
            return (await call(bus, api("STREAM.INFO", EVENTS)))["state"]["messages"] == 0

        await eventually(expired, WAIT_TIMEOUT_S)
        assert await lost_ends(bus) == {}


async def test_many_processes_maintain_one_record_over_many_segments(
    own_nats: NatsServer, tenant: str
) -> None:
    """The process that starts last maintains it; the others detect this, and nothing is counted twice."""
    per_log = SEGMENT_COMMITS // 100
    async with await connect(own_nats) as bus, await connect(own_nats) as other:
        async with _recorder(bus), _recorder(other):
            async with asyncio.TaskGroup() as group:
                for number in range(120):
                    group.create_task(_write(bus, tenant, f"c{number}", per_log))
            await _counted(bus)
        recorded = await _recorded(bus)
        stored = [await EventLog(bus).last(tenant, f"c{number}") for number in range(120)]
        ends = {f"{tenant}.c{number}": last.stream_seq for number, last in enumerate(stored) if last}
        assert (recorded, len(ends), len(await LogHeads(bus).segments())) == (ends, 120, 2)


async def test_a_lost_record_is_rebuilt_and_incomplete_until_then(own_nats: NatsServer, tenant: str) -> None:
    """P22: after both copies are lost, and after more than one segment of commits."""
    async with _guarded(own_nats) as (bus, _):
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(_write(bus, tenant, f"c{number}", SEGMENT_COMMITS // 40))
        await _counted(bus)
        before = await _recorded(bus)
    own_nats.kill()
    lose_everything(stream_of(own_nats.directory / "store", kv_stream(HEADS)))
    own_nats.launch()
    await asyncio.to_thread(provision_all, own_nats)
    async with await connect(own_nats) as bus, _recorder(bus, write_every_s=2.0) as recorder:
        await eventually(lambda: _is_complete(recorder, False), WAIT_TIMEOUT_S)
        assert await _recorded(bus) != before
        await eventually(lambda: _is_complete(recorder, True), WAIT_TIMEOUT_S)
        assert await _recorded(bus) == before
    await _altered(own_nats, cut_the_tail)
    async with _guarded(own_nats) as (_, damaged):
        assert damaged.logs


async def _is_complete(recorder: HeadsRecorder, expected: bool) -> bool:
    return (await recorder.incomplete() is None) is expected


async def test_a_process_that_detects_lost_commits_appends_nothing_and_reports_the_damage(
    own_nats: NatsServer, tenant: str
) -> None:
    """The lost commits were not counted; without this check the owner would retry its append without end."""
    async with await connect(own_nats) as bus, DamagedLogs(bus) as damaged:
        await _write(bus, tenant, LATE, COMMITS)
        log = ConversationLog(bus, damaged)
        state = await log.read(tenant, LATE)
        await _altered(own_nats, cut_the_tail)
        with pytest.raises(LogDamaged) as refused:
            await log.append(state, commit(COMMITS + 1))
        assert f"its end is lost, message {state.stream_seq}" in refused.value.problem
        await eventually(lambda: damaged.damage(tenant, LATE) is not None)
        with pytest.raises(LogDamaged):
            await log.read(tenant, LATE)
        assert await damaged.unready() is None
        await damaged.clear(f"{tenant}.{LATE}")
        await eventually(lambda: damaged.damage(tenant, LATE) is None)
        assert (await log.read(tenant, LATE)).last_seq < COMMITS


async def test_work_for_a_damaged_log_stays_in_its_queue(
    own_nats: NatsServer, tenant: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is neither lost nor dead-lettered: after the log is repaired it is handled as any other. It is
    redelivered every few seconds until then, which is logged once."""
    async with await connect(own_nats) as bus, DamagedLogs(bus) as damaged:

        async def handler(_message: WorkMessage) -> Done:
            raise await damaged.report(f"{tenant}.c1", "its end is gone")

        for delivery in range(1, 100):
            message = WorkMessage(subjects.run_work(tenant, "c1"), b"{}", {}, 1, delivery)
            outcome = await handle(bus, RUNS, handler, message, FailureCounts())
            assert isinstance(outcome, Later) and outcome.delay_s > 0
        assert len([record for record in caplog.records if ": kept: " in record.message]) == 1
        assert [letter async for letter in dead_letters(bus)] == []


@asynccontextmanager
async def _guarded(
    server: NatsServer, *, scrub_after_s: float = SCRUB_AFTER_S
) -> AsyncGenerator[tuple[Bus, DamagedLogs]]:
    """Run the checks of an agent before and during its work."""
    async with await connect(server) as bus, DamagedLogs(bus, checks=True) as damaged:
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            assert await damaged.may_work(asyncio.Event())
        async with _recorder(bus, scrub_after_s=scrub_after_s):
            yield bus, damaged


@asynccontextmanager
async def _recorder(
    bus: Bus, *, scrub_after_s: float = SCRUB_AFTER_S, write_every_s: float = KEEP_S
) -> AsyncGenerator[HeadsRecorder]:
    async with (
        DamagedLogs(bus) as damaged,
        UsageLedger(bus) as usage,
        HeadsRecorder(
            LogHeads(bus),
            damaged,
            usage,
            write_every_s=write_every_s,
            standby_s=KEEP_S,
            scrub_after_s=scrub_after_s,
        ) as recorder,
    ):
        yield recorder


async def _recorded(bus: Bus) -> Heads:
    recorded: Heads = {}
    for heads in (await LogHeads(bus).segments()).values():
        recorded = later(recorded, heads)
    return recorded


async def _filled(server: NatsServer, tenant: str) -> int:
    """Append three logs, one after another; return the sequence of the last commit."""
    async with _guarded(server) as (bus, _):
        for conversation in (EARLY, MIDDLE, LATE):
            await _write(bus, tenant, conversation, COMMITS)
        return await _counted(bus)


async def _altered(server: NatsServer, damage: Damage) -> None:
    """Kill the server, damage the stream of the logs, and start it again with all streams."""
    server.kill()
    damage(stream_of(server.directory / "store"))
    # Without `meta.inf` it serves, but permanently reports that it is not healthy.
    server.launch()
    await asyncio.to_thread(provision_all, server)


async def _write(bus: Bus, tenant: str, conversation: str, commits: int, *, title: str | None = None) -> None:
    log = EventLog(bus)
    stored = await log.read(tenant, conversation, leader=True)
    after, seq = (stored[-1].stream_seq, stored[-1].commit.last_seq) if stored else (0, 0)
    for number in range(seq + 1, seq + 1 + commits):
        appended = await log.append(tenant, conversation, commit(number, title=title), after=after)
        assert not isinstance(appended, AppendConflict)
        after = appended


async def _write_until(bus: Bus, tenant: str, conversation: str, killed: asyncio.Event) -> None:
    """Append until the server was killed, including appends without a response."""
    try:
        while not killed.is_set():
            await _write(bus, tenant, conversation, 5)
    except BanksmanError:
        assert killed.is_set()


async def _counted(bus: Bus) -> int:
    """Wait until all stored commits are counted; return the sequence of the last one."""
    last = await last_sequence(bus, EVENTS)

    async def counted() -> bool:
        return max((await _recorded(bus)).values(), default=0) >= last

    await eventually(counted, WAIT_TIMEOUT_S)
    return last


async def _is_counted(bus: Bus, log: str) -> bool:
    return log in await _recorded(bus)


def tombstone(seq: int) -> Commit:
    event = Event(seq=seq, ts=now(), data=ConversationUpdated(status="deleted"))
    return Commit(ts=now(), id=new_id("k"), log_epoch="e1", first_seq=seq, owner=None, events=(event,))


async def test_unreadable_messages_in_an_old_file_are_found_by_their_headers(
    own_nats: NatsServer, tenant: str
) -> None:
    """The server counts such a commit as stored, but omits it from reads."""
    async with _guarded(own_nats) as (bus, _):
        for conversation in (EARLY, MIDDLE, LATE):
            await _write(bus, tenant, conversation, COMMITS, title="x" * 500_000)
        await _counted(bus)
    own_nats.stop()  # an orderly stop, so that the server trusts its index and does not read its files
    first, *others = blocks(stream_of(own_nats.directory / "store"))
    assert others and first.name == "1.blk"
    flip_a_bit(stream_of(own_nats.directory / "store"))
    own_nats.start()
    async with _guarded(own_nats, scrub_after_s=0.0) as (bus, damaged):
        assert damaged.logs == {}
        await eventually(lambda: damaged.damage(tenant, EARLY) is not None)
        assert "are missing" in str(damaged.damage(tenant, EARLY))
        assert damaged.damage(tenant, LATE) is None


async def test_foreign_messages_in_a_log_are_found_by_their_headers(
    own_nats: NatsServer, tenant: str
) -> None:
    """No header of ours, another numbering, or another epoch: no run continues after such a message."""
    async with _guarded(own_nats) as (bus, _):
        for conversation in (EARLY, MIDDLE, LATE, "c-whole"):
            await _write(bus, tenant, conversation, 3)
        subject = subjects.conversation(tenant, EARLY)
        await durable(bus, subject, b"{}", msg_id=new_id("x"))
        log = EventLog(bus)
        end = (await log.last(tenant, MIDDLE)) or pytest.fail("empty")
        await log.append(tenant, MIDDLE, commit(2), after=end.stream_seq)
        end = (await log.last(tenant, LATE)) or pytest.fail("empty")
        foreign = commit(4).model_copy(update={"log_epoch": "another"})
        await log.append(tenant, LATE, foreign, after=end.stream_seq)
        await _counted(bus)
    async with _guarded(own_nats, scrub_after_s=0.0) as (bus, damaged):
        await eventually(lambda: len(damaged.logs) == 3)
        assert "is no commit" in damaged.logs[f"{tenant}.{EARLY}"]
        assert "stored twice" in damaged.logs[f"{tenant}.{MIDDLE}"]
        assert "is from another log epoch" in damaged.logs[f"{tenant}.{LATE}"]
