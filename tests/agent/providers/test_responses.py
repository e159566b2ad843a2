"""OpenAI's Responses API: what is sent, what is read, and when it is used."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import TypeAdapter
from tests.agent.providers.histories import user
from tests.agent.providers.played_server import (
    PlayedServer,
    chat_chunks,
    complete,
    in_history,
    played_server,
)
from tests.support.deltas import Shown
from tests.support.model_server import ModelServer
from tests.support.scripted_models import ScriptedCall, ScriptedReply, ScriptedUsage

from banksman.agent.providers.base import ProviderSettings
from banksman.agent.providers.catalog import Providers
from banksman.contracts.errors import ProviderFailed
from banksman.contracts.messages import ImagePart, TextPart, Usage, UserMessage
from banksman.contracts.model_options import ModelOptions

BODY = TypeAdapter(ResponseCreateParamsStreaming)
USAGE = {
    "input_tokens": 120,
    "input_tokens_details": {"cached_tokens": 100},
    "output_tokens": 30,
    "output_tokens_details": {"reasoning_tokens": 20},
}
NEEDED = (
    "Function tools with reasoning_effort are not supported for gpt-5.5 in /v1/chat/completions. "
    "To use function tools, use /v1/responses or set reasoning_effort to 'none'."
)
REFUSAL = (400, {"error": {"message": NEEDED, "type": "invalid_request_error", "param": "reasoning_effort"}})


def reasoning(number: int) -> dict[str, Any]:
    return {
        "id": f"rs_{number}",
        "type": "reasoning",
        "summary": [],
        "encrypted_content": f"sealed {number}é=",
    }


def call(number: int, arguments: str = "{}") -> dict[str, Any]:
    ids = {"id": f"fc_{number}", "call_id": f"call_{number}", "status": "completed"}
    return {"type": "function_call", **ids, "name": "read_file", "arguments": arguments}


def message(text: str, **fields: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    own = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    return {**own, **fields}


def events(*items: dict[str, Any], end: str = "completed", **response: Any) -> list[dict[str, Any]]:
    """Return the events of a reply whose items arrive complete."""
    done = [
        {"type": "response.output_item.done", "output_index": index, "item": item}
        for index, item in enumerate(items)
    ]
    return [
        {"type": "response.created", "response": {"status": "in_progress"}},
        *done,
        {"type": f"response.{end}", "response": {"output": list(items), "usage": USAGE, **response}},
    ]


@pytest.fixture
async def played() -> AsyncGenerator[PlayedServer]:
    async with played_server() as server:
        yield server


def settings_for(url: str, **fields: Any) -> ProviderSettings:
    entries = {
        "new": {"base_url": url, "api": "responses"},
        "both": {"base_url": url, "vendor": "openai"},
    }
    return ProviderSettings.model_validate({"providers": entries, "max_attempts": 1, **fields})


@pytest.fixture
async def providers(played: PlayedServer) -> AsyncGenerator[Providers]:
    running = Providers(settings_for(played.url))
    yield running
    await running.close()


async def test_streamed_reply_has_text_reasoning_parallel_calls_and_usage(server: ModelServer) -> None:
    calls = (
        ScriptedCall(name="bash", arguments={"command": "ls"}, id="call_a"),
        ScriptedCall(name="read_file", arguments={"path": "notes.txt"}, id="call_b"),
    )
    usage = ScriptedUsage(input_tokens=200, output_tokens=40, cached_tokens=120)
    scripted = ScriptedReply(text="Looking.", reasoning="Two at once.", tool_calls=calls, usage=usage)
    model, shown = server.play("calls", [scripted]), Shown()
    providers = Providers(settings_for(server.openai_url))

    reply = await complete(providers, f"new:{model}", shown=shown)
    await providers.close()

    assert (reply.text, reply.finish_reason) == ("Looking.", "tool_calls")
    assert (shown.message, shown.reasoning) == ("Looking.", "Two at once.")
    assert [(one.provider_call_id, one.name, one.arguments) for one in reply.calls] == [
        ("call_a", "bash", '{"command":"ls"}'),
        ("call_b", "read_file", '{"path":"notes.txt"}'),
    ]
    assert reply.usage == Usage(input_tokens=200, output_tokens=40, cached_tokens=120)
    assert [one.path for one in server.requests("calls")] == ["/v1/responses"]
    assert server.violations == []


async def test_request_is_stateless_and_fits_the_types_of_openais_sdk(
    played: PlayedServer, providers: Providers
) -> None:
    played.replies += [events(message("{}"))]
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    options = ModelOptions(
        max_tokens=99, reasoning_effort="low", response_schema=schema, parallel_tool_calls=False
    )
    image = ImagePart(url="data:image/png;base64,iVBORw0KGgo=")
    seen = UserMessage(message_id="m2", content=(TextPart(text="What is this?"), image))

    await complete(providers, "both:gpt-5-pro", seen, options=options)

    [body] = played.bodies
    BODY.validate_python(body)
    assert (body["store"], body["include"]) == (False, ["reasoning.encrypted_content"])
    assert (body["instructions"], body["max_output_tokens"]) == ("Be brief.", 99)
    assert (body["reasoning"], body["parallel_tool_calls"]) == ({"effort": "low", "summary": "auto"}, False)
    assert body["text"]["format"] == {
        "type": "json_schema",
        "name": "reply",
        "schema": schema,
        "strict": True,
    }
    assert all(tool["strict"] is False for tool in body["tools"])
    assert body["input"][-1]["content"][1]["image_url"] == image.url


async def test_models_without_reasoning_are_not_asked_for_it(
    played: PlayedServer, providers: Providers
) -> None:
    """OpenAI refuses it: "Encrypted content is not supported with this model"."""
    played.replies += [REFUSAL, events(message("Hello."))]

    await complete(providers, "both:gpt-4.1-mini")

    assert not {"include", "reasoning"} & played.bodies[-1].keys()


async def test_organisation_that_may_not_have_summaries_gets_replies_without(
    played: PlayedServer, providers: Providers
) -> None:
    text = "Your organization must be verified to generate reasoning summaries."
    refusal = (400, {"error": {"message": text, "param": "reasoning.summary", "code": "unsupported_value"}})
    played.replies += [refusal, events(message("One.")), events(message("Two."))]
    options = ModelOptions(reasoning_effort="low")

    replies = [await complete(providers, "both:gpt-5-pro", options=options) for _ in range(2)]

    assert [reply.text for reply in replies] == ["One.", "Two."]
    asked = [body["reasoning"] for body in played.bodies]
    assert asked == [{"effort": "low", "summary": "auto"}, {"effort": "low"}, {"effort": "low"}]


async def test_reasoning_returns_in_its_place_between_the_calls(
    played: PlayedServer, providers: Providers
) -> None:
    items = [reasoning(1), call(1, '{"path": "a"}'), reasoning(2), call(2), message("Both read.")]
    played.replies += [events(*items), events(message("Done."))]

    first = await complete(providers, "new:gpt-5.5")
    await complete(providers, "new:gpt-5.5", *in_history(first, "new"))

    sent = played.bodies[-1]["input"]
    assert sent[1:6] == items
    assert [one["type"] for one in sent[6:]] == ["function_call_output"] * 2
    BODY.validate_python(played.bodies[-1])


async def test_several_messages_of_a_reply_return_separately(
    played: PlayedServer, providers: Providers
) -> None:
    items = [message("First.", phase="commentary"), reasoning(1), message("Second.", id="msg_2")]
    played.replies += [events(*items), events(message("Done."))]

    first = await complete(providers, "new:gpt-5.5")
    await complete(providers, "new:gpt-5.5", *in_history(first, "new"), user("Go on"))

    assert first.text == "First.Second."
    assert played.bodies[-1]["input"][1:4] == items


async def test_other_addresses_receive_text_and_calls_without_reasoning(
    played: PlayedServer, providers: Providers
) -> None:
    played.replies += [events(reasoning(1), call(1), message("Read.")), events(message("Done."))]
    first = await complete(providers, "new:gpt-5.5")

    async with played_server() as elsewhere:
        moved = Providers(settings_for(elsewhere.url))
        elsewhere.replies += [events(message("Done."))]
        await complete(moved, "new:gpt-5.5", *in_history(first, "new"))
        await moved.close()
        sent = elsewhere.bodies[-1]["input"]

    assert [one.get("type", one.get("role")) for one in sent] == [
        "user",
        "assistant",
        "function_call",
        "function_call_output",
    ]


async def test_refused_reasoning_is_left_out_of_one_more_attempt(
    played: PlayedServer, providers: Providers
) -> None:
    text = "The encrypted content for item rs_1 could not be verified."
    refusal = (400, {"error": {"message": text, "code": "invalid_encrypted_content"}})
    played.replies += [events(reasoning(1), call(1)), refusal, events(message("Done."))]
    first = await complete(providers, "new:gpt-5.5")

    second = await complete(providers, "new:gpt-5.5", *in_history(first, "new"))

    assert second.text == "Done."
    kinds = [[one.get("type") for one in body["input"]] for body in played.bodies[1:]]
    assert ["reasoning" in one for one in kinds] == [True, False]


async def test_model_that_refuses_tools_moves_to_the_responses_api(
    played: PlayedServer, providers: Providers
) -> None:
    played.replies += [REFUSAL, events(reasoning(1), call(1)), events(message("Done."))]
    options = ModelOptions(reasoning_effort="high")

    first = await complete(providers, "both:gpt-5.5", options=options)
    again = await complete(providers, "both:gpt-5.5", *in_history(first, "both"), options=options)

    assert ([one.name for one in first.calls], again.text) == (["read_file"], "Done.")
    assert played.paths == ["/v1/chat/completions", "/v1/responses", "/v1/responses"]
    assert {body["reasoning"]["effort"] for body in played.bodies[1:]} == {"high"}


async def test_refusals_that_move_or_repeat_a_request_are_logged_without_the_key(
    played: PlayedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A server may repeat the headers of a request; the key of a tenant is no secret of the process."""
    key = "canary-of-a-tenant-0123456789"
    summaries = f"{key} must be verified to generate reasoning summaries."
    played.replies += [
        (400, {"error": {"message": f"{NEEDED} {key}"}}),
        (400, {"error": {"message": summaries}}),
        events(message("Done.")),
    ]
    entry = {"base_url": played.url, "vendor": "openai", "api_key": key}
    catalog = Providers(ProviderSettings.model_validate({"providers": {"own": entry}, "max_attempts": 1}))

    reply = await complete(catalog, "own:gpt-5.5")
    await catalog.close()

    assert (reply.text, len(played.bodies)) == ("Done.", 3)
    assert "using the Responses API" in caplog.text and "refused summaries" in caplog.text
    assert key[:12] not in caplog.text


