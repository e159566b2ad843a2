"""The usage of tenants is a fold of the logs: each commit counts once at every agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from urllib.parse import quote
from urllib.request import urlopen

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.fixtures import connect
from tests.support.nats import NatsServer
from tests.support.polling import eventually
from tests.support.usage import counting

from banksman.agent.logs.usage_ledger import UsageLedger
from banksman.bus.connection import Bus
from banksman.bus.jetstream import purge_subject
from banksman.bus.names import EVENTS, USAGE, kv_stream, kv_subject
from banksman.bus.storage.kv import Bucket, Entry
from banksman.bus.storage.log import EventLog
from banksman.bus.storage.tail import last_sequence
from banksman.bus.storage.watch import BucketView
from banksman.contracts import subjects
from banksman.contracts.events import Commit, Event, HistoryCompacted, MessageCompleted
from banksman.contracts.ids import new_id
from banksman.contracts.messages import Usage
from banksman.contracts.usage import CommitUsage, UsageTotals, ends_at, usage_key

WAIT_S = 40.0


class Writer:
    """Appends replies to logs of one tenant, as owners do."""

    def __init__(self, bus: Bus, tenant: str) -> None:
        self._log = EventLog(bus)
        self._tenant = tenant
        self._ends: dict[str, tuple[int, int]] = {}

    async def reply(self, conversation_id: str, tokens: int, cost_usd: float | None = None) -> int:
        """Append a reply with these input tokens and one output token; return its stream sequence."""
        took = Usage(input_tokens=tokens, output_tokens=1, cost_usd=cost_usd)
        completed = MessageCompleted(
            message_id=new_id("m"), role="assistant", content="ok", model="demo:demo", usage=took
        )
        after, last_seq = self._ends.get(conversation_id, (0, 0))
        event = Event(seq=last_seq + 1, ts=datetime.now(UTC), run_id=None, data=completed)
        commit = Commit(
            ts=event.ts, id=new_id("e"), log_epoch="l1", first_seq=event.seq, owner=None, events=(event,)
        )
        stored = await self._log.append(self._tenant, conversation_id, commit, after=after)
        assert isinstance(stored, int)
        self._ends[conversation_id] = (stored, event.seq)
        return stored


@asynccontextmanager
async def open_ledger(bus: Bus) -> AsyncGenerator[UsageLedger]:
    """A ledger that stores its totals only on `flush`, not periodically."""
    async with asyncio.timeout(WAIT_S), counting(bus) as ledger:
        yield ledger


async def stored_tokens(bus: Bus, tenant: str) -> int:
    entry = await Bucket(bus, USAGE, UsageTotals).get(usage_key(tenant))
    return 0 if entry is None else entry.value.month.input_tokens


async def test_usage_at_one_agent_is_known_to_all_agents(bus: Bus, tenant: str) -> None:
    writer = Writer(bus, tenant)
    async with open_ledger(bus) as one, open_ledger(bus) as other:
        await writer.reply("c1", 100, 0.5)
        last = await writer.reply("c2", 20)
        for ledger in (one, other):
            month = (await ledger.consumed(tenant, last)).month
            assert (month.requests, month.input_tokens, month.output_tokens) == (2, 120, 2)
            assert month.cost_usd == 0.5


async def test_bytes_of_logs_are_known_to_all_agents_and_those_of_a_deleted_log_are_subtracted(
    bus: Bus, tenant: str
) -> None:
    writer, log = Writer(bus, tenant), EventLog(bus)
    async with open_ledger(bus) as one, open_ledger(bus) as other:
        await writer.reply("c1", 100)
        last = await writer.reply("c2", 20)
        both = await log.size(tenant, "c1", before=last) + await log.size(tenant, "c2", before=last + 1)
        for ledger in (one, other):
            assert (await ledger.consumed(tenant, last)).stored_bytes == both > 0
        await one.flush()
        await one.release(tenant, await log.size(tenant, "c1", before=last))
        left = await log.size(tenant, "c2", before=last + 1)
        await eventually(lambda: stored_bytes_are(other, tenant, left))
        last = await writer.reply("c3", 1)
        assert (await other.consumed(tenant, last)).stored_bytes > left


async def stored_bytes_are(ledger: UsageLedger, tenant: str, wanted: int) -> bool:
    return (await ledger.consumed(tenant, 0)).stored_bytes == wanted


async def test_later_agent_continues_from_the_stored_totals(bus: Bus, tenant: str) -> None:
    writer = Writer(bus, tenant)
    async with open_ledger(bus) as first:
        await writer.reply("c1", 100)
        await first.flush()
        await writer.reply("c1", 7)
    assert await stored_tokens(bus, tenant) == 100

    async with open_ledger(bus) as second:
        consumed = await second.consumed(tenant, await last_sequence(bus, EVENTS))
        assert consumed.month.input_tokens == 107


async def test_usage_of_a_purged_log_stays_counted(bus: Bus, tenant: str) -> None:
    writer = Writer(bus, tenant)
    async with open_ledger(bus) as first:
        for tokens in (1, 10, 100):
            await writer.reply("c1", tokens)
        await first.flush()
        await EventLog(bus).purge(tenant, "c1")

    async with open_ledger(bus) as second:
        consumed = await second.consumed(tenant, await last_sequence(bus, EVENTS))
        assert consumed.month.input_tokens == 111


async def remove_totals(bus: Bus, tenant: str) -> None:
    """Remove a tenant's totals as `banksman tenants delete` does: watchers are not notified of a purge."""
    assert await purge_subject(bus, kv_stream(USAGE), kv_subject(USAGE, usage_key(tenant))) == 1


