"""What each tenant consumed, as all logs say: followed by every agent, kept in bucket `usage`.

The logs are the truth: each commit that a model's reply is part of says in a header what it consumed. An
agent follows the headers of all commits in the order of the stream, so that it knows what was consumed at any
agent. What is kept in the bucket is a fold of them up to a stream sequence, from which the next process goes
on: a commit counts once whoever stored it, however often a run is taken over, and none is missed. No run
writes anything for it; the agents together write at most `WRITES_PER_S`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from types import TracebackType
from typing import Self

from banksman.bus.connection import Bus
from banksman.bus.kv import Bucket, Entry
from banksman.bus.names import CONSUMED, EVENTS, USAGE
from banksman.bus.tail import StoredHeaders, last_sequence, tail
from banksman.bus.watch import BucketView
from banksman.contracts.errors import Unavailable
from banksman.contracts.usage import CommitUsage, UsageTotals, usage_key
from banksman.runtime.background import BackgroundTask

logger = logging.getLogger(__name__)

EVERYBODY = "all"
"""Key of what all tenants consumed together. It is written after theirs: what is before it, theirs hold."""
KEEP_EVERY_S = 5.0
"""Seconds between two writes of one tenant's totals, by whichever agent; more when there are many."""
WRITES_PER_S = 10
REACH_S = 5.0
"""Seconds that a decision waits for the count to come as far as its run's log."""


NOTHING = UsageTotals()


@dataclass(frozen=True, slots=True)
class _Delta:
    stream_seq: int
    time: datetime
    consumed: CommitUsage


@dataclass(slots=True)
class _Account:
    """Kept totals, and what this process heard since."""

    kept: UsageTotals = NOTHING
    revision: int = 0
    """Of the kept totals; 0 when there are none yet."""
    kept_at: float = 0.0
    """When they were last seen to change, by the loop's clock."""
    since: deque[_Delta] = field(default_factory=deque[_Delta])
    _counted: UsageTotals = NOTHING
    """The kept totals and the first `_of_since` of what came since."""
    _of_since: int = 0

    def now(self) -> UsageTotals:
        """The totals, counted as far as this process has heard."""
        for delta in islice(self.since, self._of_since, None):
            self._counted = self._counted.with_commit(delta.stream_seq, delta.time, delta.consumed)
        self._of_since = len(self.since)
        return self._counted

    def until(self, stream_seq: int) -> UsageTotals:
        """The totals of everything up to a stream sequence and of nothing after it."""
        totals = self.kept
        for delta in self.since:
            if delta.stream_seq <= stream_seq:
                totals = totals.with_commit(delta.stream_seq, delta.time, delta.consumed)
        return totals.model_copy(update={"upto": max(totals.upto, stream_seq)})

    def keep(self, totals: UsageTotals, revision: int, at: float) -> None:
        """Go on from other kept totals."""
        if revision <= self.revision:
            return
        self.kept, self.revision, self.kept_at = totals, revision, at
        while self.since and self.since[0].stream_seq <= totals.upto:
            self.since.popleft()
        self._counted, self._of_since = totals, 0


