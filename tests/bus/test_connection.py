"""The connection: requests, reconnects, and the reports about its health."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.errors import (
    MessageTooLarge,
    NoResponders,
    RemoteError,
    TimedOut,
    checked_reply,
    error_envelope,
)
from banksman.bus.jetstream import call
from banksman.bus.messages import Message
from banksman.bus.publish import durable
from banksman.cli.machine import free_port
from banksman.contracts.errors import BadInput, ErrorCode, Unavailable
from tests.support.fixtures import connect
from tests.support.nats import NatsServer
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

ESTABLISHED, TIME_WAIT = "01", "06"
"""States of connections in `/proc/net/tcp`. One in the second is closed by both sides."""


async def test_a_request_without_responders_fails_at_once(bus: Bus) -> None:
    async with asyncio.timeout(WAIT_TIMEOUT_S / 2):
        with pytest.raises(NoResponders) as refused:
            await bus.request("no.such.subject", b"", WAIT_TIMEOUT_S)
    assert isinstance(refused.value, Unavailable)
    assert refused.value.no_responders


async def test_a_request_without_a_reply_times_out(bus: Bus, tenant: str) -> None:
    async def silent(message: Message) -> None:
        pass

    await bus.subscribe(tenant, silent)
    with pytest.raises(TimedOut) as refused:
        await bus.request(tenant, b"", 0.1)
    assert not refused.value.no_responders


async def test_concurrent_requests_get_their_own_replies(bus: Bus, tenant: str) -> None:
    async def echo(message: Message) -> None:
        await bus.publish(message.reply, message.data)

    await bus.subscribe(tenant, echo)
    async with asyncio.TaskGroup() as tasks:
        requests = [tasks.create_task(bus.request(tenant, b"%d" % number, 5)) for number in range(200)]
    assert [task.result() for task in requests] == [b"%d" % number for number in range(200)]


async def test_each_message_is_delivered_to_one_member_of_a_queue_group(bus: Bus, tenant: str) -> None:
    counts = [0, 0, 0]
    done = asyncio.Event()

    def member(number: int) -> Callable[[Message], Awaitable[None]]:
        async def count(message: Message) -> None:
            counts[number] += 1
            if sum(counts) == 60:
                done.set()

        return count

    for number in range(3):
        await bus.subscribe(tenant, member(number), queue="q")
    for _ in range(60):
        await bus.publish(tenant, b"")
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        await done.wait()
    await bus.ready()
    assert sum(counts) == 60


async def test_subscriptions_and_requests_continue_after_the_server_was_killed(
    own_nats: NatsServer, own_bus: Bus
) -> None:
    again = asyncio.Event()
    own_bus.on_reconnect(again.set)

    async def echo(message: Message) -> None:
        await own_bus.publish(message.reply, message.data)

    await own_bus.subscribe("echo", echo)
    own_nats.restart()
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        await again.wait()
    assert await own_bus.request("echo", b"hello", 5) == b"hello"
    assert own_bus.stats.reconnects == 1


async def test_a_request_that_timed_out_is_not_sent_later(own_nats: NatsServer, own_bus: Bus) -> None:
    """nats-py buffers messages that are published while disconnected, and sends them after the reconnect."""
    served: list[bytes] = []

    async def serve(message: Message) -> None:
        served.append(message.data)
        await own_bus.publish(message.reply, b"done")

    await own_bus.subscribe("files.delete", serve)
    await own_bus.ready()
    own_nats.kill()
    await eventually(lambda: not own_bus.connected)
    with pytest.raises(Unavailable):
        await own_bus.request("files.delete", b"given up", 0.1)
    waiting = asyncio.create_task(own_bus.request("files.delete", b"still wanted", 30))
    own_nats.start()
    assert await waiting == b"done"
    await own_bus.ready(20)
    assert served == [b"still wanted"]


async def test_readiness_is_a_round_trip(own_nats: NatsServer, own_bus: Bus) -> None:
    await own_bus.ready()
    own_nats.pause()
    with pytest.raises(Unavailable):
        await own_bus.ready(0.3)
    own_nats.resume()
    await own_bus.ready()


async def test_dropped_messages_are_counted_and_reported(bus: Bus, tenant: str) -> None:
    reported: asyncio.Queue[str] = asyncio.Queue()
    bus.on_slow_consumer(reported.put_nowait)
    gate = asyncio.Event()

    async def slow(message: Message) -> None:
        await gate.wait()

    await bus.subscribe(tenant, slow, pending_messages=2)
    for _ in range(10):
        await bus.publish(tenant, b"")
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        assert await reported.get() == tenant
    gate.set()
    assert bus.stats.slow_consumer > 0


async def test_a_callback_that_raises_is_counted_and_the_next_message_is_delivered(
    bus: Bus, tenant: str
) -> None:
    got: asyncio.Queue[bytes] = asyncio.Queue()

    async def fails_once(message: Message) -> None:
        if message.data == b"bad":
            raise ValueError("a bug")
        got.put_nowait(message.data)

    await bus.subscribe(tenant, fails_once)
    await bus.publish(tenant, b"bad")
    await bus.publish(tenant, b"good")
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        assert await got.get() == b"good"
    assert bus.stats.errors == 1


async def test_a_listener_that_raises_is_counted_and_the_connection_keeps_reading(
    bus: Bus, tenant: str
) -> None:
    got: asyncio.Queue[bytes] = asyncio.Queue()

    def fails_once(message: Message) -> None:
        if message.data == b"bad":
            raise ValueError("a bug")
        got.put_nowait(message.data)

    listening = await bus.listen(tenant, fails_once)
    await bus.publish(tenant, b"bad")
    await bus.publish(tenant, b"good")
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        assert await got.get() == b"good"
    assert bus.stats.errors == 1
    await listening.unsubscribe()
    await bus.publish(tenant, b"after the end")
    await bus.ready()
    assert got.empty()


async def test_a_listener_receives_messages_after_a_reconnect(own_nats: NatsServer, own_bus: Bus) -> None:
    got: asyncio.Queue[bytes] = asyncio.Queue()
    await own_bus.listen("news", lambda message: got.put_nowait(message.data))
    own_nats.kill()
    own_nats.start()
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while not own_bus.stats.reconnects or not own_bus.connected:
            await own_bus.ready(WAIT_TIMEOUT_S)
        await own_bus.publish("news", b"back")
        assert await got.get() == b"back"


async def test_a_missing_server_is_reported_with_address_and_reason() -> None:
    port = free_port()
    settings = NatsSettings(url=f"nats://127.0.0.1:{port}", connect_timeout_s=0.5)
    with pytest.raises(Unavailable, match=str(port)):
        await Bus(settings, name="lonely").open()


async def test_a_server_that_does_not_respond_is_reported_with_a_reason() -> None:
    with NatsServer() as server:
        server.pause()
        # Longer than one attempt.
        settings = NatsSettings(url=server.url, connect_timeout_s=2.5)
        with pytest.raises(Unavailable, match="no connection as 'lonely': no response"):
            await Bus(settings, name="lonely").open()
        server.resume()


async def test_a_closed_connection_raises_instead_of_hanging(nats_server: NatsServer) -> None:
    bus = await connect(nats_server)
    await bus.close()
    assert bus.closed.is_set()
    with pytest.raises(Unavailable):
        await bus.request("any.thing", b"", 5)
    with pytest.raises(Unavailable):
        await bus.publish("any.thing", b"")
    with pytest.raises(Unavailable):
        await durable(bus, "any.thing", b"", msg_id="m1")
    with pytest.raises(Unavailable):
        await call(bus, "$JS.API.INFO")


async def test_closing_wakes_requests_that_wait_for_a_reply(nats_server: NatsServer, tenant: str) -> None:
    bus = await connect(nats_server)

    async def silent(message: Message) -> None:
        pass

    await bus.subscribe(tenant, silent)
    waiting = [
        asyncio.create_task(bus.request(tenant, b"", 30)),
        asyncio.create_task(durable(bus, tenant, b"", msg_id="m1")),
    ]
    await bus.ready()
    await bus.close()
    async with asyncio.timeout(WAIT_TIMEOUT_S / 2):
        for waiter in waiting:
            with pytest.raises(Unavailable):
                await waiter


async def test_an_oversized_message_is_refused_with_its_size(bus: Bus, tenant: str) -> None:
    with pytest.raises(MessageTooLarge) as refused:
        await bus.request(tenant, b"x" * (bus.max_payload + 1), 5)
    assert refused.value.size == bus.max_payload + 1
    assert refused.value.limit == bus.max_payload


def test_an_error_is_sent_as_an_envelope() -> None:
    with pytest.raises(RemoteError) as remote:
        checked_reply(error_envelope(BadInput("path", "..", "a path inside the workspace")))
    assert remote.value.code is ErrorCode.BAD_REQUEST
    assert remote.value.frame.details == {"field": "path", "expected": "a path inside the workspace"}
    with pytest.raises(RemoteError, match=r"^internal error$"):
        checked_reply(error_envelope(ValueError("a secret")))
    assert checked_reply(b'{"answer":"accepted"}') == b'{"answer":"accepted"}'


@pytest.mark.parametrize("unsent", [0, 3])
async def test_connection_closes_while_it_reconnects_with_unsent_messages(
    own_nats: NatsServer, unsent: int
) -> None:
    bus = await connect(own_nats)
    own_nats.kill()
    await eventually(lambda: bus.nc.is_reconnecting)
    for _ in range(unsent):
        await bus.nc.publish("a.subject", b"is lost with the connection")

    await bus.close()

    assert bus.nc.is_closed
    assert bus.closed.is_set()


async def test_attempts_to_reconnect_to_a_frozen_server_leave_no_socket_open(
    own_nats: NatsServer, own_bus: Bus
) -> None:
    own_nats.pause()
    try:
        await own_bus.nc.force_reconnect()  # before pings show that the server is frozen
        await eventually(lambda: len(socket_states(own_nats.port)) > 3)
        assert socket_states(own_nats.port).count(ESTABLISHED) <= 1
    finally:
        own_nats.resume()


def socket_states(port: int) -> list[str]:
    """Return the states of the client sockets to a port of this machine that are not closed by both sides."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    states = [state for _, _, remote, state, *_ in rows if remote.endswith(f":{port:04X}")]
    return [state for state in states if state != TIME_WAIT]
