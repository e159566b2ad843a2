"""The rights that open each endpoint, and the isolation of tenants."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import TOKENS, Agent, GatewayFactory, Served
from tests.support.push_service import Browser
from websockets.exceptions import ConnectionClosed

from banksman.contracts.ids import approval_id_for, new_id, run_id_for
from banksman.gateway.settings import ApiKey, Right

CHAT = frozenset[Right](("chat",))
APPROVE = frozenset[Right](("approve",))
READ = CHAT | APPROVE
ADMIN = frozenset[Right](("admin", "operator"))
OPERATE = frozenset[Right](("operator",))
RIGHTS: tuple[Right, ...] = ("chat", "approve", "admin", "operator")

REQUIRED: dict[str, frozenset[Right]] = {
    "POST /context/conversations": CHAT,
    "GET /context/conversations": READ,
    "GET /context/conversations/{conversation_id}": READ,
    "PATCH /context/conversations/{conversation_id}": CHAT,
    "DELETE /context/conversations/{conversation_id}": CHAT,
    "PUT /context/conversations/{conversation_id}/people": frozenset[Right](("chat", "admin")),
    "GET /context/conversations/{conversation_id}/events": READ,
    "POST /context/conversations/{conversation_id}/compact": CHAT,
    "POST /context/conversations/{conversation_id}/runs": CHAT,
    "GET /context/conversations/{conversation_id}/runs": READ,
    "GET /context/conversations/{conversation_id}/archive": READ,
    "GET /context/conversations/{conversation_id}/diff": READ,
    "GET /context/conversations/{conversation_id}/patch": READ,
    "GET /context/conversations/{conversation_id}/processes": READ,
    "GET /context/conversations/{conversation_id}/processes/{process_id}": READ,
    "POST /context/conversations/{conversation_id}/processes/{process_id}/stop": CHAT,
    "GET /context/conversations/{conversation_id}/files": READ,
    "GET /context/conversations/{conversation_id}/files/{path}": READ,
    "PUT /context/conversations/{conversation_id}/files/{path}": CHAT,
    "DELETE /context/conversations/{conversation_id}/files/{path}": CHAT,
    "GET /context/runs/{run_id}": READ,
    "POST /context/runs/{run_id}/cancel": CHAT,
    "GET /context/runs/{run_id}/tool-calls": READ,
    "GET /context/runs/{run_id}/tool-calls/{tool_call_id}/output": READ,
    "GET /context/approvals": READ,
    "GET /context/decisions": READ,
    "POST /context/approvals/{approval_id}": APPROVE,
    "GET /context/policy": READ,
    "GET /context/workspace-options": READ,
    "GET /context/search-provider": ADMIN,
    "PUT /context/search-provider": ADMIN,
    "DELETE /context/search-provider": ADMIN,
    "POST /context/search-provider/test": ADMIN,
    "PUT /context/policy": ADMIN,
    "GET /context/remembered": READ,
    "DELETE /context/remembered/{approval_id}": APPROVE,
    "POST /context/approvals/{approval_id}/aside": APPROVE,
    "GET /context/inputs": READ,
    "POST /context/inputs/{request_id}": APPROVE,
    "GET /context/assistants": READ,
    "POST /context/assistants": CHAT,
    "GET /context/assistants/{assistant_id}": READ,
    "PUT /context/assistants/{assistant_id}": CHAT,
    "DELETE /context/assistants/{assistant_id}": CHAT,
    "GET /context/schedules": READ,
    "GET /context/schedules/coming": READ,
    "POST /context/schedules": CHAT,
    "GET /context/schedules/{schedule_id}": READ,
    "PUT /context/schedules/{schedule_id}": CHAT,
    "DELETE /context/schedules/{schedule_id}": CHAT,
    "POST /context/schedules/{schedule_id}/run": CHAT,
    "GET /operator/overview": OPERATE,
    "GET /operator/services": OPERATE,
    "GET /operator/runs": OPERATE,
    "POST /operator/runs/{tenant}/{run_id}/cancel": OPERATE,
    "GET /operator/dead-letters/{letter_id}": OPERATE,
    "DELETE /operator/dead-letters/{letter_id}": OPERATE,
    "GET /v1/audit": ADMIN,
    "GET /v1/audit/export": ADMIN,
    "GET /operator/tenants": OPERATE,
    "GET /operator/dead-letters": OPERATE,
    "POST /operator/dead-letters/{letter_id}/replay": OPERATE,
    "GET /context/usage": READ,
    "GET /context/models": READ,
    "GET /context/search": READ,
    "GET /context/runs/{run_id}/steps": READ,
    "GET /context/runs/{run_id}/steps/{step_id}": READ,
    "POST /context/assistants/preview": CHAT,
    "GET /context/assistants/{assistant_id}/revisions": READ,
    "GET /context/assistants/{assistant_id}/revisions/{revision}": READ,
    "GET /context/assistants/{assistant_id}/revisions/{revision}/changes": READ,
    "POST /context/assistants/{assistant_id}/revisions/{revision}/restore": CHAT,
    "POST /context/chat": CHAT,
    "POST /context/chat/completions": CHAT,
    "POST /context/chat/messages": CHAT,
    "POST /agui": READ,
    "POST /a2a": READ,
    "GET /.well-known/agent-card.json": frozenset(RIGHTS),
    "GET /context/keys": ADMIN,
    "POST /context/keys": ADMIN,
    "GET /context/keys/{key_id}": ADMIN,
    "DELETE /context/keys/{key_id}": ADMIN,
    "GET /context/identity-providers": ADMIN,
    "GET /context/webhooks": ADMIN,
    "POST /context/webhooks": ADMIN,
    "GET /context/webhooks/{webhook_id}": ADMIN,
    "PUT /context/webhooks/{webhook_id}": ADMIN,
    "DELETE /context/webhooks/{webhook_id}": ADMIN,
    "POST /context/webhooks/{webhook_id}/test": ADMIN,
    "GET /context/webhooks/{webhook_id}/deliveries": ADMIN,
    "GET /context/push": APPROVE,
    "GET /context/push/devices": APPROVE,
    "PUT /context/push/devices": APPROVE,
    "DELETE /context/push/devices/{device_id}": APPROVE,
    "GET /context/secrets": ADMIN,
    "PUT /context/secrets/{name}": ADMIN,
    "DELETE /context/secrets/{name}": ADMIN,
    "GET /context/instructions": CHAT,
    "PUT /context/instructions": CHAT,
    "GET /context/model-servers": ADMIN,
    "PUT /context/model-servers/{name}": ADMIN,
    "DELETE /context/model-servers/{name}": ADMIN,
    "POST /context/model-servers/{name}/test": ADMIN,
    "GET /context/mcp-servers": ADMIN,
    "POST /context/mcp-servers": ADMIN,
    "GET /context/mcp-servers/{server_id}": ADMIN,
    "PUT /context/mcp-servers/{server_id}": ADMIN,
    "DELETE /context/mcp-servers/{server_id}": ADMIN,
    "POST /context/mcp-servers/{server_id}/look": ADMIN,
    "GET /context/mcp-prompts": READ,
    "POST /context/conversations/{conversation_id}/unpack": CHAT,
    "POST /context/mcp-servers/{server_id}/prompt": CHAT,
    "POST /context/mcp-servers/{server_id}/approve": ADMIN,
    "POST /context/mcp-servers/{server_id}/sign-in": ADMIN,
    "POST /context/mcp-servers/{server_id}/sign-in/finish": ADMIN,
    "DELETE /context/mcp-servers/{server_id}/sign-in": ADMIN,
    "GET /context/mcp-sign-in": frozenset(RIGHTS),
    "GET /context/mcp-accounts": CHAT,
    "POST /context/mcp-accounts/{server_id}/sign-in": CHAT,
    "POST /context/mcp-accounts/{server_id}/sign-in/finish": CHAT,
    "DELETE /context/mcp-accounts/{server_id}/sign-in": CHAT,
    "GET /context/tools": ADMIN,
    "GET /context/tools/{name}": ADMIN,
    "GET /v1/system-prompts": READ,
    "POST /v1/system-prompts": CHAT,
    "GET /v1/system-prompts/{prompt_id}": READ,
    "PUT /v1/system-prompts/{prompt_id}": CHAT,
    "DELETE /v1/system-prompts/{prompt_id}": CHAT,
    "GET /v1/system-prompts/{prompt_id}/enhanced": READ,
    "POST /v1/ws-ticket": READ,
    "POST /v1/chat": CHAT,
    "POST /v1/chat/completions": CHAT,
    "POST /v1/responses": CHAT,
    "POST /v1/messages": CHAT,
    "POST /v1/messages/count_tokens": CHAT,
    "GET /v1/models": CHAT,
    "GET /v1/models/{model}": CHAT,
    "GET /workflows": READ,
    "GET /workflows/categories": READ,
    "POST /workflows": CHAT,
    "PUT /workflows/{name}": CHAT,
    "DELETE /workflows/{name}": CHAT,
    "POST /workflows/parse": CHAT,
    "POST /context/conversations/{conversation_id}/title": CHAT,
    "POST /context/conversations/import": CHAT,
    "GET /workflows/{name}": READ,
    "POST /workflows/{name}/runs": CHAT,
}
"""The rights of which one opens an endpoint. A new endpoint needs a line here."""

WEBHOOK: dict[str, object] = {"url": "https://example.org/hook", "events": ["run.finished"]}
PARAMETER = re.compile(r"\{(\w+)\}")
NOT_OF_A_TENANT = {
    "/v1/models/{model}",
    "/context/tools/{name}",
    "/workflows/{name}",
    "/workflows/{name}/runs",
    "/operator/dead-letters/{letter_id}/replay",
    "/operator/dead-letters/{letter_id}",
    "/operator/runs/{tenant}/{run_id}/cancel",
    "/context/secrets/{name}",
    "/context/model-servers/{name}",
    "/context/model-servers/{name}/test",
}
"""Paths whose parameter names something of all tenants, or creates it."""


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
async def by_right(start_gateway: GatewayFactory, tenant: str) -> AsyncGenerator[Served]:
    """A gateway with one key for each right."""
    keys = (
        ApiKey(sha256=hashlib.sha256(right.encode()).hexdigest(), tenant=tenant, user=right, rights=(right,))
        for right in RIGHTS
    )
    async with start_gateway(keys=tuple(keys), requests_per_s=0) as served:
        yield served


async def operations(http: httpx.AsyncClient) -> list[str]:
    paths: dict[str, dict[str, object]] = (await http.get("/openapi.json")).json()["paths"]
    return [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]


async def send(http: httpx.AsyncClient, operation: str, path: str, token: str) -> httpx.Response:
    """Send a request whose body no endpoint accepts, except those that need none."""
    method = operation.partition(" ")[0]
    body = None if method in ("GET", "DELETE") else {"none of the fields": 1}
    return await http.request(method, path, json=body, headers=bearer(token))


async def test_an_endpoint_opens_for_its_rights_and_for_no_others(by_right: Served) -> None:
    opened: dict[str, frozenset[Right]] = {}
    async with by_right.http as http:
        for operation in await operations(http):
            path = PARAMETER.sub("unknown", operation.partition(" ")[2])
            statuses = {right: (await send(http, operation, path, right)).status_code for right in RIGHTS}
            assert 401 not in statuses.values()
            opened[operation] = frozenset[Right](right for right in RIGHTS if statuses[right] != 403)
    assert opened == REQUIRED


async def test_a_websocket_opens_for_those_who_chat_or_approve_and_checks_each_request(
    by_right: Served,
) -> None:
    codes: dict[str, str | int | None] = {}
    for right in RIGHTS:
        TOKENS[right] = right
        try:
            async with by_right.socket(right) as socket:
                created = await socket.request("conversation.create")
                decided = await socket.request("approval.reply", approval_id=new_id("a"), all="approve")
                codes[right] = f"{created.get('code', 'ok')} {decided['code']}"
        except ConnectionClosed as closed:
            codes[right] = closed.rcvd.code if closed.rcvd else None
        finally:
            del TOKENS[right]
    assert codes == {
        "chat": "ok forbidden",
        "approve": "forbidden not_found",
        "admin": 4403,
        "operator": 4403,
    }


async def test_data_of_another_tenant_is_missing(guarded: Served, agent: Agent) -> None:
    """Every endpoint with an id in its path returns to bob what it returns for an unknown id."""
    async with guarded.http as http:
        alice = await owned(http, agent)
        unknown = {
            name: run_id_for(new_id("c"))
            if name == "run_id"
            else approval_id_for(run_id_for(new_id("c")))
            if name in ("approval_id", "request_id")
            else "999999999"
            if name == "revision"
            else new_id("x")
            for name in alice
        }
        found = [
            one for one in await operations(http) if "{" in one and one.split()[1] not in NOT_OF_A_TENANT
        ]
        for operation in found:
            path = operation.partition(" ")[2]
            needs = PARAMETER.findall(path)
            assert set(needs) <= alice.keys(), f"{path}: add what it names to `owned`"
            theirs = await send_valid(http, operation, path, alice)
            missing = await send_valid(http, operation, path, unknown)
            assert theirs.status_code == missing.status_code == 404, (operation, theirs.text, missing.text)
            assert anonymous(theirs, alice.values()) == anonymous(missing, unknown.values()), operation


async def owned(http: httpx.AsyncClient, agent: Agent) -> dict[str, str]:
    """Create one object of each kind as alice; return their ids."""
    conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
    await http.post(f"/context/conversations/{conversation}/runs", json={"content": "list"})
    start = await agent.started(conversation)
    await agent.begin(start)
    request = await agent.request_approval(start)
    made = await http.post("/context/assistants", json={"id": (assistant := new_id("as"))})
    await http.post("/v1/system-prompts", json={"id": (prompt := new_id("p")), "content": "Be brief."})
    key = (await http.post("/context/keys", json={"user": "ann"})).json()
    webhook = (await http.post("/context/webhooks", json=WEBHOOK)).json()
    device = (await http.put("/context/push/devices", json=DEVICE)).json()
    server: dict[str, Any] = {"id": "files", "transport": {"type": "stdio", "command": ["serve"]}}
    await http.post("/context/mcp-servers", json=server)
    schedule = (await http.post("/context/schedules", json=SCHEDULE)).json()
    return {
        "schedule_id": schedule["id"],
        "server_id": server["id"],
        "conversation_id": conversation,
        "webhook_id": webhook["id"],
        "device_id": device["id"],
        "run_id": start.run_id,
        "tool_call_id": request.items[0].tool_call_id,
        "step_id": request.items[0].tool_call_id,
        "approval_id": request.approval_id,
        "request_id": request.approval_id,
        "revision": str(made.json()["revision"]),
        "assistant_id": assistant,
        "prompt_id": prompt,
        "key_id": key["id"],
        "path": "notes.txt",
        "process_id": "p1",
    }


DEVICE = {"endpoint": "https://push.example/phone", "keys": Browser().keys}
SCHEDULE = {"start": {"type": "prompt", "content": "hi"}, "cron": "0 * * * *"}

BODIES: dict[str, object] = {
    "POST /context/conversations/{conversation_id}/unpack": {"path": "a.zip"},
    "POST /context/mcp-servers/{server_id}/prompt": {"name": "summary"},
    "POST /context/mcp-servers/{server_id}/approve": {"digest": "0" * 64},
    "POST /context/mcp-servers/{server_id}/sign-in/finish": {"url": "http://127.0.0.1/?state=s"},
    "POST /context/mcp-accounts/{server_id}/sign-in/finish": {"url": "http://127.0.0.1/?state=s"},
    "PUT /context/schedules/{schedule_id}": SCHEDULE,
    "PUT /context/mcp-servers/{server_id}": {"transport": {"type": "stdio", "command": ["serve"]}},
    "PUT /context/webhooks/{webhook_id}": WEBHOOK,
    "PATCH /context/conversations/{conversation_id}": {"title": "mine"},
    "PUT /context/conversations/{conversation_id}/people": {"people": []},
    "POST /context/conversations/{conversation_id}/runs": {"content": "hi"},
    "POST /context/approvals/{approval_id}": {"all": "approve"},
    "POST /context/inputs/{request_id}": {"value": 1},
    "PUT /v1/system-prompts/{prompt_id}": {"content": "mine"},
}
"""Valid bodies; `{}` for the others."""


async def send_valid(
    http: httpx.AsyncClient, operation: str, path: str, ids: dict[str, str]
) -> httpx.Response:
    method = operation.partition(" ")[0]
    body = None if method in ("GET", "DELETE") else BODIES.get(operation, {})
    filled = PARAMETER.sub(lambda match: ids[match[1]], path)
    return await http.request(method, filled, json=body, headers=bearer(TOKENS["bob"]))


def anonymous(response: httpx.Response, ids: Iterable[str]) -> str:
    """Return a response's body without the ids that the request named."""
    text = response.text
    for one in sorted(ids, key=len, reverse=True):
        text = text.replace(one, "ID")
    return text
