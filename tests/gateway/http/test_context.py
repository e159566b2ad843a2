from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import TOKENS, Agent, GatewayFactory, Served, key_of
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman import sdk
from banksman.bus.jetstream import last_message
from banksman.bus.messages import Message
from banksman.bus.names import DAMAGED, RUNS
from banksman.bus.publish import RunQueue
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.bus.storage.kv import Bucket
from banksman.cli.machine import free_port
from banksman.contracts import subjects
from banksman.contracts.administration import DamagedLog
from banksman.contracts.events import IterationStarted, ToolCallCompleted, ToolCallRequested
from banksman.contracts.ids import approval_id_for, new_id
from banksman.contracts.registry import StartWorkflow, ToolPolicy
from banksman.contracts.tools import ToolCall, ToolResult


async def _conversation(http: httpx.AsyncClient, **body: Any) -> str:
    response = await http.post("/context/conversations", json=body)
    assert response.status_code == 201, response.text
    return response.json()["conversation_id"]


async def test_conversations_are_created_listed_searched_renamed_and_deleted(gateway: Served) -> None:
    async with gateway.http as http:
        first = await _conversation(http, title="About cranes")
        second = await _conversation(http, title="About loads")
        listed = (await http.get("/context/conversations")).json()
        found = (await http.get("/context/conversations", params={"q": "CRANE"})).json()
        renamed = await http.patch(f"/context/conversations/{first}", json={"title": "Signals"})
        read = (await http.get(f"/context/conversations/{first}")).json()
        deleted = await http.delete(f"/context/conversations/{second}")
        gone = await http.get(f"/context/conversations/{second}")
        left = (await http.get("/context/conversations")).json()
    assert [item["conversation_id"] for item in listed["items"]] == [second, first]
    assert set(listed["items"][0]) >= {"conversation_id", "title", "status", "updated_at"}
    assert [item["title"] for item in found["items"]] == ["About cranes"]
    assert (renamed.json()["title"], read["title"], read["status"]) == ("Signals", "Signals", "idle")
    assert (deleted.status_code, gone.status_code) == (204, 404)
    assert "content-type" not in deleted.headers
    assert gone.json()["error"]["code"] == "not_found"
    assert [item["conversation_id"] for item in left["items"]] == [first]


async def test_conversations_are_listed_page_by_page(gateway: Served) -> None:
    async with gateway.http as http:
        made = [await _conversation(http, title=f"number {number}") for number in range(5)]
        seen: list[str] = []
        cursor: str | None = None
        while True:
            query = {"limit": 2} | ({"cursor": cursor} if cursor else {})
            page = (await http.get("/context/conversations", params=query)).json()
            seen += [item["conversation_id"] for item in page["items"]]
            cursor = page["next"]
            if cursor is None:
                break
    assert seen == made[::-1]


async def test_a_run_is_started_and_read_until_its_outcome(gateway: Served, agent: Agent) -> None:
    async with gateway.http as http:
        conversation = await _conversation(http)
        accepted = await http.post(f"/context/conversations/{conversation}/runs", json={"content": "hi"})
        run = accepted.json()["run_id"]
        waiting = (await http.get(f"/context/runs/{run}")).json()
        start = await agent.started(conversation)
        await agent.begin(start)
        running = (await http.get(f"/context/runs/{run}")).json()
        await agent.finish(start, "Done.")
        ended = (await http.get(f"/context/runs/{run}")).json()
        listed = (await http.get(f"/context/conversations/{conversation}/runs")).json()
        events = (await http.get(f"/context/conversations/{conversation}/events?after_seq=1")).json()
        titled = (await http.get(f"/context/conversations/{conversation}")).json()
    assert (accepted.status_code, accepted.json()["conversation_id"]) == (202, conversation)
    assert (waiting["status"], running["status"], ended["status"]) == ("queued", "running", "completed")
    assert (ended["content"], ended["service"], ended["tool_calls"]) == ("Done.", "banksman", [])
    assert ended["max_iterations_reached"] is False
    assert [item["run_id"] for item in listed["items"]] == [run]
    assert [(frame["seq"], frame["prev_seq"]) for frame in events["items"]] == [(2, 1), (3, 2), (4, 3)]
    assert (titled["title"], titled["head_seq"]) == ("hi", 4)


