from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from tests.support.model_server import ModelServer
from tests.support.scripted_models import Gate, ScriptedReply
from tests.support.timeouts import WAIT_TIMEOUT_S

HELLO: Any = [{"role": "user", "content": "hello"}]


@asynccontextmanager
async def model_server(*arguments: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run the server in its own process while the context is open."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "banksman.cli",
        "model-server",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ready_url(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        line = (await process.stdout.readline()).decode()
    assert line.startswith("model server ready at http://127.0.0.1:")
    return line.split()[-1]


async def test_command_serves_only_the_demo_model_until_sigterm():
    async with model_server("--port", "0") as process:
        url = await ready_url(process)
        async with httpx.AsyncClient(base_url=url, timeout=WAIT_TIMEOUT_S) as client:
            body = {"model": "demo", "messages": HELLO}
            response = (await client.post("/v1/chat/completions", json=body)).json()
            listed = (await client.get("/v1/models")).json()
            recorded = await client.get("/requests")
        assert "demo model" in response["choices"][0]["message"]["content"]
        assert [model["id"] for model in listed["data"]] == ["demo"]
        assert recorded.status_code == 404
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            _, errors = await process.communicate()
        assert (process.returncode, errors) == (0, b"")


async def test_histories_that_a_vendor_refuses_get_a_reply():
    unfinished = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {}}]}
    odd: list[Any] = [*HELLO, unfinished, {"role": "critic", "content": [{"type": "text", "text": 5}, 7]}]
    async with model_server("--port", "0") as process:
        url = await ready_url(process)
        async with httpx.AsyncClient(base_url=url, timeout=WAIT_TIMEOUT_S) as client:
            chat = await client.post("/v1/chat/completions", json={"model": "demo", "messages": odd})
            items = {"model": "demo", "input": [*HELLO, {"type": "function_call_output"}]}
            response = await client.post("/v1/responses", json=items)
            headers = {"anthropic-version": "2023-06-01"}
            message = await client.post(
                "/v1/messages", json={"model": "demo", "messages": odd}, headers=headers
            )
            empty = await client.post("/v1/chat/completions", json={"model": "demo", "messages": []})
            unnamed = await client.post("/v1/messages", json={"messages": HELLO}, headers=headers)
    assert [reply.status_code for reply in (chat, response, message)] == [200, 200, 200]
    assert (empty.status_code, empty.json()["error"]["param"]) == (400, "messages")
    assert unnamed.status_code == 400 and "expected the name of a model" in unnamed.json()["error"]["message"]


async def test_port_in_use_prints_one_sentence(server: ModelServer):
    port = server.url.rsplit(":", 1)[1]
    async with model_server("--port", port) as process, asyncio.timeout(WAIT_TIMEOUT_S):
        _, errors = await process.communicate()
    assert process.returncode == 2
    assert errors.decode().count("\n") == 1
    assert "address already in use" in errors.decode()


async def test_demo_streams_one_word_per_chunk_with_the_server_delay():
    async with (
        ModelServer.running(chunk_delay_s=0.001) as server,
        AsyncOpenAI(
            base_url=server.openai_url, api_key="any", max_retries=0, timeout=WAIT_TIMEOUT_S
        ) as openai,
    ):
        stream = await openai.chat.completions.create(model="demo", messages=HELLO, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert len(pieces) > 50
    assert max(len(piece.split()) for piece in pieces) == 1


async def test_stopping_the_server_closes_connections_of_waiting_replies():
    async with httpx.AsyncClient(timeout=None) as client, asyncio.timeout(WAIT_TIMEOUT_S):
        async with ModelServer.running() as server:
            model = server.play("late", [ScriptedReply(text="late", gate=Gate(name="never"))])
            body = {"model": model, "messages": HELLO}
            pending = asyncio.create_task(client.post(f"{server.openai_url}/chat/completions", json=body))
            await server.wait_for_requests("late")
        with pytest.raises(httpx.TransportError):
            await pending
