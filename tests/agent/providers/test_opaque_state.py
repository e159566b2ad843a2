"""What a vendor wrote for itself returns unchanged to the same provider and address, and to no other."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from tests.agent.providers.histories import TOOLS, user
from tests.agent.providers.played_server import PlayedServer, chat_chunks, in_history, played_server
from tests.support.deltas import Shown

from banksman.agent.protocols.base import ModelReply, ModelRequest, RawCall
from banksman.agent.providers.base import ProviderSettings
from banksman.agent.providers.catalog import Providers
from banksman.contracts.errors import ProviderFailed
from banksman.contracts.messages import Message
from banksman.contracts.wire import JsonObject

SIGNATURE = {"google": {"thought_signature": "CiQB/+é=="}}
OTHER_SIGNATURE = {"google": {"thought_signature": "c2Vjb25k"}}


@pytest.fixture
async def server() -> AsyncGenerator[PlayedServer]:
    async with played_server() as played:
        yield played


@pytest.fixture
async def elsewhere() -> AsyncGenerator[PlayedServer]:
    async with played_server() as played:
        yield played


@pytest.fixture
async def providers(server: PlayedServer) -> AsyncGenerator[Providers]:
    running = Providers(settings_for(server))
    yield running
    await running.close()


def settings_for(server: PlayedServer, **fields: Any) -> ProviderSettings:
    entries = {
        "chat": {"base_url": server.url},
        "gemini": {"base_url": server.url, "vendor": "gemini"},
        "mistral": {"base_url": server.url, "vendor": "mistral"},
        "claude": {"base_url": server.url, "api": "anthropic"},
    }
    return ProviderSettings.model_validate({"providers": entries, "max_attempts": 1, **fields})


async def complete(providers: Providers, name: str, *history: Message) -> ModelReply:
    provider, model = providers.choose(f"{name}:any")
    request = ModelRequest(model, "Be brief.", (user("Hi"), *history), TOOLS)
    return await provider.complete(request, deltas=Shown(), deadline_s=20)


def call_chunk(index: int, name: str, **fields: Any) -> dict[str, Any]:
    call = {"index": index, "id": f"call_{index}", "function": {"name": name, "arguments": "{}"}}
    return {"tool_calls": [{**call, **fields}]}


def sent_replies(server: PlayedServer) -> list[dict[str, Any]]:
    return [one for one in server.bodies[-1]["messages"] if one["role"] == "assistant"]


async def test_the_signature_of_each_call_returns_with_that_call(
    server: PlayedServer, providers: Providers
) -> None:
    """Gemini refuses a call of its own without its signature, or with that of another call."""
    server.replies = [
        chat_chunks(
            call_chunk(0, "ping", extra_content=SIGNATURE),
            call_chunk(1, "bash"),
            call_chunk(2, "read_file", extra_content=OTHER_SIGNATURE),
        ),
        chat_chunks({"content": "Done."}, {"extra_content": SIGNATURE}),
        chat_chunks({"content": "Yes."}),
    ]

    first = await complete(providers, "gemini")
    history = list(in_history(first, "gemini"))
    second = await complete(providers, "gemini", *history)
    await complete(providers, "gemini", *history, *in_history(second, "gemini", 2), user("Sure?", 2))

    calls, text = sent_replies(server)
    assert [call.get("extra_content") for call in calls["tool_calls"]] == [SIGNATURE, None, OTHER_SIGNATURE]
    assert text["extra_content"] == SIGNATURE


async def test_reasoning_details_are_joined_and_return_in_their_order(
    server: PlayedServer, providers: Providers
) -> None:
    """OpenRouter streams pieces of a block and accepts the complete blocks."""
    pieces: list[list[JsonObject]] = [
        [{"type": "reasoning.text", "index": 0, "text": "Two ", "signature": None}],
        [{"type": "reasoning.text", "index": 0, "text": "calls.", "signature": "S1"}],
        [{"type": "reasoning.encrypted", "index": 1, "data": "E1"}],
    ]
    deltas = [{"reasoning": "x", "reasoning_details": piece} for piece in pieces]
    server.replies = [chat_chunks(*deltas, call_chunk(0, "ping")), chat_chunks({"content": "Done."})]

    reply = await complete(providers, "chat")
    await complete(providers, "chat", *in_history(reply, "chat"))

    [sent] = sent_replies(server)
    assert sent["reasoning_details"] == [
        {"type": "reasoning.text", "index": 0, "text": "Two calls.", "signature": "S1"},
        {"type": "reasoning.encrypted", "index": 1, "data": "E1"},
    ]
    assert "reasoning" not in sent


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    pieces = ({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
    return [{"type": "content_block_start", "index": index, "content_block": start}, *pieces]


def thinking(index: int, text: str, signature: str) -> list[dict[str, Any]]:
    return block(
        index,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": text},
        {"type": "signature_delta", "signature": signature},
    )


def messages_stream(*blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    end = [{"type": "message_delta", "delta": {"stop_reason": "tool_use"}}, {"type": "message_stop"}]
    return [event for one in blocks for event in one] + end


async def test_thinking_between_calls_returns_between_the_same_calls(
    server: PlayedServer, providers: Providers
) -> None:
    """Claude's interleaved thinking: a signature is valid only after what preceded its block."""
    server.replies = [
        messages_stream(
            thinking(0, "First.", "S0"),
            block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "I look."}),
            block(2, {"type": "tool_use", "id": "toolu_1", "name": "ping", "input": {}}),
            thinking(3, "Then.", "S3"),
            block(4, {"type": "text", "text": "And once more."}),
            block(5, {"type": "tool_use", "id": "toolu_2", "name": "ping", "input": {}}),
        ),
        messages_stream(block(0, {"type": "text", "text": "Done."})),
    ]

    reply = await complete(providers, "claude")
    await complete(providers, "claude", *in_history(reply, "claude"))

    [sent] = sent_replies(server)
    assert sent["content"] == [
        {"type": "thinking", "thinking": "First.", "signature": "S0"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1", "name": "ping", "input": {}},
        {"type": "thinking", "thinking": "Then.", "signature": "S3"},
        {"type": "text", "text": "And once more."},
        {"type": "tool_use", "id": "toolu_2", "name": "ping", "input": {}},
    ]


async def test_the_same_name_at_another_address_gets_no_state(
    server: PlayedServer, elsewhere: PlayedServer, providers: Providers
) -> None:
    server.replies = [
        chat_chunks({"reasoning_content": "Hm."}, call_chunk(0, "ping", extra_content=SIGNATURE))
    ]
    reply = await complete(providers, "chat")
    elsewhere.replies = [chat_chunks({"content": "Done."})]
    moved = Providers(settings_for(elsewhere))

    await complete(moved, "chat", *in_history(reply, "chat"))
    await moved.close()

    [sent] = sent_replies(elsewhere)
    assert "reasoning_content" not in sent
    assert "extra_content" not in sent["tool_calls"][0]


async def test_a_state_of_an_earlier_version_returns_to_its_provider(
    server: PlayedServer, providers: Providers
) -> None:
    server.replies = [chat_chunks({"content": "Done."})] * 2
    stored = ModelReply(text="Hello.", provider_state={"reasoning_content": "Hm."})

    await complete(providers, "chat", *in_history(stored, "chat"), user("And?", 2))
    [own] = sent_replies(server)
    await complete(providers, "chat", *in_history(stored, "gemini"), user("And?", 2))
    [foreign] = sent_replies(server)

    assert own["reasoning_content"] == "Hm."
    assert "reasoning_content" not in foreign


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("chat", "The encrypted content for item rs_1 could not be verified."),
        ("gemini", "Request contains an invalid argument: Thought signature is not valid"),
    ],
)
async def test_a_request_is_repeated_once_without_a_state_that_is_refused(
    server: PlayedServer, providers: Providers, name: str, message: str
) -> None:
    refused = (400, {"error": {"message": message, "type": "invalid_request_error"}})
    server.replies = [
        chat_chunks({"reasoning_content": "Hm."}, call_chunk(0, "ping", extra_content=SIGNATURE)),
        refused,
        chat_chunks({"content": "Done."}),
        refused,
        refused,
    ]
    history = list(in_history(await complete(providers, name), name))

    reply = await complete(providers, name, *history)
    [without] = sent_replies(server)
    with pytest.raises(ProviderFailed):
        await complete(providers, name, *history)

    assert reply.text == "Done."
    assert "reasoning_content" not in without
    assert without["tool_calls"][0].get("extra_content") != SIGNATURE
    assert server.replies == []