async def test_a_path_that_ends_with_a_slash_is_unknown(gateway: Served) -> None:
    async with gateway.http as http:
        responses = [await http.get(path) for path in ("/healthz/", "/context/conversations/")]
    found = [(response.status_code, response.json()["error"]["code"]) for response in responses]
    assert found == [(404, "unknown_url")] * 2


async def test_a_position_beyond_the_last_event_is_refused(gateway: Served, agent: Agent) -> None:
    """A client that polls notices so that the log was restored from a backup."""
    async with gateway.http as http:
        conversation = await _conversation(http)
        await http.post(f"/context/conversations/{conversation}/runs", json={"content": "hi"})
        await agent.begin(await agent.started(conversation))
        path = f"/context/conversations/{conversation}/events"
        last = await http.get(path, params={"after_seq": 2})
        beyond = await http.get(path, params={"after_seq": 3})
    error = beyond.json()["error"]
    assert (last.status_code, last.json()["items"]) == (200, [])
    assert (beyond.status_code, error["code"], error["field"]) == (400, "bad_request", "after_seq")
    assert error["message"] == "after_seq: expected at most 2, the number of the last event, got 3"


async def test_a_workflow_run_is_queued_until_a_service_takes_it(gateway: Served) -> None:
    """R112: its start is stored, and no log has it yet."""
    async with gateway.http as http:
        conversation = await _conversation(http)
        start = StartWorkflow(
            tenant=gateway.tenant,
            workflow="create_project",
            conversation_id=conversation,
            run_id=f"{conversation}-000000000001",
            message_id=new_id("m"),
            parameters={"name": "demo"},
            user="ann",
            tools=ToolPolicy(),
        )
        await RunQueue(gateway.bus).start_workflow(start)
        run = await http.get(f"/context/runs/{start.run_id}")
        other = await http.get(f"/context/runs/{conversation}-000000000002")
    assert (run.status_code, other.status_code) == (200, 404), run.text
    assert (run.json()["status"], run.json()["model"]) == ("queued", "workflow:create_project")


async def test_waiting_for_a_run_returns_its_outcome(gateway: Served, agent: Agent) -> None:
    async with gateway.http as http, asyncio.TaskGroup() as group:
        conversation = await _conversation(http)
        path = f"/context/conversations/{conversation}/runs"
        early = await http.post(path, json={"content": "hi"}, params={"wait_s": 0.1})
        start = await agent.started(conversation)
        await agent.begin(start)
        waiting = group.create_task(http.get(f"/context/runs/{start.run_id}", params={"wait_s": 5}))
        await agent.finish(start, "Done.")
        outcome = (await waiting).json()
        longer = await http.get(f"/context/runs/{start.run_id}", params={"wait_s": 61})
    assert (longer.status_code, longer.json()["error"]["field"]) == (400, "wait_s")
    assert (early.status_code, early.json()["status"]) == (202, "queued")
    assert (outcome["status"], outcome["content"]) == ("completed", "Done.")


async def test_a_run_is_streamed_as_the_frames_of_the_websocket(gateway: Served, agent: Agent) -> None:
    async with gateway.http as http:
        conversation = await _conversation(http)
        path = f"/context/conversations/{conversation}/runs?detail=steps"
        headers = {"accept": "text/event-stream"}
        async with http.stream("POST", path, json={"content": "hi"}, headers=headers) as response:
            start = await agent.started(conversation)
            await agent.begin(start)
            await agent.finish(start)
            lines = [line async for line in response.aiter_lines() if line.startswith("data: ")]
    frames = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["banksman-run-id"] == start.run_id
    assert [(frame["seq"], frame["type"]) for frame in frames] == [
        (1, "run.started"),
        (2, "iteration.started"),
        (3, "message.completed"),
        (4, "run.finished"),
    ]


