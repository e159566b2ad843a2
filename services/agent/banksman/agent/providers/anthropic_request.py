"""Map a `ModelRequest` to the body of a request to the Messages API."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, assert_never, cast

from banksman.agent.protocols.base import ModelRequest
from banksman.agent.protocols.structured import instructed, is_closed
from banksman.agent.providers import exchanges
from banksman.agent.providers.profiles import Profile, with_profile
from banksman.agent.providers.untyped import as_count, as_list, as_object
from banksman.contracts.messages import AssistantMessage, Message, ToolMessage, UserMessage
from banksman.contracts.model_options import ModelOptions
from banksman.contracts.tools import ToolDefinition
from banksman.runs.outcome import ANSWER_FIELDS, MORE_FIELD, message_json

if TYPE_CHECKING:
    from anthropic.types import (
        ContentBlockParam,
        ImageBlockParam,
        TextBlockParam,
        ToolParam,
        ToolResultBlockParam,
        ToolUseBlockParam,
    )

    Block = TextBlockParam | ImageBlockParam | ToolUseBlockParam | ToolResultBlockParam | ContentBlockParam

DEFAULT_MAX_TOKENS = 16_384
"""Output tokens of one reply if the assistant sets no limit; the API requires one."""

THINKING_FIELD = "thinking"
"""The field of the provider state that contains the thinking blocks of a reply."""

MIN_BUDGET = 1_024
_BUDGETS = {"minimal": MIN_BUDGET, "low": 2_048, "medium": 8_192, "high": 24_576}
"""Tokens of thinking by reasoning effort; at most half of the reply's tokens are used for it."""
_IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_OPENING_TEXT = "(The beginning of the conversation is left out.)"
_CLOSING_TEXT = "Continue."
_EMPTY_TEXT = "(an empty message)"
_CACHE: dict[str, str] = {"type": "ephemeral"}
_UNMARKED = ("thinking", "redacted_thinking")
MARK_EVERY = 18
"""Blocks between two marks. The API looks for a cached prefix up to 20 blocks before each mark."""
MAX_MESSAGE_MARKS = 3
"""Maximum marks in messages; the API accepts four in a request.
https://platform.claude.com/docs/en/build-with-claude/prompt-caching"""


