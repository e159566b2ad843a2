"""A gateway that starts before NATS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import httpx
import pytest
from tests.gateway.conftest import SIGNING_KEY
from tests.support.model_server import ModelServer
from tests.support.nats import Broker
from tests.support.polling import eventually
from tests.support.scripted_models import ScriptedReply
from tests.support.timeouts import WAIT_TIMEOUT_S
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from banksman.bus.connection import NatsSettings
from banksman.cli.machine import free_port
from banksman.gateway.app import main
from banksman.gateway.settings import GatewayServiceSettings, GatewaySettings, ModelSettings
from banksman.runtime.health import Health
from banksman.runtime.service import ServiceProcess
from banksman.runtime.settings import ApprovalSettings


@pytest.fixture
async def upstream() -> AsyncGenerator[ModelServer]:
    async with ModelServer.running() as server:
        yield server


async def test_a_gateway_without_nats_listens_and_serves_passthrough_until_nats_is_there(
    own_nats: Broker, upstream: ModelServer
) -> None:
    own_nats.stop()
    settings = GatewayServiceSettings(
        nats=NatsSettings(url=own_nats.url, replicas=own_nats.replicas, connect_timeout_s=0.5),
        approvals=ApprovalSettings.model_validate({"signing_key": SIGNING_KEY}),
        gateway=GatewaySettings(port=free_port(), health_port=free_port()),
        models=ModelSettings(demo_base_url=upstream.openai_url),
        allow_weak_durability=True,
    )
    process = ServiceProcess(Health("gateway"))
    serving = asyncio.create_task(main(settings, process))
    url = f"127.0.0.1:{settings.gateway.port}"
    async with httpx.AsyncClient(base_url=f"http://{url}", timeout=WAIT_TIMEOUT_S) as http:

        async def readiness() -> httpx.Response | None:
            try:
                return await http.get(f"http://127.0.0.1:{settings.gateway.health_port}/readyz")
            except httpx.ConnectError:
                return None

        async def is_ready() -> bool:
            return (await http.get("/readyz")).status_code == 200

        unready = await eventually(readiness)
        body = {
            "model": upstream.play("alone", [ScriptedReply(text="ok")]),
            "messages": [{"role": "user", "content": "x"}],
        }
        passed = await http.post("/v1/chat/completions", json=body)
        page = await http.get("/")
        refused = await http.get("/context/conversations")
        with pytest.raises(InvalidStatus) as denied:
            async with connect(f"ws://{url}/ws"):
                pass
        own_nats.start()
        await eventually(is_ready)
        served = await http.get("/context/conversations")
    process.drain()
    await serving
    assert (unready.status_code, unready.json()["ready"]) == (503, False)
    assert unready.json()["problems"]["nats"].startswith("NATS at 127.0.0.1:")
    assert (passed.status_code, page.status_code) == (200, 200)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
    assert denied.value.response.status_code == 503
    assert served.status_code == 200


async def test_a_gateway_without_nats_stops_at_once(upstream: ModelServer) -> None:
    settings = GatewayServiceSettings(
        nats=NatsSettings(url=f"nats://127.0.0.1:{free_port()}"),
        gateway=GatewaySettings(port=free_port()),
        models=ModelSettings(demo_base_url=upstream.openai_url),
    )
    process = ServiceProcess(Health("gateway"))
    serving = asyncio.create_task(main(settings, process))
    process.drain()
    async with asyncio.timeout(10):
        await serving
