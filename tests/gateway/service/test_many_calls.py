"""P21: a log of any number of calls is read to its end by every interface, and streams end with a reason."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import Agent, GatewayFactory, Served
from tests.support.timeouts import WAIT_TIMEOUT_S, deadline

from banksman.bus.connection import Bus
from banksman.bus.messages import Message
from banksman.contracts import subjects
from banksman.contracts.events import (
    IterationStarted,
    MessageCompleted,
    ToolCallCompleted,
    ToolCallRequested,
)
from banksman.contracts.ids import new_id
from banksman.contracts.tools import ToolCall, ToolResult
from banksman.contracts.work import StartRun

SSE = {"accept": "text/event-stream"}
CALLS = pytest.mark.parametrize("calls", [1, 300, 1600])


@dataclass(frozen=True)
class Long:
    """A conversation whose only run has one reply with many calls, and one commit with all results."""

    agent: Agent
    start: StartRun
    calls: tuple[ToolCall, ...]

    @classmethod
    async def begun(cls, agent: Agent, conversation: str, calls: int) -> Long:
        made = tuple(
            ToolCall(id=new_id("k"), name="echo", arguments={"n": number}) for number in range(calls)
        )
        return cls(agent, await agent.started(conversation), made)

    async def run(self) -> None:
        await self.agent.begin(self.start)
        ids = self.start.conversation_id, self.start.run_id
        reply = MessageCompleted(message_id=new_id("m"), role="assistant", content=None)
        await self.agent.commit(*ids, reply, *(ToolCallRequested(call=call) for call in self.calls))
        results = (ToolCallCompleted(result=_result(call)) for call in self.calls)
        await self.agent.commit(*ids, *results, IterationStarted(n=2, max=10))
        await self.agent.finish(self.start)

    @property
    def numbers(self) -> list[int]:
        """The events of the log: start, iteration, message, calls, results, iteration, message, end."""
        return list(range(1, 2 * len(self.calls) + 7))


def _result(call: ToolCall) -> ToolResult:
    return ToolResult(tool_call_id=call.id, content={"output": "ok"}, is_error=False)


async def _long(gateway: Served, agent: Agent, calls: int) -> tuple[Long, str]:
    """Return a stored log, and the request id of its run."""
    key = new_id("q")
    async with gateway.http as http:
        conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        await http.post(_runs(conversation), json={"content": "go"}, headers={"idempotency-key": key})
    long = await Long.begun(agent, conversation, calls)
    await long.run()
    return long, key


def _runs(conversation: str) -> str:
    return f"/context/conversations/{conversation}/runs?detail=steps"


async def _frames(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line async for line in response.aiter_lines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def _pages(http: httpx.AsyncClient, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        page = (await http.get(path, params={"after_seq": after})).json()
        found += page["items"]
        after = page["next"]
    return found


async def _replayed(bus: Bus, tenant: str, conversation: str, **request: Any) -> list[dict[str, Any]]:
    frames: asyncio.Queue[bytes] = asyncio.Queue()

    async def received(message: Message) -> None:
        frames.put_nowait(message.data)

    inbox = new_id("inbox")
    subscription = await bus.subscribe(inbox, received)
    body = json.dumps({"detail": "steps", **request}).encode()
    await bus.nc.publish(subjects.api(tenant, "replay", conversation), body, reply=inbox)
    found: list[dict[str, Any]] = []
    async with deadline("the replay did not end"):
        while data := await frames.get():
            found.append(json.loads(data))
            if found[-1]["type"] in ("replay.done", "resync_required"):
                break
    await subscription.unsubscribe()
    return found


def _seqs(frames: list[dict[str, Any]]) -> list[int]:
    return [frame["seq"] for frame in frames if "data" in frame]


@CALLS
async def test_a_stored_log_is_read_to_its_end_by_every_interface(
    gateway: Served, agent: Agent, bus: Bus, tenant: str, calls: int
) -> None:
    long, key = await _long(gateway, agent, calls)
    conversation = long.start.conversation_id
    async with gateway.socket() as socket:
        await socket.request("subscribe", conversation_id=conversation, after_seq=0, detail="full")
        await socket.until_type("replay.done")
    replay = await _replayed(bus, tenant, conversation)
    followed = await _replayed(bus, tenant, conversation, follow_s=WAIT_TIMEOUT_S)
    async with gateway.http as http:
        repeated = {**SSE, "idempotency-key": key}
        async with http.stream(
            "POST", _runs(conversation), json={"content": "go"}, headers=repeated
        ) as response:
            streamed = await _frames(response)
        paged = await _pages(http, f"/context/conversations/{conversation}/events")
        thread = await http.post("/agui", json=_input(conversation, "load"))
    assert _seqs(socket.events) == long.numbers
    assert (_seqs(replay), _seqs(followed)) == (long.numbers, long.numbers)
    assert (_seqs(streamed), streamed[-1]["type"]) == (long.numbers, "run.finished")
    assert _seqs(paged) == long.numbers
    assert len(json.loads(_agui(thread.text, "MESSAGES_SNAPSHOT"))["messages"]) >= calls


@CALLS
async def test_a_run_is_followed_live_to_its_end_by_every_interface(
    gateway: Served, agent: Agent, bus: Bus, tenant: str, calls: int
) -> None:
    async with gateway.http as http, gateway.socket() as socket:
        conversation = await socket.create(detail="steps")
        said = {"messages": [{"id": "u", "role": "user", "content": "go"}]}
        async with http.stream("POST", "/agui", json=_input(conversation, "r1", **said)) as agui:
            long = await Long.begun(agent, conversation, calls)
            running = asyncio.create_task(long.run())
            try:
                events = [event async for event in _events(agui)]
                await socket.until_type("run.finished")
            finally:
                await running
        async with http.stream("POST", "/agui", json=_input(conversation, "r1", **said)) as agui:
            again = [event async for event in _events(agui)]
    assert _seqs(socket.events) == long.numbers
    assert [event["type"] for event in events].count("TOOL_CALL_RESULT") == calls
    assert [event["type"] for event in again].count("TOOL_CALL_RESULT") == calls
    assert (events[-1]["type"], again[-1]["type"]) == ("RUN_FINISHED", "RUN_FINISHED")


@CALLS
async def test_streams_of_chats_end_with_the_outcome(
    gateway: Served, agent: Agent, tenant: str, calls: int
) -> None:
    message = {"messages": [{"role": "user", "content": "go"}], "stream": True}
    bodies = {
        "/context/chat": {"content": "go"},
        "/context/chat/completions": {"model": "demo:demo", **message},
        "/context/chat/messages": {"model": "demo:demo", "max_tokens": 9, **message},
    }
    ends = {
        "/context/chat": '"type":"run.finished"',
        "/context/chat/completions": "[DONE]",
        "/context/chat/messages": "message_stop",
    }
    async with gateway.http as http:
        for path, body in bodies.items():
            async with http.stream("POST", path, json=body, headers=SSE) as response:
                long = await Long.begun(agent, response.headers["banksman-conversation-id"], calls)
                running = asyncio.create_task(long.run())
                try:
                    lines = [line async for line in response.aiter_lines() if line.startswith("data: ")]
                finally:
                    await running
            assert ends[path] in lines[-1], (path, lines[-1])


async def test_a_stream_that_is_read_too_slowly_ends_with_that_reason(
    start_gateway: GatewayFactory, agent: Agent
) -> None:
    async with start_gateway() as gateway, gateway.http as http:
        conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        async with http.stream("POST", _runs(conversation), json={"content": "go"}, headers=SSE) as response:
            start = await agent.started(conversation)
            await agent.begin(start)
            for _ in range(80):
                text = MessageCompleted(message_id=new_id("m"), role="assistant", content="x" * 250_000)
                await agent.commit(conversation, start.run_id, text)
            frames = await _frames(response)
    assert frames[-1]["type"] == "resync_required"
    assert "slow" in frames[-1]["reason"]


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async with deadline("the stream did not end"):
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


def _input(thread: str, run: str, **more: Any) -> dict[str, Any]:
    return {"threadId": thread, "runId": run, "messages": [], "tools": [], "context": [], **more}


def _agui(text: str, kind: str) -> str:
    """Return the first event of a kind in a stream."""
    lines = (line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: "))
    return next(line for line in lines if json.loads(line)["type"] == kind)
