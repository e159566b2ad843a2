"""AG-UI over a real gateway; the test acts as the agent. Every event is validated by AG-UI's own models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from ag_ui.core import Event
from pydantic import TypeAdapter
from tests.gateway.conftest import TOKENS, Agent, Served
from tests.support.timeouts import WAIT_TIMEOUT_S, deadline

from banksman.bus.jetstream import last_message
from banksman.bus.messages import Message
from banksman.bus.names import DAMAGED, RUNS
from banksman.bus.storage.kv import Bucket
from banksman.contracts import subjects
from banksman.contracts.administration import DamagedLog
from banksman.contracts.events import MessageCompleted, ToolCallCompleted, ToolCallRequested
from banksman.contracts.ids import new_id
from banksman.contracts.live_output import Delta
from banksman.contracts.tools import ToolCall, ToolResult
from banksman.contracts.work import ApprovalRequest, StartRun

EVENT: TypeAdapter[Any] = TypeAdapter(Event)


@dataclass
class Thread:
    """A client of one thread. It sends what AG-UI's clients send."""

    http: httpx.AsyncClient
    id: str
    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def says(self, text: str) -> None:
        self.messages.append({"id": new_id("u"), "role": "user", "content": text})

    @asynccontextmanager
    async def stream(self, run_id: str, **more: Any) -> AsyncIterator[AsyncGenerator[dict[str, Any]]]:
        body = {"threadId": self.id, "runId": run_id, "messages": self.messages, "tools": [], "context": []}
        params = {name: more.pop(name) for name in ("detail", "assistant") if name in more}
        async with (
            deadline(f"the stream of run {run_id} did not end"),
            self.http.stream("POST", "/agui", json={**body, **more}, params=params) as response,
        ):
            assert response.status_code == 200, await response.aread()
            yield events_of(response)

    async def run(self, run_id: str, **more: Any) -> list[dict[str, Any]]:
        async with self.stream(run_id, **more) as events:
            return [event async for event in events]


async def events_of(response: httpx.Response) -> AsyncGenerator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            known = EVENT.validate_python(event)
            assert not known.model_extra, known
            yield event


@pytest.fixture
async def thread(gateway: Served) -> AsyncGenerator[Thread]:
    async with gateway.http as http:
        created = await http.post("/context/conversations", json={})
        yield Thread(http, created.json()["conversation_id"])


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events if event["type"] not in ("STATE_SNAPSHOT", "STATE_DELTA")]


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")


async def began(agent: Agent, thread: Thread) -> StartRun:
    start = await agent.started(thread.id)
    await agent.begin(start)
    return start


async def complete(agent: Agent, start: StartRun, request: ApprovalRequest, output: str) -> None:
    """Commit the result of the approved call and the end of the run."""
    result = ToolResult(
        tool_call_id=request.items[0].tool_call_id, content={"success": True, "output": output}
    )
    await agent.commit(start.conversation_id, start.run_id, ToolCallCompleted(result=result), owned=False)
    await agent.finish(start, "Done.")


async def test_a_run_is_a_stream_of_agui_events(thread: Thread, agent: Agent) -> None:
    """Interfaces, section 1: `POST /agui`. Text is streamed, and the outcome is the result."""
    thread.says("hi")
    async with thread.stream("r1", state={"theme": "dark"}) as events:
        start = await began(agent, thread)
        subject = subjects.delta(agent.tenant, thread.id)
        message_id = "m-" + start.run_id[-12:]
        seen: list[dict[str, Any]] = []
        async for event in events:
            seen.append(event)
            if event["type"] == "STEP_STARTED":
                delta = Delta(
                    conversation_id=thread.id,
                    run_id=start.run_id,
                    message_id=message_id,
                    kind="message",
                    offset=0,
                    text="Hel",
                )
                await agent.bus.publish(subject, delta.model_dump_json().encode())
            if event["type"] == "TEXT_MESSAGE_CONTENT" and event["delta"] == "Hel":
                await agent.finish(start)
    assert kinds(seen) == [
        "RUN_STARTED",
        "STEP_STARTED",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "STEP_FINISHED",
        "RUN_FINISHED",
    ]
    assert (seen[0]["threadId"], seen[0]["runId"], seen[0]["protocolVersion"]) == (thread.id, "r1", "1.0")
    assert seen[0]["metadata"]["banksman"] == {"conversation_id": thread.id, "run_id": start.run_id}
    assert text_of(seen) == "Hello."
    assert (seen[-1]["outcome"], seen[-1]["result"]["content"]) == ({"type": "success"}, "Hello.")
    snapshot = next(event["snapshot"] for event in seen if event["type"] == "STATE_SNAPSHOT")
    patches = [patch for event in seen if event["type"] == "STATE_DELTA" for patch in event["delta"]]
    assert (snapshot["theme"], snapshot["banksman"]["status"]) == ("dark", "queued")
    assert [patch["value"] for patch in patches if patch["path"] == "/banksman/status"] == [
        "running",
        "completed",
    ]


