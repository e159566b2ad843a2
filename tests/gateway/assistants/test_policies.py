"""The approval policy of a tenant, and remembered decisions: read, changed and withdrawn."""

from __future__ import annotations

import asyncio

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
    assert listed["calls"] == [{"tool": "bash", "arguments": {"command": "make"}, "decision": "approve"}]
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
