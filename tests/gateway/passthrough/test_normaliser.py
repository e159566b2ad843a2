"""Each deviation of an upstream's stream, read by OpenAI's SDKs for Python and JavaScript."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.gateway.passthrough.conftest import StartPassing, to
from tests.support.model_server import ModelServer
from tests.support.node import installed
from tests.support.scripted_models import RawReply, ScriptedCall, ScriptedReply
from tests.support.timeouts import deadline

from banksman.gateway.interfaces.passthrough.normaliser import ChatNormaliser

NODE = Path(__file__).with_name("node")
Json = dict[str, Any]

HEAD: Json = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
USAGE: Json = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
ARGUMENTS = '{"city": "Oslo"}'


def chunk(delta: Any = None, finish: str | None = None, **more: Any) -> Json:
    choice = {"index": 0, "delta": {} if delta is None else delta, "finish_reason": finish}
    return HEAD | {"choices": [choice]} | more


def call(**fields: Any) -> Json:
    return chunk({"tool_calls": [fields]})


FIRST, TEXT, STOP = (
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "Hello"}),
    chunk({}, "stop"),
)
LAST_USAGE = HEAD | {"choices": [], "usage": USAGE}
BEGUN = call(index=0, id="call_1", type="function", function={"name": "weather", "arguments": ""})
FRAGMENTS = [call(index=0, function={"arguments": piece}) for piece in (ARGUMENTS[:8], ARGUMENTS[8:])]
CALLED = chunk({}, "tool_calls")
DONE = "[DONE]"

Events = list[Json | str]


def without(name: str) -> Events:
    return [{key: value for key, value in event.items() if key != name} for event in (FIRST, TEXT, STOP)]


TEXT_ROWS: dict[str, Events] = {
    "no deviation": [FIRST, TEXT, STOP, LAST_USAGE],
    "no role": [TEXT, STOP, LAST_USAGE],
    "null role": [chunk({"role": None, "content": "Hello"}), STOP, LAST_USAGE],
    "usage without choices": [FIRST, TEXT, STOP, HEAD | {"usage": USAGE}],
    "usage with null choices": [FIRST, TEXT, STOP, HEAD | {"choices": None, "usage": USAGE}],
    "no finish reason": [FIRST, TEXT, LAST_USAGE],
    "null delta": [
        FIRST,
        TEXT,
        HEAD | {"choices": [{"index": 0, "delta": None, "finish_reason": "stop"}]},
        LAST_USAGE,
    ],
    "no id": [*without("id"), LAST_USAGE],
    "no object": [*without("object"), LAST_USAGE],
    "no created": [*without("created"), LAST_USAGE],
    "no model": [*without("model"), LAST_USAGE],
    "null id": [event | {"id": None} for event in (FIRST, TEXT, STOP, LAST_USAGE)],
    "nothing but content": [
        {"choices": [{"delta": {"content": "Hello"}}]},
        {"choices": None, "usage": USAGE},
    ],
}
"""Streams whose reply is `Hello`."""

TOOL_ROWS: dict[str, Events] = {
    "no deviation": [FIRST, BEGUN, *FRAGMENTS, CALLED],
    "no index": [
        FIRST,
        call(id="call_1", type="function", function={"name": "weather", "arguments": ""}),
        *(call(function={"arguments": piece}) for piece in (ARGUMENTS[:8], ARGUMENTS[8:])),
        CALLED,
    ],
    "no id": [
        FIRST,
        call(index=0, type="function", function={"name": "weather", "arguments": ""}),
        *FRAGMENTS,
        CALLED,
    ],
    "null id and type in later fragments": [
        FIRST,
        BEGUN,
        *(
            call(index=0, id=None, type=None, function={"name": None, "arguments": piece})
            for piece in (ARGUMENTS[:8], ARGUMENTS[8:])
        ),
        CALLED,
    ],
    "repeated name and id": [
        FIRST,
        *(
            call(index=0, id="call_1", type="function", function={"name": "weather", "arguments": piece})
            for piece in (ARGUMENTS[:8], ARGUMENTS[8:])
        ),
        CALLED,
    ],
    "object arguments": [
        FIRST,
        call(
            index=0, id="call_1", type="function", function={"name": "weather", "arguments": {"city": "Oslo"}}
        ),
        CALLED,
    ],
    "no arguments in the first fragment": [
        FIRST,
        call(index=0, id="call_1", type="function", function={"name": "weather"}),
        *FRAGMENTS,
        CALLED,
    ],
    "no type": [
        FIRST,
        call(index=0, id="call_1", function={"name": "weather", "arguments": ""}),
        *FRAGMENTS,
        CALLED,
    ],
    "no finish reason": [FIRST, BEGUN, *FRAGMENTS],
    "whole call without index, id and type": [
        chunk({"tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Oslo"}}}]}),
    ],
}
"""Streams that call `weather` with `ARGUMENTS`."""

ERROR_ROWS: dict[str, Events] = {
    "error as a string": [FIRST, TEXT, {"error": "The model crashed."}],
    "plain text": [FIRST, TEXT, "The model crashed."],
    "JSON string": [FIRST, TEXT, '"The model crashed."'],
}

SCRIPTS = {
    f"{kind}-{name.replace(' ', '-').replace(',', '')}": events
    for kind, rows in (("text", TEXT_ROWS), ("tools", TOOL_ROWS), ("error", ERROR_ROWS))
    for name, events in rows.items()
}


def stream(events: Events) -> RawReply:
    """Return a stream of events; those of a successful reply end with `[DONE]`."""
    ended = events if any("crashed" in str(event) for event in events) else [*events, DONE]
    data = (event if isinstance(event, str) else json.dumps(event) for event in ended)
    return RawReply(raw_chunks=tuple(f"data: {text}\n\n" for text in data))


def expected(script: str) -> Json:
    kind = script.partition("-")[0]
    if kind == "error":
        return {"error": "The model crashed.", "code": None}
    found: Json = {"id": "string", "role": "assistant", "content": "Hello", "finish_reason": "stop"}
    found |= {"usage": 5, "calls": []}
    if kind == "tools":
        calls = [["function", "string", "weather", ARGUMENTS]]
        found |= {"content": "", "finish_reason": "tool_calls", "usage": None, "calls": calls}
    return found


@pytest.fixture
async def base_url(start_passing: StartPassing, upstream: ModelServer) -> AsyncGenerator[str]:
    """A gateway whose upstream plays every script."""
    for name, events in SCRIPTS.items():
        upstream.play(name, [stream(events)], at_end="repeat")
    async with start_passing(to(upstream)) as passing:
        yield f"{passing.url}/v1"


async def test_the_python_sdk_reads_every_deviation(base_url: str) -> None:
    """Interfaces, section 2: normaliser."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key="any", max_retries=0) as client:
        found = {name: await read(client, f"scripted/{name}") for name in SCRIPTS}
    assert found == {name: expected(name) for name in SCRIPTS}


