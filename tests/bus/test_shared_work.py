"""The work loop where tenants share the slots: the order of starts, waiting, and its cost in messages."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import pytest

from banksman.bus.connection import Bus
from banksman.bus.publish import durable
from banksman.bus.queues.handling import IN_PROGRESS, Done, Outcome, WorkMessage
from banksman.bus.queues.waiting import (
    HOLD_S,
    MAX_HELD,
    RETURNS_PER_S,
    HeldDelivery,
    WaitingMessages,
    tenant_of,
)
from banksman.bus.queues.work import HEARTBEAT_S, work
from banksman.deployment.streams import provision
from banksman.quotas.places import Shares
from tests.bus.builders import AckRecorder, Recorder
from tests.bus.queues import queue_topology, until_empty
from tests.support.fixtures import connect
from tests.support.nats import Broker


async def enqueue(bus: Bus, queue: str, tenant: str, *payloads: str) -> None:
    for payload in payloads:
        await durable(bus, f"{queue}.{tenant}.c1", payload.encode(), msg_id=f"{tenant}-{payload}")


class Gated(Recorder):
    """Handles messages when their gate is open, and those of other tenants than `flood` at once."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def __call__(self, message: WorkMessage) -> Outcome:
        await super().__call__(message)
        if tenant_of(message) == "flood":
            await self.gate.wait()
        return Done()

    @property
    def tenants(self) -> Counter[str]:
        return Counter(tenant_of(message) for message in self.messages)


@dataclass
class Workers:
    """Workers of a queue, which stop with the context."""

    queue: str
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> Workers:
        self._tasks = await asyncio.TaskGroup().__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.stop.set()
        await self._tasks.__aexit__(None, None, None)

    def add(self, bus: Bus, handler: Recorder, slots: int) -> None:
        shares = Shares(slots)
        self._tasks.create_task(
            work(bus, self.queue, "workers", handler, slots=shares, stop=self.stop, grace_s=5)
        )


async def test_a_message_that_finds_a_free_slot_costs_only_its_ack(bus: Bus, queue: str) -> None:
    clock = asyncio.get_running_loop().time
    began = clock()
    async with AckRecorder.recording(bus, queue) as acks, Workers(queue) as workers:
        workers.add(bus, Recorder(), 8)
        for number in range(20):
            await enqueue(bus, queue, "acme", str(number))
            await acks.sent(b"", number + 1)
    # On a busy machine a message may be in work when heartbeats are sent.
    heartbeats = (clock() - began) // HEARTBEAT_S
    assert acks.of(1) == [b""] * 20
    assert acks.count(IN_PROGRESS) <= heartbeats


async def test_the_oldest_message_of_a_tenant_takes_the_freed_slot(bus: Bus, queue: str) -> None:
    recorder = Gated()
    numbers = [f"{number:02}" for number in range(MAX_HELD + 3)]
    async with Workers(queue) as workers:
        await enqueue(bus, queue, "flood", *numbers)
        workers.add(bus, recorder, 4)
        await recorder.until(lambda it: len(it.messages) == 3)
        await enqueue(bus, queue, "other", "late")
        await recorder.until(lambda it: b"late" in it.payloads)
        recorder.gate.set()
        await until_empty(bus, queue)
    flood = [message.data.decode() for message in recorder.messages if message.data != b"late"]
    assert flood == numbers


async def test_workers_that_share_a_flooded_queue_lose_nothing_and_repeat_nothing(
    nats_server: Broker, bus: Bus, queue: str
) -> None:
    """Most messages of the flood go back to the queue several times."""
    quiet = [f"quiet{number}" for number in range(9)]
    recorder = Gated()
    async with await connect(nats_server) as other, Workers(queue) as workers:
        await enqueue(bus, queue, "flood", *map(str, range(80)))
        workers.add(bus, recorder, 4)
        workers.add(other, recorder, 4)
        await recorder.until(lambda it: len(it.messages) == 6)
        for tenant in quiet:
            await enqueue(bus, queue, tenant, "go")
        await recorder.until(lambda _: all(recorder.tenants[tenant] for tenant in quiet))
        assert recorder.tenants["flood"] == 6
        recorder.gate.set()
        await until_empty(bus, queue)
    assert recorder.tenants == {"flood": 80, **dict.fromkeys(quiet, 1)}


async def test_waiting_messages_go_to_another_worker_when_their_worker_stops(
    nats_server: Broker, bus: Bus, patient_queue: str
) -> None:
    queue = patient_queue
    busy, free = Gated(), Recorder()
    async with await connect(nats_server) as other, Workers(queue) as stopping, Workers(queue) as rest:
        await enqueue(bus, queue, "flood", "1", "2", "3")
        stopping.add(bus, busy, 2)
        await busy.until(lambda it: len(it.messages) == 2)
        stopping.stop.set()
        rest.add(other, free, 2)
        await free.until(lambda it: it.payloads == [b"3"])
        busy.gate.set()


async def test_messages_that_run_or_wait_in_a_worker_that_dies_are_handled_by_another(
    nats_server: Broker, bus: Bus, tenant: str
) -> None:
    queue = tenant
    await provision(bus, queue_topology(queue, ack_wait_s=1))
    dying, other = Gated(), Recorder()
    payloads = [str(number) for number in range(MAX_HELD + 6)]
    async with await connect(nats_server) as first:
        task = asyncio.create_task(work(first, queue, "workers", dying, slots=Shares(2)))
        await enqueue(bus, queue, "flood", *payloads)
        await dying.until(lambda it: len(it.messages) == 2)
        await first.close()
        async with Workers(queue) as workers:
            workers.add(bus, other, 4)
            await until_empty(bus, queue)
        task.cancel()
        await asyncio.wait({task})
    assert sorted(message.data.decode() for message in other.messages) == sorted(payloads)


# -- the schedule of messages that return to the queue -------------------------------------------------------


def delivery(seq: int, tenant: str, at: float = 0.0) -> HeldDelivery:
    return HeldDelivery(WorkMessage(f"q.{tenant}.c1", b"", {}, seq, 1), "ack", tenant, at)


def test_surplus_messages_return_to_the_queue_one_after_another_in_order() -> None:
    shares = Shares(1)
    shares.take("flood")
    waiting = WaitingMessages(shares)
    returned: dict[int, float] = {}
    for seq in range(1_000):
        waiting.add(delivery(seq, "flood"))
        returned |= {one.message.stream_seq: delay for one, delay in waiting.surplus(0.0)}
    assert sorted(returned) == list(range(MAX_HELD, 1_000))
    delays = [returned[seq] for seq in sorted(returned)]
    assert delays == sorted(delays)
    assert delays[0] == pytest.approx(HOLD_S)
    assert delays[-1] - delays[0] == pytest.approx(len(delays) / RETURNS_PER_S, abs=0.1)

    for seq in range(1_000, 1_000 + MAX_HELD + 1):
        waiting.add(delivery(seq, "another"))
    behind_the_flood = [delay for one, delay in waiting.surplus(0.0) if one.tenant == "another"]
    assert max(behind_the_flood) < 1.5
    assert min(behind_the_flood) >= HOLD_S