async def test_tenant_that_is_created_again_is_counted_from_zero_and_holds_up_no_other_tenant(
    bus: Bus, tenant: str
) -> None:
    other = new_id("t")
    writer, writer_of_other = Writer(bus, tenant), Writer(bus, other)
    async with open_ledger(bus) as ledger:
        await writer.reply("c1", 100)
        await writer_of_other.reply("c1", 10)
        await ledger.flush()
        await remove_totals(bus, tenant)

        last = await writer.reply("c2", 7)
        await ledger.flush()
        assert await stored_tokens(bus, tenant) == 7
        assert (await ledger.consumed(tenant, last)).month.input_tokens == 7

        last = await writer_of_other.reply("c2", 1)
        await ledger.flush()
        assert await stored_tokens(bus, other) == 11
        assert (await ledger.consumed(other, last)).month.input_tokens == 11


async def test_agent_that_begins_to_count_does_not_include_removed_totals(bus: Bus, tenant: str) -> None:
    writer = Writer(bus, tenant)
    async with AsyncExitStack() as until_removed:
        first = await until_removed.enter_async_context(open_ledger(bus))
        await writer.reply("c1", 100)
        await first.flush()
        async with open_ledger(bus) as second:
            await remove_totals(bus, tenant)
            await until_removed.aclose()
            last = await writer.reply("c2", 7)
            assert (await second.consumed(tenant, last)).month.input_tokens == 7
            await second.flush()
    assert await stored_tokens(bus, tenant) == 7


async def test_concurrent_ledgers_count_each_commit_once(bus: Bus, tenant: str) -> None:
    writer, sent, replies = Writer(bus, tenant), 0, 40
    async with open_ledger(bus) as one, open_ledger(bus) as other:
        async with asyncio.TaskGroup() as group:
            for number in range(1, replies + 1):
                await writer.reply(f"c{number % 3}", number)
                sent += number
                if number % 5 == 0:
                    group.create_task(one.flush())
                    group.create_task(other.flush())
        await one.flush()
        for ledger in (one, other):
            assert (await ledger.consumed(tenant, 0)).month.input_tokens == sent
    assert await stored_tokens(bus, tenant) == sent


async def test_another_agent_continues_the_count_when_the_counting_agent_is_killed(
    own_nats: NatsServer,
) -> None:
    """An agent that needs a total takes over at once, and also takes over the record of the log heads."""
    tenant = new_id("t")
    async with (
        await connect(own_nats) as bus,
        await connect(own_nats) as one,
        await connect(own_nats) as other,
        counting(one, standby_s=WAIT_S) as ledger_of_one,
        counting(other, standby_s=WAIT_S) as ledger_of_other,
    ):
        writer = Writer(bus, tenant)
        last = await writer.reply("c1", 100)
        for ledger in (ledger_of_one, ledger_of_other):
            assert (await ledger.consumed(tenant, last)).month.input_tokens == 100

        async def only_one() -> int | None:
            # If both began to count, one notices the other when it has a further commit to record.
            await writer.reply("c2", 0)
            counts = await connections_that_count(own_nats)
            return counts[0] if len(counts) == 1 else None

        counts = await eventually(only_one)
        doomed, left = (one, ledger_of_other) if one.nc.client_id == counts else (other, ledger_of_one)
        await doomed.close()
        last = await writer.reply("c1", 10)
        assert (await left.consumed(tenant, last)).month.input_tokens == 110


async def test_commits_reach_one_agent_however_many_there_are(own_nats: NatsServer) -> None:
    """Otherwise the cost of a run grows with the number of agents."""
    assert await received(own_nats, agents=4) < 1.2 * await received(own_nats, agents=1)


