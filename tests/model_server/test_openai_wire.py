from __future__ import annotations

import json
from typing import Any

import httpx
import openai as sdk
import pytest
from openai import AsyncOpenAI
from tests.support.model_server import ModelServer
from tests.support.scripted_models import ScriptedCall, ScriptedReply, ScriptedUsage

HELLO: Any = [{"role": "user", "content": "hello"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a command.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
]


async def events(server: ModelServer, model: str, **options: Any) -> list[dict[str, Any]]:
    """Return the events of a raw stream without the closing `[DONE]`, which is checked."""
    async with httpx.AsyncClient() as client:
        response = await client.post(
            f"{server.openai_url}/chat/completions",
            json={"model": model, "messages": HELLO, "stream": True, **options},
        )
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    frames = response.text.removesuffix("\n\n").split("\n\n")
    assert all(frame.startswith("data: ") for frame in frames)
    assert frames[-1] == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-1]]


async def test_text_reply_is_returned_unchanged(server: ModelServer, openai: AsyncOpenAI):
    model = server.play("greeting", [ScriptedReply(text="Good morning, world.")])
    completion = await openai.chat.completions.create(model=model, messages=HELLO)
    assert completion.choices[0].message.content == "Good morning, world."
    assert completion.choices[0].finish_reason == "stop"
    assert completion.model == model
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (2, 5)
    assert completion._request_id is not None


async def test_streamed_text_equals_the_reply(server: ModelServer, openai: AsyncOpenAI):
    text = "Two words,\n\n  an indented line; an emoji \N{CRAB} and a tail  "
    model = server.play("greeting", [ScriptedReply(text=text)])
    stream = await openai.chat.completions.create(model=model, messages=HELLO, stream=True)
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(pieces) == text
    assert len(pieces) > 5


async def test_each_chunk_follows_the_wire_format(server: ModelServer):
    calls = (ScriptedCall(name="bash", arguments={"command": "ls"}),)
    model = server.play("contract", [ScriptedReply(text="Looking.", tool_calls=calls)])
    chunks = await events(server, model, stream_options={"include_usage": True})
    assert {(chunk["id"], chunk["object"], chunk["model"]) for chunk in chunks} == {
        (chunks[0]["id"], "chat.completion.chunk", model)
    }
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-2]["choices"][0]["delta"] == {}
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks[:-2])


async def test_stream_reports_usage_only_on_request(server: ModelServer):
    model = server.play("quiet", [ScriptedReply(text="Hi.")])
    chunks = await events(server, model)
    assert all("usage" not in chunk for chunk in chunks)


async def test_parallel_calls_stream_as_indexed_fragments(server: ModelServer):
    calls = (
        ScriptedCall(name="bash", arguments={"command": "echo a long enough command"}),
        ScriptedCall(name="bash", arguments="{broken"),
    )
    model = server.play("parallel", [ScriptedReply(tool_calls=calls)])
    chunks = await events(server, model)
    deltas = [delta for chunk in chunks for delta in chunk["choices"][0]["delta"].get("tool_calls", ())]
    heads = [delta for delta in deltas if "id" in delta]
    assert [head["index"] for head in heads] == [0, 1]
    assert [head["function"] for head in heads] == [{"name": "bash", "arguments": ""}] * 2
    assert all(set(delta) == {"index", "function"} for delta in deltas if "id" not in delta)
    arguments = [
        "".join(delta["function"]["arguments"] for delta in deltas if delta["index"] == index)
        for index in (0, 1)
    ]
    assert arguments == ['{"command":"echo a long enough command"}', "{broken"]


async def test_calls_without_text_have_null_content(server: ModelServer, openai: AsyncOpenAI):
    model = server.play(
        "calls", [ScriptedReply(tool_calls=(ScriptedCall(name="bash"), ScriptedCall(name="bash", id="mine")))]
    )
    completion = await openai.chat.completions.create(model=model, messages=HELLO, tools=TOOLS)
    message = completion.choices[0].message
    assert message.content is None
    assert message.tool_calls is not None
    assert [call.id for call in message.tool_calls][1] == "mine"
    assert completion.choices[0].finish_reason == "tool_calls"


async def test_reasoning_is_separate_from_the_text(server: ModelServer, openai: AsyncOpenAI):
    model = server.play("thinker", [ScriptedReply(text="42", reasoning="Let me see.")])
    completion = await openai.chat.completions.create(model=model, messages=HELLO)
    assert completion.choices[0].message.to_dict()["reasoning_content"] == "Let me see."
    chunks = await events(server, model)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Let me see."
    assert "".join(delta.get("content", "") for delta in deltas) == "42"


async def test_scripted_usage_can_be_set_or_omitted(server: ModelServer, openai: AsyncOpenAI):
    stated = ScriptedUsage(input_tokens=-3, output_tokens=10**12, cached_tokens=7)
    model = server.play(
        "usage", [ScriptedReply(text="a", usage=stated), ScriptedReply(text="b", usage="missing")]
    )
    first = await openai.chat.completions.create(model=model, messages=HELLO)
    assert first.usage is not None
    assert first.usage.prompt_tokens == -3
    assert first.usage.prompt_tokens_details is not None
    assert first.usage.prompt_tokens_details.cached_tokens == 7
    later: Any = [*HELLO, {"role": "assistant", "content": "a"}, *HELLO]
    second = await openai.chat.completions.create(model=model, messages=later)
    assert second.usage is None


async def test_models_are_listed_and_retrieved(server: ModelServer, openai: AsyncOpenAI):
    model = server.play("listed", [ScriptedReply(text="a")])
    assert [entry.id async for entry in openai.models.list()] == ["demo", model]
    assert (await openai.models.retrieve(model)).object == "model"


async def test_an_unknown_model_is_a_404(server: ModelServer, openai: AsyncOpenAI):
    with pytest.raises(sdk.NotFoundError) as caught:
        await openai.chat.completions.create(model="gpt-nothing", messages=HELLO)
    assert caught.value.code == "model_not_found"
    assert server.violations == []


async def test_unknown_path_error_names_the_path(server: ModelServer):
    async with httpx.AsyncClient() as client:
        response = await client.post(f"{server.url}/chat/completions", json={})
        health = [(await client.get(server.url + path)).status_code for path in ("/healthz", "/readyz", "/")]
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "unknown_url"
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert health == [200, 200, 200]
