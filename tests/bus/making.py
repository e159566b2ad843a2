"""What the tests of the bus store and read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from banksman.bus.connection import Bus
from banksman.bus.messages import Message
from banksman.bus.outcomes import IN_PROGRESS, Done, Outcome, WorkMessage
from banksman.contracts.calls import CallFinished, CallStarted
from banksman.contracts.events import Commit, ConversationUpdated, Event, Owner
from banksman.contracts.ids import new_id
from banksman.contracts.tools import ToolResult
from banksman.contracts.work import ApprovalReply, ApprovalRequest
from tests.support.timeouts import WAIT_TIMEOUT_S

"""Seconds that a test waits for what must come, on a machine that has more to do."""


def now() -> datetime:
    return datetime.now(UTC)


def commit(seq: int, *, owner: Owner | None = None, title: str | None = None) -> Commit:
    """A commit with one event."""
    event = Event(seq=seq, ts=now(), data=ConversationUpdated(title=title or f"title {seq}"))
    return Commit(ts=now(), id=new_id("k"), log_epoch="e1", first_seq=seq, owner=owner, events=(event,))


def started(attempt: str, *, runner: str | None = "r1", epoch: int = 1) -> CallStarted:
    return CallStarted(
        conversation_id="c1",
        attempt=attempt,
        runner=runner,
        runner_epoch=epoch,
        void=runner is None,
        ts=now(),
    )


def finished(attempt: str, *, runner: str | None = "r1", output: str = "done") -> CallFinished:
    result = ToolResult(tool_call_id="k", content={"success": True, "output": output}, runner=runner)
    return CallFinished(conversation_id="c1", attempt=attempt, result=result)


def asked(tenant: str, approval_id: str) -> ApprovalRequest:
    return ApprovalRequest(
        tenant=tenant,
        conversation_id="c1",
        run_id="c1-r1",
        approval_id=approval_id,
        expires_at=now(),
        items=(),
    )


def answered(tenant: str, approval_id: str, *, by: str) -> ApprovalReply:
    return ApprovalReply(
        tenant=tenant,
        conversation_id="c1",
        run_id="c1-r1",
        approval_id=approval_id,
        outcome="approved",
        by=by,
        decided_at=now(),
    )


class Recorder:
    """A handler that keeps what it got."""

    def __init__(self, decide: Callable[[WorkMessage], Outcome] | None = None) -> None:
        self.messages: list[WorkMessage] = []
        self._decide = decide
        self._arrived = asyncio.Event()

    async def __call__(self, message: WorkMessage) -> Outcome:
        self.messages.append(message)
        self._arrived.set()
        return self._decide(message) if self._decide else Done()

    @property
    def payloads(self) -> list[bytes]:
        return [message.data for message in self.messages]

    async def until(self, holds: Callable[[Recorder], bool], timeout_s: float = WAIT_TIMEOUT_S) -> None:
        """Wait until `holds` is true of this recorder."""
        async with asyncio.timeout(timeout_s):
            while not holds(self):
                self._arrived.clear()
                await self._arrived.wait()


class Words:
    """Record the acks, naks and in-progress signals for the messages of a queue."""

    def __init__(self) -> None:
        self._said: list[tuple[int, bytes]] = []
        self._heard = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def heard(cls, bus: Bus, queue: str) -> AsyncGenerator[Words]:
        """Listen to what is said about a queue's messages for the length of a block."""
        words = cls()
        subscription = await bus.subscribe(f"$JS.ACK.{queue}.>", words._hear)
        await bus.ready()
        yield words
        await subscription.unsubscribe()

    def of(self, delivery: int) -> list[bytes]:
        """What was said at deliveries of that number, but for signs of life."""
        return [word for number, word in self._said if number == delivery and word != IN_PROGRESS]

    async def signs_of_life(self, number: int) -> None:
        """Wait for so many signs that a handler still runs."""
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while sum(word == IN_PROGRESS for _, word in self._said) < number:
                self._heard.clear()
                await self._heard.wait()

    async def _hear(self, message: Message) -> None:
        # $JS.ACK.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<time>.<pending>
        self._said.append((int(message.subject.split(".")[4]), message.data))
        self._heard.set()
