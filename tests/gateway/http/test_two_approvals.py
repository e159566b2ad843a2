"""Approval requests that two users must approve, over HTTP, the websocket and NATS."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import SIGNING_KEY, TOKENS, Agent, GatewayFactory, Served, key_of

from banksman.bus.connection import Bus
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.contracts.approvals import sent_digest
from banksman.contracts.tools import call_digest
from banksman.contracts.work import ApprovalRequest
from banksman.gateway.approvals.links import ApprovalLink, digest_of_calls, signed_link
from banksman.runs.approval.requests import problem
from banksman.sdk.client import Client
from banksman.sdk.transports.nats import NatsTransport

EDITED = "rm -rf build/tmp"


def edit_of(request: ApprovalRequest) -> dict[str, Any]:
    call = request.items[0].tool_call_id
    return {"tool_call_id": call, "decision": "approve", "arguments": {"command": EDITED}}


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

    async def edited(self, *, remember: str | None = None) -> ApprovalRequest:
        """Return a request whose first approver edited the command to `EDITED`."""
        request = await self.parked()
        edit = edit_of(request)
        first = await self.decide("alice", request.approval_id, decisions=[edit], remember=remember)
        assert first.status_code == 202, first.text
        return request

    async def pending(self, user: str = "bob") -> list[dict[str, Any]]:
        async with self.http(user) as http:
            return (await http.get("/context/approvals")).json()["items"]


@pytest.fixture
async def two(start_gateway: GatewayFactory, tenant: str, agent: Agent, bus: Bus) -> AsyncGenerator[TwoUsers]:
    keys = tuple(key_of(user, tenant, rights=("chat", "approve", "admin")) for user in ("alice", "bob"))
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


def content(request: dict[str, Any]) -> tuple[Any, ...]:
    """Return what an approver is sent: what runs instead of what, for how long, for which calls."""
    (item,) = request["items"]
    shown = item["arguments"], item.get("requested"), item["preview"]["command"], item["covers"]["words"]
    return *shown, request["first"]["by"], request["first"]["remember"], item["digest"]


async def test_every_interface_sends_the_second_user_what_will_run_and_for_how_long(
    two: TwoUsers, bus: Bus, tenant: str
) -> None:
    """R13, P4: HTTP, the websocket, NATS, AG-UI and A2A send the edited call, the requested one and scope."""
    request = await two.edited(remember="conversation")
    conversation, run = request.conversation_id, request.run_id
    (listed,) = await two.pending()
    async with two.http("bob") as http:
        opened = (await http.get(f"/context/conversations/{conversation}")).json()["pending_approvals"]
        of_run = (await http.get(f"/context/runs/{run}")).json()["pending_approvals"]
        loaded = await http.post("/agui", json={"threadId": conversation, "runId": "r", "messages": []})
        a2a = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": run}}
        task = (await http.post("/a2a", json=a2a, headers={"a2a-version": "1.0"})).json()
    async with two.gateway.socket("bob") as page:
        frame = await page.request("subscribe", conversation_id=conversation)
    (over_nats,) = json.loads(await bus.request(f"api.{tenant}.approval.list", b"{}", 5.0))["items"]
    digest = sent_digest(call_digest("bash", {"command": EDITED}), remember="conversation")
    words = "every call of bash with exactly this command"
    expected = (
        {"command": EDITED},
        {"command": "rm -rf build"},
        EDITED,
        words,
        "alice",
        "conversation",
        digest,
    )
    for sent in (listed, *opened, *of_run, *frame["pending_approvals"], over_nats):
        assert content(sent) == expected
    assert digest in loaded.text
    assert digest in json.dumps(task)


async def test_the_second_user_approves_over_agui_what_it_was_sent(two: TwoUsers, tenant: str) -> None:
    """R13, P4: the id of the interrupt names the content; an id from before the edit is refused."""
    request = await two.parked()
    thread, call = request.conversation_id, request.items[0].tool_call_id
    await two.decide("alice", request.approval_id, decisions=[edit_of(request)], remember="run")
    (pending,) = await two.pending()
    old = f"{request.approval_id}/{call}"
    current = f"{old}/{pending['items'][0]['digest']}"
    async with two.http("bob") as http:
        body = {"threadId": thread, "runId": "r1", "messages": []}
        loaded = await http.post("/agui", json=body)
        stale = await http.post("/agui", json={**body, "runId": "r2", "resume": [approved(old)]})
        # The run has no agent that would end the stream.
        resumed = {**body, "runId": "r3", "resume": [approved(current)]}
        async with http.stream("POST", "/agui", json=resumed) as stream:
            assert stream.status_code == 200
    _, reply = await two.slots.read(tenant, request.approval_id)
    assert current in loaded.text
    assert (stale.status_code, "another content" in stale.text) == (409, True)
    assert reply is not None
    assert (reply.by, reply.decisions[0].arguments) == ("bob", {"command": EDITED})


def approved(interrupt: str) -> dict[str, Any]:
    return {"interruptId": interrupt, "status": "resolved", "payload": {"approved": True}}


@pytest.mark.parametrize("remember", [None, "run"])
async def test_a_decision_on_content_that_was_not_sent_gets_the_current_content(
    two: TwoUsers, remember: str | None, bus: Bus, tenant: str
) -> None:
    """R13, P4: over HTTP, the websocket and NATS: without digests, with old ones, with repeated arguments."""
    request = await two.edited(remember=remember)
    id, old = request.approval_id, [request.items[0].digest]
    (pending,) = await two.pending()
    repeated = {"decisions": pending["first"]["decisions"], "remember": remember}
    refused = [
        await two.decide("bob", id, all="approve"),
        await two.decide("bob", id, all="approve", digests=old),
        await two.decide("bob", id, **repeated),
        await two.decide("bob", id, **repeated, digests=old),
        await two.decide("bob", id, all="reject", digests=["x"]),
    ]
    async with two.gateway.socket("bob") as page:
        frame = await page.request("approval.reply", approval_id=id, all="approve", digests=old)
    nats = json.loads(await bus.request(f"api.{tenant}.approval.reply.{id}", b'{"all": "approve"}', 5.0))
    bodies = [one.json()["error"] for one in refused]
    assert {one.status_code for one in refused} == {409}
    for error in (*bodies, frame, nats):
        assert (error["code"], content(error["details"]["approval"])) == ("conflict", content(pending))
    decided = await two.decide("bob", id, all="approve", digests=[pending["items"][0]["digest"]])
    _, reply = await two.slots.read(tenant, id)
    assert (decided.status_code, decided.json()["outcome"]) == (200, "approved")
    assert reply is not None
    assert (reply.decisions[0].arguments, reply.remember) == ({"command": EDITED}, remember)
    assert problem(reply, request, SIGNING_KEY.encode()) is None


async def test_a_scope_alone_changes_the_content(two: TwoUsers) -> None:
    """R13, P4: the first user changed no argument, and remembers the decision."""
    request = await two.parked()
    await two.decide("alice", request.approval_id, all="approve", remember="conversation")
    stale = await two.decide("bob", request.approval_id, all="approve", digests=[request.items[0].digest])
    (pending,) = await two.pending()
    digests = [pending["items"][0]["digest"]]
    shorter = await two.decide("bob", request.approval_id, all="approve", remember="run", digests=digests)
    same = await two.decide("bob", request.approval_id, all="approve", digests=digests)
    assert [one.status_code for one in (stale, shorter, same)] == [409, 409, 200]
    assert pending["items"][0]["digest"] != request.items[0].digest


async def test_a_link_from_before_an_edit_approves_nothing_that_was_not_shown(
    two: TwoUsers, tenant: str
) -> None:
    """R13, P4: a refused decision does not use the link up."""
    request = await two.parked()
    link = ApprovalLink(
        tenant=tenant,
        approval_id=request.approval_id,
        calls=digest_of_calls([item.digest for item in request.items]),
        recipient="w1",
        expires_at=request.expires_at,
    )
    signed = signed_link(link, SIGNING_KEY.encode())
    edit = {
        "tool_call_id": request.items[0].tool_call_id,
        "decision": "approve",
        "arguments": {"command": EDITED},
    }
    await two.decide("alice", request.approval_id, decisions=[edit])
    refused = await two.decide("bob", request.approval_id, all="approve", link=signed)
    (pending,) = await two.pending()
    digests = [pending["items"][0]["digest"]]
    decided = await two.decide("bob", request.approval_id, all="approve", link=signed, digests=digests)
    assert (refused.status_code, "details" in refused.json()["error"]) == (409, True)
    assert (decided.status_code, decided.json()["outcome"]) == (200, "approved")


async def test_two_users_who_decide_at_once_never_approve_what_only_one_was_sent(two: TwoUsers) -> None:
    """R13, P4: of an edit and a plain approval at the same time, one is refused."""
    for _ in range(4):
        request = await two.parked()
        id, digests = request.approval_id, [request.items[0].digest]
        async with asyncio.TaskGroup() as group:
            alice = group.create_task(two.decide("alice", id, decisions=[edit_of(request)], digests=digests))
            bob = group.create_task(two.decide("bob", id, all="approve", digests=digests))
        assert sorted((alice.result().status_code, bob.result().status_code)) == [202, 409]
