"""The work loop: in-progress signals, redelivery, dead-lettering, draining, and recovery from faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from banksman.bus.connection import Bus
from banksman.bus.dead import dead_letters
from banksman.bus.names import api
from banksman.bus.publish import durable
from banksman.bus.queues.handling import MOST_FAILURES, FailureCounts, Handler, handle
from banksman.bus.queues.work import Done, Later, Leave, Outcome, WorkMessage, work
from banksman.contracts.errors import Fenced, Poison, Unavailable
from banksman.deployment.streams import provision
from banksman.quotas.places import Shares
from tests.bus.builders import AckRecorder, Recorder
from tests.bus.queues import fails_once_after_many_deliveries, queue_topology, until_empty, waiting
from tests.support.fixtures import connect
from tests.support.nats import NatsServer
from tests.support.timeouts import WAIT_TIMEOUT_S


@pytest.fixture
async def impatient_queue(bus: Bus, tenant: str) -> str:
    """A queue that redelivers messages without in-progress signals after a second."""
    await provision(bus, queue_topology(tenant, ack_wait_s=1))
    return tenant


async def enqueue(bus: Bus, queue: str, *payloads: bytes) -> None:
    for payload in payloads:
        await durable(bus, f"{queue}.work", payload, msg_id=payload.decode())


@asynccontextmanager
async def working(
    bus: Bus, queue: str, handler: Handler, *, slots: int | Shares = 4, grace_s: float = 5
) -> AsyncGenerator[asyncio.Event]:
    """Run a worker while the block runs; yield the event that stops it."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(work(bus, queue, "workers", handler, slots=slots, stop=stop, grace_s=grace_s))
        try:
            yield stop
        finally:
            stop.set()


async def test_acked_message_is_removed_from_the_stream(bus: Bus, queue: str) -> None:
    recorder = Recorder()
    async with working(bus, queue, recorder):
        await enqueue(bus, queue, b"1", b"2", b"3")
        await recorder.until(lambda it: len(it.messages) == 3)
    assert sorted(recorder.payloads) == [b"1", b"2", b"3"]
    assert await waiting(bus, queue) == 0
    first = recorder.messages[0]
    assert (first.subject, first.num_delivered, first.headers["Nats-Msg-Id"]) == (
        f"{queue}.work",
        1,
        f"{queue}.work:1",
    )


async def test_a_message_whose_handler_runs_longer_than_ack_wait_is_not_redelivered(
    bus: Bus, impatient_queue: str
) -> None:
    queue = impatient_queue
    recorder = Recorder()

    async with AckRecorder.recording(bus, queue) as acks:

        async def slow(message: WorkMessage) -> Outcome:
            await recorder(message)
            # Four signals, 0.8 s apart, take more than twice `ack_wait`.
            await acks.in_progress_signals(4)
            return Done()

        async with working(bus, queue, slow):
            await enqueue(bus, queue, b"slow")
            await until_empty(bus, queue)
    assert [message.num_delivered for message in recorder.messages] == [1]


async def test_the_message_of_a_dead_worker_is_redelivered_to_another_worker(
    nats_server: NatsServer, bus: Bus, queue: str
) -> None:
    taken = asyncio.Event()
    recorder = Recorder()

    async def hangs(message: WorkMessage) -> Outcome:
        taken.set()
        await asyncio.Event().wait()
        return Done()

    async with await connect(nats_server) as first:
        dying = asyncio.create_task(work(first, queue, "workers", hangs, slots=1))
        await enqueue(bus, queue, b"1")
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await taken.wait()
        async with working(bus, queue, recorder):
            await first.close()
            await recorder.until(lambda it: len(it.messages) == 1)
        dying.cancel()
    assert recorder.messages[0].num_delivered == 2


async def test_poison_is_dead_lettered_and_does_not_block_other_messages(bus: Bus, queue: str) -> None:
    def decide(message: WorkMessage) -> Outcome:
        if message.data.startswith(b"\xff"):
            raise Poison(message.subject, "not UTF-8")
        return Done()

    recorder = Recorder(decide)
    async with working(bus, queue, recorder, slots=1):
        await durable(bus, f"{queue}.work", b"\xff\xfe", msg_id="bad", headers={"Trace": "t1"})
        await enqueue(bus, queue, b"1", b"2")
        await recorder.until(lambda it: len(it.messages) == 3)
    assert await waiting(bus, queue) == 0
    (dead,) = [stored.letter async for stored in dead_letters(bus, stream=queue)]
    assert (dead.subject, dead.stream, dead.reason) == (f"{queue}.work", queue, "not UTF-8")
    assert dead.stream_seq == recorder.messages[0].stream_seq
    assert dead.payload_base64 == "//4="
    assert dead.headers == {"Trace": "t1", "Nats-Msg-Id": f"{queue}.work:bad"}