async def test_conversation_on_the_responses_api_stays_there_after_a_restart(
    played: PlayedServer, providers: Providers
) -> None:
    played.replies += [REFUSAL, events(reasoning(1), call(1)), events(message("Done."))]
    first = await complete(providers, "both:gpt-5.5")

    restarted = Providers(settings_for(played.url))
    await complete(restarted, "both:gpt-5.5", *in_history(first, "both"))
    await restarted.close()

    assert played.paths[-1] == "/v1/responses" and len(played.paths) == 3


async def test_other_models_of_the_address_stay_on_chat_completions(
    played: PlayedServer, providers: Providers
) -> None:
    played.replies += [REFUSAL, events(message("Moved.")), chat_chunks({"content": "Stayed."})]

    await complete(providers, "both:gpt-5.5")
    reply = await complete(providers, "both:gpt-4.1")

    assert (reply.text, played.paths[-1]) == ("Stayed.", "/v1/chat/completions")


@pytest.mark.parametrize("model", ["gpt-5-pro", "gpt-5.3-codex", "o3-deep-research"])
async def test_known_models_of_the_responses_api_are_not_tried_elsewhere(
    played: PlayedServer, providers: Providers, model: str
) -> None:
    played.replies += [events(message("Hello."))]

    await complete(providers, f"both:{model}")

    assert played.paths == ["/v1/responses"]


