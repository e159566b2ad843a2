"""The ports of an agent's procedures: everything they need from outside.

The bus serves each port in production (`bus.slots`, `bus.publish`, `runs.placement`,
`runs.conversation_log`, `runs.notifications`), a simulated world in the protocol tests. Every method raises
`Refused` when the broker is away or full, and the process may crash at any await.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from banksman.bus.slots import AttemptSlots
from banksman.contracts.calls import CallFinished, CallReply, CallRequest, CallStarted
from banksman.contracts.events import Commit
from banksman.contracts.work import ApprovalReply, ApprovalRequest, ResumeRun, StartRun
from banksman.contracts.workspaces import WorkspaceLoss, WorkspacePlacement
from banksman.runs.state import Conversation


class Clock(Protocol):
    """Time and new ids."""

    def now(self) -> datetime:
        """Return the current time in UTC by a shared clock: times of several processes are compared."""
        ...

    def new_id(self, prefix: str) -> str:
        """Return an id that no other process creates."""
        ...


class Log(Protocol):
    """The logs of conversations, folded."""

    async def read(self, tenant: str, conversation_id: str) -> Conversation:
        """Return the fold of everything stored when the call was made, or later."""
        ...

    def cached(self, tenant: str, conversation_id: str) -> Conversation:
        """Return the last known fold, which may be behind the log; an empty one if none is known."""
        ...

    async def append(self, state: Conversation, commit: Commit) -> Conversation | None:
        """Store `commit` as the one that follows `state`; a lost acknowledgement is resolved.

        Returns:
            The state with the commit applied, or None when another commit came first.

        Raises:
            CallerMistake: The commit does not fit one message.
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
        """Return what both slots hold, as the leader of their stream has it.

        Raises:
            Poison: What is stored cannot be decoded.
        """
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
        """Dead-letter an invalid reply and empty its slot, unless the slot holds another reply by now."""
        ...


class Work(Protocol):
    """The queue of runs."""

    async def publish(self, work: StartRun | ResumeRun) -> None:
        """Store a work message; a repeat within the duplicate window is dropped."""
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
    """What the runner must know about the workspace. Two placements at the same process are equal."""
    loss: WorkspaceLoss | None = field(default=None, compare=False)
    """What was lost when the workspace last moved."""


class Runners(Protocol):
    """The processes that execute calls."""

    async def place(self, tenant: str, conversation_id: str, server: str | None) -> Placement | None:
        """Return the live runner of the workspace, which is placed if it is new, or a tool server.

        Returns:
            None when no process is alive, or the workspace waits for its runner to return.
        """
        ...

    async def alive(self, placement: Placement) -> bool:
        """Return whether a process may still start calls: its lease holds, and its epoch has not risen."""
        ...

    async def forget(self, tenant: str, conversation_id: str) -> None:
        """Remove the workspace of a deleted conversation, at once or when its runner returns."""
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
    """Notifies owners. Any notification may be lost, so owners also read the log from time to time."""

    async def slots(self, state: Conversation, attempt: str) -> AttemptSlots:
        """Return what was notified of an attempt's slots since `slots` was first called for it."""
        ...

    def shown(self, state: Conversation, attempt: str) -> asyncio.Future[None] | None:
        """Return what is done when the start or the result of an attempt was notified; None if unknown."""
        ...

    async def forget(self, state: Conversation, attempts: Iterable[str]) -> None:
        """Notify of nothing more that is stored of these attempts."""
        ...

    async def wait(self, state: Conversation, until: datetime) -> bool:
        """Return when something of the conversation was stored since the last call, or at `until`.

        Returns:
            Whether the log may have commits after `state`; False if only slots have changed.
        """
        ...


REDELIVERY_S = 10.0
"""Seconds after a reconnect in which a redelivery follows from it: a broker that returns delivers again what
had no sign of life for three seconds, with the next pull."""


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Ports:
    """All ports of one process."""

    agent: str
    """The id of this process; no other process ever has it."""
    clock: Clock
    log: Log
    slots: Slots
    approvals: Approvals
    work: Work
    runners: Runners
    notifications: Notifications
    signing_key: bytes
    """The key that gateways sign decisions with."""
    reconnected: Callable[[], bool] = _never
    """Whether this process reconnected to the broker so recently that a redelivery follows from it."""