async def test_a_call_of_another_model_gets_what_gemini_accepts_for_it(
    server: PlayedServer, providers: Providers
) -> None:
    server.replies = [
        chat_chunks(call_chunk(0, "ping"), call_chunk(1, "ping")),
        chat_chunks({"content": "Done."}),
    ]
    reply = await complete(providers, "chat")

    await complete(providers, "gemini", *in_history(reply, "chat"))

    first, second = sent_replies(server)[0]["tool_calls"]
    assert first["extra_content"] == {"google": {"thought_signature": "skip_thought_signature_validator"}}
    assert "extra_content" not in second


async def test_ids_that_a_vendor_refuses_become_nine_letters_and_digits(
    server: PlayedServer, providers: Providers
) -> None:
    """Mistral accepts no others; the id of a call is the same in each request and with its result."""
    server.replies = [chat_chunks({"content": "Done."})] * 3
    reply = ModelReply(
        text=None, calls=tuple(RawCall(id, "ping", {}) for id in ("call_1", "call_1", "abcDEF123"))
    )
    history = list(in_history(reply, "chat"))

    for more in ((), (user("And?", 2),)):
        await complete(providers, "mistral", *history, *more)
    ids = [[one["id"] for one in body["messages"][2]["tool_calls"]] for body in server.bodies]
    results = [
        [one["tool_call_id"] for one in body["messages"] if one["role"] == "tool"] for body in server.bodies
    ]
    await complete(providers, "chat", *history)

    assert ids[0] == ids[1] == results[0] == results[1]
    assert len(set(ids[0])) == 3
    assert ids[0][2] == "abcDEF123"
    assert all(len(one) == 9 and one.isalnum() for one in ids[0])
    assert [one["role"] for one in server.bodies[1]["messages"]][-2:] == ["assistant", "user"]
    assert "stream_options" not in server.bodies[0]
    assert sent_replies(server)[0]["tool_calls"][0]["id"] == "call_1"
