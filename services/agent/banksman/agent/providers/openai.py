"""OpenAI's Chat Completions API and compatible servers: the provider, its requests and its replies."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, assert_never, cast

from banksman.agent.protocols.base import ModelReply, ModelRequest
from banksman.agent.providers.base import DeltaSink, ProviderSettings, RetryingProvider, TransientFault
from banksman.agent.providers.collect import ReplyBuilder, as_list, as_object, as_text, as_tokens
from banksman.agent.providers.exchanges import (
    CallWithResult,
    InlineImage,
    LinkedImage,
    ModelExchange,
    SentPart,
    exchanges,
    sent_parts,
)
from banksman.contracts.events import FinishReason
from banksman.contracts.messages import Usage, UserMessage
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject
from banksman.runs.outcome import message_json

if TYPE_CHECKING:
    from openai.types.chat import (
        ChatCompletionAssistantMessageParam,
        ChatCompletionContentPartParam,
        ChatCompletionMessageFunctionToolCallParam,
        ChatCompletionMessageParam,
        ChatCompletionToolParam,
    )

    from banksman.agent.providers.openai_api import OpenAIApi

EMPTY_MESSAGE = "(an empty message)"

_OWN_ADDRESS = "https://api.openai.com"

_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}

# vLLM, DeepSeek and others stream reasoning in the first of these fields, OpenRouter in the second.
_REASONING_FIELDS = ("reasoning_content", "reasoning")


class OpenAI(RetryingProvider["OpenAIApi"]):
    """The `Provider` of one address that serves the OpenAI format."""

    def __init__(self, name: str, settings: ProviderSettings, *, base_url: str, api_key: str | None) -> None:
        super().__init__(name, settings)
        self._base_url = base_url
        self._api_key = api_key

    def make_client(self) -> OpenAIApi:
        from banksman.agent.providers.openai_api import OpenAIApi

        return OpenAIApi(self.name, self.settings, base_url=self._base_url, api_key=self._api_key)

    def attempts(self, request: ModelRequest, deltas: DeltaSink) -> Callable[[], Awaitable[ModelReply]]:
        return partial(self._attempt, request, deltas)

    async def _attempt(self, request: ModelRequest, deltas: DeltaSink) -> ModelReply:
        sent = body(request, self.name, own=self._base_url.startswith(_OWN_ADDRESS))
        silence_s = self.silence_s(request.model)
        reader = OpenAIReplyReader(deltas)
        try:
            async with aclosing(self.client.chunks(sent, silence_s)) as chunks:
                async for chunk in chunks:
                    await reader.take(chunk)
                    if reader.full:
                        break
        except TimeoutError as error:
            raise self.silent(request.model) from error
        return reader.reply()


def body(request: ModelRequest, provider: str, *, own: bool) -> dict[str, Any]:
    """Return the body of a streamed completion (R80, R85, R87).

    The state of a reply is sent back only to the provider that wrote it. `own` is True for OpenAI's own API:
    its reasoning models refuse `max_tokens`, and many compatible servers accept nothing else.
    """
    arguments: dict[str, Any] = {
        "model": request.model,
        "messages": messages(request, provider),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        arguments["tools"] = [tool_param(tool) for tool in request.tools]
    if request.options.temperature is not None:
        arguments["temperature"] = request.options.temperature
    if request.options.max_tokens is not None:
        arguments["max_completion_tokens" if own else "max_tokens"] = request.options.max_tokens
    return arguments


def messages(request: ModelRequest, provider: str) -> list[ChatCompletionMessageParam]:
    """Return the system prompt and the history as messages (R79, R92, R95)."""
    sent: list[ChatCompletionMessageParam] = []
    if request.system:
        sent.append({"role": "system", "content": request.system})
    for item in exchanges(request.messages):
        match item:
            case UserMessage():
                sent.append({"role": "user", "content": _content(item)})
            case ModelExchange():
                sent.extend(_exchange(item, provider))
            case _:
                assert_never(item)
    return sent


def tool_param(tool: ToolDefinition) -> ChatCompletionToolParam:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": {**tool.input_schema}},
    }


def _content(message: UserMessage) -> str | list[ChatCompletionContentPartParam]:
    parts = sent_parts(message.content)
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return "\n\n".join(texts) or EMPTY_MESSAGE
    return [_part(part) for part in parts]


def _part(part: SentPart) -> ChatCompletionContentPartParam:
    match part:
        case str():
            return {"type": "text", "text": part}
        case InlineImage() | LinkedImage():
            return {"type": "image_url", "image_url": {"url": part.url}}
        case _:
            assert_never(part)


def _exchange(exchange: ModelExchange, provider: str) -> Iterator[ChatCompletionMessageParam]:
    source = exchange.reply
    if not exchange.calls and not (source.content or "").strip():
        return
    reply: ChatCompletionAssistantMessageParam = {"role": "assistant", "content": source.content}
    if exchange.calls:
        reply["tool_calls"] = [_call(call) for call in exchange.calls]
    if source.provider == provider and source.provider_state:
        # Fields outside the SDK's types, such as the reasoning that DeepSeek expects back.
        reply = cast("ChatCompletionAssistantMessageParam", {**reply, **source.provider_state})
    yield reply
    for call in exchange.calls:
        content = message_json(call.message)
        result = {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}
        # The SDK's type lacks `name`, which OpenAI ignores and some compatible servers need.
        yield cast("ChatCompletionMessageParam", result)


def _call(call: CallWithResult) -> ChatCompletionMessageFunctionToolCallParam:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


class OpenAIReplyReader:
    """Reads the chunks of one streamed reply. Compatible servers may omit any field or set it to null."""

    def __init__(self, deltas: DeltaSink) -> None:
        self._builder = ReplyBuilder(deltas)
        self._finish_reason = ""
        self._usage: dict[str, Any] = {}
        self._reasoning_field = ""

    @property
    def full(self) -> bool:
        return self._builder.full

    async def take(self, fields: dict[str, Any]) -> None:
        self._usage = as_object(fields.get("usage")) or self._usage
        for choice in map(as_object, as_list(fields.get("choices"))):
            self._finish_reason = as_text(choice.get("finish_reason")) or self._finish_reason
            await self._take_delta(as_object(choice.get("delta")))

    def reply(self) -> ModelReply:
        """Return the reply; raise `TransientFault` if the stream ended without a finish reason."""
        reason = self._finish_reason
        if not reason and not self.full:
            raise TransientFault("the stream ended without a finish reason")
        field, finish_reason = self._reasoning_field, _FINISH_REASONS.get(reason, "unknown")
        state: JsonObject | None = {field: self._builder.reasoning} if field else None
        return self._builder.reply(finish_reason, reason, _usage(self._usage), state)

    async def _take_delta(self, delta: dict[str, Any]) -> None:
        await self._builder.add_text(as_text(delta.get("content")) or as_text(delta.get("refusal")))
        for call in map(as_object, as_list(delta.get("tool_calls"))):
            self._builder.add_function_call(self._index(call), call)
        for field in _REASONING_FIELDS:
            piece = as_text(delta.get(field))
            if piece:
                self._reasoning_field = field
                await self._builder.add_reasoning(piece)
                return

    def _index(self, call: dict[str, Any]) -> int:
        """Return the call's index; without one, a fragment with an id starts the next call."""
        index = call.get("index")
        if isinstance(index, int):
            return index
        last = self._builder.last_call
        return last + 1 if call.get("id") or last < 0 else last


def _usage(usage: dict[str, Any]) -> Usage:
    details = as_object(usage.get("prompt_tokens_details"))
    return Usage(
        input_tokens=as_tokens(usage.get("prompt_tokens")),
        output_tokens=as_tokens(usage.get("completion_tokens")),
        cached_tokens=as_tokens(details.get("cached_tokens")),
    )
