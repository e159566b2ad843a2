"""The steps of a run over HTTP, with their durations and costs."""

from __future__ import annotations

from typing import Any

import httpx
from tests.gateway.conftest import TOKENS, Agent, Served

from banksman.contracts.approvals import ApprovalResolved, InputRequested, InputResolved, ItemDecision
from banksman.contracts.events import (
    IterationStarted,
    MessageCompleted,
    ModelNotice,
    ProtocolRetry,
    RunFinished,
    ToolCallCompleted,
    ToolCallRequested,
)
from banksman.contracts.messages import Usage
from banksman.contracts.tools import ToolCall, ToolResult

COST = Usage(input_tokens=900, output_tokens=30, cost_usd=0.004)


async def _run(http: httpx.AsyncClient, agent: Agent) -> str:
    """Store a run with a malformed reply, an edited call and a final reply; return its id."""
    prompt = {"system_prompt": "You serve {{service}}.", "model": "demo:demo"}
    created = await http.post("/context/conversations", json={"settings": prompt})
    conversation_id = created.json()["conversation_id"]
    sent = await http.post(f"/context/conversations/{conversation_id}/runs", json={"content": "Count."})
    start = await agent.started(conversation_id)
    await agent.begin(start)
    retry = ProtocolRetry(
        attempt=1, max=3, error="A brace is missing.", message_id="m-1", reply="{", correction="Again."
    )
    await agent.commit(conversation_id, start.run_id, retry)
    request = await agent.log_approval_request(start, "wc -l *")
    call_id = request.items[0].tool_call_id
    edit = ItemDecision(tool_call_id=call_id, decision="approve", arguments={"command": "wc -l *.py"})
    decided = ApprovalResolved(
        approval_id=request.approval_id, outcome="approved", by="ada", decisions=(edit,)
    )
    result = ToolResult(
        tool_call_id=call_id, content={"success": True, "stdout": "42"}, duration_ms=17, output_key="a" * 64
    )
    await agent.commit(conversation_id, start.run_id, decided)
    await agent.commit(
        conversation_id, start.run_id, ToolCallCompleted(result=result), IterationStarted(n=2, max=10)
    )
    final = MessageCompleted(
        message_id="m-final", role="assistant", content="42 lines.", finish_reason="stop", usage=COST
    )
    ended = RunFinished(
        status="completed", content="42 lines.", service="banksman", model="demo:demo", iterations=2
    )
    await agent.commit(conversation_id, start.run_id, final, ended)
    return sent.json()["run_id"]


async def _step(http: httpx.AsyncClient, run_id: str, step_id: str) -> dict[str, Any]:
    response = await http.get(f"/context/runs/{run_id}/steps/{step_id}")
    assert response.status_code == 200, response.text
    return response.json()


async def test_the_steps_of_a_run_have_their_durations_and_costs(gateway: Served, agent: Agent) -> None:
    async with gateway.http as http:
        run_id = await _run(http, agent)
        page = (await http.get(f"/context/runs/{run_id}/steps")).json()
        second = (await http.get(f"/context/runs/{run_id}/steps?after=1&limit=1")).json()
    steps = page["items"]
    assert [(one["kind"], one["status"], one["iteration"]) for one in steps] == [
        ("model", "malformed", 1),
        ("model", "done", 1),
        ("tool", "done", 1),
        ("approval", "approved", 1),
        ("model", "stop", 2),
    ]
    assert (steps[2]["name"], steps[2]["summary"], steps[2]["duration_ms"]) == ("bash", "wc -l *", 17)
    assert (steps[3]["name"], steps[3]["by"]) == ("bash", "ada")
    assert steps[4]["usage"]["cost_usd"] == 0.004
    assert all(one["ended_at"] >= one["began_at"] for one in steps)
    assert (second["items"], second["next"], second["total"]) == ([steps[1]], 2, 5)


async def test_a_step_has_its_exact_request_and_result(gateway: Served, agent: Agent) -> None:
    async with gateway.http as http:
        run_id = await _run(http, agent)
        steps = (await http.get(f"/context/runs/{run_id}/steps")).json()["items"]
        first = await _step(http, run_id, steps[0]["step_id"])
        call = await _step(http, run_id, steps[2]["step_id"])
        approval = await _step(http, run_id, steps[3]["step_id"])
        last = await _step(http, run_id, "m-final")
        unknown = await http.get(f"/context/runs/{run_id}/steps/m-other")
    assert [one["role"] for one in first["request"]["messages"]] == ["user"]
    assert (first["result"]["reply"], first["result"]["correction"]) == ("{", "Again.")
    assert call["request"] == {
        "name": "bash",
        "arguments": {"command": "wc -l *.py"},
        "requested": {"command": "wc -l *"},
    }
    assert call["result"]["result"]["content"] == {"success": True, "stdout": "42"}
    assert "output_key" not in call["result"]["result"]
    assert approval["request"]["items"][0]["arguments"] == {"command": "wc -l *"}
    messages = last["request"]["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant", "user", "assistant", "tool"]
    assert messages[0]["content"] == "Count."
    assert last["request"]["system"].startswith("You serve banksman.")
    assert last["result"]["content"] == "42 lines."
    assert unknown.status_code == 404


