"""Comparison of the stored logs with the record in `heads`, almost without reading commits.

The server counts the messages of each subject in memory. A count below the record shows that a log lost
commits: in the middle, at the end, or all of them. Only these logs are read, because the log of a deleted
conversation has only its tombstone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.log import stored_commit
from banksman.bus.names import EVENTS, api
from banksman.bus.settings import Replicas
from banksman.contracts import subjects
from banksman.contracts.errors import Poison
from banksman.contracts.integrity import DamagedLog
from banksman.log_integrity.check import commit_counts, is_tombstone
from banksman.log_integrity.damage import found_now
from banksman.log_integrity.heads import KnownHeads, KnownLog, LogHeads, created_at

CONFIRM_S: Mapping[Replicas, float] = {1: 1.0, 3: 10.0}
"""Seconds for which commits must be missing before a log counts as damaged, by number of replicas: a newly
elected leader may still be catching up with the other servers."""
RECHECK_S = 0.5
MAX_DAMAGED = 1_000
"""Number of damaged logs above which all conversations stop, because the store itself is in doubt."""


@dataclass(frozen=True, slots=True)
class Survey:
    """Result of the comparison."""

    known: KnownHeads
    damaged: tuple[DamagedLog, ...] = ()
    reuses_sequences: bool = False
    """Whether the stream reassigns recorded sequences, because it ends before them or was recreated."""


async def survey(heads: LogHeads) -> Survey:
    """Compare the stored commits with the record.

    Raises:
        Unavailable: the broker does not respond.
    """
    bus = heads.bus
    # The record is read before the counts, because logs only grow in between, except on deletion.
    known = await heads.read()
    if known.mark is None:
        return Survey(known)
    counts, info = await commit_counts(bus)
    stored = {subject.partition(".")[2]: count for subject, count in counts.items()}
    suspects = {name: log for name, log in known.logs.items() if stored.get(name, 0) < log.commits}
    # With a maximum age set by an operator, the server removes old commits, so a lower count is no loss.
    damaged = [] if info["config"].get("max_age") else await _confirmed(bus, suspects)
    reuses_sequences = (
        int(info["state"]["last_seq"]) < known.upto or created_at(info) != known.mark.value.stream_created
    )
    return Survey(known, tuple(damaged), reuses_sequences)


async def _confirmed(bus: Bus, suspects: Mapping[str, KnownLog]) -> list[DamagedLog]:
    """Return the logs that lack commits throughout `CONFIRM_S`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + CONFIRM_S[bus.settings.replicas]
    found = {name: await _problem(bus, name, log) for name, log in suspects.items()}
    while any(found.values()) and loop.time() < deadline:
        await asyncio.sleep(RECHECK_S)
        found = {
            name: await _problem(bus, name, suspects[name]) for name, problem in found.items() if problem
        }
    return [
        found_now(tenant, conversation_id, problem)
        for name, problem in found.items()
        if problem is not None
        for tenant, _, conversation_id in (name.partition("."),)
    ]


async def _problem(bus: Bus, name: str, log: KnownLog) -> str | None:
    """Return a sentence about the lost commits; None if none is lost, or if the conversation was deleted."""
    tenant, _, conversation_id = name.partition(".")
    subject = subjects.conversation(tenant, conversation_id)
    last = await jetstream.last_message(bus, EVENTS, subject)
    first = await jetstream.next_message(bus, EVENTS, subject, after=0)
    if last is None or first is None:
        return f"all of it is lost: {log.commits} commits were stored"
    try:
        end = stored_commit(last).commit.last_seq
        if is_tombstone(stored_commit(first)):
            return None
    except Poison as poison:
        return poison.reason
    info = await call(bus, api("STREAM.INFO", EVENTS), {"subjects_filter": subject})
    count = sum(cast(dict[str, int], info["state"].get("subjects") or {}).values())
    if count >= log.commits:
        return None
    if last.stream_seq < log.last:
        return f"its end after event {end} is lost: {log.commits} commits were stored, {count} are left"
    return f"{log.commits - count} commits within it are lost: {log.commits} commits were stored"
