"""A gateway starts and serves its core without each optional feature, and without all of them."""

from __future__ import annotations

import pytest
from tests.gateway.conftest import Agent, GatewayFactory

from banksman.gateway.composition import CORE, FEATURES, OPTIONAL
from banksman.gateway.feature import Feature

WITHOUT_ONE = [tuple(one for one in FEATURES if one is not left_out) for left_out in OPTIONAL]


@pytest.mark.parametrize("features", [*WITHOUT_ONE, CORE])
async def test_a_run_starts_and_ends_without_an_optional_feature(
    features: tuple[Feature, ...], start_gateway: GatewayFactory, agent: Agent
) -> None:
    left_out = {operation.path for one in FEATURES if one not in features for operation in one.operations}
    async with start_gateway(features=features) as served, served.http as http:
        conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        run = await http.post(f"/context/conversations/{conversation}/runs", json={"content": "hi"})
        start = await agent.started(conversation)
        await agent.begin(start)
        await agent.finish(start, "Done.")
        ended = (await http.get(f"/context/runs/{run.json()['run_id']}", params={"wait_s": 5})).json()
        paths = (await http.get("/openapi.json")).json()["paths"].keys()
    assert (ended["status"], ended["content"]) == ("completed", "Done.")
    assert left_out and paths.isdisjoint(left_out)


async def test_a2a_refuses_push_notifications_without_webhooks(start_gateway: GatewayFactory) -> None:
    config = {"taskId": "c1-0123456789ab", "id": "mine"}
    rpc = {"jsonrpc": "2.0", "id": 1, "method": "GetTaskPushNotificationConfig", "params": config}
    async with start_gateway(features=CORE) as served, served.http as http:
        refused = (await http.post("/a2a", json=rpc)).json()
    assert refused["error"]["code"] == -32003
