"""Moves the commits of unused conversations to the archive.

A process may be killed at any step: until the log names the archive, nothing refers to its parts, and until
the purge, all commits are also in the log. The signal is delivered again, and continues.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.names import EVENTS
from banksman.bus.storage.log import EventLog, StoredCommit, stored_commit
from banksman.contracts import subjects
from banksman.contracts.events import Archive, Commit
from banksman.contracts.ids import new_id
from banksman.contracts.work import ArchiveConversation
from banksman.runs.conversation_log import ConversationLog
from banksman.runs.state import Conversation, replace
from banksman.runtime.failpoints import reach

logger = logging.getLogger(__name__)


class Archiver:
    def __init__(self, bus: Bus, log: ConversationLog) -> None:
        self._bus = bus
        self._log = log
        self._commits = EventLog(bus)

    async def archive(self, signal: ArchiveConversation) -> int | None:
        """Archive a conversation; return the stream sequence up to which its log may be purged.

        None if it was used since, has an open run, was deleted, or has a log with a gap.
        """
        state = await self._log.read(signal.tenant, signal.conversation_id)
        last = await self._commits.last(signal.tenant, signal.conversation_id)
        if last is None or last.stream_seq != state.stream_seq or _in_use(state, last, signal):
            return None
        if last.commit.archive is not None:
            return last.stream_seq
        stored = await self._store(state, last)
        if stored is not None:
            logger.info("%s: its commits are archived", state.conversation_id)
            await reach("agent.archived")
        return stored and stored.stream_seq

    async def _store(self, state: Conversation, last: StoredCommit) -> Conversation | None:
        ids = state.tenant, state.conversation_id
        messages = [
            message
            async for message in jetstream.read(self._bus, EVENTS, subjects.conversation(*ids), current=True)
        ]
        commits = [stored_commit(message) for message in messages]
        earlier = commits[0].commit.archive
        if not _complete(commits, last):
            return None
        parts = await self._commits.archived.store(*ids, messages)
        await reach("agent.archive_stored")
        archive = Archive(
            parts=(*(earlier.parts if earlier else ()), *parts),
            commits=len(commits) + (earlier.commits if earlier else 0),
        )
        stored = await self._log.append(replace(state, snapshot_seq=0), _commit(state, last, archive))
        if stored is None:
            await self._commits.archived.remove(*ids, *parts)
        return stored


def _in_use(state: Conversation, last: StoredCommit, signal: ArchiveConversation) -> bool:
    is_open = state.run is not None or bool(state.queue)
    return is_open or state.deleted or last.commit.ts > signal.unused_since


def _complete(commits: Sequence[StoredCommit], last: StoredCommit) -> bool:
    begins = commits[0].prev == 0 or commits[0].commit.archive is not None
    follow = all(after.prev == before.stream_seq for before, after in pairwise(commits))
    return begins and follow and commits[-1].stream_seq == last.stream_seq


def _commit(state: Conversation, last: StoredCommit, archive: Archive) -> Commit:
    return Commit(
        # An archive is no activity: the retention of the conversation counts from its last use.
        ts=last.commit.ts,
        id=new_id("e"),
        log_epoch=state.log_epoch,
        first_seq=state.last_seq + 1,
        owner=state.owner,
        owner_epoch=state.owner_epoch,
        archive=archive,
    )