async def read(client: openai.AsyncOpenAI, model: str) -> Json:
    messages: Any = [{"role": "user", "content": "hi"}]
    try:
        options: Any = {"include_usage": True}
        async with client.chat.completions.stream(
            model=model, messages=messages, stream_options=options
        ) as stream:
            completion = await stream.get_final_completion()
    except openai.APIError as error:
        return {"error": error.message, "code": error.code}
    except Exception as error:
        return {"failed": repr(error)}
    [choice] = completion.choices
    message = choice.message
    return {
        "id": "string" if isinstance(completion.id, str) else completion.id,
        "role": message.role,
        "content": message.content or "",
        "finish_reason": choice.finish_reason,
        "usage": completion.usage.total_tokens if completion.usage else None,
        "calls": [
            [call.type, "string" if call.id else call.id, call.function.name, call.function.arguments]
            for call in message.tool_calls or ()
        ],
    }


async def test_the_javascript_sdk_reads_every_deviation(base_url: str, tmp_path: Path) -> None:
    """Interfaces, section 2: normaliser. OpenAI's SDK is installed by its lock file."""
    node_client = installed(NODE, tmp_path / "client")
    models = [f"scripted/{name}" for name in SCRIPTS]
    found = json.loads(await output_of(node_client, "node", "read_streams.mjs", base_url, *models))
    assert found == {f"scripted/{name}": expected(name) for name in SCRIPTS}


async def output_of(folder: Path, *command: str) -> bytes:
    process = await asyncio.create_subprocess_exec(*command, cwd=folder, stdout=asyncio.subprocess.PIPE)
    async with deadline(f"{' '.join(command)} did not end"):
        output, _ = await process.communicate()
    assert process.returncode == 0, command
    return output


@pytest.mark.parametrize(
    "reply",
    [
        ScriptedReply(text="one two"),
        ScriptedReply(
            tool_calls=(ScriptedCall(name="weather", arguments={"city": "Oslo"}), ScriptedCall(name="time"))
        ),
    ],
)
async def test_a_stream_without_deviations_keeps_its_bytes(
    upstream: ModelServer, reply: ScriptedReply
) -> None:
    body = {
        "model": upstream.play("clean", [reply]),
        "stream": True,
        "messages": [{"role": "user", "content": "x"}],
    }
    async with httpx.AsyncClient() as http:
        sent = (await http.post(f"{upstream.openai_url}/chat/completions", json=body)).content
    assert ChatNormaliser("m").repaired(sent) == sent


def test_calls_without_index_are_distinguished() -> None:
    """By their ids, by another name, or by a name after complete arguments."""
    fragments: list[Json] = [
        {"id": "a", "function": {"name": "x", "arguments": "{}"}},
        {"id": "b", "function": {"name": "x", "arguments": '{"n":'}},
        {"function": {"arguments": "1}"}},
        {"function": {"name": "x", "arguments": "{}"}},
        {"function": {"name": "y", "arguments": "{}"}},
    ]
    normaliser = ChatNormaliser("m")
    events = [normaliser.repaired(f"data: {json.dumps(call(**given))}\n\n".encode()) for given in fragments]
    deltas = [json.loads(event[6:])["choices"][0]["delta"]["tool_calls"][0] for event in events]
    assert [delta["index"] for delta in deltas] == [0, 1, 1, 2, 3]
    assert len({delta["id"] for delta in deltas if "id" in delta}) == 4


async def test_a_refusal_with_a_bare_string_becomes_an_error_object(
    start_passing: StartPassing, upstream: ModelServer
) -> None:
    refusal = RawReply(raw_chunks=('{"error": "No."}',), status=400, content_type="application/json")
    model = upstream.play("bare", [refusal], at_end="repeat")
    body = {"model": model, "messages": [{"role": "user", "content": "x"}]}
    found: list[Any] = []
    for normalise in (True, False):
        async with start_passing(to(upstream, normalise=normalise)) as passing, passing.http as http:
            found.append((await http.post("/v1/chat/completions", json=body)).json()["error"])
    assert found == [{"message": "No.", "type": "server_error", "param": None, "code": None}, "No."]