def body(request: ModelRequest, provider: str, profile: Profile) -> dict[str, Any]:
    """Return the body of a request to the Messages API without `stream`.

    The system prompt, the last tool and the last message each end a cached prefix, and so do blocks before
    it, so that each iteration of a run reads from the cache what the previous one wrote. The thinking of
    earlier replies is sent back if `provider` wrote them.
    """
    schema = request.options.response_schema
    request = with_profile(request, profile) if schema is None or is_closed(schema) else instructed(request)
    turns = _joined_turns(request, provider, profile)
    marks = _mark([blocks for _, blocks in turns])
    arguments: dict[str, Any] = {
        "model": request.model,
        "max_tokens": request.options.max_tokens or DEFAULT_MAX_TOKENS,
        "messages": [{"role": role, "content": blocks} for role, blocks in turns],
    }
    if request.system.strip():
        arguments["system"] = [{"type": "text", "text": request.system, "cache_control": _CACHE}]
    if request.tools:
        *others, last = [_tool(tool) for tool in request.tools]
        # The mark of the system prompt includes the tools.
        spare = marks < MAX_MESSAGE_MARKS or "system" not in arguments
        arguments["tools"] = [*others, {**last, "cache_control": _CACHE} if spare else last]
        if request.options.parallel_tool_calls is False:
            arguments["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
    if _may_think(request.messages, provider):
        arguments |= _thinking(request.options, profile, arguments["max_tokens"])
    if request.options.temperature is not None and "thinking" not in arguments:
        # The API accepts it for older models, from 0 to 1, and without thinking.
        arguments["temperature"] = min(1.0, request.options.temperature)
    if request.options.response_schema is not None:
        output_format = {"type": "json_schema", "schema": request.options.response_schema}
        arguments["output_config"] = {**arguments.get("output_config", {}), "format": output_format}
    return arguments


def _thinking(options: ModelOptions, profile: Profile, max_tokens: int) -> dict[str, Any]:
    """Return the fields that state a reasoning effort.

    https://platform.claude.com/docs/en/build-with-claude/adaptive-thinking
    """
    effort = options.reasoning_effort
    if effort is None or profile.thinking == "none":
        return {}
    if effort == "none":
        return {"thinking": {"type": "disabled"}}
    if profile.thinking == "adaptive":
        level = "low" if effort == "minimal" else effort
        return {"thinking": {"type": "adaptive"}, "output_config": {"effort": level}}
    budget = min(_BUDGETS[effort], max_tokens // 2)
    return {"thinking": {"type": "enabled", "budget_tokens": budget}} if budget >= MIN_BUDGET else {}


def _may_think(messages: tuple[Message, ...], provider: str) -> bool:
    """Return whether the API accepts thinking: each reply since the user's last message began with it."""
    for message in reversed(messages):
        if isinstance(message, UserMessage):
            return True
        if isinstance(message, AssistantMessage) and not (
            message.provider == provider and (message.provider_state or {}).get(THINKING_FIELD)
        ):
            return False
    return True


def result_text(message: ToolMessage) -> str:
    """Return a result for the model: the plain text of a text result, otherwise JSON.

    A text that was cut ends with a note that states how to read the rest.
    """
    field = ANSWER_FIELDS.get(message.name) if message.name != "bash" else None
    content = message.result.content
    plain = field and not message.result.is_error and message.executed is None
    text = content.get(field) if field and plain else None
    if not isinstance(text, str) or not text.strip():
        return message_json(message)
    more = content.get(MORE_FIELD)
    return f"{text}\n\n[Cut here. {more}]" if isinstance(more, str) else text


def _tool(tool: ToolDefinition) -> ToolParam:
    schema = {**tool.input_schema}
    schema.setdefault("type", "object")
    return {"name": tool.name, "description": tool.description, "input_schema": cast("Any", schema)}


def _joined_turns(request: ModelRequest, provider: str, profile: Profile) -> list[tuple[str, list[Block]]]:
    turns: list[tuple[str, list[Block]]] = []
    for role, blocks in _turns(request, provider, profile):
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        elif blocks:
            turns.append((role, blocks))
    if not turns or turns[0][0] != "user":
        turns.insert(0, ("user", [_text(_OPENING_TEXT)]))
    if turns[-1][0] != "user":
        # The API continues a history that ends with an assistant message instead of replying to it.
        turns.append(("user", [_text(_CLOSING_TEXT)]))
    return turns


def _mark(turns: list[list[Block]]) -> int:
    """Mark the last block and earlier ones at intervals; return the number of marks. Thinking takes none."""
    places = [(blocks, at) for blocks in turns for at in range(len(blocks))]
    marks = min(MAX_MESSAGE_MARKS, 1 + (len(places) - 1) // MARK_EVERY)
    ends = [len(places) - number * MARK_EVERY for number in range(marks)]
    # After a reply with many calls, the end of the previous request, which it marked, is farther back.
    if 0 < (previous := len(places) - sum(map(len, turns[-2:]))) < ends[-1] and marks > 1:
        ends[-1] = previous
    for end in ends:
        behind = reversed(places[:end])
        blocks, at = next(place for place in behind if place[0][place[1]]["type"] not in _UNMARKED)
        blocks[at] = cast("Block", {**blocks[at], "cache_control": _CACHE})
    return marks


def _turns(request: ModelRequest, provider: str, profile: Profile) -> Iterator[tuple[str, list[Block]]]:
    for item in exchanges.paired(request.messages, profile.call_id):
        match item:
            case UserMessage():
                yield "user", [_part(part) for part in exchanges.sent_parts(item.content) or [_EMPTY_TEXT]]
            case exchanges.ModelExchange():
                if item.calls or (item.reply.content or "").strip():
                    yield "assistant", list(_reply(item, provider))
                yield "user", [_result(call) for call in item.calls]
            case _:
                assert_never(item)


def _reply(exchange: exchanges.ModelExchange, provider: str) -> Iterator[Block]:
    """Yield the blocks of a reply in the order in which the model wrote them, as far as its state has it.

    Thinking is signed, so it must be returned unchanged, and before the same call, or not at all.
    """
    reply = exchange.reply
    text, calls = reply.content or "", iter(exchange.calls)
    state = reply.provider_state if reply.provider == provider else None
    for block in map(as_object, as_list((state or {}).get(THINKING_FIELD))):
        match block.get("type"):
            case "text":
                piece, text = text[: as_count(block.get("chars"))], text[as_count(block.get("chars")) :]
                yield from _texts(piece)
            case "call":
                yield from map(_call, islice(calls, 1))
            case _:
                yield cast("Block", block)
    yield from _texts(text)
    yield from map(_call, calls)


def _texts(text: str) -> Iterator[Block]:
    if text.strip():
        yield _text(text)


def _call(call: exchanges.CallWithResult) -> ToolUseBlockParam:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": {**call.arguments}}


def _result(call: exchanges.CallWithResult) -> ToolResultBlockParam:
    result: ToolResultBlockParam = {
        "type": "tool_result",
        "tool_use_id": call.id,
        "content": result_text(call.message),
    }
    return {**result, "is_error": True} if call.message.result.is_error else result


def _text(text: str) -> TextBlockParam:
    return {"type": "text", "text": text}


def _part(part: exchanges.SentPart) -> Block:
    match part:
        case str():
            return _text(part)
        case exchanges.InlineImage(media_type, data) if media_type in _IMAGE_TYPES:
            return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}
        case exchanges.InlineImage(media_type, _):
            return _text(f"[The user attached an image of the type {media_type}, which cannot be shown.]")
        case exchanges.InlineDocument(data):
            source = {"type": "base64", "media_type": exchanges.PDF, "data": data}
            return cast("Block", {"type": "document", "source": source})
        case exchanges.LinkedImage(url):
            return {"type": "image", "source": {"type": "url", "url": url}}
        case _:
            assert_never(part)
