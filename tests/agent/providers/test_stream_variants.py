"""Streams that users of other clients reported, each with the reply that was meant."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest
from aiohttp import web
from tests.agent.providers.test_chunk_shapes import DONE, FINISH, LS, PWD, TWO, call, chunk, sse
from tests.agent.providers.test_openai_wire import complete, upstream
from tests.support.deltas import Shown

from banksman.agent.protocols.base import ModelReply, ModelRequest, RawCall
from banksman.agent.providers.base import ProviderSettings
from banksman.agent.providers.catalog import Providers
from banksman.contracts.errors import ContextOverflow, ProviderFailed
from banksman.contracts.messages import Usage, UserMessage

REQUEST = ModelRequest("m", "", (UserMessage(message_id="m1", content="go"),), ())
TEXT, STOP = chunk(content="Buy milk."), chunk(finish="stop")
WHOLE = sse([TEXT, STOP, DONE])
ONE = call("bash", LS, id="a", index=0)
BASH = (RawCall("a", "bash", LS),)


async def streamed(body: str | bytes, *, api: str = "chat") -> ModelReply:
    """Return the reply of a server that sends `body`."""

    async def handle() -> web.StreamResponse:
        data = body if isinstance(body, bytes) else body.encode()
        return web.Response(body=data, content_type="text/event-stream")

    async with upstream(handle) as (url, _):
        entry = {"base_url": url if api == "anthropic" else f"{url}/v1", "api": api}
        fields = {"max_attempts": 1, "max_wait_s": 0, "providers": {"mine": entry}}
        providers = Providers(ProviderSettings.model_validate(fields))
        try:
            return await providers.choose("mine:m")[0].complete(REQUEST, deltas=Shown(), deadline_s=30)
        finally:
            await providers.close()


TEXTS: Mapping[str, str | bytes] = {
    "a byte order mark": "\ufeff" + WHOLE,
    "a byte order mark before JSON": "\ufeff"
    + json.dumps({"choices": [{"message": {"content": "Buy milk."}, "finish_reason": "stop"}]}),
    "empty data between events": f"data: \n\ndata:\n\n{WHOLE}",
    "only fields without data": f"retry: 3000\n\nid: 7\n\nevent: ping\n\n{WHOLE}",
    "no blank line at the end": WHOLE.rstrip("\n").removesuffix("data: [DONE]").rstrip("\n"),
    "no line end at the end": sse([TEXT, STOP]).rstrip("\n"),
    "a broken character": WHOLE.encode().replace(b"milk.", b"milk.\xf0\x9f"),
    "the whole message at the end": sse(
        [
            TEXT,
            {
                "object": "chat.completion",
                "choices": [
                    {"message": {"role": "assistant", "content": "Buy milk."}, "finish_reason": "stop"}
                ],
            },
            DONE,
        ]
    ),
    "a reason that is the word null": sse(
        [{**TEXT, "choices": [{**TEXT["choices"][0], "finish_reason": "null"}]}, STOP, DONE]
    ),
    "content as an object": sse([chunk(content={"type": "text", "text": "Buy milk."}), STOP, DONE]),
    "chunks without a first choice": sse(
        [
            {"choices": [], "prompt_filter_results": []},
            TEXT,
            {"choices": [{"index": 0, "content_filter_offsets": {}}]},
            STOP,
            DONE,
        ]
    ),
}


@pytest.mark.parametrize("variant", TEXTS)
async def test_the_text_is_read(variant: str) -> None:
    reply = await streamed(TEXTS[variant])

    assert (reply.text or "").rstrip("\ufffd") == "Buy milk."
    assert reply.finish_reason == "stop"


CALLS: Mapping[str, tuple[list[Any], tuple[RawCall, ...]]] = {
    "the legacy field": (
        [
            chunk(function_call={"name": "bash", "arguments": LS[:4]}),
            chunk(function_call={"arguments": LS[4:]}),
            chunk(finish="function_call"),
        ],
        (RawCall(None, "bash", LS),),
    ),
    "one call instead of a list": ([chunk(tool_calls=call("bash", LS, id="a", index=0)), FINISH], BASH),
    "calls in a second choice": (
        [
            {
                "choices": [
                    {"delta": {"content": "I look."}},
                    {
                        "index": 0,
                        "delta": {"tool_calls": [call("bash", LS, id="a", index=0)]},
                        "finish_reason": "tool_calls",
                    },
                ]
            }
        ],
        BASH,
    ),
    "the index is a text": ([chunk({**ONE, "index": "0"}), chunk(call("bash", PWD, id="b")), FINISH], TWO),
    "calls, and the whole message again": (
        [
            chunk(call("bash", LS, id="a", index=0)),
            {
                "choices": [
                    {
                        "message": {"content": "", "tool_calls": [call("bash", LS, id="a", index=0)]},
                        "finish_reason": "tool_calls",
                    }
                ]
            },
        ],
        BASH,
    ),
}


@pytest.mark.parametrize("variant", CALLS)
async def test_the_calls_are_read(variant: str) -> None:
    events, calls = CALLS[variant]

    reply = await streamed(sse([*events, DONE]))

    assert (reply.calls, reply.finish_reason) == (calls, "tool_calls")


async def cut_off(body: str) -> ModelReply:
    """Return the reply of a server that announces more than it sends."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n" + body.encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        return await complete(f"http://127.0.0.1:{port}/v1")


