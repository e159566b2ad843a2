"""What each tenant consumed and stored, counted from all logs and stored in bucket `usage`.

The logs are the truth: each commit with a model's reply names in a header what the reply consumed. Every
agent follows the headers of all commits in the order of the stream, so it knows what was consumed at any
agent. The bucket stores the totals up to a stream sequence, from which the next process continues: every
commit counts once, also when a run is taken over. Runs write nothing for it, and all agents together at most
`WRITES_PER_S`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from types import TracebackType
from typing import Self

from banksman.bus.connection import Bus
from banksman.bus.kv import Bucket, Entry
from banksman.bus.log import stored_size
from banksman.bus.names import CONSUMED, EVENTS, USAGE
from banksman.bus.tail import StoredHeaders, last_sequence, tail
from banksman.bus.watch import BucketView
from banksman.contracts.errors import Unavailable
from banksman.contracts.usage import CommitUsage, UsageTotals, usage_key
from banksman.runtime.background import BackgroundTask

logger = logging.getLogger(__name__)

ALL_TENANTS = "all"
"""Key of the totals of all tenants together. It is written last: the totals of every tenant reach at least as
far."""
WRITE_EVERY_S = 5.0
"""Seconds between two writes of a tenant's totals, by any agent; more when many tenants are active."""
WRITES_PER_S = 10
"""Writes per second of all active tenants together, which stretches `WRITE_EVERY_S`."""
REACH_S = 5.0
"""Seconds for which a run waits until the commits before it are counted."""

NOTHING = UsageTotals()


@dataclass(frozen=True, slots=True)
class _Delta:
    stream_seq: int
    time: datetime
    consumed: CommitUsage
    stored_bytes: int


@dataclass(slots=True)
class _Account:
    """The stored totals of a tenant, and the commits that this process has counted since."""

    stored: UsageTotals = NOTHING
    revision: int = 0
    """The revision of the stored totals; 0 when there are none yet."""
    stored_at: float = 0.0
    """When they last changed, by the clock of the event loop."""
    since: deque[_Delta] = field(default_factory=deque[_Delta])
    _counted: UsageTotals = NOTHING
    """The stored totals and the first `_of_since` commits after them."""
    _of_since: int = 0

    def now(self) -> UsageTotals:
        """Return the totals, as far as this process has counted."""
        for delta in islice(self.since, self._of_since, None):
            self._counted = self._counted.with_commit(
                delta.stream_seq, delta.time, delta.consumed, delta.stored_bytes
            )
        self._of_since = len(self.since)
        return self._counted

    def until(self, stream_seq: int) -> UsageTotals:
        """Return the totals of everything up to a stream sequence, and of nothing after it."""
        totals = self.stored
        for delta in self.since:
            if delta.stream_seq <= stream_seq:
                totals = totals.with_commit(delta.stream_seq, delta.time, delta.consumed, delta.stored_bytes)
        return totals.model_copy(update={"upto": max(totals.upto, stream_seq)})

    def restart_from(self, totals: UsageTotals, revision: int, at: float) -> None:
        """Continue from newer stored totals."""
        # The view may deliver an older revision than the one that this process has just written.
        if revision <= self.revision:
            return
        self.stored, self.revision, self.stored_at = totals, revision, at
        while self.since and self.since[0].stream_seq <= totals.upto:
            self.since.popleft()
        self._counted, self._of_since = totals, 0


