"""Streams that an upstream does not finish, and streams of unusual form."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from tests.gateway.passthrough.conftest import Passing, StartPassing, to
from tests.support.model_server import ModelServer
from tests.support.scripted_models import (
    ConnectionCut,
    EarlyEnd,
    Gate,
    HalfJson,
    HttpError,
    RawReply,
    ScriptedReply,
)

from banksman.gateway.interfaces.passthrough import sse

CHAT = "/v1/chat/completions"
HEADERS = {"anthropic-version": "2023-06-01"}
FAULTS = {
    "early end": EarlyEnd(),
    "half an event": HalfJson(after_events=3),
    "connection cut": ConnectionCut(after_events=3),
}
PATHS = (CHAT, "/v1/messages", "/v1/responses")


def body(path: str, model: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"model": model, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    if path == "/v1/responses":
        fields["input"] = fields.pop("messages")
    return fields | ({"max_tokens": 9} if path == "/v1/messages" else {})


async def read(http: httpx.AsyncClient, path: str, model: str) -> tuple[str, bool]:
    """Return the text of a stream, and whether its connection was aborted."""
    text = b""
    async with http.stream("POST", path, json=body(path, model), headers=HEADERS) as response:
        try:
            async for piece in response.aiter_raw():
                text += piece
        except httpx.RemoteProtocolError:
            return text.decode(), True
    return text.decode(), False


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_that_the_upstream_breaks_off_ends_with_an_error(
    through: Passing, upstream: ModelServer, path: str, fault: str
) -> None:
    """Interfaces, section 2: mid-stream fault. No part of an event is forwarded."""
    model = upstream.play("cut", [ScriptedReply(text="one two three", fault=FAULTS[fault])])
    async with through.http as http:
        text, aborted = await read(http, path, model)
    *events, last, rest = text.split("\n\n")
    assert aborted and rest == "" and "[DONE]" not in text
    for event in events:
        json.loads(event.rpartition("data: ")[2])
    event = json.loads(last.rpartition("data: ")[2])
    error = event.get("error", event)
    assert error["type"] == {CHAT: "server_error", "/v1/messages": "api_error"}.get(path, "error")
    assert error["message"]
    assert upstream.url.removeprefix("http://") not in text


async def test_the_openai_sdk_raises_for_a_stream_that_breaks_off(
    through: Passing, upstream: ModelServer
) -> None:
    model = upstream.play("cut", [ScriptedReply(text="one two three", fault=EarlyEnd())])
    client = openai.AsyncOpenAI(base_url=f"{through.url}/v1", api_key="any", max_retries=0)
    stream = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "hi"}], stream=True
    )
    with pytest.raises(openai.APIError) as raised:
        async for _ in stream:
            pass
    await client.close()
    assert raised.value.code == "upstream_error"


@pytest.mark.parametrize(
    "ending", ["data: [DONE]", 'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}']
)
async def test_a_last_event_without_a_blank_line_finishes_a_stream(
    start_passing: StartPassing, upstream: ModelServer, ending: str
) -> None:
    first = 'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}\n\n'
    model = upstream.play("open", [RawReply(raw_chunks=(first, ending))])
    async with start_passing(to(upstream, normalise=False)) as passing, passing.http as http:
        assert await read(http, CHAT, model) == (first + ending, False)


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
async def test_each_event_is_forwarded_when_it_is_complete(
    start_passing: StartPassing, upstream: ModelServer, line_end: str
) -> None:
    """The upstream waits at a gate until the client has the first event."""
    blank = line_end * 2
    first = f'data: {{"choices":[{{"delta":{{"content":"a"}},"finish_reason":null}}]}}{blank}'
    last = f"data: [DONE]{blank}"
    model = upstream.play(
        "lines", [RawReply(raw_chunks=(first[:9], first[9:], last), gate=Gate(name="seen", after_events=2))]
    )
    async with start_passing(to(upstream, normalise=False)) as passing, passing.http as http:
        async with http.stream("POST", CHAT, json=body(CHAT, model)) as response:
            pieces = response.aiter_raw()
            seen = await anext(pieces)
            upstream.open_gate("seen")
            rest = b"".join([piece async for piece in pieces])
    assert (seen.decode(), rest.decode()) == (first, last)


async def test_an_endless_event_ends_its_stream(
    through: Passing, upstream: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100_000)
    model = upstream.play("endless", [RawReply(raw_chunks=("data: " + "x" * 100_001,))])
    async with through.http as http:
        text, aborted = await read(http, CHAT, model)
    assert aborted and "an event of more than 100000 bytes" in text


async def test_a_stream_that_outlasts_the_drain_ends_with_an_error(
    start_passing: StartPassing, upstream: ModelServer
) -> None:
    """Streams that finish within the drain's time are complete."""
    long = upstream.play("long", [ScriptedReply(text="one two", gate=Gate(name="never", after_events=2))])
    short = upstream.play(
        "short", [ScriptedReply(text="one two", gate=Gate(name="draining", after_events=2))]
    )
    async with httpx.AsyncClient(timeout=30) as http:
        async with start_passing(to(upstream), drain_s=1) as passing:
            url = f"{passing.url}{CHAT}"
            endless = await http.send(http.build_request("POST", url, json=body(CHAT, long)), stream=True)
            finishing = await http.send(http.build_request("POST", url, json=body(CHAT, short)), stream=True)
            upstream.open_gate("draining")
        assert (await finishing.aread()).endswith(b"data: [DONE]\n\n")
        text = b""
        with pytest.raises(httpx.RemoteProtocolError):
            async for piece in endless.aiter_raw():
                text += piece
    error = json.loads(text.rpartition(b"data: ")[2])["error"]
    assert "the gateway is stopping" in error["message"]


REFUSED = HttpError(status=429, message="Slow down.", code="rate_limit_exceeded", retry_after_s=7)


@pytest.mark.parametrize("path", PATHS)
async def test_a_refusal_after_keep_alives_has_the_upstreams_error(
    through: Passing, upstream: ModelServer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status is sent already, so the error event has it, with the time to retry after."""
    monkeypatch.setattr("banksman.gateway.operation.streaming.KEEP_ALIVE_S", 0.01)
    model = upstream.play("late", [ScriptedReply(fault=REFUSED, first_delay_s=0.3)])
    async with through.http as http:
        text, aborted = await read(http, path, model)
    event = json.loads(text.rpartition("data: ")[2])
    error = event.get("error", event)
    assert aborted
    assert (error["message"], error["status"], error["retry_after"]) == ("Slow down.", 429, 7)
    assert error["type"] == ("error" if path == "/v1/responses" else "rate_limit_error")
