"""Durable publish: lost acknowledgements, killed servers and full storage."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.errors import MessageTooLarge, SlotTaken, WrongLastSequence
from banksman.bus.jetstream import call, last_message
from banksman.bus.messages import Message
from banksman.bus.names import api
from banksman.bus.publish import durable
from banksman.contracts.errors import Overloaded, Unavailable
from tests.support.fixtures import connect
from tests.support.lossy import lossy_wire
from tests.support.nats import NatsServer
from tests.support.timeouts import WAIT_TIMEOUT_S, deadline


async def create(bus: Bus, name: str, **settings: Any) -> None:
    """Create a stream whose subjects begin with its name."""
    config = {"name": name, "subjects": [f"{name}.>"], "storage": "file", "discard": "new", **settings}
    await call(bus, api("STREAM.CREATE", name), config)


async def stored(bus: Bus, name: str) -> int:
    return (await call(bus, api("STREAM.INFO", name)))["state"]["messages"]


async def test_a_publish_with_a_lost_acknowledgement_is_stored_once(
    nats_server: NatsServer, bus: Bus, tenant: str
) -> None:
    await create(bus, tenant)
    async with lossy_wire(nats_server.port) as wire:
        settings = NatsSettings(url=wire.url, connect_timeout_s=5)
        async with await Bus(settings, name="lossy").open() as lossy:
            wire.lose_next("_INBOX")
            writing = asyncio.create_task(durable(lossy, f"{tenant}.a", b"once", msg_id="m1"))
            await wire.until_lost()
            # The connection breaks as well, so the publisher retries before its timeout.
            await wire.cut()
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                ack = await writing
    assert ack.tries == 2
    assert ack.duplicate
    assert await stored(bus, tenant) == 1


async def test_one_missing_acknowledgement_is_not_reported_as_a_full_disk(
    nats_server: NatsServer, bus: Bus, tenant: str
) -> None:
    """P15: a server that was frozen for a moment stores the next attempt, and the client gets no error."""
    await create(bus, tenant)
    async with lossy_wire(nats_server.port) as wire:
        settings = NatsSettings(url=wire.url, connect_timeout_s=5)
        async with await Bus(settings, name="lossy", serves_clients=True).open() as lossy:
            wire.lose_next("_INBOX")
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                ack = await durable(lossy, f"{tenant}.a", b"once", msg_id="m1")
    assert (ack.tries, ack.duplicate) == (2, True)


async def test_a_client_waits_for_the_election_of_a_leader(
    nats_server: NatsServer, bus: Bus, tenant: str
) -> None:
    """An election takes up to 9 s. The servers of a cluster that has no leader acknowledge nothing."""
    await create(bus, tenant)
    async with lossy_wire(nats_server.port) as wire:
        settings = NatsSettings(url=wire.url, replicas=3, connect_timeout_s=5)
        async with await Bus(settings, name="lossy", serves_clients=True).open() as lossy:
            # Two attempts, and the request for the stream's leader between them.
            wire.lose_next("_INBOX", times=3)
            ack = await durable(lossy, f"{tenant}.a", b"once", msg_id="m1")
    assert (len(wire.lost), ack.duplicate) == (3, True)


async def test_a_killed_server_loses_no_acknowledged_message(own_nats: NatsServer, own_bus: Bus) -> None:
    """No message is stored twice either: each is retried under its id."""
    await create(own_bus, "S")
    async with asyncio.TaskGroup() as tasks:
        for number in range(200):
            tasks.create_task(durable(own_bus, f"S.{number}", b"x", msg_id=f"m{number}"))
        async with deadline("the server did not store 20 messages"):
            while await stored(own_bus, "S") < 20:
                pass
        own_nats.restart()
    assert await stored(own_bus, "S") == 200
    assert own_bus.stats.reconnects == 1


async def test_a_taken_slot_and_full_storage_raise_different_errors(bus: Bus, tenant: str) -> None:
    """The server has one error code for both."""
    await create(bus, tenant, max_bytes=2000, max_msgs_per_subject=1, discard_new_per_subject=True)
    await durable(bus, f"{tenant}.a", b"x" * 500, msg_id="m1")
    with pytest.raises(SlotTaken):
        await durable(bus, f"{tenant}.a", b"y", msg_id="m2")
    with pytest.raises(Overloaded, match="maximum bytes exceeded"):
        for number in range(10):
            await durable(bus, f"{tenant}.{number}", b"x" * 500, msg_id=f"n{number}")
    with pytest.raises(SlotTaken):
        await durable(bus, f"{tenant}.a", b"y", msg_id="m3")


async def test_a_repeated_publish_to_a_taken_slot_is_a_duplicate(bus: Bus, tenant: str) -> None:
    await create(bus, tenant, max_msgs_per_subject=1, discard_new_per_subject=True)
    first = await durable(bus, f"{tenant}.a", b"x", msg_id="m1")
    again = await durable(bus, f"{tenant}.a", b"x", msg_id="m1")
    assert (first.duplicate, again.duplicate) == (False, True)
    assert again.stream_seq == first.stream_seq


async def test_one_message_id_on_two_subjects_is_no_duplicate(bus: Bus, tenant: str) -> None:
    """Otherwise the request id of one tenant could make another tenant's message a duplicate."""
    await create(bus, tenant)
    for subject in (f"{tenant}.a", f"{tenant}.b"):
        assert not (await durable(bus, subject, b"x", msg_id="the-same")).duplicate
    assert await stored(bus, tenant) == 2


