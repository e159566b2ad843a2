from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import anthropic as anthropic_sdk
import httpx
import openai as openai_sdk
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from tests.support.model_server import ModelServer
from tests.support.scripted_models import (
    ConnectionCut,
    EarlyEnd,
    Fault,
    Gate,
    HalfJson,
    HttpError,
    RawReply,
    ScriptedCall,
    ScriptedReply,
    Silence,
    StreamError,
)

T = TypeVar("T")

HELLO: Any = [{"role": "user", "content": "hello"}]
TEXT = "one two three four five"


def faulty(fault: Fault) -> list[ScriptedReply]:
    return [ScriptedReply(text=TEXT, fault=fault)]


async def read_stream(openai: AsyncOpenAI, model: str) -> tuple[str, str | None]:
    """Return text and finish reason of a streamed reply."""
    text, finish = "", None
    async for chunk in await openai.chat.completions.create(model=model, messages=HELLO, stream=True):
        text += chunk.choices[0].delta.content or ""
        finish = chunk.choices[0].finish_reason or finish
    return text, finish


@pytest.mark.parametrize("stream", [False, True])
async def test_error_status_has_the_vendors_error_object(
    server: ModelServer, openai: AsyncOpenAI, anthropic: AsyncAnthropic, stream: bool
):
    model = server.play("limited", faulty(HttpError(status=429, message="Slow down.", retry_after_s=1.5)))
    with pytest.raises(openai_sdk.RateLimitError) as limited:
        await openai.chat.completions.create(model=model, messages=HELLO, stream=stream)
    assert limited.value.code == "rate_limit_exceeded"
    assert limited.value.response.headers["retry-after"] == "1.5"
    with pytest.raises(anthropic_sdk.RateLimitError) as slowed:
        await anthropic.messages.create(model=model, messages=HELLO, max_tokens=9, stream=stream)
    assert slowed.value.body == {
        "type": "error",
        "error": {"type": "rate_limit_error", "message": "Slow down."},
        "request_id": slowed.value.request_id,
    }
    assert [request.outcome for request in server.requests("limited")] == ["faulted", "faulted"]


async def test_error_body_can_be_scripted_verbatim(server: ModelServer, openai: AsyncOpenAI):
    model = server.play("proxy", faulty(HttpError(status=502, body="<html>Bad Gateway</html>")))
    with pytest.raises(openai_sdk.InternalServerError) as caught:
        await openai.chat.completions.create(model=model, messages=HELLO)
    assert caught.value.response.text == "<html>Bad Gateway</html>"
    assert caught.value.response.headers["content-type"].startswith("text/plain")


async def test_sdk_retry_recovers_from_a_single_fault(server: ModelServer, openai: AsyncOpenAI):
    fault = HttpError(status=500, times=1, retry_after_s=0)
    model = server.play("flaky", [ScriptedReply(text=TEXT, fault=fault)])
    patient = openai.with_options(max_retries=1)
    for conversation in ("first", "second"):
        messages: Any = [{"role": "user", "content": conversation}]
        completion = await patient.chat.completions.create(model=model, messages=messages)
        assert completion.choices[0].message.content == TEXT
    assert [request.outcome for request in server.requests("flaky")] == ["faulted", "completed"] * 2


@pytest.mark.parametrize("stream", [False, True])
async def test_connection_cut_before_the_response_raises_a_connection_error(
    server: ModelServer, openai: AsyncOpenAI, stream: bool
):
    model = server.play("cut", faulty(ConnectionCut()))
    with pytest.raises(openai_sdk.APIConnectionError):
        await openai.chat.completions.create(model=model, messages=HELLO, stream=stream)
    (request,) = await server.wait_for_requests("cut", outcome="faulted")
    assert request.body["stream"] is stream


async def test_connection_cut_within_a_stream_delivers_partial_text(server: ModelServer):
    model = server.play("cut", faulty(ConnectionCut(after_events=3)))
    seen = ""
    async with httpx.AsyncClient(timeout=5) as client:
        body = {"model": model, "messages": HELLO, "stream": True}
        async with client.stream("POST", f"{server.openai_url}/chat/completions", json=body) as response:
            with pytest.raises(httpx.TransportError):
                async for piece in response.aiter_text():
                    seen += piece
    assert seen.count("data: ") == 3
    assert '"two "' in seen


async def test_connection_cut_within_a_body_raises_a_connection_error(
    server: ModelServer, openai: AsyncOpenAI
):
    model = server.play("cut", faulty(ConnectionCut(after_events=1)))
    with pytest.raises(openai_sdk.APIConnectionError):
        await openai.chat.completions.create(model=model, messages=HELLO)


async def test_error_event_in_a_stream_raises_in_the_sdk(
    server: ModelServer, openai: AsyncOpenAI, anthropic: AsyncAnthropic
):
    fault = StreamError(after_events=2, message="The model melted.", error_type="overloaded_error")
    model = server.play("melting", faulty(fault))
    with pytest.raises(openai_sdk.APIError, match=r"The model melted\."):
        await read_stream(openai, model)
    with pytest.raises(anthropic_sdk.APIStatusError, match="overloaded_error"):
        async with anthropic.messages.stream(model=model, messages=HELLO, max_tokens=9) as stream:
            await stream.get_final_message()
    with pytest.raises(openai_sdk.InternalServerError):
        await openai.chat.completions.create(model=model, messages=HELLO)