class UsageLedger:
    """Counts what tenants consumed. As a context manager it follows the logs."""

    def __init__(self, bus: Bus, *, write_every_s: float = WRITE_EVERY_S) -> None:
        self._bus = bus
        self._write_every_s = write_every_s
        self._bucket = Bucket(bus, USAGE, UsageTotals)
        self._view = BucketView(self._bucket, on_change=self._stored)
        self._accounts: dict[str, _Account] = {}
        self._upto = 0
        self._advanced = asyncio.Event()
        self._tasks: tuple[BackgroundTask, ...] = ()

    def totals(self, tenant: str) -> UsageTotals:
        """Return what a tenant consumed, as far as this process has counted."""
        return self._account(usage_key(tenant)).now()

    async def reach(self, stream_seq: int) -> bool:
        """Wait until everything up to a stream sequence is counted; return False if it takes too long."""
        try:
            async with asyncio.timeout(REACH_S):
                while self._upto < stream_seq:
                    self._advanced.clear()
                    await self._advanced.wait()
        except TimeoutError:
            logger.warning("usage is counted up to %d only, not to %d", self._upto, stream_seq)
            return False
        return True

    async def flush(self) -> None:
        """Store the totals up to now, before a log is purged that a later process would count from.

        Raises:
            Unavailable, Overloaded: They could not be stored.
        """
        upto = await last_sequence(self._bus, EVENTS)
        if not await self.reach(upto):
            raise Unavailable(f"usage is not counted up to {upto} yet")
        try:
            async with asyncio.timeout(REACH_S):
                # Repeated after a conflict: another agent stored less at the same time.
                while any(one.since and one.since[0].stream_seq <= upto for one in self._accounts.values()):
                    await self._write_all(0.0)
        except TimeoutError as error:
            raise Unavailable(f"usage up to {upto} is not stored yet") from error

    async def release(self, tenant: str, stored_bytes: int) -> None:
        """Subtract the bytes of a log that is about to be purged, after `flush` has counted them.

        A deletion that is interrupted is subtracted again when it is repeated, in favour of the tenant.

        Raises:
            Unavailable, Overloaded: The broker did not respond.
        """
        key = usage_key(tenant)
        while entry := await self._bucket.get_or_drop(key):
            if await self._bucket.update(key, entry.value.without(stored_bytes), entry.revision) is not None:
                return

    async def __aenter__(self) -> Self:
        start, end = await self._start(), await last_sequence(self._bus, EVENTS)
        await self._view.__aenter__()
        for entry in self._view.entries():
            # Beyond the end if the logs were restored from a backup that is older than the bucket.
            upto = min(entry.value.upto, end)
            totals = entry.value.model_copy(update={"upto": upto})
            self._account(entry.key).restart_from(totals, entry.revision, _clock())
        self._upto = min(start, end)
        self._tasks = (
            self._bus.background.run("usage-count", self._follow),
            self._bus.background.repeat("usage-write", self._write_due, wait=self._wait_to_write),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            await task.stop()
        await self._view.__aexit__(kind, error, trace)

    async def _start(self) -> int:
        """Return the stream sequence to count from: that of the stored totals, or the end."""
        entry = await self._bucket.get_or_drop(ALL_TENANTS)
        if entry is None:
            end = await last_sequence(self._bus, EVENTS)
            await self._bucket.create(ALL_TENANTS, UsageTotals(upto=end))
            entry = await self._bucket.get(ALL_TENANTS)
        return 0 if entry is None else entry.value.upto

    async def _follow(self) -> None:
        async with aclosing(tail(self._bus, EVENTS, after=self._upto)) as messages:
            async for message in messages:
                self._count(message)

    def _count(self, message: StoredHeaders) -> None:
        consumed = CommitUsage.from_header(message.headers.get(CONSUMED, ""))
        delta = _Delta(message.stream_seq, message.time, consumed, stored_size(message.payload_bytes))
        self._account(usage_key(message.subject.split(".")[1])).since.append(delta)
        if consumed.requests:
            self._account(ALL_TENANTS).since.append(replace(delta, stored_bytes=0))
        self._upto = message.stream_seq
        self._advanced.set()

    def _account(self, key: str) -> _Account:
        return self._accounts.setdefault(key, _Account())

    def _stored(self, key: str, entry: Entry[UsageTotals] | None) -> None:
        if entry is not None:
            self._account(key).restart_from(entry.value, entry.revision, _clock())

    async def _wait_to_write(self) -> None:
        changed = sum(1 for account in self._accounts.values() if account.since)
        # Agents that start together must not write together.
        share = random.uniform(0.5, 1.0)
        await asyncio.sleep(max(self._write_every_s, changed / WRITES_PER_S) * share)

    async def _write_due(self) -> None:
        await self._write_all(self._write_every_s / 2)

    async def _write_all(self, unless_stored_s: float) -> None:
        """Store the totals of each tenant, then those of all; skip what was stored just now."""
        upto, due = self._upto, _clock() - unless_stored_s
        tenants = {key: account for key, account in self._accounts.items() if key != ALL_TENANTS}
        for key, account in tenants.items():
            if account.since and account.stored_at <= due:
                await self._write(key, account, account.now())
        total = self._account(ALL_TENANTS)
        # No further than the stored totals of every tenant.
        covered = min((one.since[0].stream_seq - 1 for one in tenants.values() if one.since), default=upto)
        if total.since and total.stored_at <= due and min(upto, covered) > total.stored.upto:
            await self._write(ALL_TENANTS, total, total.until(min(upto, covered)))

    async def _write(self, key: str, account: _Account, totals: UsageTotals) -> None:
        if account.revision:
            revision = await self._bucket.update(key, totals, account.revision)
        else:
            revision = await self._bucket.create(key, totals)
        if revision is not None:
            account.restart_from(totals, revision, _clock())
        elif stored := await self._bucket.get_or_drop(key):
            account.restart_from(stored.value, stored.revision, _clock())


def _clock() -> float:
    return asyncio.get_running_loop().time()
