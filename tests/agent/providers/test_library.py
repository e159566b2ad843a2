"""Vendors' own APIs through the library: what is sent, what is read, and how faults end."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.agent.providers.histories import TOOLS
from tests.agent.providers.played_server import (
    PlayedServer,
    chat_chunks,
    complete,
    in_history,
    played_server,
)
from tests.support.deltas import Shown
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.agent.providers.base import ProviderSettings
from banksman.agent.providers.catalog import Providers
from banksman.contracts.errors import ContextOverflow, ProviderFailed
from banksman.contracts.messages import ImagePart, TextPart, Usage, UserMessage
from banksman.contracts.model_options import ModelOptions

SIGNATURE = "c2lnbmVkIQ=="
USAGE = {
    "promptTokenCount": 100,
    "cachedContentTokenCount": 60,
    "candidatesTokenCount": 20,
    "thoughtsTokenCount": 10,
    "totalTokenCount": 130,
}


def gemini(*parts: dict[str, Any], finish: str | None = "STOP") -> list[dict[str, Any]]:
    """Return the chunks of a reply of Gemini's API, one for each part."""
    chunks = [{"candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}]} for part in parts]
    last = {"content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": finish, "index": 0}
    return [*chunks, {"candidates": [last], "usageMetadata": USAGE}] if finish else chunks


THOUGHT = {"text": "Two files.", "thought": True}
FIRST = {
    "functionCall": {"id": "f1", "name": "read_file", "args": {"path": "a"}},
    "thoughtSignature": SIGNATURE,
}
SECOND = {"functionCall": {"id": "f2", "name": "read_file", "args": {"path": "b"}}}


@pytest.fixture
async def played() -> AsyncGenerator[PlayedServer]:
    async with played_server() as server:
        yield server


def settings_for(url: str, **fields: Any) -> ProviderSettings:
    address = url.removesuffix("/v1")
    entries = {
        name: {"api": name, "base_url": address}
        for name in ("google", "mistral", "cohere", "huggingface", "bedrock")
    }
    return ProviderSettings.model_validate(
        {"providers": entries, "max_attempts": 1, "max_wait_s": 0, **fields}
    )


@pytest.fixture
async def providers(played: PlayedServer) -> AsyncGenerator[Providers]:
    running = Providers(settings_for(played.url))
    yield running
    await running.close()


async def test_gemini_streams_text_thinking_parallel_calls_and_usage(
    played: PlayedServer, providers: Providers
) -> None:
    played.replies += [gemini(THOUGHT, {"text": "I read "}, {"text": "both."}, FIRST, SECOND)]
    shown = Shown()

    reply = await complete(providers, "google:gemini-3-pro", shown=shown)

    assert (reply.text, shown.message, shown.reasoning) == ("I read both.", "I read both.", "Two files.")
    called = [(call.provider_call_id, call.name, call.arguments) for call in reply.calls]
    assert called == [("f1", "read_file", {"path": "a"}), ("f2", "read_file", {"path": "b"})]
    assert reply.usage == Usage(input_tokens=100, output_tokens=30, cached_tokens=60)
    assert played.paths == ["/v1beta/models/gemini-3-pro:streamGenerateContent"]


async def test_signature_returns_to_gemini_with_its_call(played: PlayedServer, providers: Providers) -> None:
    played.replies += [gemini(THOUGHT, FIRST, SECOND), gemini({"text": "Done."})]

    first = await complete(providers, "google:gemini-3-pro")
    await complete(providers, "google:gemini-3-pro", *in_history(first, "google"))

    _, reply, results = played.bodies[-1]["contents"]
    calls = [part for part in reply["parts"] if "functionCall" in part]
    assert [call.get("thoughtSignature") for call in calls] == [SIGNATURE, None]
    assert [part["functionResponse"]["id"] for part in results["parts"]] == ["f1", "f2"]


async def test_options_images_and_tools_reach_gemini(played: PlayedServer, providers: Providers) -> None:
    played.replies += [gemini({"text": "{}"})]
    options = ModelOptions(max_tokens=99, temperature=0.25, response_schema={"type": "object"})
    parts = (TextPart(text="What is this?"), ImagePart(url="data:image/png;base64,iVBORw0KGgo="))

    await complete(
        providers, "google:gemini-2.5-pro", UserMessage(message_id="m2", content=parts), options=options
    )

    [body] = played.bodies
    assert (body["generationConfig"]["maxOutputTokens"], body["generationConfig"]["temperature"]) == (
        99,
        0.25,
    )
    assert "JSON Schema" in json.dumps(body["systemInstruction"])
    assert [
        one["inlineData"]["mime_type"] for one in body["contents"][0]["parts"] if "inlineData" in one
    ] == ["image/png"]
    declared = [one["name"] for tool in body["tools"] for one in tool["functionDeclarations"]]
    assert declared == [tool.name for tool in TOOLS]


async def test_links_of_images_are_not_fetched_by_the_agent(
    played: PlayedServer, providers: Providers
) -> None:
    played.replies += [gemini({"text": "No."})]
    linked = ImagePart(url="https://images.example/cat.png")

    await complete(providers, "google:gemini-2.5-pro", UserMessage(message_id="m2", content=(linked,)))

    assert "cannot read" in json.dumps(played.bodies[-1]["contents"])


async def test_mistral_and_hugging_face_stream_calls(played: PlayedServer, providers: Providers) -> None:
    function = {"name": "read_file", "arguments": '{"path": "a"}'}
    chunks = chat_chunks(
        {"role": "assistant", "content": "Reading."},
        {"tool_calls": [{"index": 0, "id": "abcdefghi", "type": "function", "function": function}]},
        finish_reason="tool_calls",
    )
    for chunk in chunks:
        chunk["choices"][0].setdefault("finish_reason", None)
    whole = [
        {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", **one} for one in chunks
    ]
    whole[-1]["usage"] = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}

    for name in ("mistral", "huggingface"):
        played.replies += [whole]
        reply = await complete(providers, f"{name}:any")

        assert (reply.text, reply.finish_reason) == ("Reading.", "tool_calls"), name
        [call] = reply.calls
        assert (call.provider_call_id, call.name) == ("abcdefghi", "read_file")
        assert json.loads(str(call.arguments)) == {"path": "a"}
        assert (reply.usage.input_tokens, reply.usage.output_tokens) == (100, 20)


async def test_cohere_streams_calls(played: PlayedServer, providers: Providers) -> None:
    function = {"name": "read_file", "arguments": ""}
    call = {"id": "read_file_1", "type": "function", "function": function}
    piece = {"function": {"arguments": '{"path": "a"}'}}
    usage = {"tokens": {"input_tokens": 100, "output_tokens": 20}}
    played.replies += [
        [
            {"type": "message-start", "id": "m1", "delta": {"message": {"role": "assistant", "content": []}}},
            {
                "type": "content-start",
                "index": 0,
                "delta": {"message": {"content": {"type": "text", "text": ""}}},
            },
            {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": "Reading."}}}},
            {"type": "tool-call-start", "index": 0, "delta": {"message": {"tool_calls": call}}},
            {"type": "tool-call-delta", "index": 0, "delta": {"message": {"tool_calls": piece}}},
            {"type": "tool-call-end", "index": 0},
            {"type": "message-end", "delta": {"finish_reason": "TOOL_CALL", "usage": usage}},
        ]
    ]

    reply = await complete(providers, "cohere:command-a")

    assert (reply.text, reply.finish_reason) == ("Reading.", "tool_calls")
    [found] = reply.calls
    assert (found.provider_call_id, found.name) == ("read_file_1", "read_file")
    assert json.loads(str(found.arguments)) == {"path": "a"}


@pytest.mark.parametrize("name", ["google", "mistral", "cohere", "huggingface"])
async def test_refusal_has_the_vendors_reason_and_is_sent_once(
    played: PlayedServer, providers: Providers, name: str
) -> None:
    text = "Unknown name exclusiveMinimum"
    played.replies += [(400, {"error": {"message": text}, "message": text})]

    with pytest.raises(ProviderFailed, match=f"400.*{text}") as failure:
        await complete(providers, f"{name}:any")

    assert (failure.value.status, failure.value.unavailable, len(played.bodies)) == (400, False, 1)


@pytest.mark.parametrize("name", ["google", "mistral", "cohere", "huggingface"])
async def test_overloaded_vendor_is_asked_again_by_us_alone(played: PlayedServer, name: str) -> None:
    busy = (503, {"error": {"message": "The model is overloaded."}, "message": "The model is overloaded."})
    played.replies += [busy] * 10
    impatient = Providers(settings_for(played.url))

    with pytest.raises(ProviderFailed, match="overloaded") as failure:
        await complete(impatient, f"{name}:any")
    await impatient.close()

    assert failure.value.unavailable and len(played.bodies) == 1


async def test_too_long_request_is_recognised(played: PlayedServer, providers: Providers) -> None:
    text = "The input token count (9) exceeds the maximum number of tokens allowed (5)."
    played.replies += [(400, {"error": {"message": text}})]

    with pytest.raises(ContextOverflow):
        await complete(providers, "google:gemini-3-pro")


async def test_stream_that_ends_early_is_not_a_reply(played: PlayedServer, providers: Providers) -> None:
    played.replies += [gemini({"text": "Half"}, finish=None)]

    with pytest.raises(ProviderFailed, match="without a finish reason"):
        await complete(providers, "google:gemini-3-pro")


@pytest.fixture
async def hanging() -> AsyncGenerator[tuple[str, asyncio.Event]]:
    """A server that stops in the middle of a reply, and the event that its client has left."""
    left = asyncio.Event()

    async def serve(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(f"data: {json.dumps(gemini({'text': 'Half'})[0])}\n\n".encode())
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        return response

    app = web.Application()
    app.router.add_post("/{path:.*}", serve)
    async with TestServer(app, handler_cancellation=True) as server:
        yield str(server.make_url("/v1")), left


async def test_silence_ends_the_request(hanging: tuple[str, asyncio.Event]) -> None:
    url, left = hanging
    providers = Providers(settings_for(url, request_timeout_s=0.3))

    with pytest.raises(ProviderFailed, match=r"silent for 0\.3 s"):
        await complete(providers, "google:gemini-3-pro")
    await providers.close()

    async with asyncio.timeout(WAIT_TIMEOUT_S):
        await left.wait()


async def test_cancel_closes_the_connection(hanging: tuple[str, asyncio.Event]) -> None:
    url, left = hanging
    providers = Providers(settings_for(url))
    begun = asyncio.Event()

    class Begun(Shown):
        async def write(self, kind: Any, text: str) -> None:
            begun.set()

    running = asyncio.create_task(complete(providers, "google:gemini-3-pro", shown=Begun()))
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await providers.close()

    async with asyncio.timeout(WAIT_TIMEOUT_S):
        await left.wait()


async def test_endless_refusal_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATESTCANARY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws-secret-test-canary")

    async def serve(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=400, headers={"content-type": "application/json"})
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65_536)

    app = web.Application()
    app.router.add_post("/{path:.*}", serve)
    async with TestServer(app) as server:
        providers = Providers(settings_for(str(server.make_url("/v1"))))
        for name in ("google", "mistral", "cohere", "huggingface", "bedrock"):
            with pytest.raises(ProviderFailed, match="more than"):
                await complete(providers, f"{name}:any")
        await providers.close()


def test_nothing_of_the_library_is_imported_before_its_first_request() -> None:
    program = (
        "import sys\n"
        "from banksman.agent.providers.base import ProviderSettings\n"
        "from banksman.agent.providers.catalog import Providers\n"
        "entry = {'api': 'google', 'base_url': 'https://example.com'}\n"
        "Providers(ProviderSettings.model_validate({'providers': {'g': entry}})).choose('g:x')\n"
        "print(any(name.startswith('pydantic_ai') for name in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_agent_without_the_library_states_what_is_missing() -> None:
    program = (
        "import asyncio, sys\n"
        "sys.modules['pydantic_ai'] = None\n"
        "from tests.agent.providers.test_library import complete, settings_for\n"
        "from banksman.agent.providers.catalog import Providers\n"
        "try:\n"
        "    asyncio.run(complete(Providers(settings_for('http://127.0.0.1:9/v1')), 'google:x'))\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ProviderFailed") and "extra `library`" in done.stdout