@pytest.mark.parametrize(
    ("reason", "expected"), [("max_output_tokens", "length"), ("content_filter", "content_filter")]
)
async def test_incomplete_response_has_the_reason(
    played: PlayedServer, providers: Providers, reason: str, expected: str
) -> None:
    details = {"incomplete_details": {"reason": reason}}
    played.replies += [events(message("Cut"), end="incomplete", **details)]

    reply = await complete(providers, "new:gpt-5.5")

    assert (reply.text, reply.finish_reason, reply.raw_finish_reason) == ("Cut", expected, reason)
    assert reply.usage == Usage(input_tokens=120, output_tokens=30, cached_tokens=100)


FAILED = {"code": "invalid_prompt", "message": "The prompt was flagged."}


@pytest.mark.parametrize(
    "last",
    [
        {"type": "response.failed", "response": {"status": "failed", "error": FAILED}},
        {"type": "error", **FAILED},
        {"type": "error", "error": FAILED},
    ],
)
async def test_failed_response_has_the_vendors_reason(
    played: PlayedServer, providers: Providers, last: dict[str, Any]
) -> None:
    played.replies += [[{"type": "response.created", "response": {}}, last]]

    with pytest.raises(ProviderFailed, match=r"The prompt was flagged\..*invalid_prompt"):
        await complete(providers, "new:gpt-5.5")


async def test_stream_without_its_last_event_is_not_a_reply(
    played: PlayedServer, providers: Providers
) -> None:
    played.replies += [events(message("Half"))[:-1]]

    with pytest.raises(ProviderFailed, match="before the response was complete"):
        await complete(providers, "new:gpt-5.5")


async def test_reasoning_beyond_the_limit_of_states_is_not_stored(
    played: PlayedServer, providers: Providers
) -> None:
    large = {**reasoning(1), "encrypted_content": "x" * 200_000}
    played.replies += [events(large, call(1)), events(message("Done."))]

    first = await complete(providers, "new:gpt-5.5")
    await complete(providers, "new:gpt-5.5", *in_history(first, "new"))

    assert first.provider_state is None
    assert [one.get("type") for one in played.bodies[-1]["input"]][1:] == [
        "function_call",
        "function_call_output",
    ]


async def test_reply_that_arrives_only_at_the_end_is_read(played: PlayedServer, providers: Providers) -> None:
    """Some compatible servers send no events for single items."""
    played.replies += [events(call(1, '{"path": "a"}'), message("All."))[-1:]]

    reply = await complete(providers, "new:local")

    assert reply.text == "All."
    assert [(one.name, one.arguments) for one in reply.calls] == [("read_file", '{"path": "a"}')]
