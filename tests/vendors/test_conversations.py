"""Conversations with every vendor through the real adapters; each ends with a reply."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tools.model_features import ADD, CALL, CALLS, OBJECT, REASON, SUM_SCHEMA, execute, red_square
from tools.model_talk import Talk

from banksman.agent.protocols.base import ModelReply
from banksman.agent.providers.base import Provider
from banksman.contracts.assistants import ModelOptions
from banksman.contracts.errors import ContextOverflow, ProviderFailed
from banksman.contracts.messages import AssistantMessage, ImagePart, TextPart
from banksman.contracts.tools import ToolDefinition
from tests.support.vendors.anthropic import Anthropic
from tests.support.vendors.base import Prompt, StandIn, Turn
from tests.support.vendors.openai_chat import OpenAIChat
from tests.vendors.brain import brain
from tests.vendors.connected import connected, opened
from tests.vendors.histories import HISTORIES
from tests.vendors.tools import NASTY_TOOLS, OWN_TOOLS

# The library warns of each option that a vendor lacks.
pytestmark = pytest.mark.filterwarnings("ignore:The `parallel_tool_calls` setting is not supported")

Vendor = type[StandIn]
ROUNDS = (
    "Think carefully: call the tool `add` one call at a time: 1+1, 20+20 and 300+300. Then list the sums."
)


def talk(server: StandIn, provider: Provider, **fields: Any) -> Talk:
    fields.setdefault("tools", (ADD,))
    return Talk(provider, server.model, execute=execute, **fields)


def calls_of(*replies: ModelReply) -> list[tuple[str, Any]]:
    return [
        (one.name, json.loads(one.arguments) if isinstance(one.arguments, str) else one.arguments)
        for reply in replies
        for one in reply.calls
    ]


async def test_a_tool_is_called_with_its_arguments(stand_in: Vendor) -> None:
    async with connected(stand_in) as (server, provider):
        conversation = talk(server, provider)

        assert await conversation.say(CALL) == "5"
        assert calls_of(*conversation.replies) == [("add", {"a": 2, "b": 3})]
        # Some vendors report `stop` also for replies with calls.
        assert conversation.replies[-1].finish_reason == "stop"


async def test_parallel_calls_stay_apart(stand_in: Vendor) -> None:
    async with connected(stand_in) as (server, provider):
        conversation = talk(server, provider)

        assert await conversation.say(CALLS) == "2 and 40"
        assert calls_of(conversation.replies[0]) == [("add", {"a": 1, "b": 1}), ("add", {"a": 20, "b": 20})]


async def test_rounds_of_calls_continue_over_several_messages_with_reasoning(stand_in: Vendor) -> None:
    def one_at_a_time(prompt: Prompt) -> Turn:
        turn = brain(prompt)
        return Turn(turn.text, turn.reasoning, turn.calls[:1])

    options = ModelOptions(reasoning_effort="medium", max_tokens=8_000)
    async with connected(stand_in, one_at_a_time) as (server, provider):
        conversation = talk(server, provider, options=options)

        assert await conversation.say(ROUNDS) == "2 and 40 and 600"
        assert await conversation.say(REASON) == "42"
        assert await conversation.say(CALL) == "5"


async def test_reasoning_between_parallel_calls_goes_back_in_its_order(stand_in: Vendor) -> None:
    """Stand-ins refuse a changed order (R92)."""
    options = ModelOptions(reasoning_effort="high", max_tokens=8_000)
    async with connected(stand_in) as (server, provider):
        conversation = talk(server, provider, options=options)

        assert await conversation.say(f"Think carefully. {CALLS}") == "2 and 40"
        assert await conversation.say(CALL) == "5"


async def test_temperature_and_limits_are_accepted_or_left_out(stand_in: Vendor) -> None:
    options = ModelOptions(max_tokens=500, temperature=0.2, reasoning_effort="low", parallel_tool_calls=False)
    async with connected(stand_in) as (server, provider):
        assert await talk(server, provider, options=options).say(CALL) == "5"
        assert await talk(server, provider, options=ModelOptions(temperature=0.2)).say(CALL) == "5"


async def test_a_reply_fits_its_schema_with_and_without_tools(stand_in: Vendor) -> None:
    options = ModelOptions(response_schema=SUM_SCHEMA)
    async with connected(stand_in) as (server, provider):
        assert json.loads(await talk(server, provider, options=options, tools=()).say(OBJECT)) == {"sum": 5}
        assert json.loads(await talk(server, provider, options=options).say(OBJECT)) == {"sum": 5}


async def test_an_image_is_seen_or_replaced_by_a_note(stand_in: Vendor) -> None:
    content = (TextPart(text="Which color? `none` if you see nothing."), ImagePart(url=red_square()))
    async with connected(stand_in) as (server, provider):
        text = await talk(server, provider, tools=()).say(content)

        assert text == ("Red" if stand_in.features.images else "none")


@pytest.mark.parametrize("name", HISTORIES)
async def test_any_history_continues(stand_in: Vendor, name: str) -> None:
    async with connected(stand_in) as (server, provider):
        conversation = talk(server, provider, history=list(HISTORIES[name]))

        assert await conversation.say(CALL) == "5"
        assert "SECRET" not in json.dumps(server.bodies)


@pytest.mark.parametrize("name", HISTORIES)
async def test_any_history_continues_after_tools_were_switched_off(stand_in: Vendor, name: str) -> None:
    async with connected(stand_in) as (server, provider):
        conversation = talk(server, provider, history=list(HISTORIES[name]), tools=())

        assert await conversation.say("Reply with `ready`.") == "ready"


@pytest.mark.parametrize("tool", NASTY_TOOLS, ids=lambda tool: tool.name)
async def test_no_schema_of_another_tool_costs_the_request(stand_in: Vendor, tool: ToolDefinition) -> None:
    async with connected(stand_in) as (server, provider):
        assert await talk(server, provider, tools=(ADD, tool)).say(CALL) == "5"


async def test_the_tools_of_the_workspace_are_offered(stand_in: Vendor) -> None:
    async with connected(stand_in) as (server, provider):
        await talk(server, provider, tools=OWN_TOOLS).say("Reply with `ready`.")

        sent = json.dumps(server.bodies[-1])
        assert [tool.name for tool in OWN_TOOLS if f'"{tool.name}"' not in sent] == []


async def test_each_name_and_description_that_the_platform_allows_is_accepted(stand_in: Vendor) -> None:
    tools = (
        ToolDefinition(name="a" * 64, description="Reads. " * 1_000),
        ToolDefinition(name="Files-read_2", description=""),
        ToolDefinition(name="x", description="Ends with a space. "),
    )
    async with connected(stand_in) as (server, provider):
        assert await talk(server, provider, tools=(ADD, *tools)).say(CALL) == "5"


async def test_more_tools_than_the_vendor_allows_are_left_out(stand_in: Vendor) -> None:
    tools = tuple(ToolDefinition(name=f"tool_{number}", description="Does it.") for number in range(600))
    async with connected(stand_in) as (server, provider):
        assert await talk(server, provider, tools=(ADD, *tools)).say(CALL) == "5"


async def test_a_too_long_history_is_an_overflow(stand_in: Vendor) -> None:
    text = "Reply with `ready`. " + "word " * stand_in.context_tokens
    async with connected(stand_in) as (server, provider):
        if stand_in.cuts_prompts:
            assert await talk(server, provider).say(text) == "ready"
            return
        with pytest.raises(ContextOverflow):
            await talk(server, provider).say(text)


async def test_an_error_in_the_stream_states_its_reason(stand_in: Vendor) -> None:
    async with connected(
        stand_in, lambda _: Turn(text="So far", breaks_with="The engine burst."), max_wait_s=0
    ) as (server, provider):
        with pytest.raises(ProviderFailed, match=r"The engine burst\."):
            await talk(server, provider).say("hello")


async def test_a_reply_at_its_limit_is_cut_by_length(stand_in: Vendor) -> None:
    async with connected(stand_in, lambda _: Turn(text="So far", finish="length")) as (server, provider):
        conversation = talk(server, provider)

        assert await conversation.say("hello") == "So far"
        assert conversation.replies[0].finish_reason == "length"


async def test_a_filtered_reply_is_reported_as_filtered(stand_in: Vendor) -> None:
    async with connected(stand_in, lambda _: Turn(text="So far", finish="filter")) as (server, provider):
        conversation = talk(server, provider)

        await conversation.say("hello")
        assert conversation.replies[0].finish_reason == ("content_filter" if stand_in.filters else "unknown")


async def test_usage_is_counted_once(stand_in: Vendor) -> None:
    async with connected(stand_in) as (server, provider):
        conversation = talk(server, provider)
        await conversation.say("Reply with `ready`.")

        usage = conversation.replies[0].usage
        sent = len(json.dumps(server.bodies[0])) // 4
        assert sent / 2 < usage.input_tokens < sent * 2
        assert 1 <= usage.output_tokens <= 30


async def test_refused_state_is_left_out_once(stand_in: Vendor) -> None:
    """Signatures become invalid when a vendor changes its keys."""
    options = ModelOptions(reasoning_effort="high", max_tokens=8_000)
    async with connected(stand_in) as (server, provider):
        conversation = talk(server, provider, options=options)
        await conversation.say(REASON)
        conversation.history = [
            message.model_copy(update={"provider_state": _forged(message.provider_state)})
            if isinstance(message, AssistantMessage) and message.provider_state
            else message
            for message in conversation.history
        ]

        assert await conversation.say(CALL) == "5"


async def test_a_conversation_moves_to_another_vendor_and_back(stand_in: Vendor) -> None:
    options = ModelOptions(reasoning_effort="high", max_tokens=8_000)
    another = Anthropic if stand_in is OpenAIChat else OpenAIChat
    async with another.running(brain) as other, stand_in.running(brain) as server:
        async with opened(other, server) as (there, here):
            conversation = talk(server, here, options=options)
            assert await conversation.say(f"Think carefully. {CALLS}") == "2 and 40"

            conversation.provider, conversation.model = there, other.model
            assert await conversation.say(CALL) == "5"

            conversation.provider, conversation.model = here, server.model
            assert await conversation.say(REASON) == "42"


def _forged(state: Any) -> Any:
    """Return state whose texts of more than 30 characters without spaces, such as signatures, are changed."""
    match state:
        case dict():
            return {name: _forged(value) for name, value in state.items()}
        case list() | tuple():
            return [_forged(value) for value in state]
        case str() if len(state) > 30 and " " not in state:
            return state[::-1]
        case _:
            return state
