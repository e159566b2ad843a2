from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import openai
import pytest
from anthropic import AsyncAnthropic
from anthropic import DefaultAioHttpClient as AnthropicHttpClient
from tests.gateway.conftest import TOKENS, GatewayFactory, Served, key_of
from tests.support.model_server import ModelServer
from tests.support.scripted_models import Gate, ScriptedReply
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.gateway.settings import ModelSettings

CHAT = "/v1/chat/completions"
SYSTEM = "You are  ünïcode;\n\tkeep\u2028 every byte."


@pytest.fixture
async def upstream() -> AsyncGenerator[ModelServer]:
    async with ModelServer.running() as server:
        yield server


@pytest.fixture
async def passing(start_gateway: GatewayFactory, upstream: ModelServer) -> AsyncGenerator[Served]:
    async with start_gateway(models=ModelSettings(demo_base_url=upstream.openai_url)) as served:
        yield served


def _client(served: Served, key: str = "any") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{served.url}/v1",
        api_key=key,
        max_retries=0,
        timeout=WAIT_TIMEOUT_S,
        http_client=openai.DefaultAioHttpClient(verify=False),
    )


async def test_the_bytes_of_a_body_reach_the_upstream_unchanged(
    passing: Served, upstream: ModelServer
) -> None:
    """R23"""
    model = upstream.play("bytes", [ScriptedReply(text="ok")])
    system = json.dumps(SYSTEM, ensure_ascii=False)
    messages = f'[{{"role":"system","content":{system}}}, {{"role":"user","content":"hi"}}]'
    body = f'{{ "model" : "{model}",\n "unknown": [1.0, 1e3], "messages": {messages} }}'.encode()
    async with passing.http as http:
        response = await http.post(CHAT, content=body, headers={"content-type": "application/json"})
    (recorded,) = upstream.requests("bytes")
    assert response.json()["choices"][0]["message"]["content"] == "ok"
    assert recorded.raw == body


async def test_an_openai_client_streams_through_passthrough(passing: Served, upstream: ModelServer) -> None:
    model = upstream.play("streamed", [ScriptedReply(text="one two three")])
    async with _client(passing) as client:
        stream = await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "hi"}], stream=True
        )
        texts = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    assert "".join(texts) == "one two three"
    assert len(texts) > 2


async def test_an_anthropic_client_streams_and_counts_tokens(passing: Served, upstream: ModelServer) -> None:
    model = upstream.play("claude", [ScriptedReply(text="one two three")])
    async with AsyncAnthropic(
        base_url=passing.url,
        api_key="any",
        max_retries=0,
        timeout=WAIT_TIMEOUT_S,
        http_client=AnthropicHttpClient(verify=False),
    ) as client:
        messages: Any = [{"role": "user", "content": "hi"}]
        async with client.messages.stream(model=model, max_tokens=99, messages=messages) as stream:
            text = await stream.get_final_text()
        counted = await client.messages.count_tokens(model=model, messages=messages)
    assert text == "one two three"
    assert counted.input_tokens > 0


async def test_errors_of_the_upstream_are_returned_unchanged(passing: Served, upstream: ModelServer) -> None:
    async with passing.http as http:
        body = {"model": "nothing-of-that-name", "messages": [{"role": "user", "content": "hi"}]}
        through = await http.post(CHAT, json=body)
        direct = await http.post(f"{upstream.url}{CHAT}", json=body)
    assert (through.status_code, through.json()) == (direct.status_code, direct.json())
    assert through.json()["error"]["code"] == "model_not_found"


async def test_models_of_the_upstreams_are_listed_and_read(passing: Served) -> None:
    async with _client(passing) as client:
        models = [model.id async for model in client.models.list()]
        assert models
        assert (await client.models.retrieve(models[0])).object == "model"
        with pytest.raises(openai.NotFoundError) as missing:
            await client.models.retrieve("nothing")
    assert missing.value.code == "model_not_found"


async def test_a_client_that_disconnects_cancels_the_upstream_request(
    passing: Served, upstream: ModelServer
) -> None:
    model = upstream.play("slow", [ScriptedReply(text="never", gate=Gate(name="closed"))])
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    async with passing.http as http, asyncio.TaskGroup() as group:
        pending = group.create_task(http.post(CHAT, json=body))
        await upstream.wait_for_requests("slow")
        pending.cancel()
        await upstream.wait_for_requests("slow", outcome="disconnected")


async def test_the_responses_api_of_the_demo_model_streams_through_passthrough(passing: Served) -> None:
    async with _client(passing) as client:
        async with client.responses.stream(model="demo", input="hello") as stream:
            kinds = [event.type async for event in stream]
            response = await stream.get_final_response()
    assert response.output_text
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"


async def test_an_unreachable_upstream_is_a_502(start_gateway: GatewayFactory) -> None:
    async with start_gateway(models=ModelSettings(demo_base_url="http://127.0.0.1:9/v1")) as gateway:
        async with gateway.http as http:
            response = await http.post(CHAT, json={"model": "m", "messages": []})
    error = response.json()["error"]
    assert (response.status_code, error["code"], set(error)) == (
        502,
        "upstream_error",
        {"message", "type", "param", "code"},
    )


@pytest.mark.parametrize(
    ("method", "path", "hint"),
    [("POST", "/chat/completions", "/v1/chat/completions"), ("GET", "/v1/v1/models", "/v1/models")],
)
async def test_an_unknown_path_gets_a_hint_with_the_right_path(
    passing: Served, method: str, path: str, hint: str
) -> None:
    async with passing.http as http:
        response = await http.request(method, path)
    assert response.status_code == 404
    assert hint in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/models"])
async def test_a_path_without_v1_gets_an_error_in_the_format_of_openai(passing: Served, path: str) -> None:
    async with passing.http as http:
        error = (await http.post(path, json={})).json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, "unknown_url")


async def test_a_wrong_key_gets_the_error_format_of_each_api(
    start_gateway: GatewayFactory, upstream: ModelServer, tenant: str
) -> None:
    keys = (key_of("alice", tenant), key_of("reader", tenant, modes=("context",)))
    models = ModelSettings(demo_base_url=upstream.openai_url)
    async with start_gateway(keys=keys, models=models) as gateway, gateway.http as http:
        wrong = await http.post(CHAT, json={}, headers={"authorization": "Bearer wrong"})
        anthropic = await http.post("/v1/messages", json={})
        reader = {"authorization": f"Bearer {TOKENS['reader']}"}
        limited = await http.get("/v1/models", headers=reader)
        allowed = await http.get("/v1/models", headers={"x-api-key": TOKENS["alice"]})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (401, "invalid_api_key")
    assert set(wrong.json()["error"]) == {"message", "type", "param", "code"}
    assert (anthropic.status_code, anthropic.json()["error"]["type"]) == (401, "authentication_error")
    assert (limited.status_code, allowed.status_code) == (403, 200)


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"messages": []}'])
async def test_a_body_without_a_model_is_a_bad_request(passing: Served, body: bytes) -> None:
    async with passing.http as http:
        response = await http.post(CHAT, content=body)
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