async def test_an_open_and_a_failed_model_request_are_steps(gateway: Served, agent: Agent) -> None:
    async with gateway.http as http:
        created = (await http.post("/v1/chat", json={"content": "Hello."})).json()
        start = await agent.started(created["conversation_id"])
        await agent.begin(start)
        steps = f"/context/runs/{start.run_id}/steps"
        running = (await http.get(steps)).json()["items"]
        open_request = await _step(http, start.run_id, "model")
        error = {"code": "provider_error", "message": "The model is overloaded."}
        ended = RunFinished.model_validate(
            {
                "status": "failed",
                "content": "",
                "service": "s",
                "model": "demo:demo",
                "iterations": 1,
                "error": error,
            }
        )
        await agent.commit(start.conversation_id, start.run_id, ended)
        failed = (await http.get(steps)).json()["items"]
    assert [(one["step_id"], one["status"], one["ended_at"]) for one in running] == [
        ("model", "running", None)
    ]
    assert (open_request["request"]["messages"][0]["content"], open_request["result"]) == ("Hello.", None)
    assert [(one["status"], one["summary"]) for one in failed] == [("failed", "The model is overloaded.")]


async def test_a_notice_about_the_model_is_a_step_of_the_run(gateway: Served, agent: Agent) -> None:
    async with gateway.http as http:
        created = (await http.post("/v1/chat", json={"content": "Hello."})).json()
        start = await agent.started(created["conversation_id"])
        await agent.begin(start)
        notice = ModelNotice(kind="tool_left_out", text="The model cannot call gizmo.")
        await agent.commit(start.conversation_id, start.run_id, notice)
        [running, step] = (await http.get(f"/context/runs/{start.run_id}/steps")).json()["items"]
        detail = await _step(http, start.run_id, step["step_id"])
    assert running["kind"] == "model"
    assert (step["kind"], step["name"], step["summary"]) == ("notice", "tool_left_out", notice.text)
    assert detail["step"] == step


async def test_another_tenant_reads_no_steps(guarded: Served, agent: Agent) -> None:
    async with guarded.http as http:
        run_id = await _run(http, agent)
        other = {"authorization": f"Bearer {TOKENS['bob']}"}
        listed = await http.get(f"/context/runs/{run_id}/steps", headers=other)
        read = await http.get(f"/context/runs/{run_id}/steps/m-final", headers=other)
    assert (listed.status_code, read.status_code) == (404, 404)


async def test_an_input_of_a_workflow_is_one_step_with_its_reply(gateway: Served, agent: Agent) -> None:
    """The log records the step that waits for the value as a call, which no tool executes."""
    async with gateway.http as http:
        created = (await http.post("/v1/chat", json={"content": "Announce."})).json()
        start = await agent.started(created["conversation_id"])
        await agent.begin(start)
        call = ToolCall(id="w1", name="request_input", arguments={"message": "Which crane?"})
        requested = InputRequested.model_validate(
            {
                "request_id": "i1",
                "message": "Which crane?",
                "schema": {"type": "string"},
                "tool_call_id": "w1",
                "expires_at": "2126-01-31T09:00:00Z",
            }
        )
        asked = MessageCompleted(message_id="m1", role="assistant", content=None, finish_reason="tool_calls")
        await agent.commit(
            start.conversation_id, start.run_id, asked, ToolCallRequested(call=call), requested
        )
        provided = InputResolved(request_id="i1", value="north", by="ada")
        result = ToolResult(tool_call_id="w1", content={"success": True, "value": "north"})
        await agent.commit(start.conversation_id, start.run_id, provided, ToolCallCompleted(result=result))
        steps = (await http.get(f"/context/runs/{start.run_id}/steps")).json()["items"]
        detail = await _step(http, start.run_id, "i1")
    assert [(one["kind"], one["summary"], one["status"], one["by"]) for one in steps[1:]] == [
        ("input", "Which crane?", "provided", "ada")
    ]
    assert (detail["request"]["message"], detail["result"]["value"]) == ("Which crane?", "north")