async def test_an_approval_is_an_interrupt_for_each_call_and_its_resolution_resumes_the_run(
    thread: Thread, agent: Agent
) -> None:
    """Interfaces, section 1: an approval batch maps to interrupts; the payload edits the arguments."""
    thread.says("list the files")
    async with thread.stream("r1") as events:
        start = await began(agent, thread)
        request = await agent.request_approval(start, "ls /")
        first = [event async for event in events]
    (interrupt,) = first[-1]["outcome"]["interrupts"]
    call = request.items[0].tool_call_id
    assert kinds(first)[-5:] == [
        "TOOL_CALL_START",
        "TOOL_CALL_ARGS",
        "TOOL_CALL_END",
        "STEP_FINISHED",
        "RUN_FINISHED",
    ]
    assert (interrupt["reason"], interrupt["toolCallId"]) == ("tool_call", call)
    assert (interrupt["message"], interrupt["expiresAt"]) == (
        "Allow bash: ls /",
        request.model_dump(mode="json")["expires_at"],
    )
    assert set(interrupt["responseSchema"]["properties"]) == {"approved", "arguments", "reason", "on_reject"}

    resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
    function = {"name": "bash", "arguments": "{}"}
    calls = [{"id": call, "type": "function", "function": function}]
    thread.messages.append({"id": "a", "role": "assistant", "toolCalls": calls})
    async with thread.stream("r2", resume=resume) as events:
        await complete(agent, start, request, "etc")
        second = [event async for event in events]
    asked = list(thread.messages)
    thread.messages.append({"id": "t", "role": "tool", "toolCallId": call, "content": "partial"})
    again = await thread.run("r2", resume=resume)
    whole = await thread.run("r1")
    assert kinds(second) == [
        "RUN_STARTED",
        "TOOL_CALL_RESULT",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "RUN_FINISHED",
    ]
    assert second[0]["runId"] == "r2"
    # The client's earlier messages of the resumed run are removed before they are sent again.
    assert next(event["messages"] for event in again if event["type"] == "MESSAGES_SNAPSHOT") == asked
    assert [kind for kind in kinds(again) if kind != "MESSAGES_SNAPSHOT"] == kinds(second)
    # A resolved interrupt is not sent again.
    assert whole[-1]["outcome"] == {"type": "success"}
    result = next(event for event in second if event["type"] == "TOOL_CALL_RESULT")
    assert (result["toolCallId"], json.loads(result["content"])["output"]) == (call, "etc")
    # The usage of a part of a run is unknown, and the usage of the whole run would be counted twice.
    assert "usage" not in second[-1]


async def test_a_repeated_run_id_follows_the_same_run_and_misses_nothing(
    thread: Thread, agent: Agent
) -> None:
    thread.says("hi")
    continues = {"forwardedProps": {"banksman": {"on_disconnect": "continue"}}}
    async with thread.stream("r1", **continues) as events:
        start = await began(agent, thread)
        async for event in events:
            if event["type"] == "STEP_STARTED":
                break
    await agent.finish(start)
    sent = list(thread.messages)
    thread.messages.append({"id": "partial", "role": "assistant", "content": "Hel"})
    whole = await thread.run("r1")
    stored = await last_message(agent.bus, RUNS, subjects.run_work(agent.tenant, thread.id))
    assert stored is not None and json.loads(stored.data)["run_id"] == start.run_id
    assert kinds(whole)[:3] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STEP_STARTED"]
    assert next(event for event in whole if "messages" in event)["messages"] == sent
    assert (text_of(whole), whole[-1]["type"]) == ("Hello.", "RUN_FINISHED")
    async with thread.http.stream(
        "POST", "/agui", json={"threadId": thread.id, "runId": "r2", "messages": thread.messages}
    ) as refused:
        body = json.loads(await refused.aread())
    assert (refused.status_code, body["error"]["field"]) == (400, "messages")


async def test_a_client_that_leaves_cancels_the_run_unless_it_waits_for_a_user(
    thread: Thread, agent: Agent
) -> None:
    """Interfaces, section 1: an HTTP client that disconnects from a streaming run of its own cancels it."""
    nudged = asyncio.Event()

    async def nudge(_message: Message) -> None:
        nudged.set()

    await agent.bus.subscribe(subjects.cancel_hint(agent.tenant, thread.id), nudge)
    thread.says("hi")
    async with thread.stream("r1") as events:
        start = await began(agent, thread)
        await agent.request_approval(start)
        async for event in events:
            if event["type"] == "RUN_FINISHED":
                break
    async with thread.stream("r1") as events:
        assert (await anext(events))["type"] == "RUN_STARTED"
    async with thread.stream("r2", resume=[await _approved(thread)]) as events:
        assert (await anext(events))["type"] == "RUN_STARTED"
        assert not nudged.is_set()
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        await nudged.wait()


