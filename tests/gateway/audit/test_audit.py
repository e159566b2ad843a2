"""The audit trail: who changed what of a tenant, over HTTP and NATS."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import httpx
from tests.gateway.conftest import TOKENS, GatewayFactory, Served, key_of
from tests.gateway.http.test_rights import REQUIRED
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.bus.connection import Bus
from banksman.contracts import subjects
from banksman.contracts.frames import REQUEST_ID
from banksman.contracts.ids import new_id
from banksman.gateway.composition import FEATURES, operations_of

TRAIL, EXPORT = "/v1/audit", "/v1/audit/export"
HIDDEN = "correct-horse-battery"
IN_LOGS = {
    "POST /context/conversations",
    "PATCH /context/conversations/{conversation_id}",
    "POST /context/conversations/{conversation_id}/runs",
    "POST /context/conversations/{conversation_id}/title",
    "PUT /context/conversations/{conversation_id}/files/{path}",
    "POST /context/conversations/{conversation_id}/unpack",
    "DELETE /context/conversations/{conversation_id}/files/{path}",
    # The next result of the conversation states which process a user stopped.
    "POST /context/conversations/{conversation_id}/processes/{process_id}/stop",
    "POST /context/runs/{run_id}/cancel",
    "POST /context/conversations/{conversation_id}/compact",
    "POST /context/approvals/{approval_id}",
    "POST /context/approvals/{approval_id}/aside",
    "DELETE /context/remembered/{approval_id}",
    "POST /context/inputs/{request_id}",
    "POST /context/schedules/{schedule_id}/run",
    "POST /context/chat",
    "POST /context/chat/completions",
    "POST /context/chat/messages",
    "POST /workflows/{name}/runs",
    "POST /agui",
    "POST /a2a",
    "POST /v1/chat",
}
"""Requests that the logs of conversations record."""
CHANGES_NOTHING = {
    "POST /context/assistants/preview",
    "POST /context/webhooks/{webhook_id}/test",
    "POST /context/mcp-servers/{server_id}/look",
    "POST /context/mcp-servers/{server_id}/prompt",
    "POST /context/model-servers/{name}/test",
    "POST /context/search-provider/test",
    # The return from the sign-in is recorded instead.
    "POST /context/mcp-servers/{server_id}/sign-in",
    "POST /context/mcp-accounts/{server_id}/sign-in",
    "POST /workflows/parse",
    "POST /v1/ws-ticket",
    "POST /v1/chat/completions",
    "POST /v1/responses",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
}
OF_A_USER = {
    "PUT /context/instructions",
    "PUT /context/push/devices",
    "DELETE /context/push/devices/{device_id}",
}
"""Requests that concern only the user who sends them."""


def test_every_changing_request_is_recorded_or_listed_as_an_exception() -> None:
    changing = {request for request in REQUIRED if not request.startswith("GET ")}
    declared = {
        f"{one.method} {one.path}": one.audit.action
        for one in operations_of(FEATURES)
        if one.audit and one.path
    }
    recorded = declared
    assert changing - recorded.keys() - IN_LOGS - CHANGES_NOTHING - OF_A_USER == set()
    assert recorded.keys() - changing == set()
    assert len(set(recorded.values())) == len(recorded)


def bearer(user: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[user]}"}


async def entries(http: httpx.AsyncClient, user: str = "alice", **query: Any) -> list[dict[str, Any]]:
    response = await http.get(TRAIL, params=query, headers=bearer(user))
    assert response.status_code == 200, response.text
    return response.json()["items"]


async def test_the_trail_shows_who_changed_what_without_secrets(guarded: Served, tenant: str) -> None:
    """R34: newest first; a refused request is no entry, and a repeated one is one entry."""
    async with guarded.http as http:
        key = (await http.post("/context/keys", json={"user": "ann", "rights": ["chat"]})).json()
        await http.put("/context/secrets/TOKEN", json={"value": HIDDEN})
        revision = (await http.get("/context/policy")).json()["revision"]
        rule = {"tool": "bash", "action": "ask"}
        await http.put("/context/policy", json={"rules": [rule], "revision": revision})
        late = await http.put("/context/policy", json={"rules": [], "revision": revision})
        repeated = {"idempotency-key": new_id("once")}
        for _ in range(2):
            await http.post("/context/assistants", json={"name": "Builder"}, headers=repeated)
        conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        await http.delete(f"/context/conversations/{conversation}")
        await http.delete(f"/context/keys/{key['id']}")
        trail = await entries(http)
        page = (await http.get(TRAIL, params={"limit": 2})).json()
        rest = (await http.get(TRAIL, params={"after": page["next"]})).json()
        keys = await entries(http, action="key")
        created = await entries(http, action="key.created", actor="alice")
        earlier = await entries(http, until=trail[-1]["ts"])
    assert late.status_code == 409
    done = ["key.revoked", "conversation.deleted", "assistant.created", "policy.changed", "secret.set"]
    assert [one["action"] for one in trail] == [*done, "key.created"]
    assert {(one["tenant"], one["actor"], one["interface"]) for one in trail} == {(tenant, "alice", "http")}
    assert [one["target"] for one in trail][:2] == [key["id"], conversation]
    assert trail[-1]["details"] == {"user": "ann", "name": "", "rights": ["chat"], "expires_at": None}
    assert trail[2]["details"]["name"] == "Builder"
    assert trail[4]["target"] == "TOKEN"
    assert HIDDEN not in json.dumps(trail) and key["key"] not in json.dumps(trail)
    assert page["items"] + rest["items"] == trail and rest["next"] is None
    assert [one["action"] for one in keys] == ["key.revoked", "key.created"]
    assert [one["target"] for one in created] == [key["id"]]
    assert earlier == []


async def test_only_operators_see_the_trail_of_another_tenant(
    start_gateway: GatewayFactory, tenant: str
) -> None:
    """R34: what an operator does to a tenant is in the trail of that tenant."""
    platform = new_id("t")
    keys = (
        key_of("alice", tenant, rights=("chat", "admin")),
        key_of("bob", platform, rights=("operator",)),
        key_of("reader", tenant, rights=("chat",)),
    )
    async with start_gateway(keys=keys) as served, served.http as http:
        made = {"user": "ann"}
        await http.post("/context/keys", params={"tenant": tenant}, json=made, headers=bearer("bob"))
        await http.put(
            "/context/secrets/A", params={"tenant": platform}, json={"value": HIDDEN}, headers=bearer("alice")
        )
        own = await entries(http)
        named = await entries(http, "bob", tenant=tenant)
        everywhere = await entries(http, "bob", tenant="*", action="key.created", limit=1)
        others = await entries(http, "bob")
        refused = [
            (await http.get(path, params=query, headers=bearer(user))).status_code
            for path in (TRAIL, EXPORT)
            for user, query in (
                ("reader", {}),
                ("alice", {"tenant": platform}),
                ("alice", {"tenant": "*"}),
                ("bob", {"tenant": "a.b"}),
                ("alice", {"action": "key.>"}),
            )
        ]
    assert [(one["action"], one["actor"], one["actor_tenant"]) for one in own] == [
        ("secret.set", "alice", None),
        ("key.created", "bob", platform),
    ]
    assert named == own
    assert [one["tenant"] for one in everywhere] == [tenant]
    assert others == []
    assert refused == [403, 403, 403, 400, 400] * 2


async def test_the_trail_is_exported_as_json_lines_and_as_csv(guarded: Served) -> None:
    """R34: oldest first, with the same filters. No cell begins a formula of a spreadsheet."""
    async with guarded.http as http:
        for name in ("=HYPERLINK(1)", "Builder"):
            await http.post("/context/assistants", json={"name": name})
        await http.put("/context/secrets/TOKEN", json={"value": HIDDEN})
        lines = await http.get(EXPORT)
        sheet = await http.get(EXPORT, params={"format": "csv", "action": "assistant"})
        unknown = await http.get(EXPORT, params={"format": "pdf"})
    exported = [json.loads(line) for line in lines.text.splitlines()]
    rows = list(csv.DictReader(io.StringIO(sheet.text)))
    assert lines.headers["content-disposition"] == 'attachment; filename="audit.jsonl"'
    assert [one["action"] for one in exported] == ["assistant.created", "assistant.created", "secret.set"]
    assert sheet.headers["content-type"].startswith("text/csv")
    assert [(row["actor"], row["action"]) for row in rows] == [("alice", "assistant.created")] * 2
    assert rows[0]["details"].startswith("name: =HYPERLINK(1); revision: ")
    assert unknown.status_code == 400


async def test_an_actor_whose_name_is_a_formula_is_quoted_in_a_sheet(
    start_gateway: GatewayFactory, tenant: str
) -> None:
    mallory = key_of("alice", tenant, rights=("chat", "admin")).model_copy(update={"user": "=1+1"})
    async with start_gateway(keys=(mallory,)) as served, served.http as http:
        http.headers.update(bearer("alice"))
        await http.put("/context/secrets/TOKEN", json={"value": HIDDEN})
        sheet = await http.get(EXPORT, params={"format": "csv"})
    assert [row["actor"] for row in csv.DictReader(io.StringIO(sheet.text))] == ["'=1+1"]


async def test_actions_over_nats_are_recorded_and_listed_there(
    gateway: Served, bus: Bus, tenant: str
) -> None:
    """R112: the subject names the tenant alone, so the actor is `nats`."""

    async def request(*action: str, id: str = "", **body: Any) -> dict[str, Any]:
        headers = {REQUEST_ID: id} if id else {}
        subject = subjects.api(tenant, *action)
        return json.loads(await bus.request(subject, json.dumps(body).encode(), WAIT_TIMEOUT_S, headers))

    once = new_id("once")
    for _ in range(2):
        await request("prompt", "create", id=once, content="Be brief.")
    await request("secret", "set", "TOKEN", value=HIDDEN)
    await request("secret", "delete", "MISSING")
    trail = await request("audit", "list")
    secrets = await request("audit", "list", action="secret")
    async with gateway.http as http:
        over_http = (await http.get(TRAIL)).json()
    assert [(one["action"], one["actor"], one["interface"]) for one in trail["items"]] == [
        ("secret.set", "nats", "nats"),
        ("prompt.created", "nats", "nats"),
    ]
    assert [one["target"] for one in secrets["items"]] == ["TOKEN"]
    assert over_http == trail