async def test_a_stream_ends_when_its_log_is_found_damaged(gateway: Served, agent: Agent) -> None:
    """A client would receive keep-alives for as long as it waits."""
    async with gateway.http as http:
        conversation = await _conversation(http)
        path = f"/context/conversations/{conversation}/runs?detail=steps"
        bucket, key = Bucket(agent.bus, DAMAGED, DamagedLog), f"{agent.tenant}.{conversation}"
        damage = DamagedLog(
            tenant=agent.tenant, conversation_id=conversation, problem="a gap", found_at=datetime.now(UTC)
        )
        lines: list[str] = []
        headers = {"accept": "text/event-stream"}
        try:
            async with http.stream("POST", path, json={"content": "hi"}, headers=headers) as response:
                await agent.begin(await agent.started(conversation))
                async for line in response.aiter_lines():
                    lines.append(line)
                    if line == "event: run.started":
                        await bucket.put(key, damage)
        finally:
            await bucket.delete(key)
    assert "event: resync_required" in lines


async def test_disconnecting_from_a_stream_cancels_the_run_that_it_started(
    gateway: Served, agent: Agent, tenant: str
) -> None:
    async with gateway.http as http:
        conversation = await _conversation(http)
        nudged = asyncio.Event()

        async def nudge(_message: Message) -> None:
            nudged.set()

        await gateway.bus.subscribe(subjects.cancel_hint(tenant, conversation), nudge)
        path = f"/context/conversations/{conversation}/runs"
        headers = {"accept": "text/event-stream"}
        async with http.stream("POST", path, json={"content": "hi"}, headers=headers):
            start = await agent.started(conversation)
            await agent.begin(start)
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        await nudged.wait()
    message = await last_message(gateway.bus, RUNS, subjects.run_signal(tenant, conversation))
    assert message is not None
    assert json.loads(message.data)["run_id"] == start.run_id


async def test_chat_starts_a_run_in_a_new_conversation(gateway: Served, agent: Agent) -> None:
    async with gateway.http as http:
        headers = {"idempotency-key": new_id("key")}
        first = await http.post("/v1/chat", json={"content": "hi"}, headers=headers)
        again = await http.post("/v1/chat", json={"content": "hi"}, headers=headers)
        other = await http.post("/v1/chat", json={"content": "bye"}, headers=headers)
    assert first.status_code == 202
    assert again.json() == first.json()
    assert other.status_code == 409


async def test_approvals_are_listed_and_decided(gateway: Served, agent: Agent) -> None:
    async with gateway.http as http:
        conversation = await _conversation(http)
        await http.post(f"/context/conversations/{conversation}/runs", json={"content": "list"})
        start = await agent.started(conversation)
        await agent.begin(start)
        request = await agent.request_approval(start)
        pending = (await http.get("/context/approvals")).json()["items"]
        run = (await http.get(f"/context/runs/{start.run_id}")).json()
        decision = {"tool_call_id": request.items[0].tool_call_id, "decision": "reject", "reason": "no"}
        decided = await http.post(f"/context/approvals/{request.approval_id}", json={"decisions": [decision]})
        late = await http.post(f"/context/approvals/{request.approval_id}", json={"all": "approve"})
        left = (await http.get("/context/approvals")).json()["items"]
    assert [item["approval_id"] for item in pending] == [request.approval_id]
    assert pending[0]["items"][0]["digest"] == request.items[0].digest
    assert run["status"] == "awaiting_approval"
    assert run["pending_approvals"][0]["approval_id"] == request.approval_id
    assert (decided.json()["outcome"], decided.json()["already_resolved"]) == ("rejected", False)
    assert (late.status_code, late.json()["error"]["code"]) == (409, "conflict")
    assert (late.json()["outcome"], late.json()["already_resolved"]) == ("rejected", True)
    assert left == []


