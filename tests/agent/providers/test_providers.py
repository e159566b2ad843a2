"""Both adapters with the vendors' real SDKs against the model server, which is as strict as the vendors."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from typing import Any

import pytest
from tests.support.deltas import Shown
from tests.support.model_server import ModelServer
from tests.support.scripted_models import (
    ConnectionCut,
    EarlyEnd,
    Fault,
    Gate,
    HalfJson,
    HttpError,
    RawReply,
    Script,
    ScriptedCall,
    ScriptedReply,
    ScriptedUsage,
    Silence,
    StreamError,
)

from banksman.agent.protocols.base import ModelReply, ModelRequest, RawCall
from banksman.agent.providers.base import Provider, ProviderSettings
from banksman.agent.providers.catalog import Providers
from banksman.cli.machine import free_port
from banksman.contracts.errors import BadInput, ProviderFailed
from banksman.contracts.live_output import ModelPause
from banksman.contracts.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    TextPart,
    ToolMessage,
    Usage,
    UserMessage,
)
from banksman.contracts.model_options import ModelOptions
from banksman.contracts.tools import ToolCall, ToolDefinition, ToolResult
from banksman.contracts.wire import JsonObject

BASH = ToolDefinition(
    name="bash",
    description="Runs a command.",
    input_schema={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
)
READ_FILE = ToolDefinition(name="read_file", description="Reads a file.")
HELLO = UserMessage(message_id="m1", content="hello")


def make_request(model: str, *messages: Any, **fields: Any) -> ModelRequest:
    return ModelRequest(model=model, system="Be brief.", messages=messages or (HELLO,), **fields)


async def complete(provider: Provider, request: ModelRequest, shown: Shown | None = None) -> ModelReply:
    return await provider.complete(request, deltas=shown or Shown(), deadline_s=30)


async def test_text_reply_arrives_as_deltas_and_completely(
    server: ModelServer, provider: Provider, shown: Shown
) -> None:
    """R80, R81."""
    usage = ScriptedUsage(input_tokens=120, output_tokens=7)
    model = server.play("hello", [ScriptedReply(text="Good day to you.", usage=usage)])

    reply = await complete(provider, make_request(model), shown)

    assert reply.text == shown.message == "Good day to you."
    assert (reply.finish_reason, reply.calls) == ("stop", ())
    assert reply.usage == Usage(input_tokens=120, output_tokens=7)
    assert server.violations == []


async def test_parallel_calls_have_their_order_and_the_vendors_ids(
    server: ModelServer, provider: Provider
) -> None:
    """R48, R49, R91."""
    calls = (
        ScriptedCall(name="bash", arguments={"command": "ls"}, id="call_a"),
        ScriptedCall(name="read_file", arguments={}, id="call_b"),
    )
    model = server.play("calls", [ScriptedReply(text="Looking.", tool_calls=calls)])

    reply = await complete(provider, make_request(model, tools=(BASH, READ_FILE)))

    assert reply.text == "Looking."
    assert reply.finish_reason == "tool_calls"
    assert [(call.provider_call_id, call.name) for call in reply.calls] == [
        ("call_a", "bash"),
        ("call_b", "read_file"),
    ]
    assert [json.loads(str(call.arguments)) for call in reply.calls] == [{"command": "ls"}, {}]


async def test_malformed_arguments_reach_the_protocol_unchanged(
    server: ModelServer, provider: Provider
) -> None:
    model = server.play(
        "broken", [ScriptedReply(tool_calls=(ScriptedCall(name="bash", arguments='{"command": '),))]
    )

    reply = await complete(provider, make_request(model, tools=(BASH,)))

    assert [call.arguments for call in reply.calls] == ['{"command": ']


@pytest.mark.parametrize("reason", ["stop", "length", "content_filter"])
async def test_finish_reasons_of_each_vendor_are_mapped(
    server: ModelServer, provider: Provider, reason: str
) -> None:
    model = server.play("finish", [ScriptedReply(text="x", finish_reason=reason)])

    assert (await complete(provider, make_request(model))).finish_reason == reason


async def test_unknown_finish_reason_is_recorded_for_the_log(server: ModelServer, provider: Provider) -> None:
    """R99."""
    model = server.play("finish", [ScriptedReply(text="x", finish_reason="pause_turn")])

    reply = await complete(provider, make_request(model))

    assert (reply.finish_reason, reply.raw_finish_reason) == ("unknown", "pause_turn")


async def test_input_tokens_include_cached_tokens(
    server: ModelServer, provider: Provider, vendor: str
) -> None:
    scripted = ScriptedUsage(input_tokens=100, output_tokens=1, cached_tokens=40)
    model = server.play("cache", [ScriptedReply(text="x", usage=scripted)])

    usage = (await complete(provider, make_request(model))).usage

    # Anthropic's input tokens exclude cached tokens, OpenAI's include them.
    assert usage == Usage(
        input_tokens=140 if vendor == "anthropic" else 100, output_tokens=1, cached_tokens=40
    )


async def test_reasoning_has_its_own_deltas_and_returns_to_the_same_provider_only(
    server: ModelServer, providers: Providers, vendor: str, shown: Shown
) -> None:
    provider = providers.choose(f"{vendor}:any")[0]
    model = server.play("think", [ScriptedReply(reasoning="Let me see.", text="4"), ScriptedReply(text="5")])

    reply = await complete(provider, make_request(model), shown)
    assistant_message = AssistantMessage(
        message_id="m2", content=reply.text, provider=vendor, provider_state=reply.provider_state
    )
    after = (HELLO, assistant_message, UserMessage(message_id="m3", content="and one more?"))
    await complete(provider, make_request(model, *after))
    other = "openai" if vendor == "anthropic" else "anthropic"
    await complete(providers.choose(f"{other}:any")[0], make_request(model, *after))

    assert (shown.reasoning, shown.message) == ("Let me see.", "4")
    _, same, foreign = server.requests("think")
    assert b"Let me see." in same.raw
    assert b"Let me see." not in foreign.raw
    assert server.violations == []


async def test_thinking_before_a_call_is_returned_with_the_results(
    server: ModelServer, provider: Provider, vendor: str
) -> None:
    """Anthropic and the model server refuse results without it."""
    scripted = ScriptedCall(name="bash", arguments={"command": "ls"}, id="call_a")
    thoughtful = ScriptedReply(reasoning="Let me look.", tool_calls=(scripted,))
    model = server.play("think", [thoughtful, ScriptedReply(text="One file.")])
    with_call = await complete(provider, make_request(model, tools=(BASH,)))
    call = ToolCall(id="k1", name="bash", arguments={"command": "ls"}, provider_call_id="call_a")
    history = (
        HELLO,
        AssistantMessage(
            message_id="m2",
            content=None,
            calls=(call,),
            provider=vendor,
            provider_state=with_call.provider_state,
        ),
        ToolMessage(name="bash", result=ToolResult(tool_call_id="k1", content={"success": True})),
    )

    reply = await complete(provider, make_request(model, *history, tools=(BASH,)))

    assert reply.text == "One file."
    assert server.violations == []


async def test_thinking_that_anthropic_refuses_is_omitted(server: ModelServer, providers: Providers) -> None:
    """Thinking is valid only after the same prefix. A new prompt, other tools or a compaction change it."""
    provider = providers.choose("anthropic:any")[0]
    model = server.play("think", [ScriptedReply(text="unused"), ScriptedReply(text="I go on.")])
    stale: JsonObject = {
        "thinking": [{"type": "thinking", "thinking": "Let me see.", "signature": "of another prefix"}]
    }
    assistant_message = AssistantMessage(
        message_id="m2", content="4", provider="anthropic", provider_state=stale
    )

    reply = await complete(
        provider, make_request(model, HELLO, assistant_message, UserMessage(message_id="m3", content="more"))
    )

    assert reply.text == "I go on."
    first, second = server.requests("think")
    assert (first.outcome, second.outcome) == ("refused", "completed")
    assert b"Let me see." in first.raw and b"Let me see." not in second.raw


async def test_options_and_tools_reach_the_model(
    server: ModelServer, provider: Provider, vendor: str
) -> None:
    """R62, R80, R85, R87."""
    model = server.play("options", [ScriptedReply(text="x")])
    options = ModelOptions(max_tokens=99, temperature=0.25)

    await complete(provider, make_request(model, tools=(BASH,), options=options))

    body = server.requests("options")[0].body
    assert (body["max_tokens"], body["temperature"], body["model"]) == (99, 0.25, model)
    tool = body["tools"][0] if vendor == "anthropic" else body["tools"][0]["function"]
    schema = tool["input_schema"] if vendor == "anthropic" else tool["parameters"]
    assert (tool["name"], tool["description"], schema) == ("bash", "Runs a command.", BASH.input_schema)


async def test_anthropic_request_marks_the_ends_of_cached_prefixes(
    server: ModelServer, providers: Providers
) -> None:
    model = server.play("cache", [ScriptedReply(text="x")])

    await complete(providers.choose("anthropic:any")[0], make_request(model, tools=(BASH, READ_FILE)))

    body = server.requests("cache")[0].body
    marked = [
        body["system"][-1],
        body["tools"][-1],
        body["messages"][-1]["content"][-1],
    ]
    assert all(item["cache_control"] == {"type": "ephemeral"} for item in marked)
    assert "cache_control" not in body["tools"][0]


async def test_images_are_sent_inline_and_workspace_files_by_path(
    server: ModelServer, provider: Provider
) -> None:
    parts = (
        TextPart(text="What is this?"),
        ImagePart(url="data:image/png;base64,iVBORw0KGgo="),
        ImagePart(url="pictures/cat.png"),
        ImagePart(url="https://images.example/cat.png"),
        ImagePart(url="http://169.254.169.254/latest"),
        FilePart(path="notes.txt"),
    )
    model = server.play("parts", [ScriptedReply(text="x")])

    await complete(provider, make_request(model, UserMessage(message_id="m1", content=parts)))

    raw = server.requests("parts")[0].raw.decode()
    linked = "address that is refused" if provider.name == "backboard" else "https://images.example/cat.png"
    for expected in ("What is this?", "iVBORw0KGgo=", "pictures/cat.png", "notes.txt", linked):
        assert expected in raw
    assert "http://169.254.169.254" not in raw
    assert server.violations == []


async def test_results_are_sent_in_each_vendors_format(
    server: ModelServer, provider: Provider, vendor: str
) -> None:
    """R77, R95: the format of results."""
    calls = (
        ToolCall(id="c1", name="read_file", arguments={"path": "a"}, provider_call_id="call_1"),
        ToolCall(id="c2", name="bash", arguments={"command": "false"}),
    )
    history = (
        HELLO,
        AssistantMessage(message_id="m2", content=None, calls=calls),
        ToolMessage(
            name="read_file",
            result=ToolResult(tool_call_id="c1", content={"success": True, "content": "abc"}),
        ),
        ToolMessage(
            name="bash",
            result=ToolResult(tool_call_id="c2", content={"success": False, "exit_code": 1}, is_error=True),
        ),
    )
    model = server.play("results", [ScriptedReply(text="x"), ScriptedReply(text="y")])

    await complete(provider, make_request(model, *history, tools=(BASH, READ_FILE)))

    sent = server.requests("results")[0].body["messages"]
    if vendor == "openai":
        assert sent[2]["content"] is None
        assert sent[3:] == [
            {
                "role": "tool",
                "tool_call_id": "call_1",
                "name": "read_file",
                "content": '{"success": true, "content": "abc"}',
            },
            {
                "role": "tool",
                "tool_call_id": "c2",
                "name": "bash",
                "content": '{"success": false, "exit_code": 1}',
            },
        ]
    else:
        first, second = sent[2]["content"]
        assert first == {"type": "tool_result", "tool_use_id": "call_1", "content": "abc"}
        assert (second["tool_use_id"], second["is_error"]) == ("c2", True)
    assert server.violations == []


ENDINGS = {
    "openai": (
        'data: {"choices": [{"index": 0, "delta": {"content": "done"}, "finish_reason": "stop"}]}\n\n',
        "data: [DONE]\n\n",
    ),
    "anthropic": (
        'event: content_block_start\ndata: {"type": "content_block_start", "index": 0, '
        '"content_block": {"type": "text", "text": "done"}}\n\n',
        'event: message_stop\ndata: {"type": "message_stop"}\n\n',
    ),
}
"""The events of a reply, by vendor."""

TRANSIENT: list[Fault] = [
    HttpError(status=429, retry_after_s=0.01, times=1),
    HttpError(status=500, times=1),
    HttpError(status=529, times=1),
    ConnectionCut(times=1),
    ConnectionCut(after_events=4, times=1),
    HalfJson(after_events=4, times=1),
    EarlyEnd(times=1),
    StreamError(after_events=4, times=1),
]


@pytest.mark.parametrize(
    "fault", TRANSIENT, ids=lambda fault: f"{fault.kind}-{fault.model_dump().get('status')}"
)
async def test_transient_fault_is_retried_and_deltas_restart(
    server: ModelServer, provider: Provider, shown: Shown, fault: Fault
) -> None:
    """A27."""
    model = server.play("fault", [ScriptedReply(text="one two three four", fault=fault)])

    reply = await complete(provider, make_request(model), shown)

    assert reply.text == shown.message == "one two three four"
    assert len(shown.abandoned) == 1
    assert len(server.requests("fault")) == 2


@pytest.mark.parametrize("after_events", [0, 4])
async def test_silent_model_fails_after_its_own_time_and_is_not_requested_again(
    server: ModelServer, settings: ProviderSettings, vendor: str, after_events: int
) -> None:
    """A27: the model may still write the reply, and the vendor charge for it."""
    silence = ScriptedReply(text="one two three", fault=Silence(after_events=after_events, times=1))
    model = server.play("silence", [silence])
    times = {f"{vendor}:": 60.0, f"{vendor}:{model}": 0.2, f"{vendor}:other": 60.0}
    catalog = Providers(settings.model_copy(update={"request_timeout_s": 60.0, "request_timeouts_s": times}))

    with pytest.raises(ProviderFailed, match=r"silent for 0\.2 s") as failure:
        await complete(catalog.choose(f"{vendor}:any")[0], make_request(model))
    await catalog.close()

    assert failure.value.unavailable
    assert len(server.requests("silence")) == 1


@pytest.mark.parametrize("status", [504, 524])
async def test_request_is_not_repeated_after_a_proxy_stopped_waiting(
    server: ModelServer, provider: Provider, status: int
) -> None:
    model = server.play("proxy", [ScriptedReply(text="x", fault=HttpError(status=status))])

    with pytest.raises(ProviderFailed) as failure:
        await complete(provider, make_request(model))

    assert (failure.value.status, failure.value.unavailable) == (status, True)
    assert len(server.requests("proxy")) == 1


async def test_keep_alives_of_a_thinking_model_count_as_bytes(
    server: ModelServer, settings: ProviderSettings, vendor: str
) -> None:
    """Vendors send comments or `ping` events while a model thinks, here for longer than the limit."""
    comments = (": keep-alive\n\n",) * 8
    model = server.play("thinks", [RawReply(raw_chunks=(*comments, *ENDINGS[vendor]), chunk_delay_s=0.1)])
    catalog = Providers(settings.model_copy(update={"request_timeout_s": 0.4}))

    reply = await complete(catalog.choose(f"{vendor}:any")[0], make_request(model))
    await catalog.close()

    assert reply.text == "done"


def test_a_model_may_be_silent_for_ten_minutes_by_default() -> None:
    assert ProviderSettings().silence_s("openai:any") >= 600


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413])
async def test_refused_request_fails_without_retry_and_names_provider_and_status(
    server: ModelServer, provider: Provider, vendor: str, status: int
) -> None:
    model = server.play(
        "refused", [ScriptedReply(text="x", fault=HttpError(status=status, message="Not like this."))]
    )

    with pytest.raises(ProviderFailed, match=r"Not like this\.") as failure:
        await complete(provider, make_request(model))

    assert (failure.value.provider, failure.value.status) == (vendor, status)
    assert len(server.requests("refused")) == 1


async def test_refused_temperature_is_omitted_from_later_requests_to_the_model(
    server: ModelServer, provider: Provider, shown: Shown, caplog: pytest.LogCaptureFixture
) -> None:
    """R80: the newest models refuse this option. The refusal must not end runs."""
    refusal = HttpError(status=400, message="`temperature` is not supported with this model.", times=1)
    model = server.play("warm", [ScriptedReply(text="Anyway.", fault=refusal)])
    options = ModelOptions(temperature=0.5, max_tokens=50)

    first = await complete(provider, make_request(model, options=options), shown)
    second = await complete(provider, make_request(model, options=options))

    assert (first.text, second.text, shown.message) == ("Anyway.", "Anyway.", "Anyway.")
    bodies = [request.body for request in server.requests("warm")]
    assert [body.get("temperature") for body in bodies] == [0.5, None, None]
    assert all(50 in (body.get("max_tokens"), body.get("max_completion_tokens")) for body in bodies)
    assert "refused the option temperature" in caplog.text


async def test_persistent_fault_fails_after_the_last_attempt(
    server: ModelServer, settings: ProviderSettings, vendor: str
) -> None:
    model = server.play("down", [ScriptedReply(text="x", fault=HttpError(status=500, message="Down."))])
    twice = Providers(settings.model_copy(update={"max_attempts": 2}))

    with pytest.raises(ProviderFailed, match=r"500.*Down") as failure:
        await complete(twice.choose(f"{vendor}:any")[0], make_request(model))
    await twice.close()

    assert failure.value.status == 500
    assert len(server.requests("down")) == 2


@pytest.mark.parametrize(
    ("status", "reason"), [(429, "rate_limited"), (503, "overloaded"), (529, "overloaded")]
)
async def test_overloaded_model_is_requested_again_beyond_the_limit_of_attempts(
    server: ModelServer, settings: ProviderSettings, vendor: str, shown: Shown, status: int, reason: str
) -> None:
    fault = HttpError(status=status, message="Too many for now.", times=6)
    model = server.play("busy", [ScriptedReply(text="Here.", fault=fault)])
    once = Providers(settings.model_copy(update={"max_attempts": 1}))

    reply = await complete(once.choose(f"{vendor}:any")[0], make_request(model), shown)
    await once.close()

    assert reply.text == "Here."
    assert len(server.requests("busy")) == 7
    assert [pause.attempt for pause in shown.pauses] == [1, 2, 3, 4, 5, 6]
    first = shown.pauses[0]
    assert (first.model, first.reason) == (f"{vendor}:{model}", reason)
    assert "Too many for now." in first.error
    assert 0 < first.next_attempt_s <= 0.01


async def test_unreachable_model_is_requested_until_its_server_starts(
    settings: ProviderSettings, vendor: str
) -> None:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    fields = {"openai_base_url": f"{address}/v1", "anthropic_base_url": address, "max_attempts": 1}
    catalog = Providers(settings.model_copy(update=fields))
    refused = asyncio.Event()
    late = {"late": Script(replies=(ScriptedReply(text="Here."),))}

    class Watching(Shown):
        async def waiting(self, pause: ModelPause) -> None:
            await super().waiting(pause)
            refused.set()

    shown = Watching()
    request = asyncio.create_task(
        complete(catalog.choose(f"{vendor}:any")[0], make_request("scripted/late"), shown)
    )
    await refused.wait()
    async with ModelServer.running(port=port, scripts=late):
        reply = await request
        await catalog.close()

    assert reply.text == "Here."
    assert {pause.reason for pause in shown.pauses} == {"unreachable"}


async def test_overloaded_model_fails_with_its_reason_after_the_longest_wait(
    server: ModelServer, settings: ProviderSettings, vendor: str
) -> None:
    model = server.play("busy", [ScriptedReply(text="x", fault=HttpError(status=503, message="Down."))])
    catalog = Providers(settings.model_copy(update={"max_wait_s": 0.2}))
    await catalog.warm(f"{vendor}:any")

    with pytest.raises(ProviderFailed, match=r"503.*Down.*attempts") as failure:
        await complete(catalog.choose(f"{vendor}:any")[0], make_request(model))
    await catalog.close()

    assert failure.value.unavailable
    assert len(server.requests("busy")) > 2


async def test_retry_pause_beyond_the_deadline_is_not_started(
    server: ModelServer, provider: Provider
) -> None:
    model = server.play("busy", [ScriptedReply(text="x", fault=HttpError(status=429, retry_after_s=60))])
    began = time.monotonic()

    with pytest.raises(ProviderFailed, match="429"):
        await provider.complete(make_request(model), deltas=Shown(), deadline_s=30)

    assert time.monotonic() - began < 15


async def test_retry_waits_for_the_vendors_retry_after(server: ModelServer, provider: Provider) -> None:
    model = server.play(
        "busy", [ScriptedReply(text="x", fault=HttpError(status=429, retry_after_s=0.3, times=1))]
    )
    began = time.monotonic()

    await complete(provider, make_request(model))

    assert time.monotonic() - began >= 0.3


async def test_reply_after_the_deadline_raises_provider_failed(
    server: ModelServer, provider: Provider
) -> None:
    model = server.play("slow", [ScriptedReply(text="x", gate=Gate(name="never"))])

    with pytest.raises(ProviderFailed, match=r"no complete reply within 0\.2 s"):
        await provider.complete(make_request(model), deltas=Shown(), deadline_s=0.2)


async def test_cancel_closes_the_connection(server: ModelServer, provider: Provider) -> None:
    """P7: a cancelled run leaves no running generation at the vendor."""
    model = server.play(
        "slow", [ScriptedReply(text="one two three", gate=Gate(name="never", after_events=3))]
    )
    pending = asyncio.create_task(complete(provider, make_request(model)))
    await server.wait_for_requests("slow", outcome="open")

    pending.cancel()

    with pytest.raises(asyncio.CancelledError):
        await pending
    await server.wait_for_requests("slow", outcome="disconnected")


async def test_oversized_reply_is_cut_with_the_finish_reason_length(
    server: ModelServer, provider: Provider, shown: Shown
) -> None:
    """A24."""
    model = server.play("flood", [ScriptedReply(text="x" * 3_000_000, chunk_chars=50_000)])

    reply = await complete(provider, make_request(model), shown)

    assert (reply.finish_reason, reply.raw_finish_reason) == ("length", "reply too long")
    assert len(reply.text or "") < 500_000


async def test_reasoning_too_long_for_the_log_is_published_but_not_stored(
    server: ModelServer, provider: Provider, shown: Shown
) -> None:
    model = server.play("think", [ScriptedReply(reasoning="x" * 200_000, text="4", chunk_chars=10_000)])

    reply = await complete(provider, make_request(model), shown)

    assert (len(shown.reasoning), reply.text) == (200_000, "4")
    assert reply.provider_state is None


async def test_lone_surrogates_in_a_reply_are_replaced(
    server: ModelServer, providers: Providers, shown: Shown
) -> None:
    chunk = (
        'data: {"id":"1","object":"chat.completion.chunk","created":0,"model":"m","choices":[{"index":0,'
        '"delta":{"content":"a\\ud800b"},"finish_reason":"stop"}]}\n\n'
    )
    model = server.play("surrogate", [RawReply(raw_chunks=(chunk, "data: [DONE]\n\n"))])

    reply = await complete(providers.choose("openai:any")[0], make_request(model), shown)

    assert reply.text == shown.message == "a\ufffdb"


SURROGATES: dict[str, tuple[str, ...]] = {
    "openai": (
        'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c\\ud800","function":'
        '{"name":"bash\\ud800","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}\n\n',
        "data: [DONE]\n\n",
    ),
    "anthropic": (
        'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":'
        '{"type":"thinking","thinking":"x\\ud800","signature":"s\\ud800"}}\n\n',
        'event: content_block_start\ndata: {"type":"content_block_start","index":1,"content_block":'
        '{"type":"redacted_thinking","data":"d\\ud800"}}\n\n',
        'event: content_block_start\ndata: {"type":"content_block_start","index":2,"content_block":'
        '{"type":"tool_use","id":"c\\ud800","name":"bash\\ud800"}}\n\n',
        'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    ),
}


async def test_no_field_of_a_reply_prevents_that_it_is_stored(
    server: ModelServer, provider: Provider, vendor: str
) -> None:
    model = server.play("surrogates", [RawReply(raw_chunks=SURROGATES[vendor])])

    reply = await complete(provider, make_request(model))

    assert [(call.provider_call_id, call.name) for call in reply.calls] == [("c\ufffd", "bash\ufffd")]
    json.dumps(reply.provider_state, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "date",
    ["Mon, 01 Jan 99999999999999999999 00:00:00 GMT", "Mon, 01 Jan 2024 00:00:00 +99999999999999999999"],
)
async def test_an_absurd_date_in_retry_after_is_ignored(
    server: ModelServer, provider: Provider, vendor: str, date: str
) -> None:
    busy = RawReply(
        raw_chunks=("{}",), status=429, content_type="application/json", headers={"retry-after": date}
    )
    model = server.play("busy", [busy, RawReply(raw_chunks=ENDINGS[vendor])], by="count")

    assert (await complete(provider, make_request(model))).text == "done"


SLOPPY = (
    'data: {"id":"1","model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"id":"c1","function":'
    '{"name":"bash","arguments":{"command":"ls"}}}]}}]}\n\n',
    'data: {"id":"1","model":"m","choices":[{"index":0,"delta":null,"finish_reason":"stop"}]}\n\n',
    'data: {"id":"1","model":"m","choices":null,"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n',
    "data: [DONE]\n\n",
)


async def test_incomplete_chunks_of_compatible_servers_are_read(
    server: ModelServer, providers: Providers
) -> None:
    """The chunks have no role, no index, arguments as an object, a null delta, and usage without choices."""
    model = server.play("sloppy", [RawReply(raw_chunks=SLOPPY)])

    reply = await complete(providers.choose("openai:any")[0], make_request(model, tools=(BASH,)))

    assert reply.calls == (RawCall("c1", "bash", {"command": "ls"}),)
    assert reply.usage == Usage(input_tokens=3, output_tokens=2)


async def test_demo_model_uses_the_openai_adapter(providers: Providers) -> None:
    provider, model = providers.choose("demo")

    reply = await complete(provider, make_request(model))

    assert (provider.name, model) == ("demo", "demo")
    assert reply.text


@pytest.mark.parametrize("model", ["gpt-5", "openai:", ":gpt-5", "mistral:large", ""])
async def test_model_of_an_unknown_provider_is_refused_by_name(providers: Providers, model: str) -> None:
    with pytest.raises(BadInput, match="anthropic, openai, backboard, demo"):
        providers.choose(model)


async def test_api_keys_occur_in_no_error_and_no_repr(server: ModelServer) -> None:
    """P9."""
    canary = "sk-canary-0123456789abcdef"
    settings = ProviderSettings.model_validate(
        {
            "openai_api_key": canary,
            "anthropic_api_key": canary,
            "openai_base_url": server.openai_url,
            "anthropic_base_url": server.url,
        }
    )
    model = server.play("refused", [ScriptedReply(text="x", fault=HttpError(status=401, message="No."))])
    catalog = Providers(settings)

    for vendor in ("openai", "anthropic"):
        with pytest.raises(ProviderFailed) as failure:
            await complete(catalog.choose(f"{vendor}:any")[0], make_request(model))
        assert canary not in f"{failure.value!r} {settings!r}"
    await catalog.close()


async def test_warmed_provider_has_its_client_before_the_first_request(
    server: ModelServer, providers: Providers, vendor: str
) -> None:
    model = server.play("warm", [ScriptedReply(text="x")])

    await providers.warm(f"{vendor}:{model}")
    provider, name = providers.choose(f"{vendor}:{model}")

    assert (await complete(provider, make_request(name))).text == "x"


def test_vendor_sdks_are_imported_on_first_use() -> None:
    """Their imports take seconds, and an agent that waits for work needs none of them."""
    program = (
        "import sys, banksman.agent.providers.catalog, banksman.agent.protocols\n"
        "adapter = 'banksman.agent.providers.backboard'\n"
        "sdks = ('openai', 'anthropic', 'backboard', 'httpx2', 'aiohttp')\n"
        "print([name for name in (adapter, *sdks) if name in sys.modules])"
    )

    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )

    assert found.stdout.strip() == "[]"


async def test_many_requests_share_one_client(server: ModelServer, provider: Provider) -> None:
    model = server.play("many", [ScriptedReply(text="x", gate=Gate(name="all"))])

    async with asyncio.TaskGroup() as group:
        pending = [group.create_task(complete(provider, make_request(model))) for _ in range(20)]
        await server.wait_for_requests("many", 20)
        server.open_gate("all")

    assert [task.result().text for task in pending] == ["x"] * 20
