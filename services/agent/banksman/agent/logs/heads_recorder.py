"""Follows the headers of all commits: one agent records the ends of logs, and counts the usage of tenants.

Each follower receives one message per commit. Therefore one agent follows, and passes each commit to both
folds over all logs. It also reads the headers of all earlier commits once, in the background, for logs with a
gap or a foreign message.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, aclosing

from banksman.agent.logs.usage_ledger import UsageLedger
from banksman.bus import jetstream
from banksman.bus.names import EVENTS
from banksman.bus.storage.tail import last_sequence, tail
from banksman.contracts import subjects
from banksman.log_integrity.check import broken_logs, log_of
from banksman.log_integrity.damage import DamagedLogs
from banksman.log_integrity.heads import SEGMENT_COMMITS, Heads, LogHeads, number_of
from banksman.runtime.scope import Scoped
from banksman.runtime.waits import any_set, set_within

logger = logging.getLogger(__name__)

WRITE_EVERY_S = 5.0
STANDBY_S = 10.0
"""Seconds after which a standby process checks again whether another process follows the commits."""
SCRUB_AFTER_S = 10.0
"""Seconds after which a process that follows the commits reads the earlier ones."""


class HeadsRecorder(Scoped):
    """Writes the record of the ends of logs while its context is open, unless another process writes it."""

    def __init__(
        self,
        heads: LogHeads,
        damaged: DamagedLogs,
        usage: UsageLedger,
        *,
        write_every_s: float = WRITE_EVERY_S,
        standby_s: float = STANDBY_S,
        scrub_after_s: float = SCRUB_AFTER_S,
    ) -> None:
        self._heads = heads
        self._damaged = damaged
        self._usage = usage
        self._write_every_s = write_every_s
        self._standby_s = standby_s
        self._scrub_after_s = scrub_after_s
        self._received: dict[int, Heads] = {}
        """Commits that are not recorded yet, by segment."""
        self._incomplete = False
        """Whether a segment is lost in both copies and not stored again."""
        self._caught_up = False
        """Whether all stored commits are received."""
        self._reconnected = asyncio.Event()
        self._ending = asyncio.Event()

    async def incomplete(self) -> str | None:
        """Return a warning while a further loss of the end of a log would not be detected."""
        warning = "the record of the ends of logs is rebuilt; a loss in the meantime may not be detected"
        return warning if self._incomplete else None

    async def _enter(self, scope: AsyncExitStack) -> None:
        scope.callback(self._heads.bus.on_reconnect(self._reconnected.set))
        task = self._heads.bus.background.run("heads", self._record)
        scope.push_async_callback(task.stop)
        scope.push_async_callback(task.ended, self._write_every_s)
        scope.callback(self._ending.set)

    async def _record(self) -> None:
        while not self._ending.is_set():
            if self._usage.wanted.is_set() or not await self._usage.is_followed():
                await self._follow()
            await any_set(self._ending, self._usage.wanted, timeout_s=self._standby_s)

    async def _follow(self) -> None:
        """Record all commits until this process ends, or another one claims the record."""
        claim = await self._heads.claim()
        after = await self._begin()
        if not await self._heads.is_claimed_by(claim):
            return
        after = min(after, await self._usage.begin())
        tasks = [asyncio.create_task(work) for work in (self._receive(after), self._scrub())]
        try:
            while await self._write(claim) and not self._ending.is_set():
                await set_within(self._ending, self._write_every_s)
                for task in tasks:
                    if task.done():
                        task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._usage.end()

    async def _begin(self) -> int:
        """Store what one copy lacks; return the sequence after which commits may be missing in both."""
        segments, end = await self._heads.segments(), await last_sequence(self._heads.bus, EVENTS)
        for number, heads in segments.items():
            await self._heads.add(number, heads)
        missing = [number for number in range(number_of(end) + 1) if end and number not in segments]
        self._received = {number: {} for number in missing}
        # The newest segment grows, so it is always read again.
        after = min([*missing, number_of(end)]) * SEGMENT_COMMITS
        every_log = subjects.all_of("conversation")
        self._incomplete = bool(missing)
        self._caught_up = not await jetstream.next_message(self._heads.bus, EVENTS, every_log, after=after)
        return after

    async def _receive(self, after: int) -> None:
        async with aclosing(tail(self._heads.bus, EVENTS, after=after)) as commits:
            async for commit in commits:
                self._usage.take(commit)
                segment = self._received.setdefault(number_of(commit.stream_seq), {})
                segment[log_of(commit.subject)] = commit.stream_seq
                self._caught_up = self._caught_up or commit.pending == 0

    async def _write(self, claim: str) -> bool:
        """Record what was received; return False if another process does so."""
        # A part of a lost segment must not look like the complete one.
        if not self._received or (self._incomplete and not self._caught_up):
            return True
        if not await self._heads.is_claimed_by(claim):
            logger.info("another process writes the record of the log heads")
            return False
        received, self._received = self._received, {}
        for number, heads in sorted(received.items()):
            await self._heads.add(number, heads)
        self._incomplete = False
        return True

    async def _scrub(self) -> None:
        while True:
            await asyncio.sleep(self._scrub_after_s)
            async for log, problem in broken_logs(self._heads.bus):
                await self._damaged.report(log, problem)
            # The server may have restarted.
            await self._reconnected.wait()
            self._reconnected.clear()
