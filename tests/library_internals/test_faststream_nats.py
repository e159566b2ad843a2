"""The parts of FastStream and FastDepends that are used. A release that changes one fails here."""

from __future__ import annotations

import inspect
import re
from typing import Any

from faststream import StreamMessage
from faststream.nats import NatsRouter, PullSub
from faststream.nats.subscriber.usecases import basic, stream_pull_subscriber
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from pydantic import BaseModel

from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.control_plane.control import Received
from banksman.library_internals.faststream_nats import ConnectedBroker, declared_handlers
from banksman.library_internals.nats_client import subscribe


class Body(BaseModel):
    text: str


class Echo(BaseModel):
    text: str


requests, queue = NatsRouter(), NatsRouter()


@requests.subscriber("contract.request", "group")
async def request(body: Body, message: Received) -> Echo:
    return Echo(text=f"{body.text} on {message.subject}")


@requests.subscriber("contract.plain")
async def plain() -> None: ...


@queue.subscriber("contract.work", durable="d", stream="S", pull_sub=PullSub(batch_size=1, timeout=1))
async def work(body: Body) -> None: ...


def broker_of(bus: Bus, router: NatsRouter) -> ConnectedBroker:
    async def subscribed(subject: str, queue: str, callback: Any) -> Any:
        return await subscribe(bus.nc, subject, callback, queue=queue)

    broker = ConnectedBroker(
        bus.nc,
        bus.settings.urls,
        subscribe=subscribed,
        on_reconnect=bus.on_reconnect,
        middlewares=(),
        stop_s=1,
    )
    broker.include_router(router)
    return broker


def test_handler_of_a_durable_consumer_differs_from_handlers_of_requests() -> None:
    bus = Bus(NatsSettings(), name="contract")
    (of_stream,) = declared_handlers(broker_of(bus, queue))
    found = list(declared_handlers(broker_of(bus, requests)))

    assert of_stream.of_stream and not any(handler.of_stream for handler in found)
    assert {handler.subject for handler in found} == {"contract.request", "contract.plain"}


async def test_started_broker_uses_the_given_connection_and_leaves_it_open(bus: Bus) -> None:
    broker = broker_of(bus, requests)
    found = {handler.subject: handler for handler in declared_handlers(broker)}

    async def decoded(message: StreamMessage[Msg]) -> Body:
        return Body.model_validate_json(message.raw_message.data)

    found["contract.request"].decode_with(decoded)
    await broker.start()

    assert (found["contract.request"].body, found["contract.plain"].body) == (Body, None)
    reply = await bus.request("contract.request", b'{"text": "hi"}', 5)
    assert Echo.model_validate_json(reply).text == "hi on contract.request"
    await broker.stop()
    assert bus.connected


def test_pull_subscriber_calls_only_the_wrapped_methods_of_its_subscription() -> None:
    source = inspect.getsource(stream_pull_subscriber) + inspect.getsource(basic)

    assert set(re.findall(r"self\.subscription\.(\w+)", source)) <= {"fetch", "unsubscribe"}
    parameters = list(inspect.signature(JetStreamContext.PullSubscription.fetch).parameters)
    assert parameters[:3] == ["self", "batch", "timeout"]