async def test_a_failed_compare_and_set_names_the_stored_message(bus: Bus, tenant: str) -> None:
    await create(bus, tenant)
    ack = await durable(bus, f"{tenant}.a", b"1", msg_id="m1", expect_last_subject_seq=0)
    with pytest.raises(WrongLastSequence) as refused:
        await durable(bus, f"{tenant}.a", b"2", msg_id="m2", expect_last_subject_seq=0)
    assert refused.value.found == ack.stream_seq


async def test_a_message_above_the_streams_limit_is_too_large(bus: Bus, tenant: str) -> None:
    await create(bus, tenant, max_msg_size=100)
    with pytest.raises(MessageTooLarge):
        await durable(bus, f"{tenant}.a", b"x" * 101, msg_id="m1")
    with pytest.raises(MessageTooLarge):
        await durable(bus, f"{tenant}.a", b"x" * 2_000_000, msg_id="m2")


async def test_a_publish_without_a_stream_is_retried_until_the_budget_ends(bus: Bus, tenant: str) -> None:
    """The server responds in the same way while the stream elects a leader."""
    writing = asyncio.create_task(durable(bus, f"{tenant}.a", b"x", msg_id="m1"))
    with pytest.raises(Unavailable, match=r"not acknowledged within 0\.3 s"):
        await durable(bus, f"{tenant}.b", b"x", msg_id="m2", budget_s=0.3)
    await create(bus, tenant)
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        ack = await writing
    assert (ack.duplicate, ack.tries) == (False, 1), "no stream existed that could have stored an earlier try"


async def test_at_most_sixteen_publishes_are_in_flight(bus: Bus, tenant: str) -> None:
    waiting: list[str] = []
    enough = asyncio.Event()

    async def hold(message: Message) -> None:
        waiting.append(message.reply)
        if len(waiting) == 16:
            enough.set()

    await bus.subscribe(tenant, hold)
    async with asyncio.timeout(WAIT_TIMEOUT_S), asyncio.TaskGroup() as tasks:
        writing = [tasks.create_task(durable(bus, tenant, b"", msg_id=f"m{n}")) for n in range(40)]
        while not all(task.done() for task in writing):
            await enough.wait()
            await bus.ready()
            assert len(waiting) <= 16
            enough.clear()
            batch = list(waiting)
            waiting.clear()
            for reply in batch:
                await bus.publish(reply, b'{"stream":"S","seq":1}')
            if sum(not task.done() for task in writing) - len(batch) < 16:
                enough.set()
            await bus.ready()


async def test_a_publish_during_an_outage_is_stored_after_the_reconnect(
    own_nats: NatsServer,
) -> None:
    async with await connect(own_nats) as bus:
        await create(bus, "S")
        own_nats.kill()
        writing = asyncio.create_task(durable(bus, "S.a", b"late", msg_id="m1"))
        with pytest.raises(Unavailable):
            await bus.ready(0.2)
        own_nats.start()
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await writing
        message = await last_message(bus, "S", "S.a")
        assert message is not None and message.data == b"late"