async def test_a_complete_reply_counts_although_its_connection_breaks() -> None:
    assert (await cut_off(sse([TEXT, STOP]))).text == "Buy milk."
    with pytest.raises(ProviderFailed, match="broke off"):
        await cut_off(sse([TEXT]))


async def test_a_complete_reply_counts_although_its_stream_stays_open() -> None:
    closed = asyncio.Event()

    async def body() -> AsyncGenerator[bytes]:
        yield sse([TEXT, STOP]).encode()
        await closed.wait()

    async def handle() -> web.StreamResponse:
        return web.Response(body=body(), content_type="text/event-stream")

    async with upstream(handle) as (url, _):
        assert (await complete(url)).text == "Buy milk."
        closed.set()


ERRORS: Mapping[str, tuple[str, str]] = {
    "llama.cpp's field": (
        'error: {"code": 500, "message": "Compute error."}\n\ndata: [DONE]\n\n',
        "500: Compute error.",
    ),
    "an event named error": ('event: error\ndata: {"detail": "No slot."}\n\n', "No slot."),
    "an event named error, as text": (
        "event: error\ndata: Internal Server Error\n\n",
        "Internal Server Error",
    ),
    "a status as text": (
        sse([{"error": {"message": "Wrong key.", "code": "401"}}]),
        "returned 401: 401: Wrong key.",
    ),
    "text of a proxy": (
        "upstream connect error or disconnect/reset before headers",
        "sent no events: upstream connect",
    ),
    "a finish reason of a failure": (
        sse([TEXT, chunk(finish="network_error"), DONE]),
        "broke the reply off: network_error",
    ),
    "DeepSeek without resources": (
        sse([TEXT, chunk(finish="insufficient_system_resource"), DONE]),
        "insufficient_system_resource",
    ),
    "LM Studio without /v1": (
        '{"error":"Unexpected endpoint or method. (POST /chat/completions). Returning 200 anyway"}',
        "Unexpected endpoint or method",
    ),
}


@pytest.mark.parametrize("variant", ERRORS)
async def test_the_reason_is_shown(variant: str) -> None:
    body, reason = ERRORS[variant]

    with pytest.raises(ProviderFailed) as failure:
        await streamed(body)

    assert reason in str(failure.value)


async def test_a_context_that_llama_cpp_exceeds_in_a_stream_is_recognised() -> None:
    error = {"code": 400, "message": "the request exceeds the available context size", "type": "x"}

    with pytest.raises(ContextOverflow):
        await streamed(f"error: {json.dumps(error)}\n\ndata: [DONE]\n\n")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, "overloaded"),
        ({"type": "requests", "code": "rate_limit_exceeded", "message": "Slow down."}, "rate_limited"),
        ({"code": "429", "message": "Slow down."}, "rate_limited"),
        ({"status": "RESOURCE_EXHAUSTED", "message": "Slow down."}, "rate_limited"),
        ({"message": "Overloaded.", "type": "x", "status_code": 503}, "overloaded"),
    ],
)
async def test_an_error_in_a_stream_waits_as_its_status_would(error: dict[str, Any], reason: str) -> None:
    bodies = iter([sse([{"error": error}])])
    shown = Shown()

    async def handle() -> web.StreamResponse:
        return web.Response(body=next(bodies, WHOLE).encode(), content_type="text/event-stream")

    async with upstream(handle) as (url, _):
        reply = await complete(url, deltas=shown, max_wait_s=60, first_delay_s=0.01)

    assert reply.text == "Buy milk."
    assert [pause.reason for pause in shown.pauses] == [reason]


