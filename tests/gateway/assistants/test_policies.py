"""The approval policy of a tenant, and remembered decisions: read, changed and withdrawn."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import TOKENS, Agent, Served
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.bus.connection import Bus
from banksman.contracts import subjects

POLICY = "/context/policy"
NEVER_ASK_FOR_READS = {"tool": "read_file", "action": "auto"}
ALWAYS_ASK_FOR_RM = {"tool": "bash", "arguments": {"command": "*rm *"}, "action": "ask"}


async def requested(bus: Bus, tenant: str, *action: str, body: bytes = b"{}") -> bytes:
    return await bus.request(subjects.api(tenant, *action), body, timeout_s=WAIT_TIMEOUT_S)


async def test_the_rules_of_a_tenant_come_before_those_of_its_assistants(
    guarded: Served, agent: Agent
) -> None:
    """R12: over HTTP. If the tenant requires two approvers, each assistant requires at least two."""
    own = {"tool": "*", "arguments": {}, "action": "deny"}
    async with guarded.http as http:
        first = (await http.get(POLICY)).json()
        body = {
            "rules": [ALWAYS_ASK_FOR_RM, NEVER_ASK_FOR_READS],
            "approvals": {"approvers": 2},
            "revision": first["revision"],
        }
        stored = await http.put(POLICY, json=body)
        late = await http.put(POLICY, json=body | {"rules": []})
        await http.post("/context/assistants", json={"id": "strict", "approval_policy": [own]})
        made = await http.post("/context/conversations", json={"assistant": "strict"})
        conversation = made.json()["conversation_id"]
        await http.post(f"/context/conversations/{conversation}/runs", json={"content": "hi"})
        read = (await http.get(POLICY)).json()
        http.headers["authorization"] = f"Bearer {TOKENS['reader']}"
        refused = await http.put(POLICY, json={"rules": []})
        http.headers["authorization"] = f"Bearer {TOKENS['bob']}"
        other = (await http.get(POLICY)).json()
    settings = (await agent.started(conversation)).settings
    assert [rule.action for rule in settings.approval_policy] == ["ask", "auto", "deny"]
    assert settings.approvals.approvers == 2
    assert (first["rules"], stored.status_code, read) == ([], 200, stored.json())
    assert (late.status_code, refused.status_code, other["rules"]) == (409, 403, [])


async def test_registries_come_from_the_policy_of_the_tenant_alone(guarded: Served, agent: Agent) -> None:
    """R12: an assistant cannot state any, and an administrator grants them, to all or some assistants."""
    everywhere = {"kind": "pypi", "url": "https://packages.example/simple", "hosts": ["files.example"]}
    coding = {"kind": "npm", "url": "https://npm.example/", "assistants": ["coder"]}
    conversations: dict[str, str] = {}
    async with guarded.http as http:
        await http.post("/context/assistants", json={"id": "coder", "tools": {"enabled": True}})
        stated = await http.post(
            "/context/assistants", json={"tools": {"network": {"registries": [everywhere]}}}
        )
        stored = await http.put(POLICY, json={"registries": [everywhere, coding]})
        invalid = await http.put(POLICY, json={"registries": [{**coding, "hosts": ["*.example"]}]})
        for assistant in ("coder", "default"):
            made = await http.post("/context/conversations", json={"assistant": assistant})
            conversations[assistant] = made.json()["conversation_id"]
            path = f"/context/conversations/{conversations[assistant]}/runs"
            await http.post(path, json={"content": "hi"})
        http.headers["authorization"] = f"Bearer {TOKENS['reader']}"
        refused = await http.put(POLICY, json={"registries": []})
    granted: dict[str, list[str]] = {}
    for assistant, conversation in conversations.items():
        network = (await agent.started(conversation)).settings.tools.network
        assert network is not None and not network.commands
        granted[assistant] = [one.kind for one in network.registries]
    assert granted == {"coder": ["pypi", "npm"], "default": ["pypi"]}
    assert (stored.status_code, invalid.status_code, refused.status_code) == (200, 400, 403)
    assert refusal(stated) == (400, "tools.network.registries is set in the policy of the tenant only")


ASSISTANTS = "/context/assistants"
GOVERNED: list[tuple[str, dict[str, Any]]] = [
    ("approval_policy", {"approval_policy": [{"tool": "bash", "action": "auto"}]}),
    ("approval_policy", {"approval_policy": []}),
    ("approvals", {"approvals": {"approvers": 1}}),
    ("tools.enabled", {"tools": {"enabled": False}}),
    ("tools.allowed_tools", {"tools": {"allowed_tools": None}}),
    ("tools.mcp_servers", {"tools": {"mcp_servers": ["files"]}}),
    ("tools.network", {"tools": {"network": None}}),
    ("tools.on_reject", {"tools": {"on_reject": "feedback"}}),
    ("tools.toolchain", {"tools": {"toolchain": "node-22"}}),
]
"""A change of each field that determines what runs without a decision, of the assistant `strict`."""
STRICT: dict[str, Any] = {
    "approval_policy": [{"tool": "bash", "action": "deny"}],
    "approvals": {"approvers": 2},
    "tools": {"enabled": True, "allowed_tools": ["bash"], "network": {"allow_hosts": ["example.com"]}},
}


@pytest.fixture
def chatting(guarded: Served) -> httpx.AsyncClient:
    """A client of the same tenant with the right `chat` alone."""
    client = guarded.http
    client.headers["authorization"] = f"Bearer {TOKENS['reader']}"
    return client


def refusal(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["message"].partition(":")[0]


@pytest.mark.parametrize(("field", "change"), GOVERNED)
async def test_a_user_who_only_chats_cannot_change_what_runs_without_a_decision(
    guarded: Served, chatting: httpx.AsyncClient, field: str, change: dict[str, Any]
) -> None:
    """R12: over HTTP, on a stored assistant; the error names the field."""
    changed = {**STRICT, **change, "tools": {**STRICT["tools"], **change.get("tools", {})}}
    async with guarded.http as admin, chatting as user:
        made = await admin.post(ASSISTANTS, json={"id": "strict", **STRICT})
        refused = await user.put(f"{ASSISTANTS}/strict", json=changed)
        renamed = await user.put(
            f"{ASSISTANTS}/strict", json={**STRICT, "name": "Mine", "model": "demo:demo"}
        )
        allowed = await admin.put(f"{ASSISTANTS}/strict", json=changed)
        first = f"{ASSISTANTS}/strict/revisions/{made.json()['revision']}/restore"
        restored = await user.post(first)
    assert made.status_code == 201, made.text
    assert refusal(refused) == refusal(restored) == (403, field)
    assert (renamed.status_code, allowed.status_code) == (200, 200)


async def test_a_user_who_only_chats_cannot_replace_a_policy_by_a_new_assistant(
    guarded: Served, chatting: httpx.AsyncClient
) -> None:
    """Neither with a policy of its own, nor by deleting one, nor by a reset of the first assistant."""
    rule = {"tool": "*", "action": "auto"}
    async with guarded.http as admin, chatting as user:
        loose = await user.post(ASSISTANTS, json={"id": "loose", "approval_policy": [rule]})
        tools = await user.post(ASSISTANTS, json={"id": "loose", "tools": {"enabled": True}})
        plain = await user.post(ASSISTANTS, json={"id": "plain", "name": "Plain"})
        gone = await user.delete(f"{ASSISTANTS}/plain")
        assert (await admin.put(f"{ASSISTANTS}/default", json=STRICT)).status_code == 200
        reset = await user.delete(f"{ASSISTANTS}/default")
        kept = (await admin.get(f"{ASSISTANTS}/default")).json()
    assert (refusal(loose), refusal(tools)) == ((403, "approval_policy"), (403, "tools.enabled"))
    assert (plain.status_code, gone.status_code) == (201, 204)
    assert refusal(reset) == (403, "approval_policy") and kept["approvals"]["approvers"] == 2


async def test_the_policy_is_read_and_replaced_over_nats(gateway: Served, bus: Bus, tenant: str) -> None:
    body = b'{"rules": [{"tool": "bash", "action": "deny"}]}'
    stored = await requested(bus, tenant, "policy", "update", body=body)
    assert await requested(bus, tenant, "policy", "read") == stored
    assert b'"action":"deny"' in stored


async def remembered_request(served: Served, agent: Agent, scope: str) -> tuple[str, str]:
    """Return conversation and id of an approval request whose decision is about to be remembered."""
    async with served.http as http:
        made = await http.post("/context/conversations", json={"title": "The crane"})
        conversation: str = made.json()["conversation_id"]
        await http.post(f"/context/conversations/{conversation}/runs", json={"content": "hi"})
        start = await agent.started(conversation)
        await agent.begin(start)
        request = await agent.request_approval(start, "make")
        decision = {"all": "approve", "remember": scope}
        decided = await http.post(f"/context/approvals/{request.approval_id}", json=decision)
    assert decided.status_code == 200
    await agent.resolve(request)
    return conversation, request.approval_id


async def test_remembered_decisions_are_listed_with_who_when_and_what(gateway: Served, agent: Agent) -> None:
    """R13: those of a run are listed while it is open, those of a conversation until they are withdrawn."""
    conversation, approval_id = await remembered_request(gateway, agent, "conversation")
    async with gateway.http as http:
        (listed,) = (await http.get("/context/remembered")).json()["items"]
        assert (await http.delete(f"/context/conversations/{conversation}")).status_code == 204
        left = (await http.get("/context/remembered")).json()["items"]
    assert (listed["approval_id"], listed["by"], listed["scope"]) == (approval_id, "local", "conversation")
    assert (listed["title"], listed["conversation_id"]) == ("The crane", conversation)
    covers = {"by": "command", "words": "every call of bash with exactly this command"}
    call = {"tool": "bash", "arguments": {"command": "make"}, "decision": "approve"}
    assert listed["calls"] == [{**call, "covers": covers}]
    assert left == []


async def test_only_an_approver_of_the_tenant_withdraws_a_remembered_decision(
    guarded: Served, agent: Agent
) -> None:
    _, approval_id = await remembered_request(guarded, agent, "conversation")
    path = f"/context/remembered/{approval_id}"
    async with guarded.http as http:
        for user, status in (("reader", 403), ("bob", 404)):
            http.headers["authorization"] = f"Bearer {TOKENS[user]}"
            assert (await http.delete(path)).status_code == status
        assert (await http.get("/context/remembered")).json()["items"] == []


async def test_a_decision_is_withdrawn_over_nats(
    gateway: Served, agent: Agent, bus: Bus, tenant: str
) -> None:
    """R114: the reply comes when the log has it."""
    conversation, approval_id = await remembered_request(gateway, agent, "conversation")
    assert approval_id.encode() in await requested(bus, tenant, "remembered", "list")
    async with asyncio.TaskGroup() as group:
        withdrawn = group.create_task(requested(bus, tenant, "remembered", "withdraw", approval_id))
        group.create_task(agent.forget(conversation, approval_id))
    assert withdrawn.result() == b'{"id":"%s"}' % approval_id.encode()
    assert approval_id.encode() not in await requested(bus, tenant, "remembered", "list")
    again = await requested(bus, tenant, "remembered", "withdraw", approval_id)
    assert b"not_found" in again