class UsageLedger:
    """Knows what tenants consumed. As a context manager it follows the logs."""

    def __init__(self, bus: Bus, *, keep_every_s: float = KEEP_EVERY_S) -> None:
        self._bus = bus
        self._keep_every_s = keep_every_s
        self._bucket = Bucket(bus, USAGE, UsageTotals)
        self._view = BucketView(self._bucket, on_change=self._kept)
        self._accounts: dict[str, _Account] = {}
        self._upto = 0
        self._moved = asyncio.Event()
        self._tasks: tuple[BackgroundTask, ...] = ()

    def totals(self, tenant: str) -> UsageTotals:
        """What a tenant consumed, as far as this process has heard."""
        return self._account(usage_key(tenant)).now()

    async def reach(self, stream_seq: int) -> bool:
        """Wait until everything stored up to a stream sequence is counted; False when it takes too long."""
        try:
            async with asyncio.timeout(REACH_S):
                while self._upto < stream_seq:
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            logger.warning("usage is counted up to %d only, not to %d", self._upto, stream_seq)
            return False
        return True

    async def settle(self) -> None:
        """Keep what is counted so far, before a log is purged that a later process would count from.

        Raises:
            Unavailable, Overloaded: it could not be kept.
        """
        upto = await last_sequence(self._bus, EVENTS)
        if not await self.reach(upto):
            raise Unavailable(f"usage is not counted up to {upto} yet")
        try:
            async with asyncio.timeout(REACH_S):
                # Again after a conflict: another agent kept less at the same moment.
                while any(one.since and one.since[0].stream_seq <= upto for one in self._accounts.values()):
                    await self._keep_all(0.0)
        except TimeoutError as error:
            raise Unavailable(f"usage up to {upto} is not kept yet") from error

    async def __aenter__(self) -> Self:
        start, end = await self._start(), await last_sequence(self._bus, EVENTS)
        await self._view.__aenter__()
        for entry in self._view.entries():
            # Beyond the end when the logs were restored from a backup that is older than the bucket's.
            upto = min(entry.value.upto, end)
            totals = entry.value.model_copy(update={"upto": upto})
            self._account(entry.key).keep(totals, entry.revision, _clock())
        self._upto = min(start, end)
        self._tasks = (
            self._bus.background.run("usage-count", self._follow),
            self._bus.background.repeat("usage-keep", self._keep_due, wait=self._wait_to_keep),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            await task.stop()
        await self._view.__aexit__(kind, error, trace)

    async def _start(self) -> int:
        """The stream sequence to count from: that of the kept totals; where there are none, the end."""
        entry = await self._bucket.get(EVERYBODY)
        if entry is None:
            end = await last_sequence(self._bus, EVENTS)
            await self._bucket.create(EVERYBODY, UsageTotals(upto=end))
            entry = await self._bucket.get(EVERYBODY)
        return 0 if entry is None else entry.value.upto

    async def _follow(self) -> None:
        async with aclosing(tail(self._bus, EVENTS, after=self._upto)) as messages:
            async for message in messages:
                self._count(message)

    def _count(self, message: StoredHeaders) -> None:
        if header := message.headers.get(CONSUMED):
            delta = _Delta(message.stream_seq, message.time, CommitUsage.from_header(header))
            tenant = message.subject.split(".")[1]
            for key in (usage_key(tenant), EVERYBODY):
                self._account(key).since.append(delta)
        self._upto = message.stream_seq
        self._moved.set()

    def _account(self, key: str) -> _Account:
        return self._accounts.setdefault(key, _Account())

    def _kept(self, key: str, entry: Entry[UsageTotals] | None) -> None:
        if entry is not None:
            self._account(key).keep(entry.value, entry.revision, _clock())

    async def _wait_to_keep(self) -> None:
        changed = sum(1 for account in self._accounts.values() if account.since)
        # Agents that start together do not write together.
        share = random.uniform(0.5, 1.0)
        await asyncio.sleep(max(self._keep_every_s, changed / WRITES_PER_S) * share)

    async def _keep_due(self) -> None:
        await self._keep_all(self._keep_every_s / 2)

    async def _keep_all(self, unless_kept_s: float) -> None:
        """Keep what was counted, everybody's last, leaving out what another kept a moment ago."""
        upto, due = self._upto, _clock() - unless_kept_s
        tenants = {key: account for key, account in self._accounts.items() if key != EVERYBODY}
        for key, account in tenants.items():
            if account.since and account.kept_at <= due:
                await self._keep(key, account, account.now())
        everybody = self._account(EVERYBODY)
        # No further than what every tenant's kept totals hold.
        held = min((one.since[0].stream_seq - 1 for one in tenants.values() if one.since), default=upto)
        if everybody.since and everybody.kept_at <= due and min(upto, held) > everybody.kept.upto:
            await self._keep(EVERYBODY, everybody, everybody.until(min(upto, held)))

    async def _keep(self, key: str, account: _Account, totals: UsageTotals) -> None:
        if account.revision:
            revision = await self._bucket.update(key, totals, account.revision)
        else:
            revision = await self._bucket.create(key, totals)
        if revision is not None:
            account.keep(totals, revision, _clock())
        elif stored := await self._bucket.get(key):
            account.keep(stored.value, stored.revision, _clock())


def _clock() -> float:
    return asyncio.get_running_loop().time()