USAGES: Mapping[str, tuple[dict[str, Any], Usage]] = {
    "floats": ({"prompt_tokens": 3.0, "completion_tokens": 2.0}, Usage(input_tokens=3, output_tokens=2)),
    "xAI's reasoning": (
        {
            "prompt_tokens": 32,
            "completion_tokens": 9,
            "total_tokens": 135,
            "completion_tokens_details": {"reasoning_tokens": 94},
        },
        Usage(input_tokens=32, output_tokens=103),
    ),
    "OpenAI's reasoning": (
        {
            "prompt_tokens": 32,
            "completion_tokens": 103,
            "total_tokens": 135,
            "completion_tokens_details": {"reasoning_tokens": 94},
        },
        Usage(input_tokens=32, output_tokens=103),
    ),
    "Moonshot's cache": (
        {"prompt_tokens": 9, "completion_tokens": 2, "cached_tokens": 4},
        Usage(input_tokens=9, output_tokens=2, cached_tokens=4),
    ),
    "DeepSeek's cache": (
        {"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 4},
        Usage(input_tokens=9, output_tokens=2, cached_tokens=4),
    ),
}


@pytest.mark.parametrize("variant", USAGES)
async def test_the_usage_is_read(variant: str) -> None:
    stated, usage = USAGES[variant]

    assert (await streamed(sse([TEXT, {**STOP, "usage": stated}, DONE]))).usage == usage


async def test_the_usage_in_groqs_field_is_read() -> None:
    last = {**STOP, "x_groq": {"id": "r", "usage": {"prompt_tokens": 3, "completion_tokens": 2}}}

    assert (await streamed(sse([TEXT, last, DONE]))).usage == Usage(input_tokens=3, output_tokens=2)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "thinking", "thinking": "Hmm."},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hmm."}]},
        {"type": "reasoning", "text": "Hmm."},
    ],
)
async def test_reasoning_in_a_part_is_no_text(part: dict[str, Any]) -> None:
    shown = Shown()

    async def handle() -> web.StreamResponse:
        body = sse([chunk(content=[part]), TEXT, STOP, DONE])
        return web.Response(body=body.encode(), content_type="text/event-stream")

    async with upstream(handle) as (url, _):
        reply = await complete(url, deltas=shown)

    assert (reply.text, shown.reasoning) == ("Buy milk.", "Hmm.")


def events(*listed: dict[str, Any]) -> str:
    return "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in listed)


def block(index: int | None, content: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": content},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def use(id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "bash", "input": {}}


def written(text: str) -> dict[str, Any]:
    return {"type": "input_json_delta", "partial_json": text}


ENDED = ({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}, {"type": "message_stop"})
INTERLEAVED = [
    {"type": "content_block_start", "index": 4, "content_block": use("a")},
    {"type": "content_block_start", "index": 2, "content_block": use("b")},
    {"type": "content_block_delta", "index": 4, "delta": written(LS)},
    {"type": "content_block_delta", "index": 2, "delta": written(PWD)},
]
WHOLE_MESSAGE = {
    "type": "message",
    "content": [{**use("a"), "input": {"command": "ls"}}],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 3, "output_tokens": 2},
}


@pytest.mark.parametrize(
    ("body", "calls"),
    [
        (events(*block(0, use("a"), written(LS)), *block(0, use("b"), written(PWD)), *ENDED), TWO),
        (events(*block(None, use("a"), written(LS)), *ENDED), BASH),
        (events(*INTERLEAVED, *ENDED), TWO),
        (json.dumps(WHOLE_MESSAGE), (RawCall("a", "bash", {"command": "ls"}),)),
    ],
    ids=[
        "all blocks have the index 0",
        "no index",
        "indexes apart, in turns",
        "a message instead of a stream",
    ],
)
async def test_calls_in_anthropics_format_are_read(body: str, calls: tuple[RawCall, ...]) -> None:
    reply = await streamed(body, api="anthropic")

    assert (reply.calls, reply.finish_reason) == (calls, "tool_calls")


@pytest.mark.parametrize("first", [(7, 1), (0, 0)])
async def test_a_count_that_anthropics_format_repeats_as_0_is_kept(first: tuple[int, int]) -> None:
    last = {"input_tokens": 0 if first[0] else 7, "output_tokens": 5}
    start = {"message": {"usage": {"input_tokens": first[0], "output_tokens": first[1]}}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": last}
    body = events({"type": "message_start", **start}, *block(0, {"type": "text", "text": "x"}), end, ENDED[1])

    assert (await streamed(body, api="anthropic")).usage == Usage(input_tokens=7, output_tokens=5)


async def test_a_response_instead_of_a_stream_is_read() -> None:
    item = {"type": "function_call", "call_id": "a", "name": "bash", "arguments": LS}
    body = {"object": "response", "status": "completed", "output": [item]}

    reply = await streamed(json.dumps(body), api="responses")

    assert (reply.calls, reply.finish_reason) == (BASH, "tool_calls")
