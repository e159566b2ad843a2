"""The ports of an agent's procedures: their interfaces to the outside.

In production the bus implements each port (`bus.slots`, `bus.publish`, `runs.runners.placement`,
`runs.conversation_log`, `runs.bus_ports`); in the protocol tests a simulation does. Every method raises
`Refused` if the broker is unavailable or full, and the process may crash at any await.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from banksman.bus.storage.slots import AttemptSlots
from banksman.contracts.calls import CallFinished, CallReply, CallRequest, CallStarted
from banksman.contracts.events import Commit
from banksman.contracts.work import ApprovalReply, ApprovalRequest, ResumeRun, RunSignal, RunWork, StartRun
from banksman.contracts.workspaces import WorkspaceLoss, WorkspacePlacement
from banksman.runs.state import Conversation


class Clock(Protocol):
    """Time and new ids."""

    def now(self) -> datetime:
        """Return the current time in UTC by a clock that all processes share."""
        ...

    def new_id(self, prefix: str) -> str:
        """Return an id that no other process creates."""
        ...


class Log(Protocol):
    """The logs of conversations, folded."""

    async def read(self, tenant: str, conversation_id: str) -> Conversation:
        """Return the fold of at least all commits stored at the time of the call."""
        ...

    def cached(self, tenant: str, conversation_id: str) -> Conversation:
        """Return the last known fold, which may be behind the log; an empty one if none is known."""
        ...

    async def append(
        self, state: Conversation, commit: Commit, *, folded: Conversation
    ) -> Conversation | None:
        """Store `commit` as the successor of `state`; None when another commit came first.

        `folded` is `state` after the events of the commit. A lost acknowledgement is resolved. Raises
        `CallerMistake` if the commit does not fit one message.
        """
        ...


class Slots(Protocol):
    """The write-once slots of attempts."""

    async def store_started(self, tenant: str, started: CallStarted) -> object:
        """Store a start unless one is stored."""
        ...

    async def store_result(self, tenant: str, finished: CallFinished) -> object:
        """Store a result unless one is stored."""
        ...

    async def read(self, tenant: str, attempt: str) -> AttemptSlots:
        """Return both slots, read from the leader of their stream; raise `Poison` if one is unreadable."""
        ...

    async def forget(self, tenant: str, attempts: tuple[str, ...]) -> None:
        """Remove both slots of attempts whose results are committed."""
        ...

    async def forget_results(self, tenant: str, attempts: tuple[str, ...]) -> None:
        """Remove the committed results of attempts whose starts stay, so that they can never start again."""
        ...


class Approvals(Protocol):
    """The two slots of an approval: its request, which expires by a timer, and its reply."""

    async def publish_request(self, request: ApprovalRequest) -> None:
        """Store the request unless it is stored, and schedule its expiry."""
        ...

    async def store_reply(self, reply: ApprovalReply) -> ApprovalReply:
        """Store a reply unless one is stored; return the stored reply."""
        ...

    async def discard_reply(self, reply: ApprovalReply, reason: str) -> None:
        """Dead-letter an invalid reply and empty its slot, unless the slot now has another reply."""
        ...


class Work(Protocol):
    """The queue of runs."""

    async def publish(self, work: StartRun | ResumeRun) -> None:
        """Store a work message; a repeat within the duplicate window is dropped."""
        ...

    async def next(
        self, tenant: str, conversation_id: str, *, after: int
    ) -> tuple[int, RunWork | RunSignal | None] | None:
        """Return the first message of a conversation after a sequence that has no ack; None without one.

        The body of a message that cannot be decoded is None.
        """
        ...

    async def wake_owner(self, tenant: str, conversation_id: str) -> None:
        """Wake the owner of a run, best effort."""
        ...


@dataclass(frozen=True, slots=True)
class Placement:
    """The process that calls of a conversation are sent to."""

    runner: str
    runner_epoch: int
    place: WorkspacePlacement = field(default=WorkspacePlacement(), compare=False)
    """The state of the workspace for the runner. Two placements at the same process are equal."""
    loss: WorkspaceLoss | None = field(default=None, compare=False)
    """The loss when the workspace last moved; None if nothing was lost."""


class Runners(Protocol):
    """The processes that execute calls."""

    async def place(self, tenant: str, conversation_id: str, server: str | None) -> Placement | None:
        """Return a tool server, or the live runner of the workspace; a new workspace is placed.

        None if no process is alive, or the workspace waits for its runner to return.
        """
        ...

    async def alive(self, placement: Placement) -> bool:
        """Return whether a process may still start calls: its lease is valid, and its epoch is the newest."""
        ...

    async def forget(self, tenant: str, conversation_id: str) -> None:
        """Remove the workspace of a deleted conversation, now or when its runner returns."""
        ...

    async def call(
        self, placement: Placement, request: CallRequest, shown: asyncio.Future[None] | None = None
    ) -> CallReply | None:
        """Send the request for a call; None when no process replied.

        With `shown`, the process need not reply if it stores a start at once, which ends the wait.
        """
        ...

    async def cancel(self, placement: Placement, tenant: str, attempt: str) -> None:
        """Send the runner a cancel of a started attempt, best effort."""
        ...


class Notifications(Protocol):
    """Notifies owners. Any notification may be lost, so owners also read the log at intervals."""

    async def slots(self, state: Conversation, attempt: str) -> AttemptSlots:
        """Return the contents of an attempt's slots notified since the first call of `slots` for it."""
        ...

    def shown(self, state: Conversation, attempt: str) -> asyncio.Future[None] | None:
        """Return a future that is done when an attempt's start or result is notified; None if unknown."""
        ...

    async def forget(self, state: Conversation, attempts: Iterable[str]) -> None:
        """Stop notifications about the slots of these attempts."""
        ...

    async def wait(self, state: Conversation, until: datetime) -> bool:
        """Wait until a message of the conversation has been stored since the last call, or until `until`.

        Returns whether the log may have commits after `state`; False if only slots have changed.
        """
        ...


REDELIVERY_S = 10.0
"""Seconds after a reconnect in which a redelivery is its consequence: a restarted broker redelivers, with the
next pull, the messages that had no heartbeat for three seconds."""


@dataclass(frozen=True, slots=True)
class Ports:
    """All ports of one process."""

    agent: str
    """The id of this process, which no other process ever has."""
    clock: Clock
    log: Log
    slots: Slots
    approvals: Approvals
    work: Work
    runners: Runners
    notifications: Notifications
    signing_key: bytes
    """The key with which gateways sign decisions."""
    reconnected: Callable[[], bool] = field(default=lambda: False)
    """Returns whether this process reconnected less than `REDELIVERY_S` seconds ago."""
    capped: Callable[[StartRun], StartRun] = field(default=lambda start: start)
    """Cuts the settings of a start to the limits of its tenant, before the log records them."""
