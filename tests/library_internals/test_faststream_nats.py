"""The parts of FastStream and FastDepends that are used. A release that changes one fails here."""

from __future__ import annotations

from typing import Any

from faststream import StreamMessage
from faststream.nats import NatsRouter
from nats.aio.msg import Msg
from pydantic import BaseModel

from banksman.bus.connection import Bus
from banksman.bus.control_plane.control import Received
from banksman.library_internals.faststream_nats import ConnectedBroker, declared_handlers
from banksman.library_internals.nats_client import subscribe


class Body(BaseModel):
    text: str


class Echo(BaseModel):
    text: str


requests = NatsRouter()


@requests.subscriber("contract.request", "group")
async def request(body: Body, message: Received) -> Echo:
    return Echo(text=f"{body.text} on {message.subject}")


@requests.subscriber("contract.plain")
async def plain() -> None: ...


def broker_of(bus: Bus, router: NatsRouter) -> ConnectedBroker:
    async def subscribed(subject: str, queue: str, callback: Any) -> Any:
        return await subscribe(bus.nc, subject, callback, queue=queue)

    broker = ConnectedBroker(
        bus.nc,
        bus.settings.urls,
        subscribe=subscribed,
        middlewares=(),
        stop_s=1,
    )
    broker.include_router(router)
    return broker


async def test_started_broker_uses_the_given_connection_and_leaves_it_open(bus: Bus) -> None:
    broker = broker_of(bus, requests)
    found = {handler.subject: handler for handler in declared_handlers(broker)}
    assert found.keys() == {"contract.request", "contract.plain"}

    async def decoded(message: StreamMessage[Msg]) -> Body:
        return Body.model_validate_json(message.raw_message.data)

    found["contract.request"].decode_with(decoded)
    await broker.start()

    assert (found["contract.request"].body, found["contract.plain"].body) == (Body, None)
    reply = await bus.request("contract.request", b'{"text": "hi"}', 5)
    assert Echo.model_validate_json(reply).text == "hi on contract.request"
    await broker.stop()
    assert bus.connected
