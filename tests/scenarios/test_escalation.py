"""An undecided approval request escalates by a timer of the running system."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from aiohttp import web
from standardwebhooks import Webhook

from tests.scenarios.conftest import Play
from tests.support.client import Client
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.timeouts import WAIT_TIMEOUT_S
from tests.support.web_server import web_server

Received = tuple[dict[str, str], str]


@pytest.fixture
async def received(webhook_port: int) -> AsyncGenerator[asyncio.Queue[Received]]:
    """The headers and bodies that arrive at the system's receiver of webhooks."""
    arrived: asyncio.Queue[Received] = asyncio.Queue()

    async def serve(request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        arrived.put_nowait((headers, await request.text()))
        return web.Response(status=204)

    app = web.Application()
    app.router.add_post("/hook", serve)
    async with web_server(app, webhook_port):
        yield arrived


async def test_an_undecided_request_escalates_by_its_timer_into_the_log_and_a_signed_webhook(
    http: httpx.AsyncClient,
    client: Client,
    play: Play,
    webhook_port: int,
    received: asyncio.Queue[Received],
) -> None:
    """R13: an agent escalates it once. It stays open, and its decision continues the run."""
    model = play(
        ScriptedReply(tool_calls=(ScriptedCall(name="bash", arguments={"command": "true"}),)),
        ScriptedReply(text="ok"),
    )
    escalation = {"after_s": 1, "users": ["bob"]}
    made = {"tools": {"enabled": True}, "approvals": {"escalation": escalation}}
    assistant = await created(http, "/context/assistants", **made)
    url = f"http://127.0.0.1:{webhook_port}/hook"
    webhook = await created(http, "/context/webhooks", url=url, events=["approval.escalated"])
    try:
        conversation = await client.create(model, assistant=assistant["id"])
        run_id = await client.chat(conversation, "go")
        request = await client.approval_request(run_id)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            headers, text = await received.get()
        await client.approve(run_id)
        outcome = await client.finished(run_id)
    finally:
        await http.delete(f"/context/webhooks/{webhook['id']}")
    event = Webhook(webhook["secret"]).verify(text, headers)
    assert (event["type"], event["data"]["approval_id"]) == ("approval.escalated", request["approval_id"])
    [escalated] = client.events(conversation, "approval.escalated")
    assert (escalated["data"]["users"], escalated["data"]["by"]) == (["bob"], "system")
    assert outcome["status"] == "completed"


async def created(http: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    response = await http.post(path, json=body)
    assert response.status_code == 201, response.text
    return response.json()
