"""The usage and stored bytes of each tenant, counted from all logs and stored in bucket `usage`.

The logs are authoritative: each commit with a model's reply has the usage of the reply in a header. The agent
that records the log heads counts the headers of all commits in the order of the stream. Other agents request
the totals of tenants with a limit from that agent. The bucket stores the totals up to a stream sequence, from
which the next agent continues: every commit counts once, also when a run is taken over. Runs write no totals,
and all agents together write at most `WRITES_PER_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import islice

from pydantic import BaseModel

from banksman.bus.connection import Bus
from banksman.bus.errors import NoResponders
from banksman.bus.messages import BusSubscription, Message
from banksman.bus.names import CONSUMED, EVENTS, USAGE
from banksman.bus.storage.kv import Bucket, Entry
from banksman.bus.storage.log import stored_size
from banksman.bus.storage.tail import StoredHeaders, last_sequence
from banksman.bus.storage.watch import BucketView
from banksman.contracts import subjects
from banksman.contracts.errors import BanksmanError, Unavailable
from banksman.contracts.usage import CommitUsage, UsageTotals, passthrough_key, usage_key
from banksman.runtime.scope import Scoped

logger = logging.getLogger(__name__)

ALL_TENANTS = "all"
"""Key of the totals of all tenants together. They are written last, so the stored totals of each tenant reach
at least as far."""
WRITE_EVERY_S = 5.0
"""Seconds between two writes of a tenant's totals, by any agent; more when many tenants are active."""
WRITES_PER_S = 10
"""Writes per second of all active tenants together, which stretches `WRITE_EVERY_S`."""
REACH_S = 5.0
"""Seconds for which a run waits until the commits before it are counted."""
REPLY_S = 1.0
"""Seconds to wait for a reply of the agent that counts; after that, this agent begins to count."""
MAX_WAITING = 1_000
"""Maximum requests of other agents that wait until commits are counted; further ones get no reply."""
NOTHING = UsageTotals()


class UsageQuery(BaseModel):
    tenant: str
    upto: int
    """Stream sequence up to which every commit must be counted."""
    stored: bool = False
    """Whether the totals of every tenant up to `upto` must also be stored."""


