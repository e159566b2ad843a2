"""Work queues of tests: a stream, its durable `workers`, and the number of messages that wait."""

from __future__ import annotations

from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.names import api
from banksman.bus.queues.handling import MOST_FAILURES, Done, Later, Outcome, WorkMessage
from banksman.deployment.topology import ConsumerConfig, StreamConfig, Topology
from tests.support.polling import eventually


def queue_topology(name: str, *, ack_wait_s: int = 3) -> Topology:
    stream = StreamConfig(name=name, subjects=(f"{name}.>",), retention="workqueue", max_bytes=10_000_000)
    consumer = ConsumerConfig(stream=name, durable="workers", filter=f"{name}.>", ack_wait_s=ack_wait_s)
    return Topology("TEST", (stream,), (consumer,))


def fails_once_after_many_deliveries(message: WorkMessage) -> Outcome:
    """Return `Later` for more deliveries than failures are allowed, then raise an error, then succeed."""
    if message.num_delivered <= MOST_FAILURES:
        return Later()
    if message.num_delivered == MOST_FAILURES + 1:
        raise ValueError("a bug")
    return Done()


async def waiting(bus: Bus, queue: str) -> int:
    """Return the number of messages without an ack."""
    return (await call(bus, api("STREAM.INFO", queue)))["state"]["messages"]


async def until_empty(bus: Bus, queue: str) -> None:
    async def empty() -> bool:
        return await waiting(bus, queue) == 0

    await eventually(empty, failure=lambda: f"messages of {queue} are not acknowledged")
