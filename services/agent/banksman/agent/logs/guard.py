"""Protection of an agent from damaged logs: it checks all logs before it works, and records their heads.

The first check compares counts of the server, which include messages that it can no longer read. A scrub in
the background therefore reads the headers of all commits: they name the predecessor and the events of each
commit, so gaps, duplicate numbers and foreign messages are found without reading bodies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Self

from banksman.agent.logs.heads_recorder import WRITE_EVERY_S, HeadsRecorder
from banksman.agent.logs.usage_ledger import UsageLedger
from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.jetstream import ApiError
from banksman.bus.names import EVENTS, FIRST_SEQ, LAST_SEQ, LOG_EPOCH, PREV
from banksman.bus.storage.log import stored_commit
from banksman.bus.storage.tail import StoredHeaders, last_sequence, tail
from banksman.contracts import subjects
from banksman.contracts.administration import DamagedLog
from banksman.contracts.errors import BanksmanError, Poison
from banksman.log_integrity.check import check_logs, is_tombstone, parts
from banksman.log_integrity.damage import DamagedLogs, found_now
from banksman.log_integrity.heads import MAX_DAMAGED, KnownLog, LogHeads, survey
from banksman.runtime.background import BackgroundTask

logger = logging.getLogger(__name__)

RETRY_S = 1.0
SCRUB_AFTER_S = 10.0
"""Seconds after the start until the headers of all commits are read for the first time."""
SCRUB_EVERY_S = 600.0
"""Seconds from a reconnect until the headers of all commits are read again, which limits the load on NATS."""
AT_ONCE = 500
PAUSE_S = 0.05
"""Seconds of pause after `AT_ONCE` commits: at most 10,000 per second, so that the agent can work."""
SILENCE_S = 30.0
"""Seconds without a commit after which the scrub assumes that the remaining commits were removed."""


class LogGuard:
    """Checks all logs at the start of a process and after each reconnect, as the server may have restarted.

    As a context manager it records the log heads and repeats the checks in the background.
    """

    def __init__(
        self,
        bus: Bus,
        damaged: DamagedLogs,
        *,
        fold: UsageLedger | None = None,
        write_every_s: float = WRITE_EVERY_S,
        scrub_after_s: float = SCRUB_AFTER_S,
    ) -> None:
        """`fold` receives all commits while this process records the log heads."""
        self._background = bus.background
        self._heads = LogHeads(bus)
        self._damaged = damaged
        self._recorder = HeadsRecorder(self._heads, fold=fold, write_every_s=write_every_s)
        self._scrub_wait_s = scrub_after_s
        self._checked = False
        self._reconnected = asyncio.Event()
        self._restarted = asyncio.Event()
        # The first scrub is due without a reconnect.
        self._restarted.set()
        self._tasks: tuple[BackgroundTask, ...] = ()
        self._remove_callback = bus.on_reconnect(self._reconnected.set)

    async def problem(self) -> str | None:
        if not self._checked:
            return "the logs are being checked"
        return await self._damaged.unready()

    async def checked(self, stop: asyncio.Event) -> bool:
        """Check all logs and wait until work may start; return False if `stop` is set first."""
        logged: str | None = None
        while not stop.is_set():
            try:
                if not self._checked:
                    await self._check()
                reason = self._damaged.of_all
            except BanksmanError as error:
                reason = str(error)
            if reason is None:
                return True
            if reason != logged:
                logger.error("not ready: %s", reason)
                logged = reason
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await stop.wait()
        return False

    async def __aenter__(self) -> Self:
        await self._recorder.__aenter__()
        self._tasks = (
            self._background.repeat("log-check", self._check, wait=self._wait_for_reconnect),
            self._background.repeat("log-scrub", self._scrub, wait=self._wait_for_scrub),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._remove_callback()
        for task in self._tasks:
            await task.stop()
        await self._recorder.__aexit__()

    async def _wait_for_reconnect(self) -> None:
        await self._reconnected.wait()
        self._reconnected.clear()
        self._restarted.set()

    async def _wait_for_scrub(self) -> None:
        await self._restarted.wait()
        await asyncio.sleep(self._scrub_wait_s)
        self._scrub_wait_s = max(self._scrub_wait_s, SCRUB_EVERY_S)
        await self._recorder.recording.wait()

    async def _scrub(self) -> None:
        self._restarted.clear()
        async for log in scrub(self._heads):
            await self._damaged.put(log)

    async def _check(self) -> None:
        found = await survey(self._heads)
        if len(found.damaged) > MAX_DAMAGED:
            first = found.damaged[0]
            problem = (
                f"stream EVENTS: {len(found.damaged)} logs lost stored commits, "
                f"{first.tenant}/{first.conversation_id} among them. Restore a backup, or accept the loss of "
                "all with `banksman accept --all`"
            )
            await self._damaged.put(found_now("", "", problem))
        else:
            for damaged in found.damaged:
                await self._damaged.put(damaged)
        if found.damaged or found.reuses_sequences:
            logger.warning("the record of the log heads restarts: %d logs lost commits", len(found.damaged))
            await self._heads.begin(found.known.mark)
        self._checked = True


@dataclass(frozen=True, slots=True)
class _Head:
    stream_seq: int
    last_seq: int
    log_epoch: str


async def scrub(heads: LogHeads) -> AsyncIterator[DamagedLog]:
    """Read the headers of all stored commits and yield the damaged logs."""
    bus = heads.bus
    known = await heads.read()
    upto = await last_sequence(bus, EVENTS)
    found: dict[str, _Head] = {}
    suspects = await _suspects(heads, upto, found)
    for subject in suspects:
        async for damage in check_logs(bus, subject):
            yield _damaged(subject, damage.problem)
    for name, log in known.logs.items():
        subject = subjects.conversation(*name.split("."))
        head = found.get(subject)
        if subject not in suspects and (head is None or head.stream_seq < log.last):
            problem = await _lost_end(heads, subject, log)
            if problem is not None:
                yield _damaged(subject, problem)


async def _suspects(heads: LogHeads, upto: int, found: dict[str, _Head]) -> set[str]:
    """Return the subjects of logs with inconsistent headers; fill `found` with each log's last commit."""
    suspects: set[str] = set()
    if not upto:
        return suspects
    count = 0
    try:
        async with (
            asyncio.timeout(SILENCE_S) as silence,
            aclosing(tail(heads.bus, EVENTS, after=0)) as commits,
        ):
            async for commit in commits:
                silence.reschedule(asyncio.get_running_loop().time() + SILENCE_S)
                if not _fits(found, commit):
                    suspects.add(commit.subject)
                if commit.stream_seq >= upto:
                    break
                count += 1
                if count % AT_ONCE == 0:
                    await asyncio.sleep(PAUSE_S)
    except TimeoutError:
        pass
    return suspects


