"""A streamed chat completion in our words."""

from __future__ import annotations

from typing import Any, cast

from banksman.agent.protocols.base import ModelReply
from banksman.agent.providers.base import DeltaSink
from banksman.agent.providers.collect import ReplyBuilder
from banksman.agent.providers.retry import TransientFault
from banksman.contracts.events import FinishReason
from banksman.contracts.messages import Usage
from banksman.contracts.wire import JsonObject

_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}

# vLLM, DeepSeek and others stream their reasoning in the first of these fields, OpenRouter in the second.
_REASONING_FIELDS = ("reasoning_content", "reasoning")


class ReplyReader:
    """Reads the chunks of one reply; compatible servers leave out or null any field."""

    def __init__(self, deltas: DeltaSink) -> None:
        self._builder = ReplyBuilder(deltas)
        self._finish_reason = ""
        self._usage: dict[str, Any] = {}
        self._reasoning_field = ""

    @property
    def full(self) -> bool:
        """True when the rest of the stream is not wanted."""
        return self._builder.full

    async def take(self, chunk: object) -> None:
        """Read the next chunk."""
        fields = _object(chunk)
        self._usage = _object(fields.get("usage")) or self._usage
        for choice in map(_object, _list(fields.get("choices"))):
            self._finish_reason = _text(choice.get("finish_reason")) or self._finish_reason
            await self._take_delta(_object(choice.get("delta")))

    def reply(self) -> ModelReply:
        """The whole reply.

        Raises:
            TransientFault: when the stream ended before the model said why it stopped: the SDK takes that for
                success, though the connection may have been cut.
        """
        reason = self._finish_reason
        if not reason and not self.full:
            raise TransientFault("the stream ended without a finish reason")
        finish_reason = _FINISH_REASONS.get(reason, "unknown")
        state: JsonObject | None = (
            {self._reasoning_field: self._builder.reasoning} if self._reasoning_field else None
        )
        return self._builder.reply(finish_reason, reason, _usage(self._usage), state)

    async def _take_delta(self, delta: dict[str, Any]) -> None:
        await self._builder.add_text(_text(delta.get("content")) or _text(delta.get("refusal")))
        for call in map(_object, _list(delta.get("tool_calls"))):
            self._take_call(call)
        for field in _REASONING_FIELDS:
            piece = _text(delta.get(field))
            if piece:
                self._reasoning_field = field
                await self._builder.add_reasoning(piece)
                return

    def _take_call(self, call: dict[str, Any]) -> None:
        function = _object(call.get("function"))
        arguments = function.get("arguments")
        self._builder.add_call(
            self._index(call),
            id=_text(call.get("id")),
            name=_text(function.get("name")),
            arguments=_object(arguments) or _text(arguments),
        )

    def _index(self, call: dict[str, Any]) -> int:
        """The call's place; without one, an id begins the next call and all else continues the last."""
        index = call.get("index")
        if isinstance(index, int):
            return index
        last = self._builder.last_call()
        if last is None:
            return 0
        return last + 1 if call.get("id") else last


def _usage(usage: dict[str, Any]) -> Usage:
    details = _object(usage.get("prompt_tokens_details"))
    return Usage(
        input_tokens=_count(usage.get("prompt_tokens")),
        output_tokens=_count(usage.get("completion_tokens")),
        cached_tokens=_count(details.get("cached_tokens")),
    )


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
