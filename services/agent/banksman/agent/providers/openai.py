"""OpenAI's Chat Completions API and compatible servers: the provider and its replies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from banksman.agent.protocols.base import ModelReply, ModelRequest
from banksman.agent.providers.base import DeltaSink, RetryingProvider, TransientFault
from banksman.agent.providers.collect import ReplyBuilder, as_list, as_object, as_text, as_tokens
from banksman.agent.providers.openai_request import body
from banksman.agent.providers.profiles import profile_of
from banksman.agent.providers.streams import END_FIELD
from banksman.contracts.events import FinishReason
from banksman.contracts.messages import Usage
from banksman.contracts.wire import JsonObject

if TYPE_CHECKING:
    from banksman.agent.providers.openai_api import OpenAIApi

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

    def make_client(self) -> OpenAIApi:
        from banksman.agent.providers.openai_api import OpenAIApi

        return OpenAIApi(self.name, self.settings, self.entry)

    def attempts(self, request: ModelRequest, deltas: DeltaSink) -> Callable[[], Awaitable[ModelReply]]:
        return partial(self._attempt, request, deltas)

    async def _attempt(self, request: ModelRequest, deltas: DeltaSink) -> ModelReply:
        sent = body(request, self.name, profile_of(self.name, self.entry.base_url, request.model))
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


class OpenAIReplyReader:
    """Reads the chunks of one streamed reply. Compatible servers may omit any field or set it to null."""

    def __init__(self, deltas: DeltaSink) -> None:
        self._builder = ReplyBuilder(deltas)
        self._finish_reason = ""
        self._ended = False
        """True after the event that ends a stream."""
        self._usage: dict[str, Any] = {}
        self._reasoning_field = ""

    @property
    def full(self) -> bool:
        return self._builder.full

    async def take(self, fields: dict[str, Any]) -> None:
        self._ended = END_FIELD in fields
        self._usage = as_object(fields.get("usage")) or self._usage
        for choice in map(as_object, as_list(fields.get("choices"))):
            self._usage = as_object(choice.get("usage")) or self._usage
            self._finish_reason = as_text(choice.get("finish_reason")) or self._finish_reason
            # Some servers reply with the whole message, although a stream was requested.
            await self._take_delta(as_object(choice.get("delta")) or as_object(choice.get("message")))

    def reply(self) -> ModelReply:
        """Return the reply; raise `TransientFault` if the stream ended before the reply was complete."""
        reason = self._finish_reason
        if not reason and self._ended and self._builder.has_complete_calls:
            reason = "tool_calls"
        if not reason and not self.full:
            raise TransientFault("the stream ended without a finish reason")
        field, finish_reason = self._reasoning_field, _FINISH_REASONS.get(reason, "unknown")
        state: JsonObject | None = {field: self._builder.reasoning} if field else None
        return self._builder.reply(finish_reason, reason, _usage(self._usage), state)

    async def _take_delta(self, delta: dict[str, Any]) -> None:
        content = delta.get("content")
        await self._builder.add_text(as_text(content) or as_text(delta.get("refusal")))
        for part in map(as_object, as_list(content)):
            await self._builder.add_text(as_text(part.get("text")))
            # https://docs.mistral.ai/capabilities/reasoning: the thinking is a list of parts itself.
            for thought in map(as_object, as_list(part.get("thinking"))):
                await self._builder.add_reasoning(as_text(thought.get("text")))
        for call in map(as_object, as_list(delta.get("tool_calls"))):
            self._builder.add_function_call(call)
        for field in _REASONING_FIELDS:
            piece = as_text(delta.get(field))
            if piece:
                self._reasoning_field = field
                await self._builder.add_reasoning(piece)
                return


def _usage(usage: dict[str, Any]) -> Usage:
    details = as_object(usage.get("prompt_tokens_details"))
    return Usage(
        input_tokens=as_tokens(usage.get("prompt_tokens")),
        output_tokens=as_tokens(usage.get("completion_tokens")),
        cached_tokens=as_tokens(details.get("cached_tokens")),
    )
