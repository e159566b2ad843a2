"""Messages whose handling continues beside the next messages of their consumer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from faststream.nats import NatsRouter

from banksman.bus.connection import Bus
from banksman.bus.control_plane.control import ControlPlane, Work
from banksman.bus.publish import durable
from banksman.bus.queues.handling import NAK, Continued, Done, Later, Outcome, WorkMessage
from banksman.bus.queues.waiting import tenant_of
from tests.bus.builders import AckRecorder, Recorder
from tests.bus.queues import durable_consumer, until_empty, waiting


class Continuing:
    """Records messages; the rest of those of tenant `slow` waits until it is released."""

    def __init__(self) -> None:
        self.handled, self.rests = Recorder(), Recorder()
        self.release = asyncio.Event()

    async def __call__(self, message: WorkMessage) -> Outcome | Continued:
        await self.handled(message)

        async def rest() -> Outcome:
            await self.rests(message)
            if tenant_of(message) == "slow":
                await self.release.wait()
            return Later() if message.data == b"twice" and message.num_delivered == 1 else Done()

        return Continued(rest)


@asynccontextmanager
async def consuming(bus: Bus, queue: str, handler: Continuing) -> AsyncGenerator[None]:
    router = NatsRouter()

    @router.subscriber(f"{queue}.>", **durable_consumer(bus, queue, "workers"))
    async def consume(message: Work) -> Outcome | Continued:
        return await handler(message)

    async with ControlPlane(bus, router):
        yield


async def enqueue(bus: Bus, queue: str, tenant: str, *payloads: str) -> None:
    for payload in payloads:
        await durable(bus, f"{queue}.{tenant}.{payload}", payload.encode(), msg_id=f"{tenant}-{payload}")


async def test_the_next_message_is_handled_while_the_rest_of_another_one_runs(bus: Bus, queue: str) -> None:
    handler = Continuing()
    async with consuming(bus, queue, handler):
        await enqueue(bus, queue, "slow", "1")
        await enqueue(bus, queue, "quick", "2")
        await handler.rests.until(lambda it: it.payloads == [b"1", b"2"])
        assert await waiting(bus, queue) >= 1
        handler.release.set()
        await until_empty(bus, queue)
    assert handler.handled.payloads == handler.rests.payloads == [b"1", b"2"]


async def test_a_message_stays_in_work_until_its_rest_has_an_outcome(bus: Bus, queue: str) -> None:
    handler = Continuing()
    async with AckRecorder.recording(bus, queue) as acks, consuming(bus, queue, handler):
        await enqueue(bus, queue, "slow", "twice")
        # Five signals, 0.8 s apart, take longer than `ack_wait`.
        await acks.in_progress_signals(5)
        assert (len(handler.handled.messages), acks.of(1)) == (1, [])
        handler.release.set()
        await until_empty(bus, queue)
    assert [message.num_delivered for message in handler.rests.messages] == [1, 2]
    assert (acks.of(1), acks.of(2)) == ([NAK], [b""])


async def test_a_tenant_with_many_messages_leaves_places_to_others(bus: Bus, queue: str) -> None:
    handler = Continuing()
    numbers = [str(number) for number in range(30)]
    async with consuming(bus, queue, handler):
        await enqueue(bus, queue, "slow", *numbers)
        await enqueue(bus, queue, "quick", "late")
        await handler.rests.until(lambda it: b"late" in it.payloads)
        slow = [message for message in handler.rests.messages if tenant_of(message) == "slow"]
        assert len(slow) < len(numbers)
        handler.release.set()
        await until_empty(bus, queue)
    assert sorted(handler.rests.payloads) == sorted(number.encode() for number in [*numbers, "late"])


async def test_a_message_whose_rest_is_cancelled_at_a_stop_is_handled_by_another_process(
    bus: Bus, patient_queue: str
) -> None:
    queue = patient_queue
    stopping, other = Continuing(), Continuing()
    other.release.set()
    async with consuming(bus, queue, stopping):
        await enqueue(bus, queue, "slow", "1")
        await stopping.rests.until(lambda it: len(it.messages) == 1)
    async with consuming(bus, queue, other):
        await until_empty(bus, queue)
    assert other.rests.payloads == [b"1"]