def _fits(found: dict[str, _Head], commit: StoredHeaders) -> bool:
    """Add the next commit of a log to `found`; return whether it continues the commit before."""
    head = found.get(commit.subject)
    try:
        first, last, prev, epoch = _read(commit.headers)
    except (KeyError, ValueError):
        return False
    found[commit.subject] = _Head(commit.stream_seq, last, epoch)
    if head is None:
        return (prev, first) == (0, 1)
    # Only a restore starts a new epoch, with a commit that has no events.
    same_log = epoch == head.log_epoch or last < first
    return prev == head.stream_seq and first == head.last_seq + 1 and same_log


def _read(headers: Mapping[str, str]) -> tuple[int, int, int, str]:
    return int(headers[FIRST_SEQ]), int(headers[LAST_SEQ]), int(headers[PREV]), headers[LOG_EPOCH]


async def _lost_end(heads: LogHeads, subject: str, log: KnownLog) -> str | None:
    """Return the problem if the last recorded commit of a log is unreadable although it is counted."""
    try:
        last = await jetstream.last_message(heads.bus, EVENTS, subject)
        first = await jetstream.next_message(heads.bus, EVENTS, subject, after=0)
        if last is not None and last.stream_seq >= log.last:
            stored_commit(last)
            return None
        if first is not None and is_tombstone(stored_commit(first)):
            return None
    except Poison as poison:
        return poison.reason
    except ApiError as error:
        return f"its last commit, message {log.last}, cannot be read: {error.description}"
    return f"its last commit, message {log.last}, cannot be read"


def _damaged(subject: str, problem: str) -> DamagedLog:
    return found_now(*parts(subject), problem)
