"""Background check of the headers of all commits, which finds commits that the server can no longer read.

The server's counts include unreadable messages. The headers of each commit name its predecessor and its
events, so gaps, duplicate numbers and foreign messages are found without reading bodies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from banksman.bus import jetstream
from banksman.bus.jetstream import ApiError
from banksman.bus.names import EVENTS, FIRST_SEQ, LAST_SEQ, LOG_EPOCH, PREV
from banksman.bus.storage.log import stored_commit
from banksman.bus.storage.tail import StoredHeaders, last_sequence, tail
from banksman.contracts import subjects
from banksman.contracts.errors import Poison
from banksman.contracts.integrity import DamagedLog
from banksman.log_integrity.check import check_logs, is_tombstone, parts
from banksman.log_integrity.damage import found_now
from banksman.log_integrity.heads import KnownLog, LogHeads

AT_ONCE = 500
PAUSE_S = 0.05
"""Seconds of pause after `AT_ONCE` commits: at most 10,000 per second, so that the agent can work."""
SILENCE_S = 30.0
"""Seconds without a commit after which the scrub assumes that the remaining commits were removed."""


@dataclass(frozen=True, slots=True)
class _Head:
    stream_seq: int
    last_seq: int
    log_epoch: str


async def scrub(heads: LogHeads) -> AsyncIterator[DamagedLog]:
    """Read the headers of all stored commits and yield the damaged logs.

    Raises:
        Unavailable: The broker does not respond.
    """
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
    """Process the next commit of a log; return whether it continues the one before."""
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
