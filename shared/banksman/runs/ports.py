"""What the procedures of this package need from the world.

Each port is served by the bus in production and by a simulated world in the model test. A method either does
what it says or raises `Unavailable`; in between, the process may crash at any await.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from banksman.contracts.calls import CallFinished, CallReply, CallRequest, CallStarted
from banksman.contracts.events import Commit
from banksman.contracts.work import ApprovalReply, ApprovalRequest, ResumeRun, StartRun
from banksman.contracts.workspaces import WorkspaceLoss, WorkspacePlacement
from banksman.runs.state import Conversation


class Clock(Protocol):
    """Time and chance."""

    def now(self) -> datetime:
        """The moment, in UTC, by a clock that all processes share: moments of different ones are compared."""
        ...

    def new_id(self, prefix: str) -> str:
        """An id nobody else makes."""
        ...


class Log(Protocol):
    """The conversation's log, folded."""

    async def read(self, tenant: str, conversation_id: str) -> Conversation:
        """The fold of everything stored when the call was made, or later."""
        ...

    async def append(self, state: Conversation, commit: Commit) -> Conversation | None:
        """Store `commit` right behind `state`. A lost ack is resolved inside.

        Returns:
            The state with the commit applied, or None when another commit came first.

        Raises:
            CallerMistake: it does not fit one message.
        """
        ...


@dataclass(frozen=True, slots=True)
class Facts:
    """What the two slots of an attempt hold."""

    started: CallStarted | None = None
    finished: CallFinished | None = None


class Slots(Protocol):
    """The write-once slots of attempts."""

    async def put_started(self, tenant: str, started: CallStarted) -> CallStarted:
        """Store a start unless one is stored; return what the slot holds."""
        ...

    async def put_result(self, tenant: str, finished: CallFinished) -> CallFinished:
        """Store a result unless one is stored; return what the slot holds."""
        ...

    async def read(self, tenant: str, attempt: str) -> Facts:
        """Both slots, read from the leader."""
        ...

    async def forget(self, tenant: str, attempts: tuple[str, ...]) -> None:
        """Delete both slots of attempts whose results are committed."""
        ...


class Approvals(Protocol):
    """The two slots of an approval, and its timer."""

    async def ask(self, request: ApprovalRequest) -> None:
        """Store the question and schedule its expiry, both once."""
        ...

    async def settle(self, reply: ApprovalReply) -> ApprovalReply:
        """Store an answer unless one is stored; return what the slot holds."""
        ...

    async def discard(self, reply: ApprovalReply, reason: str) -> None:
        """Keep an invalid answer as a dead letter and empty its slot, unless that holds another by now."""
        ...


class Work(Protocol):
    """The queue of runs."""

    async def publish(self, work: StartRun | ResumeRun) -> None:
        """Store a work message; a repeat within the duplicate window is dropped."""
        ...

    async def nudge(self, tenant: str, conversation_id: str) -> None:
        """Wake the owner, best effort."""
        ...


@dataclass(frozen=True, slots=True)
class Placement:
    """Where calls of a conversation go."""

    runner: str
    runner_epoch: int
    place: WorkspacePlacement = field(default=WorkspacePlacement(), compare=False)
    """What the runner must know of the workspace; two placements with the same process are the same."""
    loss: WorkspaceLoss | None = field(default=None, compare=False)
    """What did not come along when the workspace last moved."""


class Runners(Protocol):
    """Those who execute calls."""

    async def place(self, tenant: str, conversation_id: str, server: str | None) -> Placement | None:
        """The live runner that owns the workspace (placed now if nobody does), or the live tool server.

        Returns:
            None when nobody is alive, or the workspace waits for its runner to come back.
        """
        ...

    async def alive(self, placement: Placement) -> bool:
        """False when the lease ended or the epoch rose; never False for one that may still start calls."""
        ...

    async def forget(self, tenant: str, conversation_id: str) -> None:
        """Remove the workspace of a deleted conversation, now or once its runner is back."""
        ...

    async def call(self, placement: Placement, request: CallRequest) -> CallReply | None:
        """Send a call; None when nobody answered."""
        ...

    async def cancel(self, placement: Placement, tenant: str, attempt: str) -> None:
        """Ask for the end of a started attempt, best effort."""
        ...


class Attention(Protocol):
    """What reaches an owner while it waits."""

    def facts(self, tenant: str, attempt: str) -> Facts:
        """What was seen of an attempt's slots since `wait` was first called for its conversation."""
        ...

    async def wait(self, tenant: str, conversation_id: str, until: datetime) -> None:
        """Return when anything about the conversation was stored since the last call, or at `until`."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """All that an agent's procedures need."""

    agent: str
    """The id of this process; no other process ever has it."""
    clock: Clock
    log: Log
    slots: Slots
    approvals: Approvals
    work: Work
    runners: Runners
    attention: Attention
    signing_key: bytes
    """What gateways sign the answers of people with."""
