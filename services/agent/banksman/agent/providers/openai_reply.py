"""A streamed chat completion in our words."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from banksman.agent.protocols.base import ModelReply
from banksman.agent.providers.base import DeltaSink
from banksman.agent.providers.collect import ReplyBuilder
from banksman.agent.providers.retry import PassingFault
from banksman.contracts.events import FinishReason
from banksman.contracts.messages import Usage
from banksman.contracts.wire import JsonObject

if TYPE_CHECKING:
    from openai.types import CompletionUsage
    from openai.types.chat import ChatCompletionChunk
    from openai.types.chat.chat_completion_chunk import ChoiceDelta, ChoiceDeltaToolCall

_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}

# vLLM, DeepSeek and others stream their reasoning in the first of these fields, OpenRouter in the second.
_REASONING_FIELDS = ("reasoning_content", "reasoning")


class ReplyReader:
    """Reads the chunks of one reply. Compatible servers leave out or null what the SDK's types promise."""

    def __init__(self, deltas: DeltaSink) -> None:
        self._builder = ReplyBuilder(deltas)
        self._finish_reason: str | None = None
        self._usage: CompletionUsage | None = None
        self._reasoning_field = ""

    @property
    def full(self) -> bool:
        """True when the rest of the stream is not wanted."""
        return self._builder.full

    async def take(self, chunk: ChatCompletionChunk) -> None:
        """Read the next chunk."""
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices or ():
            self._finish_reason = choice.finish_reason or self._finish_reason
            delta = cast("ChoiceDelta | None", choice.delta)
            if delta is not None:
                await self._take_delta(delta)

    def reply(self) -> ModelReply:
        """The whole reply.

        Raises:
            PassingFault: when the stream ended before the model said why it stopped: the SDK takes that for
                success, though the connection may have been cut.
        """
        reason = self._finish_reason
        if reason is None and not self.full:
            raise PassingFault("the stream ended without a finish reason")
        finish_reason = _FINISH_REASONS.get(reason or "", "unknown")
        return self._builder.reply(finish_reason, reason or "", _usage(self._usage), self._state())

    async def _take_delta(self, delta: ChoiceDelta) -> None:
        await self._builder.add_text(delta.content or delta.refusal or "")
        for call in delta.tool_calls or ():
            self._take_call(call)
        extra = delta.model_extra or {}
        for field in _REASONING_FIELDS:
            piece = extra.get(field)
            if isinstance(piece, str) and piece:
                self._reasoning_field = field
                await self._builder.add_reasoning(piece)
                return

    def _take_call(self, call: ChoiceDeltaToolCall) -> None:
        function = call.function
        self._builder.add_call(
            self._index(call),
            id=call.id,
            name=function.name if function else None,
            arguments=cast("str | JsonObject | None", function.arguments) if function else None,
        )

    def _index(self, call: ChoiceDeltaToolCall) -> int:
        """The call's place; without one, an id begins the next call and all else continues the last."""
        index = cast("int | None", getattr(call, "index", None))
        if index is not None:
            return index
        last = self._builder.last_call()
        if last is None:
            return 0
        return last + 1 if call.id else last

    def _state(self) -> JsonObject | None:
        return {self._reasoning_field: self._builder.reasoning} if self._reasoning_field else None


def _usage(usage: CompletionUsage | None) -> Usage:
    if usage is None:
        return Usage()
    details = usage.prompt_tokens_details
    return Usage(
        input_tokens=usage.prompt_tokens or 0,
        output_tokens=usage.completion_tokens or 0,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
    )
