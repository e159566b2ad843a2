"""P21: a gateway that stops ends each stream and each wait with a reason, and cancels no run."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import GatewayFactory, Served
from tests.gateway.file_runner import lease_of
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.bus.connection import Bus
from banksman.bus.jetstream import count_below
from banksman.bus.messages import Message
from banksman.bus.names import RUNS
from banksman.contracts import subjects
from banksman.contracts.ids import new_id
from banksman.contracts.runner_requests import FileReply
from banksman.contracts.wire import strict_json

SSE = {"accept": "text/event-stream"}
SAID = {"model": "demo:demo", "messages": [{"role": "user", "content": "go"}], "max_tokens": 9}
RPC = {"jsonrpc": "2.0", "id": 1}
DRAIN_S = 1.0


def a2a(method: str) -> dict[str, Any]:
    message = {"messageId": new_id("m"), "role": "ROLE_USER", "parts": [{"text": "go"}]}
    return {**RPC, "method": method, "params": {"message": message}}


def agui() -> dict[str, Any]:
    said = [{"id": "u", "role": "user", "content": "go"}]
    thread = {"threadId": new_id("c"), "runId": "r1", "tools": [], "context": []}
    return {**thread, "messages": said}


STREAMS: dict[str, tuple[str, Callable[[], dict[str, Any]], str]] = {
    "chat": ("/context/chat", lambda: {"content": "go"}, '"type":"resync_required"'),
    "completions": ("/context/chat/completions", lambda: {**SAID, "stream": True}, "cannot be followed"),
    "messages": ("/context/chat/messages", lambda: {**SAID, "stream": True}, "cannot be followed"),
    "agui": ("/agui", agui, "RUN_ERROR"),
    "a2a": ("/a2a", lambda: a2a("SendStreamingMessage"), "follows the task again"),
}
WAITS: dict[str, tuple[str, Callable[[], dict[str, Any]], int, str]] = {
    "chat": ("/context/chat?wait_s=60", lambda: {"content": "go"}, 202, '"run_id"'),
    "completions": ("/context/chat/completions", lambda: SAID, 400, "the gateway stops"),
    "messages": ("/context/chat/messages", lambda: SAID, 400, "the gateway stops"),
    "a2a": ("/a2a", lambda: a2a("SendMessage"), 200, '"task"'),
}


async def _stopped(
    start_gateway: GatewayFactory, bus: Bus, tenant: str, request: Callable[..., Coroutine[Any, Any, Any]]
) -> Any:
    """Return what a request returns while the gateway stops; it has started a run."""
    async with AsyncExitStack() as clients:
        async with start_gateway(drain_s=DRAIN_S) as gateway:
            http = await clients.enter_async_context(gateway.http)
            waiting = asyncio.create_task(request(gateway, http))
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                while not await count_below(bus, RUNS, subjects.run_work(tenant, subjects.ANY)):
                    await asyncio.wait({waiting}, timeout=0.05)
                    assert not waiting.done(), await waiting
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            found = await waiting
    signals = subjects.run_signal(tenant, subjects.ANY)
    assert await count_below(bus, RUNS, signals) == 0, "the run was cancelled"
    return found


@pytest.mark.parametrize("interface", STREAMS)
async def test_a_stream_ends_with_a_reason(
    start_gateway: GatewayFactory, bus: Bus, tenant: str, interface: str
) -> None:
    path, body, reason = STREAMS[interface]

    async def streamed(_gateway: Served, http: httpx.AsyncClient) -> str:
        async with http.stream("POST", path, json=body(), headers={**SSE, "a2a-version": "1.0"}) as response:
            assert response.status_code < 300
            return (await response.aread()).decode()

    text = await _stopped(start_gateway, bus, tenant, streamed)
    last = [line for line in text.splitlines() if line.startswith("data: ")][-1]
    assert reason in last, text


@pytest.mark.parametrize("interface", WAITS)
async def test_a_wait_for_the_outcome_ends_with_the_state(
    start_gateway: GatewayFactory, bus: Bus, tenant: str, interface: str
) -> None:
    path, body, status, part = WAITS[interface]

    async def posted(_gateway: Served, http: httpx.AsyncClient) -> httpx.Response:
        return await http.post(path, json=body(), headers={"a2a-version": "1.0"}, timeout=90)

    response = await _stopped(start_gateway, bus, tenant, posted)
    assert (response.status_code, part in response.text) == (status, True), response.text


HALF_SENT = (
    "/context/chat",
    "/context/chat/completions",
    "/context/chat/messages",
    "/v1/chat/completions",
    "/v1/messages",
    "/agui",
    "/a2a",
    "/mcp",
)


@pytest.mark.parametrize("path", HALF_SENT)
async def test_a_request_that_is_cut_is_refused_in_the_format_of_its_interface(
    start_gateway: GatewayFactory, path: str
) -> None:
    async with start_gateway(drain_s=DRAIN_S) as gateway:
        port = gateway.running.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = ("POST {} HTTP/1.1", "host: 127.0.0.1", "expect: 100-continue", "content-length: 100")
        kinds = ("content-type: application/json", "accept: application/json, text/event-stream", "", "")
        writer.write("\r\n".join((*head, *kinds)).format(path).encode())
        assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"{")
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 503") and b"retry-after: 1" in head, head
    error = json.loads(body)
    assert (error.get("type") == "error") == path.endswith("/messages"), error
    assert "the gateway stopped" in error["error"]["message"], error
    assert "whether it took effect is not known" in error["error"]["message"], error


@pytest.fixture
async def silent_runner(bus: Bus) -> asyncio.Event:
    """A runner that returns the first piece of a file, and no other one; set when it is asked for that."""
    runner, asked = new_id("r"), asyncio.Event()
    await lease_of(bus, runner)

    async def received(message: Message) -> None:
        request: Any = strict_json(message.data)
        if request["op"] == "read" and request["path"] == "begun" and request["offset"] == 0:
            reply = FileReply(data_base64=base64.b64encode(b"x").decode(), more=True)
            await bus.publish(message.reply, reply.model_dump_json().encode())
        else:
            asked.set()

    await bus.subscribe(subjects.files(runner, subjects.ANY, subjects.ANY), received)
    return asked


@pytest.mark.parametrize("file", ["begun", "not-begun"])
async def test_a_download_that_is_cut_is_refused_or_incomplete(
    start_gateway: GatewayFactory, silent_runner: asyncio.Event, file: str
) -> None:
    async with AsyncExitStack() as clients:
        async with start_gateway(drain_s=DRAIN_S) as gateway:
            http = await clients.enter_async_context(gateway.http)
            made = (await http.post("/context/conversations", json={})).json()["conversation_id"]
            waiting = asyncio.create_task(http.get(f"/context/conversations/{made}/files/{file}"))
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                asked = asyncio.create_task(silent_runner.wait())
                await asyncio.wait({waiting, asked}, return_when=asyncio.FIRST_COMPLETED)
            assert not waiting.done(), waiting
        if file == "begun":
            with pytest.raises(httpx.RemoteProtocolError):
                await waiting
            return
        response = await waiting
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert response.json()["error"]["message"] == "the gateway stopped before the request ended"
