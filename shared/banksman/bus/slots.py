"""Write-once slots: the start and the result of a call, the question and the answer of an approval.

A slot is a subject whose stream takes one message. Whoever writes first has decided; all others read what is
there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from banksman.bus import dead, direct, jetstream
from banksman.bus.connection import Bus, Subscription
from banksman.bus.errors import SlotTaken
from banksman.bus.messages import Message, StoredMessage
from banksman.bus.names import APPROVALS, RESULTS
from banksman.bus.outcomes import WorkMessage
from banksman.bus.publish import durable
from banksman.contracts import subjects
from banksman.contracts.calls import CallFinished, CallStarted
from banksman.contracts.errors import NotReady, Poison
from banksman.contracts.ids import new_id
from banksman.contracts.work import ApprovalReply, ApprovalRequest

T = TypeVar("T", bound=BaseModel)

FactKind = Literal["started", "result"]

SETTLES_S = 10.0
"""Seconds within which it is decided whether a message that others are refused for is stored: electing a
stream's leader takes up to 8."""
_LOOK_AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class Placed(Generic[T]):
    """What a slot holds after an attempt to write it."""

    stored: T | None
    """Mine or the other's; None when it is the other's and this user has no right to read."""
    fresh: bool
    """True when this very attempt stored it. False means: somebody else may be acting on it; keep off."""
    taken: bool = False
    """True when it holds what another writer stored. A repeat of one's own write is no other's."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is stored of one attempt of a call."""

    started: CallStarted | None
    result: CallFinished | None


@dataclass(frozen=True, slots=True)
class StoredFact:
    """A start or a result, as the server sends it on once it is stored."""

    tenant: str
    attempt: str
    kind: FactKind
    data: bytes

    def decode(self) -> CallStarted | CallFinished:
        """The start or the result.

        Raises:
            Poison: it cannot be decoded.
        """
        model = CallStarted if self.kind == "started" else CallFinished
        return _decode(model, self.attempt, self.data)


class CallSlots:
    """The starts and results of calls.

    Args:
        bus: The connection.
        may_read: False for a user that may write slots and not read them (a runner).
    """

    def __init__(self, bus: Bus, *, may_read: bool = True) -> None:
        self._bus = bus
        self._may_read = may_read

    async def put_started(self, tenant: str, started: CallStarted) -> Placed[CallStarted]:
        """Record the one start of an attempt, or that it can never start (`void`).

        Execute only when the answer is `fresh`: the same process writing the same start twice gets False.

        Raises:
            Overloaded, Unavailable, Forbidden: as of a durable publish.
        """
        subject = subjects.tool_started(tenant, started.attempt)
        return await self._put(subject, started, _writer(started.runner, started.runner_epoch))

    async def put_result(
        self, tenant: str, finished: CallFinished, *, runner_epoch: int = 0
    ) -> Placed[CallFinished]:
        """Record the one result of an attempt. The same writer may repeat it.

        Args:
            tenant: Whose call.
            finished: The result.
            runner_epoch: Of the runner that executed the call.

        Raises:
            Overloaded, MessageTooLarge, Unavailable, Forbidden: as of a durable publish.
        """
        subject = subjects.tool_result(tenant, finished.attempt)
        return await self._put(subject, finished, _writer(finished.result.runner, runner_epoch))

    async def facts(self, tenant: str, attempt: str) -> Facts:
        """What is stored of an attempt, as the leader knows it.

        The result is read first, so that a result is never seen without the start that came before it (an
        idempotent call has none).

        Raises:
            Poison: what is stored cannot be decoded; there is a copy among the dead letters.
            Unavailable: no answer.
        """
        result = await self._last(subjects.tool_result(tenant, attempt))
        started = await self._last(subjects.tool_started(tenant, attempt))
        return Facts(
            started and await self._read(CallStarted, started),
            result and await self._read(CallFinished, result),
        )

    async def forget(self, tenant: str, attempts: Iterable[str]) -> None:
        """Remove the slots of attempts whose results are in the log.

        The result goes last: as long as it is there, a lost owner finds it.
        """
        for attempt in attempts:
            await jetstream.purge_subject(self._bus, RESULTS, subjects.tool_started(tenant, attempt))
            await jetstream.purge_subject(self._bus, RESULTS, subjects.tool_result(tenant, attempt))

    async def _read(self, model: type[T], message: StoredMessage) -> T:
        try:
            return _decode(model, message.subject, message.data)
        except Poison as poison:
            await _bury(self._bus, RESULTS, message, poison.reason)
            raise

    async def _put(self, subject: str, value: T, writer: str) -> Placed[T]:
        return await _put(self._bus, RESULTS, subject, value, writer, may_read=self._may_read)

    async def _last(self, subject: str) -> StoredMessage | None:
        return await jetstream.last_message(self._bus, RESULTS, subject)


async def watch_results(
    bus: Bus, callback: Callable[[StoredFact], Awaitable[None]], *, tenant: str = subjects.ANY
) -> tuple[Subscription, ...]:
    """Call `callback` with each start and result once it is stored.

    Messages may be lost with a connection: read `facts` after `bus.on_reconnect` and `on_slow_consumer`.
    """

    async def received(message: Message) -> None:
        _, _, kind, of_tenant, attempt = message.subject.split(".")
        await callback(
            StoredFact(of_tenant, attempt, "started" if kind == "started" else "result", message.data)
        )

    started, result = subjects.stored_results(tenant)
    return await bus.subscribe(started, received), await bus.subscribe(result, received)