@pytest.mark.parametrize(("decided", "outcome"), [("reject", "rejected"), ("approve", "approved")])
async def test_a_repeated_decision_returns_the_winning_decision_of_another_request(
    gateway: Served, agent: Agent, decided: str, outcome: str
) -> None:
    """P3: between two attempts of a request, another request of the same user approves or rejects."""
    again = {"idempotency-key": new_id("key")}
    async with gateway.http as http:
        conversation = await _conversation(http)
        await http.post(f"/context/conversations/{conversation}/runs", json={"content": "list"})
        start = await agent.started(conversation)
        await agent.begin(start)
        request = await agent.log_approval_request(start)
        approval = f"/context/approvals/{request.approval_id}"
        early = await http.post(approval, json={"all": "approve"}, headers=again, timeout=30)
        await ApprovalSlots(agent.bus).store_request(request)
        other = await http.post(approval, json={"all": decided})
        lost = await http.post(approval, json={"all": "approve"}, headers=again)
    assert (early.status_code, early.json()["error"]["code"]) == (503, "not_ready")
    assert (other.status_code, other.json()["outcome"]) == (200, outcome)
    assert lost.status_code == 409
    assert (lost.json()["outcome"], lost.json()["already_resolved"]) == (outcome, True)


async def test_a_decision_waits_for_a_request_that_is_in_the_log_only(gateway: Served, agent: Agent) -> None:
    """An agent logs a request before it stores it, and clients read the log."""
    async with gateway.http as http:
        conversation = await _conversation(http)
        await http.post(f"/context/conversations/{conversation}/runs", json={"content": "list"})
        request = await agent.log_approval_request(await agent.started(conversation))
        path = f"/context/approvals/{request.approval_id}"
        async with asyncio.TaskGroup() as group:
            decided = group.create_task(http.post(path, json={"all": "approve"}))
            await http.get(f"/context/conversations/{conversation}")
            group.create_task(ApprovalSlots(agent.bus).store_request(request))
    assert (decided.result().status_code, decided.result().json()["outcome"]) == (200, "approved")


@pytest.mark.parametrize("known", ["unknown", "of_no_run", "of_another_tenant", "of_an_ended_run"])
async def test_an_unknown_or_foreign_approval_is_refused_at_once(
    guarded: Served, agent: Agent, known: str
) -> None:
    """Two seconds are less than the wait for a request that is in the log only."""
    bob = {"authorization": f"Bearer {TOKENS['bob']}"}
    async with guarded.http as http:
        conversation = await _conversation(http)
        await http.post(f"/context/conversations/{conversation}/runs", json={"content": "list"})
        start = await agent.started(conversation)
        request = await agent.log_approval_request(start)
        if known == "of_an_ended_run":
            await agent.finish(start)
        path, headers = {
            "unknown": (new_id("a"), {}),
            "of_no_run": (approval_id_for(start.run_id), {}),
            "of_another_tenant": (request.approval_id, bob),
            "of_an_ended_run": (request.approval_id, {}),
        }[known]
        async with asyncio.timeout(2):
            refused = await http.post(f"/context/approvals/{path}", json={"all": "approve"}, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")


async def test_a_repeated_decision_that_is_stored_is_accepted_again(gateway: Served, agent: Agent) -> None:
    """P3, P14: the response to the first attempt was lost."""
    async with gateway.http as http:
        conversation = await _conversation(http)
        await http.post(f"/context/conversations/{conversation}/runs", json={"content": "list"})
        start = await agent.started(conversation)
        await agent.begin(start)
        request = await agent.request_approval(start)
        item = {"tool_call_id": request.items[0].tool_call_id, "decision": "approve"}
        decision = {"decisions": [{**item, "arguments": {"command": "ls"}}]}
        again = {"idempotency-key": new_id("key")}
        responses = [
            await http.post(f"/context/approvals/{request.approval_id}", json=decision, headers=again)
            for _ in range(2)
        ]
    assert [response.status_code for response in responses] == [200, 200]
    assert responses[0].json() == responses[1].json()


async def test_an_unsupported_method_is_refused_with_the_supported_methods(gateway: Served) -> None:
    async with gateway.http as http:
        many = await http.put("/context/conversations")
        one = await http.delete("/v1/chat")
    assert (many.headers["allow"], one.headers["allow"]) == ("GET, POST", "POST")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/context/conversations/nobody", 404, "not_found"),
        ("GET", "/context/conversations/a.b", 400, "bad_request"),
        ("GET", "/context/runs/nobody", 400, "bad_request"),
        ("GET", "/context/runs/nobody-0123456789ab", 404, "not_found"),
        ("GET", "/context/conversations?limit=x", 400, "bad_request"),
        ("GET", "/context/nothing", 404, "unknown_url"),
        ("PUT", "/context/conversations", 405, "method_not_allowed"),
    ],
)
async def test_errors_have_a_status_a_code_and_a_message(
    gateway: Served, method: str, path: str, status: int, code: str
) -> None:
    async with gateway.http as http:
        response = await http.request(method, path)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", "body"),
        (b'{"title": 5}', "title"),
        (b'{"colour": "x"}', "colour"),
        (b'{"title": "x", "title": "y"}', "body"),
        (b'{"assistant": "a b"}', "assistant"),
    ],
)
async def test_an_invalid_body_is_refused_with_the_name_of_the_field(
    gateway: Served, body: bytes, field: str
) -> None:
    async with gateway.http as http:
        response = await http.post("/context/conversations", content=body)
    assert (response.status_code, response.json()["error"]["field"]) == (400, field)