class UsageLedger(Scoped):
    """The usage of tenants. `HeadsRecorder` selects the agent that counts; other agents request its totals.

    As a context manager it follows the stored totals.
    """

    def __init__(self, bus: Bus, *, write_every_s: float = WRITE_EVERY_S) -> None:
        self._bus = bus
        self._write_every_s = write_every_s
        self._bucket = Bucket(bus, USAGE, UsageTotals)
        self._view = BucketView(self._bucket, on_change=self._stored)
        self._accounts: dict[str, Account] = {}
        self._upto = 0
        self._advanced = asyncio.Event()
        self._counting = asyncio.Event()
        """Set while this process counts for all."""
        self.wanted = asyncio.Event()
        """Set when this process should count, because no other process seems to."""
        self._subscription: BusSubscription | None = None
        self._replies: set[asyncio.Task[None]] = set()

    async def consumed(self, tenant: str, upto: int) -> UsageTotals:
        """Return a tenant's usage at all agents, up to a stream sequence or further.

        If no agent has counted that far within `REACH_S`, the totals may be lower.
        """
        try:
            async with asyncio.timeout(REACH_S):
                return await self._counted(UsageQuery(tenant=tenant, upto=upto))
        except TimeoutError:
            logger.warning("usage is not counted up to %d yet", upto)
            return self._totals(tenant)

    async def flush(self) -> None:
        """Store the current totals. Call it before a log is purged, whose commits cannot be counted later."""
        upto = await last_sequence(self._bus, EVENTS)
        try:
            async with asyncio.timeout(REACH_S):
                await self._counted(UsageQuery(tenant=ALL_TENANTS, upto=upto, stored=True))
        except TimeoutError as error:
            raise Unavailable(f"usage up to {upto} is not stored yet") from error

    async def release(self, tenant: str, stored_bytes: int) -> None:
        """Subtract the bytes of a log that is about to be purged, after `flush` has counted them.

        A repeat after an interrupted deletion subtracts the bytes a second time, in favour of the tenant.
        """
        key = usage_key(tenant)
        while entry := await self._bucket.get_or_drop(key):
            if await self._bucket.update(key, entry.value.without(stored_bytes), entry.revision) is not None:
                return

    async def _enter(self, scope: AsyncExitStack) -> None:
        # Before any run, so that the very first agent counts from here.
        await self._start()
        await scope.enter_async_context(self._view)
        write_due = partial(self._write_all, unless_stored_s=self._write_every_s / 2)
        writing = self._bus.background.repeat("usage-write", write_due, wait=self._wait_to_write)
        scope.push_async_callback(writing.stop)

    async def begin(self) -> int:
        """Begin to count; return the stream sequence after which `take` needs the commits."""
        # Read in this order: the totals of each tenant reach at least as far as those of all tenants.
        start, end = await self._start(), await last_sequence(self._bus, EVENTS)
        await self._view.refresh()
        # Accounts whose stored totals were removed must not remain.
        self._accounts.clear()
        for entry in self._view.entries():
            # `upto` is beyond the end if the logs were restored from a backup older than the bucket.
            totals = entry.value.model_copy(update={"upto": min(entry.value.upto, end)})
            account = self._accounts[entry.key] = Account()
            account.restart_from(totals, entry.revision, _clock())
        self._upto = min(start, end)
        self._subscription = await self._bus.subscribe(subjects.counted_usage(), self._requested)
        self.wanted.clear()
        self._counting.set()
        return self._upto

    def take(self, commit: StoredHeaders) -> None:
        """Count a commit, unless it is counted already."""
        if commit.stream_seq <= self._upto:
            return
        consumed = CommitUsage.from_header(commit.headers.get(CONSUMED, ""))
        counted = CountedCommit(commit.stream_seq, commit.time, consumed, stored_size(commit.payload_bytes))
        self._account(usage_key(commit.subject.split(".")[1])).add(counted)
        if consumed.requests:
            self._account(ALL_TENANTS).add(replace(counted, stored_bytes=0))
        self._upto = commit.stream_seq
        self._advanced.set()

    async def end(self) -> None:
        """Stop counting, because another process counts or this one stops."""
        self._counting.clear()
        for task in tuple(self._replies):
            task.cancel()
        if self._subscription is not None:
            await self._subscription.unsubscribe()
        for account in self._accounts.values():
            account.forget()

    async def is_followed(self) -> bool:
        """Return False if no process counts."""
        try:
            await self._request(UsageQuery(tenant=ALL_TENANTS, upto=0))
        except NoResponders:
            return False
        except Unavailable:
            return True
        return True

    async def _counted(self, query: UsageQuery) -> UsageTotals:
        while not self._counting.is_set():
            try:
                return await self._request(query)
            except Unavailable:
                # The counting agent has ended or is frozen, so this one begins to count.
                self.wanted.set()
                await self._counting.wait()
        return await self._counted_here(query)

    async def _request(self, query: UsageQuery) -> UsageTotals:
        reply = await self._bus.request(subjects.counted_usage(), query.model_dump_json().encode(), REPLY_S)
        return UsageTotals.model_validate_json(reply)

    async def _counted_here(self, query: UsageQuery) -> UsageTotals:
        while self._upto < query.upto:
            self._advanced.clear()
            await self._advanced.wait()
        # Repeat after a conflict: another agent stored lower totals at the same time.
        while query.stored and any(
            one.since and one.since[0].stream_seq <= query.upto for one in self._accounts.values()
        ):
            await self._write_all(0.0)
        return self._totals(query.tenant)

    async def _requested(self, message: Message) -> None:
        if len(self._replies) < MAX_WAITING:
            query = UsageQuery.model_validate_json(message.data)
            task = asyncio.create_task(self._reply(query, message.reply), name="usage reply")
            self._replies.add(task)
            task.add_done_callback(self._replies.discard)

    async def _reply(self, query: UsageQuery, reply: str) -> None:
        with contextlib.suppress(TimeoutError, BanksmanError):
            async with asyncio.timeout(REPLY_S):
                totals = await self._counted_here(query)
            await self._bus.publish(reply, totals.model_dump_json().encode())

    def _totals(self, tenant: str) -> UsageTotals:
        """Return the usage of a tenant: its runs as counted here, and its passthrough requests as stored."""
        return self._account(usage_key(tenant)).now().plus(self._account(passthrough_key(tenant)).stored)

    async def _start(self) -> int:
        """Return the stream sequence to count from: that of the stored totals, or the end of the stream."""
        entry = await self._bucket.get_or_drop(ALL_TENANTS)
        if entry is None:
            end = await last_sequence(self._bus, EVENTS)
            await self._bucket.create(ALL_TENANTS, UsageTotals(upto=end))
            entry = await self._bucket.get(ALL_TENANTS)
        return 0 if entry is None else entry.value.upto

    def _account(self, key: str) -> Account:
        return self._accounts.setdefault(key, Account())

    def _stored(self, key: str, entry: Entry[UsageTotals] | None) -> None:
        if entry is not None:
            self._account(key).restart_from(entry.value, entry.revision, _clock())
        elif account := self._accounts.get(key):
            account.restart_from_nothing()

    async def _wait_to_write(self) -> None:
        changed = sum(1 for account in self._accounts.values() if account.since)
        # Agents that start together must not write together.
        share = random.uniform(0.5, 1.0)
        await asyncio.sleep(max(self._write_every_s, changed / WRITES_PER_S) * share)

    async def _write_all(self, unless_stored_s: float) -> None:
        """Store the totals of each tenant, then those of all; skip totals stored within `unless_stored_s`."""
        upto, due = self._upto, _clock() - unless_stored_s
        tenants = {key: account for key, account in self._accounts.items() if key != ALL_TENANTS}
        for key, account in tenants.items():
            if account.since and account.stored_at <= due:
                await self._write(key, account, account.now())
        total = self._account(ALL_TENANTS)
        # The totals of all tenants must not reach further than the stored totals of any tenant.
        covered = min((one.since[0].stream_seq - 1 for one in tenants.values() if one.since), default=upto)
        if total.since and total.stored_at <= due and min(upto, covered) > total.stored.upto:
            await self._write(ALL_TENANTS, total, total.until(min(upto, covered)))

    async def _write(self, key: str, account: Account, totals: UsageTotals) -> None:
        if expected := account.revision:
            revision = await self._bucket.update(key, totals, expected)
        else:
            revision = await self._bucket.create(key, totals)
        if revision is not None:
            account.restart_from(totals, revision, _clock())
        elif stored := await self._bucket.get_or_drop(key):
            account.restart_from(stored.value, stored.revision, _clock())
        elif expected and account.revision == expected:
            # The totals were removed, as for a deleted tenant, and the next write creates them again. If the
            # revision differs, a concurrent `flush` has already created them.
            account.restart_from_nothing()