async def _approved(thread: Thread, **payload: Any) -> dict[str, Any]:
    """Return the payload that approves the open interrupt of a thread."""
    loaded = await Thread(thread.http, thread.id).run(new_id("load"))
    (interrupt,) = loaded[-1]["outcome"]["interrupts"]
    return {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True, **payload}}


async def test_a_rejection_says_whether_the_run_goes_on(thread: Thread, agent: Agent) -> None:
    thread.says("list the files")
    async with thread.stream("r1") as events:
        start = await began(agent, thread)
        request = await agent.request_approval(start, "ls /")
        _ = [event async for event in events]
    rejected = await _approved(thread, approved=False, on_reject="feedback")
    async with thread.stream("r2", resume=[rejected]) as events:
        assert (await anext(aiter(events)))["type"] == "RUN_STARTED"
    assert [one.on_reject for one in (await agent.reply(request)).decisions] == ["feedback"]


async def test_a_thread_is_loaded_with_its_messages_and_its_open_interrupts(
    thread: Thread, agent: Agent
) -> None:
    thread.says("list the files")
    async with thread.stream("r1") as events:
        start = await began(agent, thread)
        request = await agent.request_approval(start, "ls")
        assert [event async for event in events][-1]["outcome"]["type"] == "interrupt"
    loaded = await Thread(thread.http, thread.id).run("load")
    snapshot = next(event["messages"] for event in loaded if event["type"] == "MESSAGES_SNAPSHOT")
    call = request.items[0]
    assert [message["role"] for message in snapshot] == ["user", "assistant"]
    assert snapshot[0]["content"] == "list the files"
    assert snapshot[1]["toolCalls"] == [
        {
            "id": call.tool_call_id,
            "type": "function",
            "function": {"name": "bash", "arguments": '{"command": "ls"}'},
        }
    ]
    assert loaded[-1]["outcome"]["interrupts"][0]["toolCallId"] == call.tool_call_id
    empty = await Thread(thread.http, "a thread that nobody began").run("load")
    assert kinds(empty) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]