async def test_a_body_that_is_too_large_is_refused(gateway: Served) -> None:
    async with gateway.http as http:
        response = await http.post("/context/conversations", content=b" " * (10 * 1024 * 1024 + 1))
    assert (response.status_code, response.json()["error"]["code"]) == (413, "too_large")


async def test_only_a_declared_upload_may_be_larger_than_a_body(start_gateway: GatewayFactory) -> None:
    async with start_gateway(max_body_bytes=100, max_upload_bytes=1000) as gateway, gateway.http as http:
        upload = await http.put("/context/conversations/c1/files/a.txt", content=b" " * 1000)
        larger = await http.put("/context/conversations/c1/files/a.txt", content=b" " * 1001)
        other = await http.put("/context/schedules/files/a.txt", content=b" " * 101)
    assert (upload.status_code, larger.status_code, other.status_code) == (404, 413, 413)


async def test_an_api_key_is_valid_for_its_own_tenant_only(guarded: Served) -> None:
    async with guarded.http as http:
        conversation = await _conversation(http)
        without = await http.get("/context/conversations", headers={"authorization": ""})
        bob = {"authorization": f"Bearer {TOKENS['bob']}"}
        foreign = await http.get(f"/context/conversations/{conversation}", headers=bob)
        listed = (await http.get("/context/conversations", headers=bob)).json()
    assert (without.status_code, without.json()["error"]["code"]) == (401, "unauthorized")
    assert foreign.status_code == 404
    assert listed["items"] == []


async def test_a_request_without_a_key_is_refused_before_its_body_is_read(guarded: Served) -> None:
    port = guarded.running.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = ("POST /context/conversations HTTP/1.1", f"Host: 127.0.0.1:{port}", "Content-Length: 1000", "", "")
    writer.write("\r\n".join(head).encode())
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        status = await reader.readline()
    writer.close()
    assert status.split()[1] == b"401"