async def test_a_message_whose_handler_raised_is_redelivered(bus: Bus, impatient_queue: str) -> None:
    queue = impatient_queue

    def decide(message: WorkMessage) -> Outcome:
        if message.num_delivered == 1:
            raise ValueError("a bug")
        return Done()

    recorder = Recorder(decide)
    async with working(bus, queue, recorder):
        await enqueue(bus, queue, b"1")
        await recorder.until(lambda it: len(it.messages) == 2)
    assert await waiting(bus, queue) == 0


@pytest.mark.parametrize("shared", [False, True], ids=["own slots", "shared slots"])
async def test_deliveries_without_a_failure_do_not_count_towards_a_dead_letter(
    bus: Bus, impatient_queue: str, shared: bool
) -> None:
    """A stall of the broker causes many deliveries; the first error after it is no reason to give up."""
    queue = impatient_queue

    recorder = Recorder(fails_once_after_many_deliveries)
    async with working(bus, queue, recorder, slots=Shares(4) if shared else 4):
        await enqueue(bus, queue, b"1")
        await until_empty(bus, queue)
    assert [message.num_delivered for message in recorder.messages] == list(range(1, MOST_FAILURES + 3))
    assert [stored async for stored in dead_letters(bus, stream=queue)] == []


async def test_a_message_is_dead_lettered_after_ten_failures_among_other_deliveries(
    bus: Bus, queue: str
) -> None:
    failures, results = FailureCounts(), list[Outcome]()

    async def fails_or_waits(message: WorkMessage) -> Outcome:
        if message.num_delivered % 2:
            raise ValueError("a bug")
        raise Unavailable("no response")

    for number in range(1, 2 * MOST_FAILURES):
        message = WorkMessage(f"{queue}.work", b"1", {}, stream_seq=7, num_delivered=number)
        results.append(await handle(bus, queue, fails_or_waits, message, failures))
    assert results == [Leave()] * (2 * MOST_FAILURES - 2) + [Done()]
    (dead,) = [stored.letter async for stored in dead_letters(bus, stream=queue)]
    assert (dead.stream_seq, dead.reason) == (7, "not handled in 10 deliveries: ValueError: a bug")


async def test_a_delayed_message_is_redelivered_after_its_delay(bus: Bus, patient_queue: str) -> None:
    """It arrives before `ack_wait` expires, and after a message with a shorter delay."""
    queue = patient_queue

    def decide(message: WorkMessage) -> Outcome:
        if message.num_delivered > 1:
            return Done()
        return Later(2.0 if message.data == b"long" else 0.2)

    recorder = Recorder(decide)
    async with AckRecorder.recording(bus, queue) as acks, working(bus, queue, recorder):
        await enqueue(bus, queue, b"long", b"short")
        await recorder.until(lambda it: len(it.messages) == 4)
    assert recorder.payloads == [b"long", b"short", b"short", b"long"]
    assert set(acks.of(1)) == {b'-NAK {"delay": 2000000000}', b'-NAK {"delay": 200000000}'}


@pytest.mark.parametrize("way", ["returns", "raises"])
async def test_a_fenced_handler_neither_acks_nor_naks(bus: Bus, impatient_queue: str, way: str) -> None:
    """The owner with the higher claim decides; the message is redelivered after `ack_wait`."""
    queue = impatient_queue

    def decide(message: WorkMessage) -> Outcome:
        if message.num_delivered > 1:
            return Done()
        if way == "raises":
            raise Fenced("c1", held=1, found=2)
        return Leave()

    recorder = Recorder(decide)
    async with AckRecorder.recording(bus, queue) as acks, working(bus, queue, recorder):
        await enqueue(bus, queue, b"1")
        await recorder.until(lambda it: len(it.messages) == 1)
        assert await waiting(bus, queue) == 1
        await until_empty(bus, queue)
    assert [message.num_delivered for message in recorder.messages] == [1, 2]
    assert (acks.of(1), acks.of(2)) == ([], [b""])


async def test_messages_never_exceed_slots_and_a_freed_slot_is_used_at_once(bus: Bus, queue: str) -> None:
    running, most_running, ended = 0, 0, 0
    gates: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def gated(message: WorkMessage) -> Outcome:
        nonlocal running, most_running, ended
        running += 1
        most_running = max(most_running, running)
        gates.put_nowait(gate := asyncio.Event())
        await gate.wait()
        running -= 1
        ended += 1
        return Done()

    await enqueue(bus, queue, *(b"%d" % number for number in range(150)))
    # If a freed slot waited for the server's heartbeat, one per second, this would exceed the timeout.
    async with working(bus, queue, gated, slots=3), asyncio.timeout(WAIT_TIMEOUT_S):
        for _ in range(150):
            gate = await gates.get()
            gate.set()
    assert (most_running <= 3, ended) == (True, 150)


async def test_slots_run_concurrently(bus: Bus, queue: str) -> None:
    together = asyncio.Barrier(4)

    async def meets(message: WorkMessage) -> Outcome:
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await together.wait()
        return Done()

    recorder = Recorder()

    async def handler(message: WorkMessage) -> Outcome:
        await meets(message)
        return await recorder(message)

    async with working(bus, queue, handler, slots=4):
        await enqueue(bus, queue, b"1", b"2", b"3", b"4")
        await recorder.until(lambda it: len(it.messages) == 4)