async def test_half_json_fails_in_the_clients_parser(server: ModelServer):
    model = server.play("half", faulty(HalfJson(after_events=1)))
    async with httpx.AsyncClient(timeout=5) as client:
        url, body = f"{server.openai_url}/chat/completions", {"model": model, "messages": HELLO}
        streamed = await client.post(url, json=body | {"stream": True})
        whole = await client.post(url, json=body)
    assert streamed.text.count("data: ") == 2
    assert not streamed.text.endswith("\n\n")
    assert whole.status_code == 200
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        whole.json()


async def test_early_end_delivers_all_text_without_a_finish_reason(server: ModelServer, openai: AsyncOpenAI):
    model = server.play("early", faulty(EarlyEnd()))
    assert await read_stream(openai, model) == (TEXT, None)


@pytest.mark.parametrize("stream", [False, True])
async def test_silence_triggers_the_clients_timeout(server: ModelServer, openai: AsyncOpenAI, stream: bool):
    model = server.play("silent", faulty(Silence()))
    with pytest.raises(openai_sdk.APITimeoutError):
        hasty = openai.with_options(timeout=0.2)
        response = await hasty.chat.completions.create(model=model, messages=HELLO, stream=stream)
        if isinstance(response, openai_sdk.AsyncStream):
            [chunk async for chunk in response]
    await server.wait_for_requests("silent", outcome="disconnected")


async def test_silence_ends_with_a_closed_connection(server: ModelServer, openai: AsyncOpenAI):
    model = server.play("silent", faulty(Silence(duration_s=0.05)))
    with pytest.raises(openai_sdk.APIConnectionError):
        await openai.chat.completions.create(model=model, messages=HELLO)


async def test_an_empty_reply_is_complete(
    server: ModelServer, openai: AsyncOpenAI, anthropic: AsyncAnthropic
):
    model = server.play("empty", [ScriptedReply()])
    assert await read_stream(openai, model) == ("", "stop")
    completion = await openai.chat.completions.create(model=model, messages=HELLO)
    assert completion.choices[0].message.content == ""
    async with anthropic.messages.stream(model=model, messages=HELLO, max_tokens=9) as stream:
        assert (await stream.get_final_message()).content == []


async def test_unknown_finish_reason_is_sent_unchanged(server: ModelServer, openai: AsyncOpenAI):
    model = server.play("odd", [ScriptedReply(text=TEXT, finish_reason="astonished")])
    assert await read_stream(openai, model) == (TEXT, "astonished")


async def test_raw_reply_is_sent_verbatim(server: ModelServer):
    chunks = ('data: {"choices":[{"delta":{"content":"a"}}]}\n\n', "data: [DONE]\n\n")
    model = server.play("raw", [RawReply(raw_chunks=chunks, headers={"x-upstream": "sloppy"})])
    async with httpx.AsyncClient() as client:
        response = await client.post(
            f"{server.openai_url}/chat/completions", json={"model": model, "messages": HELLO}
        )
    assert response.text == "".join(chunks)
    assert response.headers["x-upstream"] == "sloppy"


async def test_chunk_delays_slow_the_stream(server: ModelServer, openai: AsyncOpenAI):
    model = server.play("slow", [ScriptedReply(text=TEXT, first_delay_s=0.1, chunk_delay_s=0.02)])
    started = time.monotonic()
    stream = await openai.chat.completions.create(model=model, messages=HELLO, stream=True)
    first = time.monotonic() - started
    arrivals = [time.monotonic() - started async for _ in stream]
    assert first >= 0.1
    assert len(arrivals) == 7
    assert arrivals[-1] - arrivals[0] >= 0.1


async def test_gate_delays_the_reply_until_it_is_opened(server: ModelServer, openai: AsyncOpenAI):
    replies = [ScriptedReply(text=TEXT, gate=Gate(name="half-way", after_events=3))]
    stream = await openai.chat.completions.create(
        model=server.play("gated", replies), messages=HELLO, stream=True
    )
    texts = [chunk.choices[0].delta.content async for chunk in _first(stream, 3)]
    assert texts == ["", "one ", "two "]
    assert server.requests("gated")[0].outcome == "open"
    server.open_gate("half-way")
    assert [chunk.choices[0].delta.content async for chunk in stream] == ["three ", "four ", "five", None]


async def test_disconnected_client_is_recorded(server: ModelServer, openai: AsyncOpenAI):
    model = server.play(
        "left", [ScriptedReply(tool_calls=(ScriptedCall(name="bash"),), gate=Gate(name="never"))]
    )
    async with asyncio.TaskGroup() as tasks:
        pending = tasks.create_task(_complete(openai, model))
        await server.wait_for_requests("left")
        pending.cancel()
    await server.wait_for_requests("left", outcome="disconnected")


async def _complete(openai: AsyncOpenAI, model: str) -> None:
    await openai.chat.completions.create(model=model, messages=HELLO)


async def _first(stream: AsyncIterator[T], count: int) -> AsyncIterator[T]:
    for _ in range(count):
        yield await anext(stream)
