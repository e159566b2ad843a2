"""Builders and recorders for the tests of the bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from banksman.bus.connection import Bus
from banksman.bus.messages import Message
from banksman.bus.queues.handling import IN_PROGRESS, Done, Outcome, WorkMessage
from banksman.contracts.calls import CallFinished, CallStarted
from banksman.contracts.events import Commit, ConversationUpdated, Event, Owner
from banksman.contracts.ids import new_id
from banksman.contracts.tools import ToolResult
from banksman.contracts.work import ApprovalReply, ApprovalRequest
from tests.support.timeouts import WAIT_TIMEOUT_S


def now() -> datetime:
    return datetime.now(UTC)


def commit(seq: int, *, owner: Owner | None = None, title: str | None = None) -> Commit:
    """Return a commit with one event."""
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


def make_approval_request(tenant: str, approval_id: str) -> ApprovalRequest:
    return ApprovalRequest(
        tenant=tenant,
        conversation_id="c1",
        run_id="c1-r1",
        approval_id=approval_id,
        expires_at=now(),
        items=(),
    )


def make_approval_reply(tenant: str, approval_id: str, *, by: str) -> ApprovalReply:
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
    """A handler that stores the messages it receives."""

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

    async def until(self, condition: Callable[[Recorder], bool], timeout_s: float = WAIT_TIMEOUT_S) -> None:
        """Wait until `condition` returns True for this recorder."""
        async with asyncio.timeout(timeout_s):
            while not condition(self):
                self._arrived.clear()
                await self._arrived.wait()


class AckRecorder:
    """Records the acks, naks and in-progress signals for the messages of a queue."""

    def __init__(self) -> None:
        self._sent: list[tuple[int, bytes]] = []
        self._arrived = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def recording(cls, bus: Bus, queue: str) -> AsyncGenerator[AckRecorder]:
        """Record while the block runs."""
        acks = cls()
        subscription = await bus.subscribe(f"$JS.ACK.{queue}.>", acks._received)
        await bus.ready()
        yield acks
        await subscription.unsubscribe()

    def of(self, delivery: int) -> list[bytes]:
        """Return the acks of the n-th delivery of each message, without in-progress signals."""
        return [ack for number, ack in self._sent if number == delivery and ack != IN_PROGRESS]

    async def in_progress_signals(self, number: int) -> None:
        """Wait for a number of in-progress signals."""
        await self.sent(IN_PROGRESS, number)

    async def sent(self, status: bytes, number: int = 1) -> None:
        """Wait for a number of acks with a status."""
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while self.count(status) < number:
                self._arrived.clear()
                await self._arrived.wait()

    def count(self, status: bytes) -> int:
        """Return the number of acks with a status."""
        return sum(ack == status for _, ack in self._sent)

    async def _received(self, message: Message) -> None:
        # $JS.ACK.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<time>.<pending>
        self._sent.append((int(message.subject.split(".")[4]), message.data))
        self._arrived.set()