async def received(server: NatsServer, *, agents: int, commits: int = 100) -> int:
    """Return how many messages a number of agents receive together while commits are stored."""
    tenant = new_id("t")
    async with AsyncExitStack() as stack:
        writer = Writer(await stack.enter_async_context(await connect(server)), tenant)
        buses = [await stack.enter_async_context(await connect(server)) for _ in range(agents)]
        ledgers = [await stack.enter_async_context(counting(bus, standby_s=WAIT_S)) for bus in buses]
        stored = [await writer.reply("c0", 1)]
        for ledger in ledgers:
            await ledger.consumed(tenant, stored[-1])

        async def has_one_counting() -> bool:
            # If two agents began to count, one notices the other when it has a further commit to record.
            stored.append(await writer.reply("c0", 1))
            return len(await connections_that_count(server)) == 1

        await eventually(has_one_counting)
        await ledgers[0].consumed(tenant, stored[-1])
        before = sum(bus.nc.stats["in_msgs"] for bus in buses)
        stored += [await writer.reply(f"c{number % 3}", 1) for number in range(commits)]
        assert (await ledgers[0].consumed(tenant, stored[-1])).month.requests == len(stored)
        return sum(bus.nc.stats["in_msgs"] for bus in buses) - before


async def connections_that_count(server: NatsServer) -> list[int]:
    """Return the ids of the connections that serve the totals."""
    url = f"{server.monitoring_url}/subsz?subs=1&test={quote(subjects.counted_usage())}"
    with await asyncio.to_thread(urlopen, url, timeout=5) as response:
        return [int(one["cid"]) for one in json.load(response).get("subscriptions_list") or ()]


async def test_killed_server_loses_no_usage(own_nats: NatsServer) -> None:
    tenant = new_id("t")
    async with await connect(own_nats) as bus:
        writer = Writer(bus, tenant)
        async with open_ledger(bus) as ledger:
            await writer.reply("c1", 100)
            await ledger.flush()
            await writer.reply("c1", 10)
            own_nats.kill()
            own_nats.start()
            last = await writer.reply("c1", 1)

            async def is_counted() -> bool:
                return (await ledger.consumed(tenant, last)).month.input_tokens == 111

            await eventually(is_counted, WAIT_S)


async def test_totals_are_stored_periodically(bus: Bus, tenant: str) -> None:
    changes = asyncio.Event()

    def changed(key: str, entry: Entry[UsageTotals] | None) -> None:
        if key == usage_key(tenant) and entry is not None and entry.value.month.input_tokens == 5:
            changes.set()

    async with (
        asyncio.timeout(WAIT_S),
        BucketView(Bucket(bus, USAGE, UsageTotals), on_change=changed),
        counting(bus, write_every_s=0.1),
    ):
        await Writer(bus, tenant).reply("c1", 5)
        await changes.wait()


def test_summaries_and_malformed_calls_count_as_requests() -> None:
    took = Usage(input_tokens=3, output_tokens=4, cost_usd=0.25)
    summary = HistoryCompacted(
        message_id="m", how="summarised", summary="s", kept_from=1, tokens_before=9, tokens_after=1,
        model="demo:demo", usage=took,
    )  # fmt: skip
    unwritten = summary.model_copy(update={"how": "dropped", "model": "", "usage": Usage()})
    events = [Event(seq=n, ts=datetime.now(UTC), data=data) for n, data in enumerate((summary, unwritten), 1)]

    consumed = CommitUsage.of(events)

    assert (consumed.requests, consumed.input_tokens, consumed.output_tokens) == (1, 3, 4)
    assert CommitUsage.from_header(consumed.header) == consumed
    assert CommitUsage.from_header("nonsense") == CommitUsage()


DAYS = st.dates(date(2026, 1, 30), date(2026, 3, 2))
MOMENTS = st.builds(datetime.combine, DAYS, st.times(), st.just(UTC))


# On a busy machine, one list of commits may take a second to draw.
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(MOMENTS, st.integers(0, 1_000)), max_size=30), st.data())
def test_resumed_fold_with_repeated_commits_equals_the_whole_fold(
    changes: list[tuple[datetime, int]], data: st.DataObject
) -> None:
    changes.sort()
    deltas = [(seq, at, CommitUsage(1, tokens, 0, 0.5)) for seq, (at, tokens) in enumerate(changes, 1)]
    whole = UsageTotals()
    for delta in deltas:
        whole = whole.with_commit(*delta)

    resumed = UsageTotals()
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, resumed.upto))
        end = data.draw(st.integers(resumed.upto, len(deltas)))
        for delta in deltas[begin:end]:
            resumed = resumed.with_commit(*delta)
        resumed = UsageTotals.model_validate_json(resumed.model_dump_json())
    for delta in deltas[resumed.upto :]:
        resumed = resumed.with_commit(*delta)

    assert resumed == whole
    if deltas:
        now = deltas[-1][1]
        today = [tokens for at, tokens in changes if at.date() == now.date()]
        this_month = [tokens for at, tokens in changes if (at.year, at.month) == (now.year, now.month)]
        assert (whole.current("day", now).tokens, whole.current("month", now).tokens) == (
            sum(today),
            sum(this_month),
        )
        assert whole.current("day", ends_at("day", now)).tokens == 0
        assert whole.current("month", ends_at("month", now)).tokens == 0
        assert ends_at("day", now) - timedelta(days=1) <= now < ends_at("day", now) <= ends_at("month", now)