def _clock() -> float:
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class CountedCommit:
    stream_seq: int
    time: datetime
    consumed: CommitUsage
    stored_bytes: int

    def added_to(self, totals: UsageTotals) -> UsageTotals:
        return totals.with_commit(self.stream_seq, self.time, self.consumed, self.stored_bytes)


@dataclass(slots=True)
class Account:
    """The stored totals of a tenant, and the commits that this process has counted since."""

    stored: UsageTotals = NOTHING
    revision: int = 0
    """The revision of the stored totals; 0 if none are stored."""
    stored_at: float = 0.0
    """When the stored totals last changed, by the clock of the event loop."""
    since: deque[CountedCommit] = field(default_factory=deque[CountedCommit])
    _counted: UsageTotals = NOTHING
    """The stored totals and the first `_of_since` commits after them."""
    _of_since: int = 0

    def add(self, commit: CountedCommit) -> None:
        """Count a commit, unless the totals that another process has stored contain it."""
        if commit.stream_seq > self.stored.upto:
            self.since.append(commit)

    def now(self) -> UsageTotals:
        for commit in islice(self.since, self._of_since, None):
            self._counted = commit.added_to(self._counted)
        self._of_since = len(self.since)
        return self._counted

    def until(self, stream_seq: int) -> UsageTotals:
        totals = self.stored
        for commit in self.since:
            if commit.stream_seq <= stream_seq:
                totals = commit.added_to(totals)
        return totals.model_copy(update={"upto": max(totals.upto, stream_seq)})

    def forget(self) -> None:
        self.since.clear()
        self._counted, self._of_since = self.stored, 0

    def restart_from(self, totals: UsageTotals, revision: int, at: float) -> None:
        # The view may deliver an older revision than the one that this process has just written.
        if revision <= self.revision:
            return
        self.stored, self.revision, self.stored_at = totals, revision, at
        while self.since and self.since[0].stream_seq <= totals.upto:
            self.since.popleft()
        self._counted, self._of_since = totals, 0

    def restart_from_nothing(self) -> None:
        self.stored, self.revision, self.stored_at = NOTHING, 0, 0.0
        self._counted, self._of_since = NOTHING, 0
