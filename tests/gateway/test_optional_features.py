"""The core serves a chat without each optional feature."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.conftest import Agent, GatewayFactory

from banksman.gateway import composition
from banksman.gateway.composition import FEATURES, OPTIONAL, WEBHOOKS
from banksman.gateway.feature import Feature

NAMES = {value: name for name, value in vars(composition).items() if isinstance(value, Feature)}


def without(feature: Feature) -> tuple[Feature, ...]:
    return tuple(one for one in FEATURES if one is not feature)


@pytest.mark.parametrize("feature", OPTIONAL, ids=NAMES.get)
async def test_a_gateway_without_the_feature_serves_a_chat(
    start_gateway: GatewayFactory, agent: Agent, feature: Feature
) -> None:
    async with start_gateway(features=without(feature)) as gateway:
        async with gateway.socket() as client:
            conversation_id = await client.create()
            await client.request("chat.send", conversation_id=conversation_id, content="Hello")
            start = await agent.started(conversation_id)
            await agent.begin(start)
            await agent.finish(start, "Served.")
            finished = await client.until_type("run.finished")
        async with gateway.http as http:
            served = (await http.get("/openapi.json")).json()["paths"]

    assert finished["data"]["content"] == "Served."
    assert {one.path for one in feature.operations if one.path} & served.keys() == set()


async def test_without_webhooks_a2a_refuses_push_notifications_as_its_card_says(
    start_gateway: GatewayFactory,
) -> None:
    call: dict[str, Any] = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "GetTaskPushNotificationConfig",
        "params": {"taskId": "c1-r1", "id": "mine"},
    }
    async with start_gateway(features=without(WEBHOOKS)) as gateway, gateway.http as http:
        card = (await http.get("/.well-known/agent-card.json")).json()
        reply = (await http.post("/a2a", json=call)).json()

    assert card["capabilities"]["pushNotifications"] is False
    assert reply["error"]["data"][0]["reason"] == "PUSH_NOTIFICATION_NOT_SUPPORTED"
