"""`POST /mcp` with the client of the official SDK, in the current and the earlier form of the protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from tests.gateway.conftest import TOKENS, Agent, GatewayFactory, Served, key_of
from tests.gateway.played_workflows import play_workflows
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S, deadline

from banksman.bus.jetstream import last_message
from banksman.bus.names import WORKFLOWS
from banksman.contracts import subjects
from banksman.contracts.events import IterationStarted, ToolCallRequested
from banksman.contracts.ids import new_id
from banksman.contracts.tools import ToolCall
from banksman.contracts.work import StartRun

ERAS = ("auto", "legacy")
READS = {"read_run", "list_approvals", "list_inputs", "list_workflows"}
CHATS = {"start_run", "cancel_run", "start_workflow"}
DECIDES = {"decide_approval", "provide_input"}


@asynccontextmanager
async def connected(served: Served, token: str | None = None, mode: str = "auto") -> AsyncGenerator[Client]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with httpx2.AsyncClient(headers=headers, timeout=WAIT_TIMEOUT_S) as http:
        transport = streamable_http_client(f"{served.url}/mcp", http_client=http)
        async with Client(transport, mode=mode, cache=None) as client:
            yield client


async def call(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result.content
    assert result.structured_content == json.loads(result.content[0].text)  # type: ignore[union-attr]
    return result.structured_content


async def refused(client: Client, name: str, **arguments: Any) -> str:
    result = await client.call_tool(name, arguments)
    assert result.is_error
    return result.content[0].text  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", ERAS)
async def test_a_run_is_started_followed_and_read(gateway: Served, agent: Agent, mode: str) -> None:
    async with connected(gateway, mode=mode) as client:
        begun = await call(client, "start_run", message="Hello", wait_s=0)
        start = await agent.started(begun["conversation_id"])
        steps: list[tuple[float, str | None]] = []
        first, working = asyncio.Event(), asyncio.Event()

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            steps.append((progress, message))
            first.set()
            if message == "calls bash":
                working.set()

        reading = asyncio.create_task(
            client.call_tool(
                "read_run", {"run_id": begun["run_id"], "wait_s": 45}, progress_callback=on_progress
            )
        )
        await agent.begin(start)
        n = 1
        # The client may subscribe late, so iterations are committed until it receives the first one.
        async with deadline("the client received no progress"):
            while not first.is_set():
                n += 1
                await agent.commit(start.conversation_id, start.run_id, IterationStarted(n=n, max=1000))
                await asyncio.wait((asyncio.create_task(first.wait()),), timeout=0.05)
        called = ToolCall(id=new_id("k"), name="bash", arguments={"command": "ls"})
        await agent.commit(start.conversation_id, start.run_id, ToolCallRequested(call=called))
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await working.wait()
        await agent.finish(start, "Done.")
        async with deadline("read_run did not return after the end of the run"):
            ended = await reading
        again = await call(client, "read_run", run_id=begun["run_id"])

    assert begun["status"] == "queued"
    assert "read_run" in begun["next"]
    assert ended.structured_content is not None
    assert (ended.structured_content["status"], ended.structured_content["content"]) == ("completed", "Done.")
    assert again == ended.structured_content
    numbers = [progress for progress, _ in steps]
    assert numbers == sorted(set(numbers))
    assert steps[0][1] is not None
    assert steps[0][1].startswith("iteration ")


async def test_a_start_waits_for_the_outcome_and_a_repeat_starts_nothing(
    gateway: Served, agent: Agent
) -> None:
    async with connected(gateway) as client:
        conversation = await call(client, "start_run", message="first", wait_s=0)
        await agent.begin(start := await agent.started(conversation["conversation_id"]))
        await agent.finish(start)
        again = {
            "message": "second",
            "conversation_id": conversation["conversation_id"],
            "request_id": "same",
            "wait_s": 45,
        }
        waiting = asyncio.create_task(call(client, "start_run", **again))

        async def second() -> StartRun | None:
            found = await agent.started(conversation["conversation_id"])
            return found if found.content == "second" else None

        start = await eventually(second)
        await agent.begin(start)
        await agent.finish(start, "Second.")
        ended = await waiting
        repeated = await call(client, "start_run", **again)

    assert (ended["content"], ended["run_id"]) == ("Second.", start.run_id)
    assert repeated == ended


async def test_a_run_that_needs_a_decision_returns_at_once_and_is_decided(
    gateway: Served, agent: Agent
) -> None:
    async with connected(gateway) as client:
        begun = await call(client, "start_run", message="List files", wait_s=0)
        await agent.begin(start := await agent.started(begun["conversation_id"]))
        request = await agent.request_approval(start, "ls -la")
        parked = await call(client, "read_run", run_id=begun["run_id"], wait_s=45)
        listed = await call(client, "list_approvals")
        mistaken = await refused(client, "decide_approval", approval_id=request.approval_id)
        shown = {"approval_id": request.approval_id, "decision": "approve"}
        other = await refused(client, "decide_approval", digests=["0" * 64], **shown)
        decided = await call(
            client, "decide_approval", digests=[item.digest for item in request.items], **shown
        )
        late = await call(client, "decide_approval", approval_id=request.approval_id, decision="reject")

    assert (parked["status"], "decide_approval" in parked["next"]) == ("awaiting_approval", True)
    assert parked["pending_approvals"][0]["items"][0]["arguments"] == {"command": "ls -la"}
    assert [one["approval_id"] for one in listed["items"]] == [request.approval_id]
    assert mistaken.startswith("bad_request: decisions")
    assert other.startswith("conflict: ")
    assert (decided["outcome"], decided["already_resolved"]) == ("approved", False)
    assert (late["outcome"], late["already_resolved"]) == ("approved", True)


async def test_a_rejection_says_whether_the_run_goes_on(gateway: Served, agent: Agent) -> None:
    async with connected(gateway) as client:
        begun = await call(client, "start_run", message="List files", wait_s=0)
        await agent.begin(start := await agent.started(begun["conversation_id"]))
        request = await agent.request_approval(start, "ls -la")
        rejection = {"decision": "reject", "on_reject": "feedback"}
        decided = await call(client, "decide_approval", approval_id=request.approval_id, **rejection)

    assert decided["outcome"] == "rejected"
    assert [one.on_reject for one in (await agent.reply(request)).decisions] == ["feedback"]


async def test_a_key_is_offered_the_tools_of_its_rights(start_gateway: GatewayFactory, tenant: str) -> None:
    keys = (
        key_of("alice", tenant, rights=("chat",)),
        key_of("bob", tenant, rights=("approve",)),
        key_of("reader", tenant, rights=("admin",)),
    )
    async with start_gateway(keys=keys) as served:
        names: dict[str, set[str]] = {}
        for user in ("alice", "bob"):
            async with connected(served, TOKENS[user]) as client:
                names[user] = {tool.name for tool in (await client.list_tools()).tools}
        async with connected(served, TOKENS["alice"]) as client:
            with pytest.raises(MCPError, match="unknown tool"):
                await client.call_tool("decide_approval", {"approval_id": "a", "decision": "approve"})
        async with served.http as http:
            statuses = [
                (await http.post("/mcp", headers=headers)).status_code
                for headers in ({}, {"authorization": f"Bearer {TOKENS['reader']}"})
            ]
    assert names == {"alice": READS | CHATS, "bob": READS | DECIDES}
    assert statuses == [401, 403]


async def test_data_of_another_tenant_is_missing(guarded: Served, agent: Agent) -> None:
    async with connected(guarded, TOKENS["alice"]) as client:
        begun = await call(client, "start_run", message="Hello", wait_s=0)
        await agent.begin(start := await agent.started(begun["conversation_id"]))
        request = await agent.request_approval(start)
    async with connected(guarded, TOKENS["bob"]) as client:
        texts = [
            await refused(client, "read_run", run_id=begun["run_id"]),
            await refused(client, "cancel_run", run_id=begun["run_id"]),
            await refused(client, "start_run", message="x", conversation_id=begun["conversation_id"]),
            await refused(client, "decide_approval", approval_id=request.approval_id, decision="approve"),
        ]
        listed = await call(client, "list_approvals")
    assert [text.partition(":")[0] for text in texts] == ["not_found"] * 4
    assert listed["items"] == []


async def test_invalid_calls_and_missing_services_are_results_with_the_reason(gateway: Served) -> None:
    async with connected(gateway) as client:
        texts = [
            await refused(client, "start_run"),
            await refused(client, "start_run", message="x", wait_s=600),
            await refused(client, "read_run", run="r"),
            await refused(client, "list_workflows"),
        ]
    assert texts[0] == "bad_request: message is required."
    assert "wait_s" in texts[1]
    assert "run_id" in texts[2]
    assert texts[3].startswith("unavailable: ")


async def test_a_workflow_is_listed_and_started(gateway: Served, tenant: str) -> None:
    definition = await play_workflows(gateway.bus)
    async with connected(gateway) as client:
        listed = await call(client, "list_workflows")
        begun = await call(
            client, "start_workflow", workflow=definition.name, parameters={"name": "x"}, wait_s=0
        )
    subject = subjects.workflow_run(subjects.SERVED, tenant, begun["conversation_id"])
    message = await last_message(gateway.bus, WORKFLOWS, subject)
    assert [one["name"] for one in listed["items"]] == [definition.name]
    assert begun["status"] == "queued" and "next" in begun
    assert message is not None and json.loads(message.data)["run_id"] == begun["run_id"]


async def test_other_methods_and_origins_are_refused_before_the_protocol(gateway: Served) -> None:
    async with gateway.http as http:
        foreign = await http.post("/mcp", headers={"origin": "https://attacker.example"}, json={})
        listening = await http.get("/mcp", headers={"accept": "text/event-stream"})
        broken = await http.post(
            "/mcp",
            content=b"[" * 100_000,
            headers={"accept": "application/json, text/event-stream", "content-type": "application/json"},
        )
    assert (foreign.status_code, listening.status_code, broken.status_code) == (403, 405, 400)


async def test_a_client_that_leaves_ends_only_its_wait(gateway: Served, agent: Agent) -> None:
    async with connected(gateway) as client:
        begun = await call(client, "start_run", message="Hello", wait_s=0)
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "read_run", "arguments": {"run_id": begun["run_id"], "wait_s": 45}},
    }
    headers = {"accept": "application/json, text/event-stream"}
    async with httpx.AsyncClient(base_url=gateway.url, headers=headers, timeout=0.2) as http:
        with pytest.raises(httpx.ReadTimeout):
            await http.post("/mcp", json=body)
    await agent.begin(start := await agent.started(begun["conversation_id"]))
    await agent.finish(start)
    async with connected(gateway) as client:
        assert (await call(client, "read_run", run_id=begun["run_id"]))["status"] == "completed"