async def test_a_message_is_refused_while_its_thread_has_open_interrupts(
    thread: Thread, agent: Agent
) -> None:
    thread.says("hi")
    async with thread.stream("r1") as events:
        start = await began(agent, thread)
        await agent.request_approval(start)
        assert [event async for event in events][-1]["type"] == "RUN_FINISHED"
    thread.says("and now?")
    body = {"threadId": thread.id, "runId": "r2", "messages": thread.messages}
    refused = await thread.http.post("/agui", json=body)
    wrong = {"interruptId": "nonsense!", "status": "cancelled"}
    unknown = await thread.http.post("/agui", json={**body, "resume": [wrong]})
    bad = {**await _approved(thread), "payload": {"approved": True, "argumnets": {}}}
    misspelt = await thread.http.post("/agui", json={**body, "resume": [bad]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    assert (unknown.status_code, unknown.json()["error"]["field"]) == (400, "resume.interruptId")
    assert misspelt.status_code == 400 and "arguments" in misspelt.json()["error"]["message"]


@pytest.mark.parametrize(
    ("status", "last", "outcome"),
    [
        ("failed", "RUN_ERROR", None),
        ("timed_out", "RUN_ERROR", None),
        ("cancelled", "RUN_FINISHED", "cancelled"),
        ("rejected", "RUN_FINISHED", "cancelled"),
        ("max_iterations", "RUN_FINISHED", "cancelled"),
    ],
)
async def test_an_outcome_other_than_success_is_reported_with_its_status(
    thread: Thread, agent: Agent, status: str, last: str, outcome: str | None
) -> None:
    thread.says("hi")
    async with thread.stream("r1") as events:
        start = await began(agent, thread)
        await agent.finish(start, status=status)
        seen = [event async for event in events]
    assert (seen[-1]["type"], seen[-1].get("outcome", {}).get("type")) == (last, outcome)
    assert seen[-1]["metadata"]["banksman"]["status"] == status


async def test_a_thread_has_any_id_and_its_first_run_has_the_earlier_messages(
    gateway: Served, agent: Agent
) -> None:
    async with gateway.http as http:
        thread = Thread(http, "threads/ours: 1", [{"id": "s", "role": "system", "content": "Be brief."}])
        thread.says("earlier")
        thread.messages.append({"id": "a", "role": "assistant", "content": "before"})
        image = {"type": "image", "source": {"type": "url", "value": "https://example.org/x.png"}}
        sound = {"type": "audio", "source": {"type": "url", "value": "https://example.org/x.mp3"}}
        parts = [{"type": "text", "text": "now"}, image, sound]
        thread.messages.append({"id": "u", "role": "user", "content": parts})
        tool = {"name": "confetti", "description": "", "parameters": {}}
        context = [{"description": "The user's city", "value": "Oslo"}]
        async with thread.stream("r1", tools=[tool], context=context) as events:
            conversation = (await anext(events))["metadata"]["banksman"]["conversation_id"]
            start = await agent.started(conversation)
            await agent.begin(start)
            await agent.finish(start)
            seen = [event async for event in events]
        thread.messages.append({"id": "b", "role": "assistant", "content": "Hello."})
        thread.says("more")
        async with thread.stream("r2") as events:
            assert (await anext(events))["metadata"]["banksman"]["conversation_id"] == conversation
            second = await agent.started(conversation)
            await agent.begin(second)
            await agent.finish(second)
            assert [event async for event in events][-1]["type"] == "RUN_FINISHED"
    told, shown = start.content[0], start.content[1:]
    assert not isinstance(told, str) and told.type == "text" and not isinstance(start.content, str)
    assert "system: Be brief." in told.text and "assistant: before" in told.text
    assert "The user's city: Oslo" in told.text
    assert [part.type for part in shown if not isinstance(part, str)] == ["text", "image"]
    warnings = [event["value"]["message"] for event in seen if event.get("name") == "banksman.warning"]
    assert len(warnings) == 2 and second.content == "more"


async def test_calls_and_results_are_tool_events_and_other_events_are_custom(
    thread: Thread, agent: Agent
) -> None:
    thread.says("hi")
    async with thread.stream("r1") as events:
        start = await began(agent, thread)
        call = ToolCall(id=new_id("k"), name="read_file", arguments={"path": "a.txt"})
        await agent.commit(
            thread.id,
            start.run_id,
            MessageCompleted(message_id="m1", role="assistant", content="I read it."),
            ToolCallRequested(call=call),
            ToolCallCompleted(result=ToolResult(tool_call_id=call.id, content={"success": True})),
            owned=False,
        )
        await agent.finish(start)
        seen = [event async for event in events]
    tool = [event for event in seen if event["type"].startswith("TOOL_CALL")]
    assert [event["type"] for event in tool] == [
        "TOOL_CALL_START",
        "TOOL_CALL_ARGS",
        "TOOL_CALL_END",
        "TOOL_CALL_RESULT",
    ]
    assert (tool[0]["toolCallName"], tool[0]["parentMessageId"]) == ("read_file", "m1")
    assert json.loads(tool[1]["delta"]) == {"path": "a.txt"}


async def test_a_stream_ends_with_an_error_when_its_log_is_found_damaged(
    thread: Thread, agent: Agent
) -> None:
    thread.says("hi")
    bucket, key = Bucket(agent.bus, DAMAGED, DamagedLog), f"{agent.tenant}.{thread.id}"
    damage = DamagedLog(
        tenant=agent.tenant, conversation_id=thread.id, problem="a gap", found_at=datetime.now(UTC)
    )
    seen: list[dict[str, Any]] = []
    try:
        async with thread.stream("r1") as events, asyncio.timeout(WAIT_TIMEOUT_S):
            await began(agent, thread)
            async for event in events:
                seen.append(event)
                if event["type"] == "STEP_STARTED":
                    await bucket.put(key, damage)
    finally:
        await bucket.delete(key)
    assert (seen[-1]["type"], seen[-1]["code"]) == ("RUN_ERROR", "unavailable")


async def test_a_thread_of_another_tenant_is_missing(guarded: Served, agent: Agent) -> None:
    async with guarded.http as http:
        thread = Thread(http, (await http.post("/context/conversations", json={})).json()["conversation_id"])
        thread.says("hi")
        async with thread.stream("r1") as events:
            start = await began(agent, thread)
            await agent.request_approval(start)
            interrupt = [event async for event in events][-1]["outcome"]["interrupts"][0]
        resolution = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}
        body = {"threadId": thread.id, "runId": "r2", "messages": [], "resume": [resolution]}
        other = {"authorization": f"Bearer {TOKENS['bob']}"}
        reader = {"authorization": f"Bearer {TOKENS['reader']}"}
        foreign = await http.post("/agui", json=body, headers=other)
        loaded = await http.post("/agui", json={**body, "resume": None}, headers=other)
        powerless = await http.post("/agui", json=body, headers=reader)
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (404, "not_found")
    assert '"messages":[]' in loaded.text and "interrupt" not in loaded.text
    assert powerless.status_code == 403
