"""Requests that a user sets aside, and that go to further users: inbox, event and notification."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime

import httpx
import pytest
from tests.gateway.conftest import TOKENS, Agent, GatewayFactory, Served, key_of
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.bus.connection import Bus
from banksman.bus.jetstream import last_message
from banksman.bus.names import RUNS
from banksman.contracts import subjects
from banksman.contracts.work import ApprovalRequest, EscalateApproval


@pytest.fixture
async def team(start_gateway: GatewayFactory, tenant: str) -> AsyncGenerator[Served]:
    """A gateway with alice, and bob, whom escalations name."""
    keys = tuple(key_of(user, tenant, rights=("chat", "approve", "admin")) for user in ("alice", "bob"))
    async with start_gateway(keys=keys) as served:
        yield served


def client(served: Served, user: str) -> httpx.AsyncClient:
    http = served.http
    http.headers["authorization"] = f"Bearer {TOKENS[user]}"
    return http


async def parked(served: Served, agent: Agent, escalation: dict[str, object] | None) -> ApprovalRequest:
    async with client(served, "alice") as http:
        await http.post("/context/assistants", json={"id": "a", "approvals": {"escalation": escalation}})
        made = await http.post("/context/conversations", json={"assistant": "a"})
        conversation = made.json()["conversation_id"]
        await http.post(f"/context/conversations/{conversation}/runs", json={"content": "hi"})
    start = await agent.started(conversation)
    await agent.begin(start)
    return await agent.request_approval(start)


async def for_whom(served: Served) -> list[str]:
    """Return the users whose inbox has the one open request, which both of them can read."""
    found: list[str] = []
    for user in ("alice", "bob"):
        async with client(served, user) as http:
            (item,) = (await http.get("/context/approvals")).json()["items"]
        found += [user] if item["for_you"] else []
    return found


async def test_a_request_that_is_set_aside_leaves_one_inbox_and_stays_open(
    team: Served, agent: Agent
) -> None:
    """R13: it is no rejection. A repeat changes nothing, and a decided request is refused."""
    request = await parked(team, agent, None)
    path = f"/context/approvals/{request.approval_id}"
    async with client(team, "alice") as http:
        statuses = [(await http.post(f"{path}/aside")).status_code for _ in range(2)]
        left = await for_whom(team)
        decided = await http.post(path, json={"all": "approve"})
        late = await http.post(f"{path}/aside")
        unknown = await http.post("/context/approvals/none/aside")
    assert (statuses, left, decided.status_code) == ([204, 204], ["bob"], 200)
    assert (late.status_code, unknown.status_code) == (409, 404)


async def test_a_request_goes_to_named_users_once_it_is_set_aside(
    team: Served, agent: Agent, bus: Bus, tenant: str
) -> None:
    """R13: before that it is not in their inbox. An agent gets the signal, and logs the event."""
    request = await parked(team, agent, {"when_set_aside": True, "users": ["bob"]})
    before = await for_whom(team)
    async with client(team, "alice") as http:
        await http.post(f"/context/approvals/{request.approval_id}/aside")
    stored = await last_message(bus, RUNS, subjects.run_signal(tenant, request.conversation_id))
    assert stored is not None
    signal = EscalateApproval.model_validate_json(stored.data)
    assert (before, await for_whom(team)) == (["alice"], ["bob"])
    assert (signal.approval_id, signal.by) == (request.approval_id, "alice")


async def test_an_undecided_request_goes_to_named_users_after_its_time(team: Served, agent: Agent) -> None:
    """R13: the time is part of the stored request, so that it holds over every restart."""
    request = await parked(team, agent, {"after_s": 0.5, "users": ["bob"]})
    assert request.escalates_at is not None
    assert (request.escalates_at - datetime.now(UTC)).total_seconds() < 1

    async def both() -> bool:
        return await for_whom(team) == ["alice", "bob"]

    await eventually(both, WAIT_TIMEOUT_S)


async def test_a_request_is_set_aside_over_nats(team: Served, agent: Agent, bus: Bus, tenant: str) -> None:
    request = await parked(team, agent, None)
    subject = subjects.api(tenant, "approval", "aside", request.approval_id)
    reply = await bus.request(subject, b"{}", timeout_s=WAIT_TIMEOUT_S)
    async with client(team, "alice") as http:
        (item,) = (await http.get("/context/approvals")).json()["items"]
    assert reply == b'{"id":"%s"}' % request.approval_id.encode()
    assert item["set_aside_by"] == ["nats"]
