"""A2A's official SDK against a real gateway; the test acts as the agent."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from a2a.client import A2AClientError, Client, ClientConfig, create_client
from a2a.types.a2a_pb2 import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value
from tests.gateway.conftest import TOKENS, Agent, Served

from banksman.bus.jetstream import last_message
from banksman.bus.names import RUNS
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.contracts import subjects
from banksman.contracts.events import ToolCallCompleted
from banksman.contracts.ids import new_id
from banksman.contracts.live_output import Delta
from banksman.contracts.tools import ToolResult
from banksman.contracts.work import ApprovalRequest, StartRun

STATE = TaskState.Name


@asynccontextmanager
async def client_of(
    gateway: Served, token: str | None = None, *, streaming: bool = True
) -> AsyncIterator[Client]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(headers=headers, timeout=60) as http:
        config = ClientConfig(streaming=streaming, httpx_client=http)
        yield await create_client(gateway.url, config)


@pytest.fixture
async def client(gateway: Served) -> AsyncGenerator[Client]:
    async with client_of(gateway) as connected:
        yield connected


def user_message(text: str = "", data: Any = None, message_id: str = "", **ids: str) -> SendMessageRequest:
    part = Part(text=text) if data is None else Part(data=ParseDict(data, Value()))
    message = Message(message_id=message_id or new_id("u"), role=Role.ROLE_USER, parts=[part])
    message.task_id, message.context_id = ids.get("task_id", ""), ids.get("context_id", "")
    return SendMessageRequest(message=message)


async def started(
    client: Client, gateway: Served, agent: Agent, request: SendMessageRequest | None = None
) -> tuple[AsyncIterator[StreamResponse], StartRun]:
    """Send a message; return the stream after the task, and the start that the agent reads."""
    stream = client.send_message(request or user_message("hi"))
    task = (await anext(stream)).task
    assert STATE(task.status.state) == "TASK_STATE_SUBMITTED"
    start = await agent.started(task.context_id)
    assert start.run_id == task.id
    await agent.begin(start)
    return stream, start


async def complete(agent: Agent, start: StartRun, request: ApprovalRequest) -> None:
    result = ToolResult(tool_call_id=request.items[0].tool_call_id, content={"success": True})
    await agent.commit(start.conversation_id, start.run_id, ToolCallCompleted(result=result), owned=False)
    await agent.finish(start, "Done.")


def states(updates: list[StreamResponse]) -> list[str]:
    found = [update.status_update.status.state for update in updates if update.HasField("status_update")]
    # Steps are updates too, with the same state.
    return [STATE(state) for n, state in enumerate(found) if n == 0 or found[n - 1] != state]


def texts(updates: list[StreamResponse]) -> list[str]:
    return [
        update.artifact_update.artifact.parts[0].text
        for update in updates
        if update.HasField("artifact_update")
    ]


async def test_the_card_names_the_endpoint_and_needs_no_key(guarded: Served) -> None:
    """Interfaces, section 8: `/.well-known/agent-card.json`."""
    async with httpx.AsyncClient(base_url=guarded.url) as http:
        card = (await http.get("/.well-known/agent-card.json")).json()
        refused = await http.post("/a2a", json={"jsonrpc": "2.0", "id": 1, "method": "GetTask"})
    (interface,) = card["supportedInterfaces"]
    assert interface == {"url": f"{guarded.url}/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    assert card["capabilities"]["streaming"] and "bearer" in card["securitySchemes"]
    assert refused.status_code == 401


async def test_a_message_is_a_task_whose_text_is_streamed(
    client: Client, gateway: Served, agent: Agent
) -> None:
    """Interfaces, section 8: A2A over the same runs."""
    stream, start = await started(client, gateway, agent)
    updates: list[StreamResponse] = []
    async for update in stream:
        updates.append(update)
        if states([update]) == ["TASK_STATE_WORKING"] and len(updates) == 1:
            delta = Delta(
                conversation_id=start.conversation_id,
                run_id=start.run_id,
                message_id="m-" + start.run_id[-12:],
                offset=0,
                text="Hel",
            )
            subject = subjects.delta(agent.tenant, start.conversation_id)
            await agent.bus.publish(subject, delta.model_dump_json().encode())
        if texts([update]) == ["Hel"]:
            await agent.finish(start)
    assert texts(updates) == ["Hel", "lo."]
    assert [update.artifact_update.append for update in updates if texts([update])] == [False, True]
    assert states(updates) == ["TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]
    task = await client.get_task(GetTaskRequest(id=start.run_id))
    assert [artifact.parts[0].text for artifact in task.artifacts] == ["Hello."]
    assert [message.parts[0].text for message in task.history] == ["hi"]
    assert STATE(task.status.state) == "TASK_STATE_COMPLETED" and task.context_id == start.conversation_id


async def test_a_repeated_message_starts_nothing_and_misses_nothing(client: Client, agent: Agent) -> None:
    request = user_message("hi", message_id="the message")
    stream = client.send_message(request)
    task = (await anext(stream)).task
    start = await agent.started(task.context_id)
    await agent.begin(start)
    await agent.finish(start)
    whole = [update async for update in stream]
    again = [update async for update in client.send_message(request)]
    assert again[0].task.id == task.id
    assert texts(again) == texts(whole) == ["Hello."] and states(again) == states(whole)
    stored = await last_message(agent.bus, RUNS, subjects.run_work(agent.tenant, task.context_id))
    assert stored is not None and json.loads(stored.data)["run_id"] == task.id


async def test_an_approval_is_required_input_and_a_message_decides(
    client: Client, gateway: Served, agent: Agent
) -> None:
    first = user_message("hi")
    stream, start = await started(client, gateway, agent, first)
    request = await agent.request_approval(start, "ls /")
    asked = [update async for update in stream][-1].status_update.status
    assert STATE(asked.state) == "TASK_STATE_INPUT_REQUIRED"
    text, data = asked.message.parts
    approval = MessageToDict(data.data)["approval"]
    assert "ls /" in text.text and approval["items"][0]["digest"] == request.items[0].digest
    decision = {"tool_call_id": approval["items"][0]["tool_call_id"], "decision": "approve"}
    approval = user_message(
        data={"approval_id": approval["approval_id"], "decisions": [decision]}, task_id=start.run_id
    )
    wrong = user_message(data={"all": "approve", "reasn": "?", "approval_id": "x"}, task_id=start.run_id)
    with pytest.raises(TaskNotFoundError):
        await anext(client.send_message(wrong))
    resumed = client.send_message(approval)
    assert STATE((await anext(resumed)).task.status.state) == "TASK_STATE_INPUT_REQUIRED"
    await complete(agent, start, request)
    assert states([update async for update in resumed])[-1] == "TASK_STATE_COMPLETED"
    # A decided request is not sent again: the stream continues to the end of the run.
    assert states([update async for update in client.send_message(first)])[-1] == "TASK_STATE_COMPLETED"
    (repeated,) = [update async for update in client.send_message(approval)]
    assert STATE(repeated.task.status.state) == "TASK_STATE_COMPLETED"
    with pytest.raises(UnsupportedOperationError):
        await anext(client.send_message(user_message("and now?", task_id=start.run_id)))


async def test_a_blocking_request_returns_a_task_that_has_ended_or_needs_input(
    gateway: Served, agent: Agent
) -> None:
    async with client_of(gateway, streaming=False) as client:
        request = user_message("hi", message_id="blocking")
        request.configuration.return_immediately = True
        task = await _only_task(client.send_message(request))
        assert STATE(task.status.state) == "TASK_STATE_SUBMITTED"
        start = await agent.started(task.context_id)
        await agent.begin(start)
        approval = await agent.request_approval(start)
        request.configuration.return_immediately = False
        waiting = await _only_task(client.send_message(request))
        rejected = user_message("Reject", task_id=task.id)
        rejected.configuration.return_immediately = True
        await _only_task(client.send_message(rejected))
        _, reply = await ApprovalSlots(agent.bus).read(agent.tenant, approval.approval_id)
        assert reply is not None and reply.outcome == "rejected"
        await agent.finish(start, "The call was rejected.", status="rejected")
        ended = await client.get_task(GetTaskRequest(id=task.id, history_length=0))
        listed = await client.list_tasks(ListTasksRequest(context_id=task.context_id))
    assert STATE(waiting.status.state) == "TASK_STATE_INPUT_REQUIRED"
    assert (
        MessageToDict(waiting.status.message.parts[1].data)["approval"]["approval_id"] == approval.approval_id
    )
    assert STATE(ended.status.state) == "TASK_STATE_CANCELED" and not ended.history
    assert ended.status.message.parts[0].text == "The call was rejected."
    assert [one.id for one in listed.tasks] == [task.id] and listed.total_size == 1


async def _only_task(stream: AsyncIterator[StreamResponse]) -> Task:
    (response,) = [response async for response in stream]
    return response.task


async def test_a_task_is_followed_again_and_cancelled(client: Client, gateway: Served, agent: Agent) -> None:
    _, start = await started(client, gateway, agent)
    again = client.subscribe(SubscribeToTaskRequest(id=start.run_id))
    assert STATE((await anext(again)).task.status.state) == "TASK_STATE_WORKING"
    await agent.finish(start)
    assert states([update async for update in again])[-1] == "TASK_STATE_COMPLETED"
    with pytest.raises(TaskNotCancelableError):
        await client.cancel_task(CancelTaskRequest(id=start.run_id))
    with pytest.raises(UnsupportedOperationError):
        await anext(client.subscribe(SubscribeToTaskRequest(id=start.run_id)))


async def test_cancelling_a_task_cancels_its_run(client: Client, gateway: Served, agent: Agent) -> None:
    _, start = await started(client, gateway, agent)
    task = await client.cancel_task(CancelTaskRequest(id=start.run_id))
    signal = await last_message(agent.bus, RUNS, subjects.run_signal(agent.tenant, start.conversation_id))
    assert task.id == start.run_id
    assert signal is not None and json.loads(signal.data)["run_id"] == start.run_id


async def test_unsupported_methods_get_the_error_of_the_protocol(client: Client, gateway: Served) -> None:
    with pytest.raises(InvalidParamsError):
        await client.list_tasks(ListTasksRequest())
    with pytest.raises(ContentTypeNotSupportedError):
        request = user_message("hi")
        request.message.parts[0].CopyFrom(Part(url="https://example.org/a.mp3", media_type="audio/mpeg"))
        await anext(client.send_message(request))
    async with gateway.http as http:
        older = (await http.post("/a2a", json={"jsonrpc": "2.0", "id": 7, "method": "message/send"})).json()
        version = await http.post(
            "/a2a", json={"jsonrpc": "2.0", "id": 8, "method": "GetTask"}, headers={"a2a-version": "0.3"}
        )
        broken = (await http.post("/a2a", content=b"{")).json()
    assert (older["id"], older["error"]["code"]) == (7, -32601) and "1.0" in older["error"]["message"]
    assert (version.json()["id"], version.json()["error"]["code"]) == (8, -32009)
    assert (broken["id"], broken["error"]["code"]) == (None, -32700)


async def test_a_task_of_another_tenant_is_missing(guarded: Served, agent: Agent) -> None:
    async with (
        client_of(guarded, TOKENS["alice"]) as alice,
        client_of(guarded, TOKENS["bob"]) as bob,
        client_of(guarded, TOKENS["reader"]) as reader,
    ):
        _, start = await started(alice, guarded, agent)
        await agent.request_approval(start)
        for request in (
            bob.get_task(GetTaskRequest(id=start.run_id)),
            bob.cancel_task(CancelTaskRequest(id=start.run_id)),
            bob.list_tasks(ListTasksRequest(context_id=start.conversation_id)),
            anext(bob.send_message(user_message("approve", task_id=start.run_id))),
            anext(bob.send_message(user_message("hi", context_id=start.conversation_id))),
        ):
            with pytest.raises(TaskNotFoundError):
                await request
        with pytest.raises(A2AClientError, match="403"):
            await anext(reader.send_message(user_message("approve", task_id=start.run_id)))
