"""Map a `ModelRequest` to the body of a request to the Chat Completions API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, assert_never, cast

from banksman.agent.protocols.base import ModelRequest
from banksman.agent.protocols.structured import is_closed
from banksman.agent.providers import exchanges
from banksman.agent.providers.exchanges import CALLS_FIELD
from banksman.agent.providers.profiles import Profile, with_profile
from banksman.agent.providers.untyped import as_object
from banksman.contracts.messages import UserMessage
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject
from banksman.runs.outcome import message_json

if TYPE_CHECKING:
    from openai.types.chat import (
        ChatCompletionContentPartParam,
        ChatCompletionMessageFunctionToolCallParam,
        ChatCompletionMessageParam,
        ChatCompletionToolParam,
    )

_BETWEEN = "Done."
"""The reply between a result and a user message for servers that require one."""
EMPTY_MESSAGE = "(an empty message)"


def body(request: ModelRequest, provider: str, profile: Profile) -> dict[str, Any]:
    """Return the body of a streamed completion (R80, R85, R87).

    The state of a reply is sent back only to the provider that wrote it.
    """
    request = with_profile(request, profile)
    options = request.options
    arguments: dict[str, Any] = {
        "model": request.model,
        "messages": messages(request, provider, profile),
        "stream": True,
    }
    if profile.stream_usage:
        arguments["stream_options"] = {"include_usage": True}
    if request.tools:
        arguments["tools"] = [tool_param(tool) for tool in request.tools]
        if options.parallel_tool_calls is not None:
            arguments["parallel_tool_calls"] = options.parallel_tool_calls
    if options.temperature is not None:
        arguments["temperature"] = options.temperature
    if options.max_tokens is not None:
        arguments[profile.max_tokens_field] = options.max_tokens
    if options.reasoning_effort is not None:
        arguments["reasoning_effort"] = options.reasoning_effort
    if options.response_schema is not None:
        schema = {"type": "json_schema", "json_schema": reply_format(options.response_schema)}
        arguments["response_format"] = schema
    return arguments


def reply_format(schema: JsonObject) -> dict[str, Any]:
    """Return the format of a reply with a JSON Schema, without the fields around it."""
    return {"name": "reply", "schema": schema, "strict": is_closed(schema)}


def messages(request: ModelRequest, provider: str, profile: Profile) -> list[ChatCompletionMessageParam]:
    """Return the system prompt and the history as messages (R79, R92, R95)."""
    sent: list[dict[str, Any]] = []
    if request.system:
        sent.append({"role": profile.system_role, "content": request.system})
    for item in exchanges.paired(request.messages, profile.call_id):
        match item:
            case UserMessage():
                if sent and sent[-1]["role"] == "tool" and not profile.user_after_tool:
                    sent.append({"role": "assistant", "content": _BETWEEN})
                content = _content(item)
                if sent and sent[-1]["role"] == "user" and profile.joined_users:
                    sent[-1]["content"] = _joined(sent[-1]["content"], content)
                else:
                    sent.append({"role": "user", "content": content})
            case exchanges.ModelExchange():
                sent.extend(_exchange(item, provider, profile))
            case _:
                assert_never(item)
    return cast("list[ChatCompletionMessageParam]", sent)


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    parts = ([{"type": "text", "text": one}] if isinstance(one, str) else one for one in (first, second))
    return [part for each in parts for part in each]


def tool_param(tool: ToolDefinition) -> ChatCompletionToolParam:
    parameters: dict[str, Any] = {"parameters": {**tool.input_schema}} if tool.input_schema else {}
    function = {"name": tool.name, "description": tool.description, **parameters}
    return {"type": "function", "function": cast("Any", function)}


def _content(message: UserMessage) -> str | list[ChatCompletionContentPartParam]:
    parts = exchanges.sent_parts(message.content)
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return "\n\n".join(texts) or EMPTY_MESSAGE
    return [_part(part) for part in parts]


def _part(part: exchanges.SentPart) -> ChatCompletionContentPartParam:
    match part:
        case str():
            return {"type": "text", "text": part}
        case exchanges.InlineImage() | exchanges.LinkedImage():
            return {"type": "image_url", "image_url": {"url": part.url}}
        case exchanges.InlineDocument():
            return {"type": "file", "file": {"filename": "document.pdf", "file_data": part.url}}
        case _:
            assert_never(part)


def _exchange(exchange: exchanges.ModelExchange, provider: str, profile: Profile) -> Iterator[dict[str, Any]]:
    source = exchange.reply
    if not exchange.calls and not (source.content or "").strip():
        return
    state = dict(source.provider_state or {}) if source.provider == provider else {}
    call_states = as_object(state.pop(CALLS_FIELD, None))
    if profile.reasoning_returned == "never" or (
        profile.reasoning_returned == "with_calls" and not exchange.calls
    ):
        state = {name: value for name, value in state.items() if not name.startswith("reasoning")}
    content = source.content if profile.null_content else source.content or ""
    reply: dict[str, Any] = {"role": "assistant", "content": content}
    if profile.missing_reasoning is not None:
        reply["reasoning_content"] = profile.missing_reasoning
    if exchange.calls:
        calls = [{**as_object(call_states.get(call.key)), **_call(call)} for call in exchange.calls]
        if profile.first_call_state and not call_states:
            calls[0] |= profile.first_call_state
        reply["tool_calls"] = calls
    yield {**reply, **state}
    for call in exchange.calls:
        result = {"role": "tool", "tool_call_id": call.id, "content": message_json(call.message)}
        yield {**result, "name": call.name} if profile.tool_message_name else result


def _call(call: exchanges.CallWithResult) -> ChatCompletionMessageFunctionToolCallParam:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
