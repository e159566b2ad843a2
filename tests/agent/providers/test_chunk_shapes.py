"""Chunks as compatible servers really send them: each shape is read as the calls and text that were meant."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from aiohttp import web
from tests.agent.providers.test_openai_wire import complete, upstream
from tests.support.deltas import Shown

from banksman.agent.protocols.base import ModelReply, RawCall
from banksman.contracts.errors import ProviderFailed
from banksman.contracts.messages import Usage

LS, PWD = '{"command": "ls"}', '{"command": "pwd"}'
USAGE = {"prompt_tokens": 3, "completion_tokens": 2}
COUNTED = Usage(input_tokens=3, output_tokens=2)
DONE = "[DONE]"


def call(
    name: str | None = None, arguments: object = None, *, id: str | None = None, index: int | None = None
) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    fields = {"id": id, "index": index, "function": {k: v for k, v in function.items() if v is not None}}
    return {key: value for key, value in fields.items() if value is not None}


def chunk(*calls: dict[str, Any], finish: str | None = None, **delta: Any) -> dict[str, Any]:
    fields = {**delta, "tool_calls": list(calls)} if calls else delta
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


FINISH = chunk(finish="tool_calls")


def sse(events: Iterable[object]) -> str:
    texts = (event if isinstance(event, str) else json.dumps(event) for event in events)
    return "".join(f"data: {text}\n\n" for text in texts)


async def reply_to(body: str, *, status: int = 200, content_type: str = "text/event-stream") -> ModelReply:
    async def answer() -> web.StreamResponse:
        return web.Response(status=status, body=body.encode(), content_type=content_type)

    async with upstream(answer) as (url, _):
        return await complete(url)


TWO = (RawCall("a", "bash", LS), RawCall("b", "bash", PWD))
SHAPES = {
    "all calls have the index 0": (
        [chunk(call("bash", LS, id="a", index=0)), chunk(call("bash", PWD, id="b", index=0))],
        TWO,
    ),
    "calls with the index 0 arrive in turns": (
        [
            chunk(call("bash", "", id="a", index=0)),
            chunk(call("bash", "", id="b", index=0)),
            chunk(call(arguments=LS, id="a", index=0)),
            chunk(call(arguments=PWD, id="b", index=0)),
        ],
        TWO,
    ),
    "an id comes before the name": (
        [
            chunk(call("bash", LS, id="a", index=0)),
            chunk(call(id="b", index=0)),
            chunk(call("bash", index=0)),
            chunk(call(arguments=PWD, index=0)),
        ],
        TWO,
    ),
    "each fragment has a new id": (
        [
            chunk(call("bash", "", id="a", index=0)),
            chunk(call(arguments='{"command"', id="x", index=0)),
            chunk(call(arguments=': "ls"}', id="y", index=0)),
        ],
        (RawCall("a", "bash", LS),),
    ),
    "calls have neither index nor id": (
        [chunk(call("bash", LS), call("bash", PWD))],
        (RawCall(None, "bash", LS), RawCall(None, "bash", PWD)),
    ),
    "fragments have neither index nor id": (
        [chunk(call("bash", '{"command"')), chunk(call(arguments=': "ls"}')), chunk(call("bash", PWD))],
        (RawCall(None, "bash", LS), RawCall(None, "bash", PWD)),
    ),
    "calls have the index 0 and no id": (
        [chunk(call("bash", LS, index=0)), chunk(call("bash", PWD, index=0))],
        (RawCall(None, "bash", LS), RawCall(None, "bash", PWD)),
    ),
    "every fragment repeats the name": (
        [
            chunk(call("bash", '{"command": {"a": 1}', id="a", index=0)),
            chunk(call("bash", ', "b": 2}', id="a", index=0)),
        ],
        (RawCall("a", "bash", '{"command": {"a": 1}, "b": 2}'),),
    ),
    "the name is sent in fragments": (
        [
            chunk(call("read", id="a", index=0)),
            chunk(call("_fi", index=0)),
            chunk(call("le", index=0)),
            chunk(call(arguments='{"path": "x"}', index=0)),
        ],
        (RawCall("a", "read_file", '{"path": "x"}'),),
    ),
    "the arguments are an object": (
        [chunk(call("bash", {"command": "ls"}, id="a", index=0))],
        (RawCall("a", "bash", {"command": "ls"}),),
    ),
    "the indexes are apart and out of order": (
        [chunk(call("bash", LS, id="a", index=7)), chunk(call("bash", PWD, id="b", index=3))],
        TWO,
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_calls_are_read_from_chunks_of_every_shape(shape: str) -> None:
    chunks, calls = SHAPES[shape]

    assert (await reply_to(sse([*chunks, FINISH, DONE]))).calls == calls


async def test_a_repeated_call_without_an_id_is_no_second_call() -> None:
    fragments = [chunk(call("bash", LS[:5], index=0)), chunk(call(arguments=LS[5:], index=0))]

    [read] = (await reply_to(sse([*fragments, chunk(call("bash", LS, index=0)), FINISH, DONE]))).calls

    assert read == RawCall(None, "bash", LS + LS)


async def test_arguments_that_are_sent_as_text_and_as_an_object_are_both_kept() -> None:
    """The tool protocol accepts them if they are equal, and otherwise executes neither."""
    chunks = [chunk(call("bash", {"command": "ls"}, id="a", index=0)), chunk(call(arguments=PWD, index=0))]

    [read] = (await reply_to(sse([*chunks, FINISH, DONE]))).calls

    assert read.arguments == LS + PWD


async def test_content_in_parts_is_text_and_reasoning() -> None:
    thinking = [{"type": "thinking", "thinking": [{"type": "text", "text": "Hmm."}]}]
    text = [{"type": "text", "text": "Buy "}, {"type": "text", "text": "milk."}]
    body = sse([chunk(content=thinking), chunk(content=text), chunk(finish="stop"), DONE])
    shown = Shown()

    async with upstream(lambda: _stream(body)) as (url, _):
        reply = await complete(url, deltas=shown)

    assert (reply.text, shown.message, shown.reasoning) == ("Buy milk.", "Buy milk.", "Hmm.")


async def _stream(body: str) -> web.StreamResponse:
    return web.Response(body=body.encode(), content_type="text/event-stream")


@pytest.mark.parametrize(
    "chunks",
    [
        [{"choices": [], "usage": USAGE}, chunk(content="x"), chunk(finish="stop")],
        [chunk(content="x"), {**chunk(finish="stop"), "usage": USAGE}],
        [chunk(content="x"), chunk(finish="stop"), {"choices": [], "usage": USAGE}],
        [chunk(content="x"), {"choices": [{**chunk(finish="stop")["choices"][0], "usage": USAGE}]}],
        [{**chunk(content="x"), "usage": USAGE}, {**chunk(finish="stop"), "usage": USAGE}],
    ],
    ids=["before", "with the last", "after", "in the choice", "twice"],
)
async def test_usage_is_counted_once_wherever_it_is_sent(chunks: list[object]) -> None:
    assert (await reply_to(sse([*chunks, DONE]))).usage == COUNTED


async def test_a_complete_call_before_the_end_of_the_stream_counts_without_a_finish_reason() -> None:
    reply = await reply_to(sse([chunk(call("bash", LS, id="a", index=0)), DONE]))

    assert (reply.calls, reply.finish_reason) == ((RawCall("a", "bash", LS),), "tool_calls")


@pytest.mark.parametrize("events", [[DONE], []], ids=["incomplete call", "no end"])
async def test_a_stream_that_broke_off_is_no_reply(events: list[object]) -> None:
    arguments = LS[:-1] if events else LS

    with pytest.raises(ProviderFailed, match="without a finish reason"):
        await reply_to(sse([chunk(call("bash", arguments, id="a", index=0)), *events]))


async def test_a_whole_reply_instead_of_a_stream_is_read() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [call("bash", LS, id="a")]}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": USAGE}

    reply = await reply_to(json.dumps(body, indent=1), content_type="application/json")

    assert (reply.calls, reply.usage) == ((RawCall("a", "bash", LS),), COUNTED)


PAGE = (
    "<!DOCTYPE html>\n<html><head><title>Sign in</title><style>" + "p { color: red }" * 1000 + "</style>"
    "<script>alert('<p>')</script></head><body><h1>Sign in &amp; continue</h1></body></html>"
)
GEMINI = [{"error": {"code": 400, "message": "API key not valid.", "status": "INVALID_ARGUMENT"}}]


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (200, '{"error": {"message": "No quota left."}}', "No quota left."),
        (200, json.dumps(GEMINI, indent=2), "API key not valid."),
        (200, sse(GEMINI), "API key not valid."),
        (200, sse([GEMINI]), "API key not valid."),
        (200, sse([{"object": "error", "message": "Too many tokens.", "code": 40012}]), "Too many tokens."),
        (200, PAGE, "a page instead of a reply: Sign in Sign in & continue"),
        (400, json.dumps(GEMINI), "400 Bad Request: API key not valid."),
        (400, '{"detail": "Wrong model."}', "400 Bad Request: Wrong model."),
        (400, '{"error": {"reason": "Bad luck"}}', 'Bad Request: {"error": {"reason": "Bad luck"}}'),
        (400, '{"error": {"message": "Odd.", "code": ["x"], "type": {}}}', "400 Bad Request: Odd."),
        (403, PAGE, "403 Forbidden: Sign in Sign in & continue"),
        (502, PAGE, "502 Bad Gateway: Sign in Sign in & continue"),
    ],
)
async def test_the_reason_of_an_error_is_shown_in_every_form(status: int, body: str, text: str) -> None:
    with pytest.raises(ProviderFailed) as failure:
        await reply_to(body, status=status, content_type="application/json")

    assert text in str(failure.value)
    assert len(str(failure.value)) < 600


async def test_a_lasting_error_with_status_200_is_not_repeated() -> None:
    async def answer() -> web.StreamResponse:
        return web.json_response(GEMINI)

    async with upstream(answer) as (url, requests):
        with pytest.raises(ProviderFailed, match="API key not valid"):
            await complete(url, max_attempts=3, first_delay_s=0)

    assert len(requests) == 1


THOUGHTS = [
    ("<think>Hmm.</think>\n\nBuy milk.", "Hmm.", "Buy milk."),
    ("\n<think>\nA < b </thin\n</think>Buy milk.", "\nA < b </thin\n", "Buy milk."),
    ("<think>A.</think><think>B.</think> Buy milk.", "A.B.", "Buy milk."),
    ("[THINK]Hmm.[/THINK]Buy milk.", "Hmm.", "Buy milk."),
    ("◁think▷Hmm.◁/think▷Buy milk.", "Hmm.", "Buy milk."),
    ("<thinking>Hmm.</thinking>Buy milk.", "Hmm.", "Buy milk."),
    ("<reasoning>Hmm.</reasoning>\nBuy milk.", "Hmm.", "Buy milk."),
    ("<think>Hmm.", "Hmm.", None),
    ("Use <think>x</think> tags.", "", "Use <think>x</think> tags."),
    ("```\n<think>x</think>\n```", "", "```\n<think>x</think>\n```"),
    ("    indented\n<thin", "", "    indented\n<thin"),
    ("<thin", "", "<thin"),
    ("<thing>", "", "<thing>"),
]


@pytest.mark.parametrize(("written", "reasoning", "text"), THOUGHTS)
@pytest.mark.parametrize("size", [1, 5, 100])
async def test_reasoning_between_tags_is_reasoning_and_not_part_of_the_text(
    written: str, reasoning: str, text: str | None, size: int
) -> None:
    pieces = [written[at : at + size] for at in range(0, len(written), size)]
    body = sse([*(chunk(content=piece) for piece in pieces), chunk(finish="stop"), DONE])
    shown = Shown()

    async with upstream(lambda: _stream(body)) as (url, _):
        reply = await complete(url, deltas=shown)

    assert (reply.text, shown.reasoning) == (text, reasoning)
    assert (text or "").startswith(shown.message)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("I think.\n</think>\n\nBuy milk.", "Buy milk."),
        ('{"html": "\n</think>\n"}', '{"html": "\n</think>\n"}'),
        ("```\n</think>\n```", "```\n</think>\n```"),
        ("As in:\n```\n</think>\n```", "As in:\n```\n</think>\n```"),
    ],
)
async def test_reasoning_whose_first_tag_is_in_the_prompt_is_no_text(written: str, text: str) -> None:
    assert (await reply_to(sse([chunk(content=written), chunk(finish="stop"), DONE]))).text == text