async def test_a_keyless_gateway_serves_host_names_of_this_machine_only(gateway: Served) -> None:
    async with gateway.http as http:
        rebound = {
            host: (await http.get("/context/conversations", headers={"host": host})).status_code
            for host in ("evil.example.org", "127.0.0.1:80.evil.example.org", "127.0.0.1:x", "a@127.0.0.1")
        }
        own = await http.get("/context/conversations", headers={"host": "LOCALHOST:8950"})
        forged = await http.post(
            "/context/conversations", json={}, headers={"origin": "https://evil.example.org"}
        )
    assert (set(rebound.values()), own.status_code, forged.status_code) == ({403}, 200, 403), rebound


async def test_readiness_and_page_are_served(gateway: Served) -> None:
    async with gateway.http as http:
        ready = await http.get("/readyz")
        page = await http.get("/")
    assert (ready.status_code, ready.json()) == (200, {"ready": True})
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]


async def test_reasons_and_metrics_are_served_on_the_health_port_alone(
    start_gateway: GatewayFactory, tenant: str
) -> None:
    health_port = free_port()
    async with (
        start_gateway(keys=(key_of("alice", tenant),), health_port=health_port) as gateway,
        gateway.http as http,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{health_port}", verify=False) as operator,
    ):
        gateway.health.draining = True
        public = [await http.get(path) for path in ("/healthz", "/readyz", "/metrics")]
        details = [await operator.get(path) for path in ("/healthz", "/readyz", "/metrics")]
    assert [(one.status_code, one.json()) for one in public[:2]] == [
        (200, {"status": "alive"}),
        (503, {"ready": False}),
    ]
    assert public[2].status_code == 404
    assert details[0].json() == {"service": "gateway", "status": "alive"}
    assert details[1].json()["problems"] == {"process": "draining"}
    assert "banksman_waiting_runs" in details[2].text


async def test_all_calls_of_a_run_are_read_in_pages_with_whole_texts(gateway: Served, agent: Agent) -> None:
    """R102: also the calls that the outcome has no room for, each once, with the arguments that ran."""
    async with gateway.http as http, sdk.connect(gateway.url) as client:
        conversation = await _conversation(http)
        accepted = await http.post(f"/context/conversations/{conversation}/runs", json={"content": "hi"})
        run = accepted.json()["run_id"]
        start = await agent.started(conversation)
        await agent.begin(start)
        for number in range(60):
            call = ToolCall(id=new_id("k"), name="bash", arguments={"command": f"echo {number}"})
            result = ToolResult(tool_call_id=call.id, content={"success": True, "stdout": "x" * 9_000})
            twice = (ToolCallCompleted(result=result),) * 2
            steps = () if number == 0 else (IterationStarted(n=number + 1, max=100),)
            await agent.commit(conversation, run, *steps, ToolCallRequested(call=call), *twice)
        await agent.finish(start)
        first = (await http.get(f"/context/runs/{run}/tool-calls")).json()
        rest = await client.calls(run, after=first["next"])
        unknown = await http.get(f"/context/runs/{run[:-3]}zzz/tool-calls")
    calls = [*first["items"], *rest.model_dump()["items"]]
    assert (len(first["items"]), first["next"], rest.next, first["total"]) == (50, 50, None, 60)
    assert [call["params"]["command"] for call in calls] == [f"echo {number}" for number in range(60)]
    assert [call["iteration"] for call in calls] == list(range(60))
    assert {len(call["result"]["stdout"]) for call in calls} == {9_000}
    assert unknown.status_code == 404


async def test_a_run_is_cancelled_over_http_by_its_own_tenant_only(guarded: Served) -> None:
    """Interfaces, section 1: `POST /context/runs/{id}/cancel`."""
    async with guarded.http as http:
        run = (await http.post("/v1/chat", json={"content": "hi"})).json()["run_id"]
        cancelled = await http.post(f"/context/runs/{run}/cancel", json={"reason": "enough"})
        bob = {"authorization": f"Bearer {TOKENS['bob']}"}
        foreign = await http.post(f"/context/runs/{run}/cancel", headers=bob)
    assert (cancelled.status_code, cancelled.json()["run_id"]) == (202, run)
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (404, "not_found")
