"""The control plane: FastStream on our connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from faststream.nats import NatsRouter
from pydantic import BaseModel

from banksman.bus.connection import Bus
from banksman.bus.control_plane.broker import NoReply
from banksman.bus.control_plane.control import CONCURRENCY, PULL_S, ControlPlane, Received, Work
from banksman.bus.dead import dead_letters
from banksman.bus.errors import NoResponders, RemoteError, checked_reply
from banksman.bus.messages import Message
from banksman.bus.publish import durable
from banksman.bus.queues.handling import MOST_FAILURES, Done, Handler, Outcome, WorkMessage
from banksman.contracts.errors import ErrorCode, Forbidden, Poison
from banksman.deployment.streams import provision
from banksman.deployment.topology import ConsumerConfig, StreamConfig, Topology
from tests.bus.builders import AckRecorder, Recorder
from tests.bus.queues import durable_consumer, fails_once_after_many_deliveries, until_empty, waiting
from tests.support.nats import NatsServer
from tests.support.timeouts import WAIT_TIMEOUT_S


def topology(name: str) -> Topology:
    stream = StreamConfig(name=name, subjects=(f"{name}.>",), retention="workqueue", max_bytes=10_000_000)
    consumer = ConsumerConfig(stream=name, durable="readers", filter=f"{name}.*", ack_wait_s=2)
    return Topology("TEST", (stream,), (consumer,))


Responder = Callable[[Message], Awaitable[bytes]]


@asynccontextmanager
async def serving(bus: Bus, subject: str, respond: Responder) -> AsyncGenerator[ControlPlane]:
    router = NatsRouter()

    @router.subscriber(subject, max_workers=CONCURRENCY)
    async def reply(message: Received) -> bytes:
        return await respond(message)

    async with ControlPlane(bus, router) as control:
        yield control


@asynccontextmanager
async def consuming(bus: Bus, queue: str, handler: Handler) -> AsyncGenerator[ControlPlane]:
    await provision(bus, topology(queue))
    router = NatsRouter()

    @router.subscriber(f"{queue}.*", **durable_consumer(bus, queue))
    async def consume(message: Work) -> Outcome:
        return await handler(message)

    async with ControlPlane(bus, router) as control:
        yield control


@pytest.mark.parametrize("body", [b'{"a": 1}', b"\xff\xfe", b"", b'{"a": NaN}', b"[" * 5000])
async def test_a_request_reaches_its_handler_unchanged(bus: Bus, tenant: str, body: bytes) -> None:
    """FastStream does not decode the body before our own code does."""

    async def echo(message: Message) -> bytes:
        return message.subject.encode() + b":" + message.data

    async with serving(bus, f"{tenant}.*", echo):
        await bus.ready()
        assert await bus.request(f"{tenant}.x", body, 5) == f"{tenant}.x:".encode() + body


async def test_a_handler_that_raises_replies_with_an_error_envelope(
    bus: Bus, tenant: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def respond(message: Message) -> bytes:
        if message.data == b"forbidden":
            raise Forbidden("not your conversation")
        raise ValueError("the password is hunter2")

    async with serving(bus, tenant, respond):
        await bus.ready()
        with pytest.raises(RemoteError, match="not your conversation") as refused:
            checked_reply(await bus.request(tenant, b"forbidden", 5))
        assert refused.value.code is ErrorCode.FORBIDDEN
        with pytest.raises(RemoteError) as failed:
            checked_reply(await bus.request(tenant, b"", 5))
    assert failed.value.code is ErrorCode.INTERNAL
    assert "hunter2" not in str(failed.value)


async def test_requests_are_handled_concurrently(bus: Bus, tenant: str) -> None:
    together = asyncio.Barrier(8)

    async def meets(message: Message) -> bytes:
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await together.wait()
        return b"met"

    async with serving(bus, tenant, meets):
        await bus.ready()
        async with asyncio.TaskGroup() as tasks:
            requests = [tasks.create_task(bus.request(tenant, b"", 5)) for _ in range(8)]
    assert [task.result() for task in requests] == [b"met"] * 8


async def test_after_stopping_no_request_is_handled_and_the_connection_stays_open(
    bus: Bus, tenant: str
) -> None:
    async def respond(message: Message) -> bytes:
        return b"here"

    async with serving(bus, tenant, respond):
        await bus.ready()
        assert await bus.request(tenant, b"", 5) == b"here"
    await bus.ready()
    with pytest.raises(NoResponders):
        await bus.request(tenant, b"", 5)


async def test_a_consumed_message_is_acked_after_its_handler(bus: Bus, tenant: str) -> None:
    recorder = Recorder()
    async with consuming(bus, tenant, recorder):
        for number in range(3):
            await durable(bus, f"{tenant}.{number}", b"%d" % number, msg_id=f"m{number}")
        await recorder.until(lambda it: len(it.messages) == 3)
        await until_empty(bus, tenant)
    assert recorder.payloads == [b"0", b"1", b"2"]


async def test_poison_is_dead_lettered_and_the_next_message_is_delivered(bus: Bus, tenant: str) -> None:
    """The default ack policy of FastStream would delete the message without a record."""

    def decide(message: WorkMessage) -> Outcome:
        if message.data == b"\xff":
            raise Poison(message.subject, "not UTF-8")
        return Done()

    recorder = Recorder(decide)
    async with consuming(bus, tenant, recorder):
        await durable(bus, f"{tenant}.bad", b"\xff", msg_id="m1")
        await durable(bus, f"{tenant}.good", b"good", msg_id="m2")
        await recorder.until(lambda it: len(it.messages) == 2)
        await until_empty(bus, tenant)
    (dead,) = [stored.letter async for stored in dead_letters(bus, stream=tenant)]
    assert (dead.subject, dead.reason, dead.payload_base64) == (f"{tenant}.bad", "not UTF-8", "/w==")


async def test_a_message_whose_handler_fails_is_redelivered(bus: Bus, tenant: str) -> None:
    def decide(message: WorkMessage) -> Outcome:
        if message.num_delivered == 1:
            raise ValueError("a bug")
        return Done()

    recorder = Recorder(decide)
    async with AckRecorder.recording(bus, tenant) as acks, consuming(bus, tenant, recorder):
        await durable(bus, f"{tenant}.x", b"x", msg_id="m1")
        await recorder.until(lambda it: len(it.messages) == 1)
        assert await waiting(bus, tenant) == 1
        await until_empty(bus, tenant)
    assert [message.num_delivered for message in recorder.messages] == [1, 2]
    assert (acks.of(1), acks.of(2)) == ([], [b""])


async def test_deliveries_without_a_failure_do_not_count_towards_a_dead_letter(bus: Bus, tenant: str) -> None:
    recorder = Recorder(fails_once_after_many_deliveries)
    async with consuming(bus, tenant, recorder):
        await durable(bus, f"{tenant}.x", b"x", msg_id="m1")
        await until_empty(bus, tenant)
    assert len(recorder.messages) == MOST_FAILURES + 2
    assert [stored async for stored in dead_letters(bus, stream=tenant)] == []


async def test_a_handler_may_take_longer_than_ack_wait(bus: Bus, tenant: str) -> None:
    recorder = Recorder()

    async with AckRecorder.recording(bus, tenant) as acks:

        async def slow(message: WorkMessage) -> Outcome:
            await recorder(message)
            # Four signals, 0.8 s apart, take longer than `ack_wait`.
            await acks.in_progress_signals(4)
            return Done()

        async with consuming(bus, tenant, slow):
            await durable(bus, f"{tenant}.x", b"x", msg_id="m1")
            await until_empty(bus, tenant)
    assert len(recorder.messages) == 1


async def test_serving_and_consuming_continue_after_the_server_was_killed(
    own_nats: NatsServer, own_bus: Bus
) -> None:
    async def respond(message: Message) -> bytes:
        return b"here"

    recorder = Recorder()
    async with consuming(own_bus, "Q", recorder), serving(own_bus, "ping", respond):
        own_nats.restart()
        await own_bus.ready(5)
        assert await own_bus.request("ping", b"", 5) == b"here"
        await durable(own_bus, "Q.x", b"x", msg_id="m1")
        # The pull from before the restart is lost, and the next one does not wait for its end.
        async with asyncio.timeout(PULL_S[1] / 2):
            await recorder.until(lambda it: it.payloads == [b"x"])


class Sum(BaseModel):
    numbers: tuple[int, ...]


class Total(BaseModel):
    total: int


@asynccontextmanager
async def adding(bus: Bus, subject: str, *, at_once: bool) -> AsyncGenerator[list[Sum]]:
    """Serve a typed handler, which does not reply to a request without numbers; yield the received bodies."""
    router, received = NatsRouter(), list[Sum]()

    @router.subscriber(subject)
    async def add(request: Sum, message: Received) -> Total:
        if not request.numbers:
            raise NoReply
        received.append(request)
        return Total(total=sum(request.numbers))

    async with ControlPlane(bus, router, at_once=(subject,) if at_once else ()):
        await bus.ready()
        yield received


AT_ONCE = pytest.mark.parametrize("at_once", [False, True], ids=["dispatched", "at once"])
"""Whether FastStream dispatches a request, or its handler is called at once."""


@AT_ONCE
async def test_a_typed_handler_receives_its_body_and_replies_with_its_model_or_not_at_all(
    bus: Bus, tenant: str, at_once: bool
) -> None:
    replies: list[Message] = []
    async with adding(bus, tenant, at_once=at_once):
        with bus.replies.expect(tenant, replies.append, lambda _: None) as inbox:
            await bus.replies.send(tenant, b'{"numbers": []}', inbox)
            assert await bus.request(tenant, b'{"numbers": [1, 2]}', 5) == b'{"total":3}'
    assert replies == []


@AT_ONCE
@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"numbers": ["1"]}', "numbers.0"),
        (b'{"numbers": [1], "numbers": [2]}', "body"),
        (b'{"numbers": [NaN]}', "body"),
        (b"\xff\xfe", "body"),
        (b"[" * 5000, "body"),
        (b"", "body"),
    ],
)
async def test_an_invalid_body_is_refused_by_an_envelope_that_names_the_field(
    bus: Bus, tenant: str, body: bytes, field: str, at_once: bool
) -> None:
    """Bodies are strict JSON: FastStream's decoder would coerce the first and pass the others as bytes."""
    async with adding(bus, tenant, at_once=at_once) as received:
        with pytest.raises(RemoteError, match=field) as refused:
            checked_reply(await bus.request(tenant, body, 5))
    assert refused.value.code is ErrorCode.BAD_REQUEST
    assert received == []


async def test_a_message_that_looks_like_json_and_does_not_validate_is_dead_lettered_and_acked(
    bus: Bus, tenant: str
) -> None:
    """A subscriber that validates before it calls the handler would leave the message un-acked."""
    await provision(bus, topology(tenant))
    router, received = NatsRouter(), Recorder()

    @router.subscriber(f"{tenant}.*", **durable_consumer(bus, tenant))
    async def consume(body: Sum, message: Work) -> Outcome:
        return await received(message)

    async with ControlPlane(bus, router):
        await durable(bus, f"{tenant}.bad", b'{"numbers": "many"}', msg_id="m1")
        await durable(bus, f"{tenant}.good", b'{"numbers": [1]}', msg_id="m2")
        await received.until(lambda it: it.payloads == [b'{"numbers": [1]}'])
        await until_empty(bus, tenant)
    (dead,) = [stored.letter async for stored in dead_letters(bus, stream=tenant)]
    assert (dead.subject, dead.reason) == (f"{tenant}.bad", "numbers: Input should be a valid array")
