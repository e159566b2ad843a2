"""Write-once slots: subjects whose stream takes one message each. Writes raise what `durable` raises.

The first writer decides, and all others read the stored message. This module has the slots of calls, for
their starts and results; `approval_slots` has those of approvals.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from banksman.bus import dead, jetstream
from banksman.bus.connection import Bus
from banksman.bus.errors import SlotTaken
from banksman.bus.messages import BusSubscription, Message, StoredMessage
from banksman.bus.names import RESULTS
from banksman.bus.publish import durable, encoded
from banksman.contracts import subjects
from banksman.contracts.calls import CallFinished, CallStarted
from banksman.contracts.errors import NotReady, Poison
from banksman.contracts.ids import new_id
from banksman.runtime.background import first_error

T = TypeVar("T", bound=BaseModel)

MAX_REMOVALS = 16
"""Maximum number of concurrent removals of slots: a busy process ends calls faster than it could remove their
slots one after another."""
SLOT_TIMEOUT_S = 10.0
"""Seconds to wait until a refused write shows the message that took the slot. An election takes up to 8."""
_RETRY_S = 0.05


@dataclass(frozen=True, slots=True)
class SlotWrite(Generic[T]):
    """The outcome of a write to a slot."""

    stored: T | None
    """The stored message; None if another writer stored it and this user may not read it."""
    fresh: bool
    """True when this write stored it. When False, another process may already act on it."""
    taken: bool = False
    """True when another writer stored the message. False for a repeat of the same write."""


@dataclass(frozen=True, slots=True)
class AttemptSlots:
    """The contents of the two slots of an attempt."""

    started: CallStarted | None = None
    finished: CallFinished | None = None


@dataclass(frozen=True, slots=True)
class StoredSlot:
    """A start or a result, as the server republishes it once it is stored."""

    tenant: str
    attempt: str
    kind: str
    """`started` or `result`."""
    data: bytes

    def decode(self) -> CallStarted | CallFinished:
        """Return the start or the result; raise `Poison` if it cannot be decoded."""
        model = CallStarted if self.kind == "started" else CallFinished
        return decode_slot(model, self.attempt, self.data)


class CallSlots:
    """The starts and results of calls. `may_read` is False for a user that may only write slots (a runner).

    Reads raise `Poison` for a message that cannot be decoded.
    """

    def __init__(self, bus: Bus, *, may_read: bool = True) -> None:
        self._bus = bus
        self._may_read = may_read
        self._removable: deque[str] = deque()
        """Subjects to purge."""
        self._removing = False

    async def store_started(self, tenant: str, started: CallStarted) -> SlotWrite[CallStarted]:
        """Store the one start of an attempt, or a void, after which it can never start.

        A call may execute only when the result is `fresh`: a process that writes the same start twice gets
        False for the second.
        """
        subject = subjects.tool_started(tenant, started.attempt)
        writer = _writer(started.runner, started.runner_epoch)
        return await store_slot(self._bus, RESULTS, subject, started, writer, may_read=self._may_read)

    async def store_result(
        self, tenant: str, finished: CallFinished, *, runner_epoch: int = 0
    ) -> SlotWrite[CallFinished]:
        """Store the one result of an attempt. The same writer may repeat it."""
        subject = subjects.tool_result(tenant, finished.attempt)
        writer = _writer(finished.result.runner, runner_epoch)
        return await store_slot(self._bus, RESULTS, subject, finished, writer, may_read=self._may_read)

    async def read(self, tenant: str, attempt: str) -> AttemptSlots:
        """Return the contents of both slots, read from the leader of their stream."""
        # The result is read first: otherwise a start and its result could both be stored between the two
        # reads, and the result would be returned without its start. (An idempotent call has no start.)
        result = await jetstream.last_message(self._bus, RESULTS, subjects.tool_result(tenant, attempt))
        started = await jetstream.last_message(self._bus, RESULTS, subjects.tool_started(tenant, attempt))
        return AttemptSlots(
            started and await self._decode(CallStarted, started),
            result and await self._decode(CallFinished, result),
        )

    async def forget(self, tenant: str, attempts: Iterable[str]) -> None:
        """Remove both slots of attempts whose results are committed, in the background."""
        # The server removes the oldest message first, and the result last: an owner that does not know yet
        # that it is fenced still finds it.
        self._remove(subjects.tool_slots(tenant, attempt) for attempt in attempts)

    async def forget_results(self, tenant: str, attempts: Iterable[str]) -> None:
        """Remove the committed results of attempts, in the background. The stream expires their starts."""
        self._remove(subjects.tool_result(tenant, attempt) for attempt in attempts)

    def _remove(self, slots: Iterable[str]) -> None:
        """Remove slots in the background: no run waits for it, and the stream expires what a crash leaves."""
        self._removable.extend(slots)
        if not self._removing and self._removable:
            self._removing = True
            self._bus.background.run("slots", self._remove_all).when_ended(self._removed)

    async def _remove_all(self) -> None:
        while self._removable:
            batch = tuple(islice(self._removable, MAX_REMOVALS))
            try:
                async with asyncio.TaskGroup() as removals:
                    for slot in batch:
                        removals.create_task(jetstream.purge_subject(self._bus, RESULTS, slot))
            except ExceptionGroup as errors:
                raise first_error(errors) from errors
            # After the removals: the background task repeats the batch after an error.
            for _ in batch:
                self._removable.popleft()

    def _removed(self) -> None:
        self._removing = False
        self._remove(())

    async def _decode(self, model: type[T], message: StoredMessage) -> T:
        try:
            return decode_slot(model, message.subject, message.data)
        except Poison as poison:
            await dead.dead_letter_stored(self._bus, RESULTS, message, poison.reason)
            raise


async def watch_slots(
    bus: Bus,
    callback: Callable[[StoredSlot], None],
    *,
    tenant: str = subjects.ANY,
    attempt: str = subjects.ANY,
) -> BusSubscription:
    """Call `callback`, which must not block, with each start and result once it is stored.

    A reconnect or a slow consumer loses messages: read the slots after `bus.on_loss`.
    """

    def received(message: Message) -> None:
        _, _, kind, of_tenant, of_attempt = message.subject.split(".")
        callback(StoredSlot(of_tenant, of_attempt, kind, message.data))

    # Two subjects instead of `tool.*`: at the end of a subscription with a wildcard, the server compares its
    # subject with each request to another account that has no reply yet, which can be thousands.
    starts = await bus.listen(subjects.stored(subjects.tool_started(tenant, attempt)), received)
    results = await bus.listen(subjects.stored(subjects.tool_result(tenant, attempt)), received)
    return BusSubscription(starts.inner + results.inner)


async def store_slot(
    bus: Bus, stream: str, subject: str, value: T, writer: str, *, may_read: bool = True
) -> SlotWrite[T]:
    """Store a value unless the slot holds one.

    Args:
        writer: The message id. A repeat under the same id within the duplicate window is the same write.
        may_read: False for a user without permission to read the slot.

    Raises:
        NotReady: Another message took the slot and was removed.
    """
    payload = encoded(value)
    deadline = asyncio.get_running_loop().time() + SLOT_TIMEOUT_S
    while True:
        taken = False
        try:
            ack = await durable(bus, subject, payload, msg_id=writer)
        except SlotTaken:
            taken = True
        else:
            # A duplicate at the first attempt was stored by an earlier call. After more attempts, one of them
            # stored it and its acknowledgement was lost.
            if not ack.duplicate or ack.tries > 1:
                return SlotWrite(value, fresh=True)
        if not may_read:
            return SlotWrite(None, fresh=False, taken=taken)
        stored = await jetstream.last_message(bus, stream, subject)
        if stored is not None:
            return SlotWrite(decode_slot(type(value), subject, stored.data), fresh=False, taken=taken)
        # With three replicas the leader refuses a message while it replicates another one. If the leader then
        # dies, the message under replication may never be stored, and the next writer decides.
        if not taken or asyncio.get_running_loop().time() > deadline:
            raise NotReady(f"{subject}: the message in the slot was removed during the write")
        await asyncio.sleep(_RETRY_S)


def decode_slot(model: type[T], subject: str, data: bytes) -> T:
    """Decode the message of a slot; raise `Poison` if it is not a `model`."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise Poison(subject, f"not a {model.__name__}: {error.error_count()} fields are wrong") from error


def _writer(runner: str | None, epoch: int) -> str:
    # A process of a runner has one id, so its repeat is recognised as its own. Several owners may declare a
    # result for the same attempt, so each of their writes has a new id and the first one wins.
    return f"{runner}:{epoch}" if runner else new_id("owner-")