class ApprovalSlots:
    """The questions to people and their one answer each."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def request(self, request: ApprovalRequest) -> ApprovalRequest:
        """Ask; the same question may be asked again. Returns what is stored.

        Raises:
            Overloaded, MessageTooLarge, Unavailable: as of a durable publish.
        """
        subject = subjects.approval_request(request.tenant, request.approval_id)
        placed = await _put(self._bus, APPROVALS, subject, request, "ask")
        return placed.stored or request

    async def reply(self, reply: ApprovalReply) -> ApprovalReply:
        """Answer; returns the answer that is stored, whoever gave it.

        Raises:
            Poison: the stored answer cannot be decoded.
            Overloaded, Unavailable: as of a durable publish.
        """
        subject = subjects.approval_reply(reply.tenant, reply.approval_id)
        placed = await _put(self._bus, APPROVALS, subject, reply, new_id("answer-"))
        return placed.stored or reply

    async def approval(
        self, tenant: str, approval_id: str
    ) -> tuple[ApprovalRequest | None, ApprovalReply | None]:
        """The stored question and its answer, as the leader knows them."""
        request = await self._last(subjects.approval_request(tenant, approval_id))
        reply = await self._last(subjects.approval_reply(tenant, approval_id))
        return (
            request and _decode(ApprovalRequest, request.subject, request.data),
            reply and _decode(ApprovalReply, reply.subject, reply.data),
        )

    async def pending(
        self, tenant: str = subjects.ANY, *, limit: int | None = None, after: int = 0
    ) -> list[tuple[int, ApprovalRequest]]:
        """The questions without an answer, oldest first, each with its stream sequence.

        A question that cannot be decoded is left out.

        Args:
            tenant: Whose.
            limit: How many at most; None for all.
            after: Only those with a higher stream sequence.
        """
        answered = {
            message.subject.rpartition(".")[2]
            async for message in direct.read(self._bus, APPROVALS, _any_reply(tenant), current=True)
        }
        found: list[tuple[int, ApprovalRequest]] = []
        async for message in direct.read(
            self._bus, APPROVALS, _any_request(tenant), after=after, current=True
        ):
            if limit is not None and len(found) == limit:
                break
            if message.subject.rpartition(".")[2] not in answered:
                try:
                    request = _decode(ApprovalRequest, message.subject, message.data)
                except Poison:
                    continue
                found.append((message.stream_seq, request))
        return found

    async def refuse(self, reply: ApprovalReply, reason: str) -> None:
        """Keep an answer that turned out to be invalid as a dead letter, and empty its slot.

        Does nothing when the slot holds another answer by now.
        """
        subject = subjects.approval_reply(reply.tenant, reply.approval_id)
        message = await self._last(subject)
        if message is None or _decode(ApprovalReply, subject, message.data) != reply:
            return
        await _bury(self._bus, APPROVALS, message, reason)
        await jetstream.delete_message(self._bus, APPROVALS, message.stream_seq)

    async def put_away(self, message: WorkMessage, reason: str) -> None:
        """Keep an answer that nobody can read as a dead letter, and empty its slot."""
        await _bury(self._bus, APPROVALS, message, reason)
        await jetstream.delete_message(self._bus, APPROVALS, message.stream_seq)

    async def forget(self, tenant: str, approval_id: str) -> None:
        """Remove a question whose answer is in the log, and its answer. The answer goes last."""
        for subject in (
            subjects.approval_request(tenant, approval_id),
            subjects.approval_reply(tenant, approval_id),
        ):
            await jetstream.purge_subject(self._bus, APPROVALS, subject)

    async def _last(self, subject: str) -> StoredMessage | None:
        return await jetstream.last_message(self._bus, APPROVALS, subject)


async def _bury(bus: Bus, stream: str, message: StoredMessage | WorkMessage, reason: str) -> None:
    await dead.bury(
        bus,
        subject=message.subject,
        stream=stream,
        stream_seq=message.stream_seq,
        reason=reason,
        payload=message.data,
        headers=message.headers,
    )


async def _put(
    bus: Bus, stream: str, subject: str, value: T, writer: str, *, may_read: bool = True
) -> Placed[T]:
    payload = value.model_dump_json(by_alias=True).encode()
    deadline = asyncio.get_running_loop().time() + SETTLES_S
    while True:
        taken = False
        try:
            ack = await durable(bus, subject, payload, msg_id=writer)
        except SlotTaken:
            taken = True
        else:
            # A duplicate at the first try is what an earlier call stored; after more tries, what one of them
            # stored whose acknowledgement was lost.
            if not ack.duplicate or ack.tries > 1:
                return Placed(value, fresh=True)
        if not may_read:
            return Placed(None, fresh=False, taken=taken)
        stored = await _read(bus, stream, subject, type(value))
        if stored is not None:
            return Placed(stored, fresh=False, taken=taken)
        # The leader of three servers refuses from the moment another message is on its way. It may also never
        # be stored, when its leader dies: then whoever writes next has decided.
        if not taken or asyncio.get_running_loop().time() > deadline:
            raise NotReady(f"{subject}: its slot was freed meanwhile")
        await asyncio.sleep(_LOOK_AGAIN_S)


async def _read(bus: Bus, stream: str, subject: str, model: type[T]) -> T | None:
    message = await jetstream.last_message(bus, stream, subject)
    return None if message is None else _decode(model, subject, message.data)


def _decode(model: type[T], subject: str, data: bytes) -> T:
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise Poison(subject, f"not a {model.__name__}: {error.error_count()} fields are wrong") from error


def _writer(runner: str | None, epoch: int) -> str:
    """Who writes: one process of a runner, or one attempt of an owner, of which there may be several."""
    return f"{runner}:{epoch}" if runner else new_id("owner-")


def _any_request(tenant: str) -> str:
    return subjects.approval_request(tenant, subjects.ANY)


def _any_reply(tenant: str) -> str:
    return subjects.approval_reply(tenant, subjects.ANY)
