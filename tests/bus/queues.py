"""Work queues of tests: a stream, its durable `workers`, and the number of messages that wait."""

from __future__ import annotations

from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.names import api
from banksman.deployment.topology import Consumer, Stream, Topology
from tests.support.polling import eventually


def queue_topology(name: str, *, ack_wait_s: int = 3) -> Topology:
    stream = Stream(name=name, subjects=(f"{name}.>",), retention="workqueue", max_bytes=10_000_000)
    consumer = Consumer(stream=name, durable="workers", filter=f"{name}.>", ack_wait_s=ack_wait_s)
    return Topology("TEST", (stream,), (consumer,))


async def waiting(bus: Bus, queue: str) -> int:
    """Return the number of messages without an ack."""
    return (await call(bus, api("STREAM.INFO", queue)))["state"]["messages"]


async def until_empty(bus: Bus, queue: str) -> None:
    async def empty() -> bool:
        return await waiting(bus, queue) == 0

    await eventually(empty, failure=lambda: f"messages of {queue} are not acknowledged")