async def test_two_workers_share_a_queue_and_no_message_runs_twice(
    nats_server: NatsServer, bus: Bus, queue: str
) -> None:
    here, there = Recorder(), Recorder()
    async with (
        await connect(nats_server) as other,
        working(bus, queue, here),
        working(other, queue, there),
    ):
        await enqueue(bus, queue, *(b"%d" % number for number in range(60)))
        await until_empty(bus, queue)
    assert sorted(here.payloads + there.payloads) == sorted(b"%d" % number for number in range(60))
    assert here.payloads and there.payloads


async def test_work_continues_after_the_server_was_killed(own_nats: NatsServer, own_bus: Bus) -> None:
    """The handler of a message that is in work is not run a second time concurrently."""
    queue = "Q"
    await provision(own_bus, queue_topology(queue))
    recorder = Recorder()
    concurrent = 0
    running: set[int] = set()
    go_on = asyncio.Event()

    async def waits(message: WorkMessage) -> Outcome:
        nonlocal concurrent
        if message.stream_seq in running:
            concurrent += 1
        running.add(message.stream_seq)
        await recorder(message)
        if message.data == b"held":
            await go_on.wait()
        running.discard(message.stream_seq)
        return Done()

    async with working(own_bus, queue, waits):
        await enqueue(own_bus, queue, b"held")
        await recorder.until(lambda it: len(it.messages) == 1)
        own_nats.restart()
        await enqueue(own_bus, queue, b"after")
        await recorder.until(lambda it: b"after" in it.payloads)
        go_on.set()
        await until_empty(own_bus, queue)
    assert concurrent == 0
    assert recorder.payloads.count(b"after") == 1


async def test_drain_waits_for_handlers_and_pulls_no_message(bus: Bus, queue: str) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    recorder = Recorder()

    async def waits(message: WorkMessage) -> Outcome:
        begun.set()
        await go_on.wait()
        return await recorder(message)

    async with working(bus, queue, waits) as stop, asyncio.timeout(WAIT_TIMEOUT_S):
        await enqueue(bus, queue, b"before")
        await begun.wait()
        stop.set()
        await bus.ready()
        await enqueue(bus, queue, b"after")
        await bus.ready()
        go_on.set()
    assert recorder.payloads == [b"before"]
    assert await waiting(bus, queue) == 1


async def test_a_message_pulled_during_a_drain_is_redelivered_to_another_worker_at_once(
    nats_server: NatsServer, bus: Bus, patient_queue: str
) -> None:
    queue = patient_queue
    begun, go_on = asyncio.Event(), asyncio.Event()
    recorder = Recorder()

    async def waits(message: WorkMessage) -> Outcome:
        begun.set()
        await go_on.wait()
        return Done()

    async with await connect(nats_server) as draining, working(draining, queue, waits) as stop:
        await enqueue(bus, queue, b"held")
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await begun.wait()
        stop.set()
        await draining.ready()
        async with working(bus, queue, recorder):
            # The last pull of the draining worker is still open in the server, for three more messages.
            await enqueue(bus, queue, b"1", b"2", b"3", b"4")
            await recorder.until(lambda it: len(it.messages) == 4)
        go_on.set()


async def test_a_handler_that_exceeds_the_drain_time_is_cancelled_and_its_message_redelivered(
    bus: Bus, patient_queue: str
) -> None:
    queue = patient_queue
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def hangs(message: WorkMessage) -> Outcome:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return Done()

    async with working(bus, queue, hangs, grace_s=0.1) as stop, asyncio.timeout(WAIT_TIMEOUT_S):
        await enqueue(bus, queue, b"1")
        await begun.wait()
        stop.set()
    assert cancelled.is_set()
    recorder = Recorder()
    async with working(bus, queue, recorder):
        await recorder.until(lambda it: len(it.messages) == 1)


async def test_a_message_of_another_subject_is_ignored(nats_server: NatsServer, bus: Bus, queue: str) -> None:
    """Any process may publish to an inbox whose name it has; only deliveries of the stream are handled."""
    recorder = Recorder()
    seen: list[str] = []
    async with await connect(nats_server) as spy:
        async with working(bus, queue, recorder):
            # The inbox is the reply subject of the pull.
            pull = await spy.nc.subscribe(api("CONSUMER.MSG.NEXT", queue, "workers"))
            await enqueue(bus, queue, b"1", b"2", b"3", b"4")
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                inbox = (await pull.next_msg()).reply
            seen.append(inbox)
            await spy.publish(inbox, b"forged")
            await spy.nc.publish(inbox, b"forged", reply=f"$JS.ACK.{queue}.workers.1.1.1.1.0")
            await spy.ready()
            await enqueue(bus, queue, b"5")
            await recorder.until(lambda it: len(it.messages) == 5)
    assert seen
    assert b"forged" not in recorder.payloads
