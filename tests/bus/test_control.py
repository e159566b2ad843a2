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
from banksman.bus.control_plane.control import CONCURRENCY, ControlPlane, Received
from banksman.bus.errors import NoResponders, RemoteError, checked_reply
from banksman.bus.messages import Message
from banksman.contracts.errors import ErrorCode, Forbidden
from tests.support.nats import NatsServer
from tests.support.timeouts import WAIT_TIMEOUT_S

Responder = Callable[[Message], Awaitable[bytes]]


@asynccontextmanager
async def serving(bus: Bus, subject: str, respond: Responder) -> AsyncGenerator[ControlPlane]:
    router = NatsRouter()

    @router.subscriber(subject, max_workers=CONCURRENCY)
    async def reply(message: Received) -> bytes:
        return await respond(message)

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


async def test_requests_during_a_stop_are_refused_with_a_reason_and_a_time(bus: Bus, tenant: str) -> None:
    """P16, P21: one that a stop interrupts, and one that arrives while running handlers may still end."""
    began, never = asyncio.Event(), asyncio.Event()

    async def respond(message: Message) -> bytes:
        began.set()
        await never.wait()
        return b""

    async with asyncio.TaskGroup() as tasks:
        async with serving(bus, tenant, respond) as control:
            await bus.ready()
            interrupted = tasks.create_task(bus.request(tenant, b"", WAIT_TIMEOUT_S))
            await began.wait()
            stopped = tasks.create_task(control.__aexit__(None, None, None))
            late = await bus.request(tenant, b"", WAIT_TIMEOUT_S)
            await stopped
    for reply, reason in ((late, "nothing was done"), (await interrupted, "effect is not known")):
        with pytest.raises(RemoteError, match=reason) as refused:
            checked_reply(reply)
        assert (refused.value.code, refused.value.retry_after_s) == (ErrorCode.UNAVAILABLE, 1.0)


async def test_serving_continues_after_the_server_was_killed(own_nats: NatsServer, own_bus: Bus) -> None:
    async def respond(message: Message) -> bytes:
        return b"here"

    async with serving(own_bus, "ping", respond):
        own_nats.restart()
        await own_bus.ready(5)
        assert await own_bus.request("ping", b"", 5) == b"here"


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
