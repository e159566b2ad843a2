"""Backboard's adapter with its real SDK, against a local server that stores assistants and threads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest
from tests.support.backboard import BackboardServer
from tests.support.deltas import Shown
from tests.support.scripted_models import (
    ConnectionCut,
    EarlyEnd,
    Fault,
    Gate,
    HttpError,
    ScriptedCall,
    ScriptedReply,
    ScriptedUsage,
    Silence,
    StreamError,
)

from banksman.agent.protocols import protocol_for
from banksman.agent.protocols.base import ModelReply, ModelRequest, RawCall
from banksman.agent.providers.base import Provider, ProviderSettings
from banksman.agent.providers.catalog import Providers
from banksman.contracts.errors import ProviderFailed
from banksman.contracts.messages import AssistantMessage, ImagePart, TextPart, ToolMessage, Usage, UserMessage
from banksman.contracts.tools import ToolCall, ToolDefinition, ToolResult

BASH = ToolDefinition(
    name="bash",
    description="Runs a command.",
    input_schema={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
)
READ_FILE = ToolDefinition(name="read_file", description="Reads a file.")
TOOLS = (BASH, READ_FILE)
HELLO = UserMessage(message_id="m1", content="hello")
LS = ScriptedCall(name="bash", arguments={"command": "ls"}, id="call_ls|1")
READ = ScriptedCall(name="read_file", arguments={"path": "a"}, id="call_read")

OPENING = ["POST /assistants", "POST /assistants/{assistant}/threads", "POST /threads/messages"]
SUBMIT = "POST /threads/{thread}/runs/{run}/submit-tool-outputs"
READ_THREAD = "GET /threads/{thread}"
SEND_MESSAGE = "POST /threads/messages"


@pytest.fixture
async def server() -> AsyncGenerator[BackboardServer]:
    async with BackboardServer.running() as running:
        yield running


@pytest.fixture
def settings(server: BackboardServer) -> ProviderSettings:
    return ProviderSettings.model_validate(
        {
            "backboard_api_key": "espr_key",
            "backboard_base_url": server.url,
            "request_timeout_s": 2.0,
            "first_delay_s": 0.01,
        }
    )


@pytest.fixture
async def provider(settings: ProviderSettings) -> AsyncGenerator[Provider]:
    providers = Providers(settings)
    await providers.warm("backboard:any")
    yield providers.choose("backboard:any")[0]
    await providers.close()


@pytest.fixture
def shown() -> Shown:
    return Shown()


def make_request(*messages: Any, tools: tuple[ToolDefinition, ...] = TOOLS, **fields: Any) -> ModelRequest:
    request = ModelRequest("openai/gpt-4o", "Be brief.", messages or (HELLO,), tools, conversation_id="c1")
    return protocol_for("native").prepare(replace(request, **fields))


async def complete(provider: Provider, request: ModelRequest, shown: Shown | None = None) -> ModelReply:
    return await provider.complete(request, deltas=shown or Shown(), deadline_s=30)


def logged(reply: ModelReply, **fields: Any) -> AssistantMessage:
    """Return a reply as the log contains it."""
    calls = tuple(
        ToolCall(
            id=f"k{number}",
            name=call.name,
            arguments=json.loads(str(call.arguments)),
            provider_call_id=call.provider_call_id,
        )
        for number, call in enumerate(reply.calls, 1)
    )
    message = AssistantMessage(
        message_id="a1",
        content=reply.text,
        calls=calls,
        provider="backboard",
        provider_state=reply.provider_state,
    )
    return message.model_copy(update=fields)


def result(call_id: str, name: str = "bash", **content: Any) -> ToolMessage:
    content = {"success": True, **content}
    return ToolMessage(
        name=name, result=ToolResult.model_validate({"tool_call_id": call_id, "content": content})
    )


def bodies(server: BackboardServer, path_end: str) -> list[dict[str, Any]]:
    return [request.body for request in server.requests if request.path.endswith(path_end)]


async def test_assistant_gets_prompt_and_tools_and_thread_gets_the_message(
    server: BackboardServer, provider: Provider, shown: Shown
) -> None:
    """R56: all tools are passed when the assistant is created."""
    usage = ScriptedUsage(input_tokens=12, output_tokens=3)
    server.play(ScriptedReply(text="Good day to you.", reasoning="Politely.", usage=usage))

    reply = await complete(provider, make_request(), shown)

    assert server.paths() == OPENING
    created, message = server.requests[0].body, server.requests[2].body
    assert (created["name"], created["system_prompt"]) == ("Banksman c1", "Be brief.")
    assert [tool["function"]["name"] for tool in created["tools"]] == ["bash", "read_file"]
    schema = created["tools"][0]["function"]["parameters"]
    assert schema["properties"].keys() - {"terminate"} == {"command"} and schema["required"] == ["command"]
    assert (message["content"], message["llm_provider"], message["model_name"]) == (
        "hello",
        "openai",
        "gpt-4o",
    )
    assert reply.text == shown.message == "Good day to you."
    assert (shown.reasoning, reply.finish_reason) == ("Politely.", "stop")
    assert reply.usage == Usage(input_tokens=12, output_tokens=3)


async def test_assistant_without_tools_is_created_without_the_tools_field(
    server: BackboardServer, provider: Provider
) -> None:
    """R57: text-only mode."""
    server.play(ScriptedReply(text="x"))

    await complete(provider, make_request(tools=()))

    assert "tools" not in server.requests[0].body


async def test_waiting_run_returns_calls_and_receives_all_outputs_in_one_request(
    server: BackboardServer, settings: ProviderSettings, provider: Provider, shown: Shown
) -> None:
    """R45, R48, R49: another agent, which has only the log, submits each output under the id of its call."""
    server.play(ScriptedReply(text="Looking.", tool_calls=(LS, READ)), ScriptedReply(text="Two files."))

    requested = await complete(provider, make_request(), shown)
    assert (requested.text, requested.finish_reason) == ("Looking.", "tool_calls")
    assert requested.calls == (
        RawCall("call_ls|1", "bash", '{"command": "ls"}'),
        RawCall("call_read", "read_file", '{"path": "a"}'),
    )
    other = Providers(settings)
    history = (HELLO, logged(requested), result("k1", stdout="a b"), result("k2", "read_file", content="x"))
    final = await complete(other.choose("backboard:any")[0], make_request(*history), shown)
    await other.close()

    assert server.paths() == [*OPENING, SUBMIT]
    assert server.requests[-1].body == {
        "tool_outputs": [
            {"tool_call_id": "call_ls|1", "output": '{"success": true, "stdout": "a b"}'},
            {"tool_call_id": "call_read", "output": '{"success": true, "content": "x"}'},
        ]
    }
    assert (final.text, shown.message) == ("Two files.", "Looking.Two files.")
    assert server.violations == []


async def test_next_message_is_sent_to_the_same_thread(server: BackboardServer, provider: Provider) -> None:
    server.play(ScriptedReply(text="Hi."), ScriptedReply(text="Fine."))
    first = await complete(provider, make_request())

    after = (HELLO, logged(first), UserMessage(message_id="m2", content="how are you?"))
    await complete(provider, make_request(*after))

    assert server.paths() == [*OPENING, READ_THREAD, SEND_MESSAGE]
    assert bodies(server, "/messages")[1]["content"] == "how are you?"
    assert len(server.threads) == len(server.assistants) == 1


async def test_assistant_is_updated_before_the_message_if_tools_changed(
    server: BackboardServer, provider: Provider
) -> None:
    """R57, R58: an assistant that was created without tools gets them later; an empty list removes them."""
    server.play(ScriptedReply(text="1"), ScriptedReply(text="2"), ScriptedReply(text="3"))
    history: list[Any] = [HELLO]
    for number, tools in enumerate(((), TOOLS, ())):
        reply = await complete(provider, make_request(*history, tools=tools))
        history += [logged(reply), UserMessage(message_id=f"n{number}", content="and?")]

    updates = [request.body for request in server.requests if request.method == "PUT"]
    assert [[tool["function"]["name"] for tool in body["tools"]] for body in updates] == [
        ["bash", "read_file"],
        [],
    ]
    assert len(server.assistants) == 1


async def test_reply_of_another_provider_starts_a_new_thread_with_the_history(
    server: BackboardServer, provider: Provider
) -> None:
    server.play(ScriptedReply(text="Hi."), ScriptedReply(text="As logged."))
    first = await complete(provider, make_request())
    call = ToolCall(id="k9", name="bash", arguments={"command": "ls"})
    history = (
        HELLO,
        logged(first),
        UserMessage(message_id="m2", content="what is there?"),
        AssistantMessage(message_id="a2", content=None, calls=(call,), provider="anthropic"),
        result("k9", stdout="notes.txt"),
        AssistantMessage(message_id="a3", content="One file.", provider="anthropic"),
        UserMessage(message_id="m3", content="which?"),
    )

    await complete(provider, make_request(*history))

    assert server.paths() == [*OPENING, *OPENING[1:]]
    first_message = bodies(server, "/messages")[1]["content"]
    order = ["hello", "Hi.", "what is there?", "[Called bash", "notes.txt", "One file.", "which?"]
    places = [first_message.index(piece) for piece in order]
    assert places == sorted(places)
    assert len(server.assistants) == 1


async def test_compaction_starts_a_new_thread_with_the_summary(
    server: BackboardServer, provider: Provider
) -> None:
    server.play(ScriptedReply(text="Hi."), ScriptedReply(text="ok"))
    first = await complete(provider, make_request(HELLO))
    summary = UserMessage(message_id="s1", content="They greeted each other.")

    await complete(
        provider, make_request(summary, logged(first), UserMessage(message_id="m2", content="and now?"))
    )

    assert server.paths()[3:] == OPENING[1:]
    assert "They greeted each other." in bodies(server, "/messages")[1]["content"]


async def test_a_message_together_with_outputs_starts_a_new_thread(
    server: BackboardServer, provider: Provider
) -> None:
    """A waiting run accepts only outputs; a rejected or steered run has a message after its results."""
    server.play(ScriptedReply(tool_calls=(LS,)), ScriptedReply(text="ok"))
    requested = await complete(provider, make_request())

    history = (HELLO, logged(requested), result("k1"), UserMessage(message_id="m2", content="stop that"))
    await complete(provider, make_request(*history))

    assert server.paths()[3:] == OPENING[1:]
    assert "stop that" in bodies(server, "/messages")[1]["content"]
    assert server.violations == []


async def test_change_of_model_starts_a_new_thread_instead_of_submitting_outputs(
    server: BackboardServer, provider: Provider
) -> None:
    server.play(ScriptedReply(tool_calls=(LS,)), ScriptedReply(text="ok"))
    requested = await complete(provider, make_request())

    await complete(provider, make_request(HELLO, logged(requested), result("k1"), model="anthropic/claude"))

    assert server.paths()[3:] == OPENING[1:]
    assert bodies(server, "/messages")[1]["llm_provider"] == "anthropic"


async def test_thread_that_already_has_the_message_is_replaced(
    server: BackboardServer, provider: Provider
) -> None:
    """An agent crashed, or the run was cancelled, before the log contained the reply."""
    server.play(ScriptedReply(text="Hi."), ScriptedReply(tool_calls=(LS,)), ScriptedReply(text="ok"))
    first = await complete(provider, make_request())
    after = (HELLO, logged(first), UserMessage(message_id="m2", content="and now?"))
    await complete(provider, make_request(*after))

    reply = await complete(provider, make_request(*after))

    assert reply.text == "ok"
    assert server.paths()[5:] == [READ_THREAD, *OPENING[1:]]
    assert server.violations == []


@pytest.mark.parametrize("status", [400, 404, 409])
async def test_run_that_no_longer_waits_is_replaced_by_a_new_thread(
    server: BackboardServer, provider: Provider, status: int
) -> None:
    server.status_of_no_wait = status
    server.play(ScriptedReply(tool_calls=(LS,)), ScriptedReply(text="lost"), ScriptedReply(text="ok"))
    requested = await complete(provider, make_request())
    history = (HELLO, logged(requested), result("k1", stdout="notes.txt"))
    await complete(provider, make_request(*history))

    reply = await complete(provider, make_request(*history))

    assert reply.text == "ok"
    assert server.paths()[4:] == [SUBMIT, *OPENING[1:]]
    assert "notes.txt" in bodies(server, "/messages")[1]["content"]


async def test_deleted_assistant_and_thread_are_created_again(
    server: BackboardServer, provider: Provider
) -> None:
    server.play(ScriptedReply(text="Hi."), ScriptedReply(text="ok"))
    first = await complete(provider, make_request())
    server.assistants.clear()
    server.threads.clear()

    history = (HELLO, logged(first), UserMessage(message_id="m2", content="still there?"))
    reply = await complete(provider, make_request(*history, tools=()))

    assert reply.text == "ok"
    assert len(server.assistants) == len(server.threads) == 1


TRANSIENT: list[Fault] = [
    HttpError(status=429, retry_after_s=0.01),
    HttpError(status=500),
    ConnectionCut(),
    ConnectionCut(after_events=2),
    EarlyEnd(),
    StreamError(after_events=2),
]


@pytest.mark.parametrize("fault", TRANSIENT, ids=lambda fault: fault.kind)
async def test_transient_fault_is_retried_without_sending_a_message_twice_to_a_thread(
    server: BackboardServer, provider: Provider, shown: Shown, fault: Fault
) -> None:
    server.play(
        ScriptedReply(text="Hi."),
        ScriptedReply(text="one two three", fault=fault),
        ScriptedReply(text="one two three four"),
    )
    first = await complete(provider, make_request())

    history = (HELLO, logged(first), UserMessage(message_id="m2", content="count"))
    reply = await complete(provider, make_request(*history), shown)

    assert reply.text == shown.message == "one two three four"
    assert len(shown.abandoned) == 1
    assert len(server.assistants) == 1
    for thread in server.threads.values():
        assert [message["content"] for message in thread.messages].count("count") <= 1
    assert server.violations == []


@pytest.mark.parametrize("fault", [ConnectionCut(after_events=2), HttpError(status=503)])
async def test_outputs_with_unknown_delivery_start_a_new_thread(
    server: BackboardServer, provider: Provider, fault: Fault
) -> None:
    server.play(
        ScriptedReply(tool_calls=(LS,)),
        ScriptedReply(text="lost", fault=fault),
        ScriptedReply(text="One file."),
    )
    requested = await complete(provider, make_request())

    reply = await complete(provider, make_request(HELLO, logged(requested), result("k1", stdout="notes.txt")))

    assert reply.text == "One file."
    assert server.violations == []


async def test_silent_model_is_not_requested_again(
    server: BackboardServer, settings: ProviderSettings
) -> None:
    server.play(ScriptedReply(text="one two", fault=Silence(after_events=2)), ScriptedReply(text="never"))
    short_timeout = Providers(settings.model_copy(update={"request_timeouts_s": {"backboard": 0.3}}))

    with pytest.raises(ProviderFailed, match=r"silent for 0\.3 s"):
        await complete(short_timeout.choose("backboard:any")[0], make_request())
    await short_timeout.close()


@pytest.mark.parametrize("status", [400, 401, 402, 403])
async def test_refused_request_fails_without_retry_with_the_vendors_message(
    server: BackboardServer, provider: Provider, status: int
) -> None:
    server.play(ScriptedReply(text="x", fault=HttpError(status=status, message="Not like this.")))

    with pytest.raises(ProviderFailed, match=r"Not like this\.") as failure:
        await complete(provider, make_request())

    assert (failure.value.provider, failure.value.status) == ("backboard", status)
    assert len(bodies(server, "/messages")) == 1


async def test_reply_after_the_deadline_raises_provider_failed(
    server: BackboardServer, provider: Provider
) -> None:
    server.play(ScriptedReply(text="x", gate=Gate(name="never")))

    with pytest.raises(ProviderFailed, match=r"no complete reply within 0\.3 s"):
        await provider.complete(make_request(), deltas=Shown(), deadline_s=0.3)


async def test_cancel_closes_the_connection(server: BackboardServer, provider: Provider) -> None:
    server.play(ScriptedReply(text="one two three", gate=Gate(name="never", after_events=2)))
    pending = asyncio.create_task(complete(provider, make_request()))
    await server.wait_for("/messages", "open")

    pending.cancel()

    with pytest.raises(asyncio.CancelledError):
        await pending
    await server.wait_for("/messages", "disconnected")


async def test_oversized_reply_is_cut_and_its_thread_is_not_used_again(
    server: BackboardServer, provider: Provider
) -> None:
    server.play(ScriptedReply(text="x" * 3_000_000, chunk_chars=50_000), ScriptedReply(text="ok"))

    reply = await complete(provider, make_request())

    assert (reply.finish_reason, reply.provider_state) == ("length", None)
    assert len(reply.text or "") < 500_000


async def test_images_become_placeholders(server: BackboardServer, provider: Provider) -> None:
    server.play(ScriptedReply(text="x"))
    parts = (TextPart(text="What is this?"), ImagePart(url="data:image/png;base64,iVBORw0KGgo="))

    await complete(provider, make_request(UserMessage(message_id="m1", content=parts)))

    content = bodies(server, "/messages")[0]["content"]
    assert content.startswith("What is this?") and "image/png" in content and "iVBOR" not in content


async def test_api_key_is_sent_in_its_header_only(
    server: BackboardServer, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    server.play(ScriptedReply(text="x", fault=HttpError(status=401, message="no")))

    with pytest.raises(ProviderFailed) as failure:
        await complete(provider, make_request())

    assert "espr_key" not in str(failure.value) + caplog.text
    assert all("espr_key" not in json.dumps(request.body) for request in server.requests)
