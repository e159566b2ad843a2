"""Approval requests that two users must approve, over HTTP, the websocket and NATS."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import SIGNING_KEY, TOKENS, Agent, GatewayFactory, Served, key_of

from banksman.bus.connection import Bus
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.contracts.work import ApprovalRequest
from banksman.runs.approval.requests import problem
from banksman.sdk.client import Client
from banksman.sdk.transports.nats import NatsTransport


@dataclass
class TwoUsers:
    """Two users of one tenant, whose assistant `careful` needs both."""

    gateway: Served
    agent: Agent
    slots: ApprovalSlots

    def http(self, user: str) -> httpx.AsyncClient:
        client = self.gateway.http
        client.headers["authorization"] = f"Bearer {TOKENS[user]}"
        return client

    async def decide(self, user: str, approval_id: str, **body: Any) -> httpx.Response:
        async with self.http(user) as http:
            return await http.post(f"/context/approvals/{approval_id}", json=body)

    async def parked(self, command: str = "rm -rf build") -> ApprovalRequest:
        """Return the stored approval request of a run of the assistant."""
        async with self.http("alice") as http:
            given = {"assistant": "careful", "title": "The crane"}
            conversation = (await http.post("/context/conversations", json=given)).json()["conversation_id"]
            await http.post(f"/context/conversations/{conversation}/runs", json={"content": "clean"})
        start = await self.agent.started(conversation)
        await self.agent.begin(start)
        return await self.agent.request_approval(start, command)

    async def pending(self, user: str = "bob") -> list[dict[str, Any]]:
        async with self.http(user) as http:
            return (await http.get("/context/approvals")).json()["items"]


@pytest.fixture
async def two(start_gateway: GatewayFactory, tenant: str, agent: Agent, bus: Bus) -> AsyncGenerator[TwoUsers]:
    keys = tuple(key_of(user, tenant, rights=("chat", "approve")) for user in ("alice", "bob"))
    async with start_gateway(keys=keys) as served:
        users = TwoUsers(served, agent, ApprovalSlots(bus))
        async with users.http("alice") as http:
            body = {"id": "careful", "approvals": {"approvers": 2}, "tools": {"enabled": True}}
            assert (await http.post("/context/assistants", json=body)).status_code == 201
        yield users


async def test_the_second_user_sees_what_the_first_one_approved_and_decides(
    two: TwoUsers, start_gateway: GatewayFactory, tenant: str
) -> None:
    """R13: after a restart of the gateway too. The same user does not count twice."""
    request = await two.parked()
    first = await two.decide("alice", request.approval_id, all="approve")
    again = await two.decide("alice", request.approval_id, all="approve")
    keys = tuple(key_of(user, tenant) for user in ("alice", "bob"))
    async with start_gateway(keys=keys) as restarted:
        two.gateway = restarted
        (pending,) = await two.pending()
        second = await two.decide(
            "bob",
            request.approval_id,
            decisions=pending["first"]["decisions"],
            digests=[request.items[0].digest],
        )
    _, reply = await two.slots.read(tenant, request.approval_id)
    assert (first.status_code, first.json()["outcome"]) == (202, "awaiting_second")
    assert (again.status_code, "another user" in again.json()["error"]["message"]) == (409, True)
    assert (pending["terms"]["approvers"], pending["first"]["by"]) == (2, "alice")
    assert (second.status_code, second.json()["outcome"], second.json()["resolved_by"]) == (
        200,
        "approved",
        "bob",
    )
    assert reply is not None
    assert problem(reply, request, SIGNING_KEY.encode()) is None


async def test_a_different_approval_is_refused_and_a_rejection_decides(two: TwoUsers) -> None:
    """R13: both users approve exactly the same."""
    request = await two.parked()
    await two.decide("alice", request.approval_id, all="approve")
    other = await two.decide("bob", request.approval_id, all="approve", remember="conversation")
    rejected = await two.decide("bob", request.approval_id, all="reject")
    assert (other.status_code, "exactly the same" in other.json()["error"]["message"]) == (409, True)
    assert (rejected.status_code, rejected.json()["outcome"]) == (200, "rejected")
    assert await two.pending() == []


async def test_two_users_approve_over_different_interfaces(two: TwoUsers, bus: Bus, tenant: str) -> None:
    """R13, R114: the first approval arrives over NATS; the page is notified of it and sends the second."""
    request = await two.parked()
    async with two.gateway.socket("bob") as page:
        await page.request("approvals.subscribe")
        nats = Client(NatsTransport(bus, tenant))
        first = await nats.reply(request.approval_id, all="approve", request_id="once")
        assert await nats.reply(request.approval_id, all="approve", request_id="once") == first
        await page.until_type("approvals.changed")
        (pending,) = await two.pending()
        second = await page.request("approval.reply", approval_id=request.approval_id, all="approve")
    assert (first.outcome, first.resolved_by, pending["first"]["by"]) == ("awaiting_second", None, "nats")
    assert (second["outcome"], second["resolved_by"]) == ("approved", "bob")
