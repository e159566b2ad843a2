"""The broker of the simulation: logs, queues, write-once slots, timers, dead letters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from banksman.bus.errors import MessageTooLarge
from banksman.contracts.calls import CallFinished, CallStarted
from banksman.contracts.events import Commit
from banksman.contracts.work import (
    ApprovalReply,
    ApprovalRequest,
    CancelRun,
    FirstApproval,
    StartRun,
    SteerRun,
)
from banksman.deployment.declarations import MAX_MESSAGE_BYTES
from banksman.gateway.runs.idempotency import RequestRecord
from banksman.runs.fold import apply_commit
from banksman.runs.snapshots import snapshot_commit, snapshot_of, state_of
from banksman.runs.state import Conversation
from tests.runs.processes import Message

TENANT = "acme"
MAX_COMMIT_BYTES = MAX_MESSAGE_BYTES - 1024
"""The rest of a message is for its headers."""


@dataclass
class Queue:
    """A work queue: it delivers each message until the ack, in any order, possibly repeatedly."""

    messages: list[Message] = field(default_factory=list)
    recent_ids: set[str] = field(default_factory=set)

    @property
    def open(self) -> list[Message]:
        return [message for message in self.messages if not message.acked]


class Broker:
    """All stored data. Nothing is lost, except by the faults that a test injects."""

    def __init__(self) -> None:
        self.seqs = itertools.count(1)
        self.folds: dict[str, Conversation] = {}
        self.logs: dict[str, list[tuple[int, Commit]]] = {}
        self.queues = {name: Queue() for name in ("work", "signals", "replies", "timers")}
        self.started: dict[str, CallStarted] = {}
        self.finished: dict[str, CallFinished] = {}
        self.requests: dict[str, ApprovalRequest] = {}
        self.replies: dict[str, ApprovalReply] = {}
        self.firsts: dict[str, FirstApproval] = {}
        self.timers: dict[str, ApprovalRequest] = {}
        self.notes: dict[str, RequestRecord] = {}
        self.positions: dict[str, tuple[int, str]] = {}
        """The position and the type of each message, by its id, and of the first cancel of each run."""
        self.dead: list[tuple[ApprovalReply, str]] = []
        self.on_commit: Callable[[Conversation, Commit, Conversation], None] = lambda *_: None
        self.on_slot: Callable[[str, str], None] = lambda *_: None

    def fold(self, conversation_id: str) -> Conversation:
        return self.folds.get(conversation_id) or Conversation(TENANT, conversation_id)

    def append(self, expected: Conversation, commit: Commit) -> Conversation | None:
        """Append by compare-and-set on the last sequence of the log, as EVENTS does."""
        before = self.fold(expected.conversation_id)
        if before.stream_seq != expected.stream_seq:
            return None
        stored = commit.model_dump_json()
        if len(stored.encode()) > MAX_COMMIT_BYTES:
            raise MessageTooLarge(before.conversation_id, len(stored.encode()), MAX_COMMIT_BYTES)
        commit = Commit.model_validate_json(stored)
        seq = next(self.seqs)
        self.logs.setdefault(before.conversation_id, []).append((seq, commit))
        after = self.folds[before.conversation_id] = apply_commit(before, seq, commit)
        self.on_commit(before, commit, after)
        return after

    def snapshot(self, conversation_id: str, now: datetime) -> bool:
        """Store a snapshot as a process does after its own append; later folds begin there."""
        state = self.fold(conversation_id)
        if state.stream_seq == 0 or state.claims_in_row or state.deleted:
            return False
        snapshot = snapshot_of(state)
        assert state_of(snapshot) == state
        self.folds[conversation_id] = state_of(snapshot)
        commit = snapshot_commit(state, snapshot, f"s{next(self.seqs)}", now)
        return self.append(state, commit) is not None

    def purge(self, conversation_id: str, before: int) -> None:
        """Purge the log as the janitor does: the tombstone and later commits stay."""
        kept = self.logs[conversation_id] = [one for one in self.logs[conversation_id] if one[0] >= before]
        fold = Conversation(TENANT, conversation_id)
        for seq, commit in kept:
            fold = apply_commit(fold, seq, commit)
        self.folds[conversation_id] = fold

    def publish(self, queue: str, msg_id: str, body: Any) -> None:
        """Store a message, unless its id is in the duplicate window."""
        target = self.queues[queue]
        if msg_id not in target.recent_ids:
            target.recent_ids.add(msg_id)
            alone = not any(self.waiting(body.conversation_id))
            message = Message(next(self.seqs), body, alone=alone)
            target.messages.append(message)
            if isinstance(body, StartRun | SteerRun | CancelRun):
                source = f"cancel {body.run_id}" if isinstance(body, CancelRun) else body.message_id
                self.positions.setdefault(source, (message.seq, body.type))

    def waiting(self, conversation_id: str) -> Iterator[Message]:
        """Yield the work and the signals of a conversation without an ack, in the order of the stream."""
        both = (*self.queues["work"].open, *self.queues["signals"].open)
        return (
            message
            for message in sorted(both, key=lambda message: message.seq)
            if message.body.conversation_id == conversation_id
        )

    def duplicate(self, queue: str, index: int) -> None:
        """Store the same message again, as if the duplicate window had passed or were lost."""
        messages = self.queues[queue].messages
        if messages:
            self.queues[queue].messages.append(Message(next(self.seqs), messages[index % len(messages)].body))

    def store_started(self, started: CallStarted) -> bool:
        """Store a start; return True if the slot was free."""
        free = started.attempt not in self.started
        if free:
            self.started[started.attempt] = started
        self.on_slot(started.attempt, started.conversation_id)
        return free

    def store_result(self, finished: CallFinished) -> CallFinished:
        stored = self.finished.setdefault(finished.attempt, finished)
        self.on_slot(finished.attempt, finished.conversation_id)
        return stored

    def forget(self, attempts: tuple[str, ...]) -> None:
        for attempt in attempts:
            self.started.pop(attempt, None)
            self.finished.pop(attempt, None)

    def forget_results(self, attempts: tuple[str, ...]) -> None:
        for attempt in attempts:
            self.finished.pop(attempt, None)

    def store_approval_request(self, request: ApprovalRequest) -> None:
        self.requests.setdefault(request.approval_id, request)
        self.timers[request.approval_id] = request

    def store_approval_reply(self, reply: ApprovalReply) -> ApprovalReply:
        """Store a reply in a free slot; its consumer receives it."""
        if reply.approval_id not in self.replies:
            reply = ApprovalReply.model_validate_json(reply.model_dump_json())
            self.replies[reply.approval_id] = reply
            self.queues["replies"].messages.append(Message(next(self.seqs), reply))
        return self.replies[reply.approval_id]

    def discard(self, reply: ApprovalReply, reason: str) -> None:
        if self.replies.get(reply.approval_id) == reply:
            del self.replies[reply.approval_id]
            self.dead.append((reply, reason))

    def fire(self, now: datetime) -> None:
        """Publish the due timers."""
        for approval_id, request in list(self.timers.items()):
            if request.expires_at <= now:
                del self.timers[approval_id]
                self.queues["timers"].messages.append(Message(next(self.seqs), request))
