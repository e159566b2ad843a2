"""A subscription whose stored events cannot be read at once sends them later."""

from __future__ import annotations

import pytest
from tests.gateway.conftest import Agent, GatewayFactory
from tests.support.fixtures import settings_of
from tests.support.lossy import lossy_wire
from tests.support.nats import Broker
from tests.support.polling import eventually

from banksman.bus.connection import Bus
from banksman.contracts.events import ConversationUpdated


async def test_a_subscription_outlives_a_broker_that_does_not_respond(
    nats_server: Broker,
    bus: Bus,
    tenant: str,
    start_gateway: GatewayFactory,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client has its position: without these events it would wait without end for the next ones."""
    async with lossy_wire(nats_server.port) as wire:
        settings = settings_of(nats_server).model_copy(update={"url": wire.url})
        async with start_gateway(nats=settings) as gateway, gateway.socket() as socket:
            conversation = await socket.create()
            await Agent(bus, tenant).commit(conversation, None, ConversationUpdated(title="stored"))
            await socket.request("subscribe", conversation_id=conversation, after_seq=0)
            await socket.until_type("replay.done")
            # Lost are the messages that a read of the log returns, and the status that ends the read.
            wire.loses = lambda _, payload: b"Nats-Subject: conversation." in payload or b" 204 " in payload
            async with gateway.socket() as other:
                head = await other.request("subscribe", conversation_id=conversation, after_seq=0)
                assert head["type"] == "subscribed"
                await eventually(lambda: "reading the log failed, retrying" in caplog.text)
                wire.loses = lambda *_: False
                assert (await other.until_type("conversation.updated"))["data"]["title"] == "stored"
                await other.until_type("replay.done")
