"""Ends a log before its first gap: the commits after the gap move to a file."""

from __future__ import annotations

import json
import os
from pathlib import Path

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.messages import StoredMessage
from banksman.bus.names import EVENTS
from banksman.bus.storage.log import stored_commit
from banksman.contracts import subjects
from banksman.contracts.errors import Conflict, Poison
from banksman.contracts.events import HistoryCut
from banksman.log_integrity.check import from_damage_on


async def cut(bus: Bus, tenant: str, conversation_id: str, directory: Path) -> HistoryCut | None:
    """Move the commits after the first gap of a log to a file; return the record, or None without a gap.

    The file is complete before a commit is removed, and the last commit is removed first: after a crash the
    command can be repeated, and appends the remaining commits to the file.

    Raises:
        Conflict: No commit is stored before the gap.
        OSError: The file cannot be written; no commit is removed.
        Unavailable: The broker does not respond.
    """
    subject = subjects.conversation(tenant, conversation_id)
    behind = await from_damage_on(bus, subject)
    if not behind:
        return None
    store(behind, directory / f"{tenant}.{conversation_id}.jsonl")
    before = await jetstream.next_message(bus, EVENTS, subject, after=0)
    if before is None or before.stream_seq >= behind[0].stream_seq:
        raise Conflict(
            f"{conversation_id}: no commit is stored before the gap: "
            "restore a backup, or delete the conversation"
        )
    for message in reversed(behind):
        await jetstream.delete_message(bus, EVENTS, message.stream_seq)
    last = await jetstream.last_message(bus, EVENTS, subject)
    first_missing = 1 if last is None else stored_commit(last).commit.last_seq + 1
    return HistoryCut(first_missing=first_missing, set_aside=sum(map(_events_in, behind)))


def store(messages: list[StoredMessage], file: Path) -> None:
    """Append commits to a file, one JSON object per line. A body that cannot be decoded is stored as text."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as lines:
        for message in messages:
            stored = {
                "stream_seq": message.stream_seq,
                "stored_at": str(message.time),
                "commit": _body(message),
            }
            lines.write(json.dumps(stored, ensure_ascii=False) + "\n")
        lines.flush()
        os.fsync(lines.fileno())


def _body(message: StoredMessage) -> object:
    try:
        return json.loads(message.data)
    except ValueError:
        return message.data.decode(errors="replace")


def _events_in(message: StoredMessage) -> int:
    try:
        return len(stored_commit(message).commit.events)
    except Poison:
        return 0
