"""The events of a run on a thread in our words."""

from __future__ import annotations

from typing import Any, cast

from banksman.agent.protocols.base import ModelReply
from banksman.agent.providers.base import DeltaSink
from banksman.agent.providers.collect import ReplyBuilder
from banksman.agent.providers.retry import TransientFault
from banksman.contracts.events import FinishReason
from banksman.contracts.messages import Usage
from banksman.contracts.wire import JsonObject


class ReplyReader:
    """Reads the events until the run has ended or waits for outputs; unknown ones are left out."""

    def __init__(self, deltas: DeltaSink) -> None:
        self._builder = ReplyBuilder(deltas)
        self._finish_reason: FinishReason | None = None
        self._raw_finish_reason = ""
        self._usage = Usage()
        self.run_id: str | None = None
        """The run that waits for outputs; None when none does."""

    @property
    def over(self) -> bool:
        """True when the rest of the stream is not wanted."""
        return self._finish_reason is not None or self._builder.full

    @property
    def cut(self) -> bool:
        """True when the thread holds more of the reply than was read."""
        return self._builder.full

    async def take(self, event: JsonObject) -> None:
        """Read the next event."""
        match event.get("type"):
            case "content_streaming":
                await self._builder.add_text(_text(event.get("content")))
            case "reasoning_streaming":
                await self._builder.add_reasoning(_text(event.get("content")))
            case "tool_submit_required":
                self._take_calls(event)
                self._end("tool_calls", event)
            case "run_ended":
                self._end("stop", event)
            case _:
                pass

    def reply(self) -> ModelReply:
        """The whole reply, without the state that goes back.

        Raises:
            TransientFault: when the stream ended before the run did.
        """
        if not self.over:
            raise TransientFault("the stream ended before the run did")
        return self._builder.reply(self._finish_reason or "length", self._raw_finish_reason, self._usage)

    def _take_calls(self, event: JsonObject) -> None:
        self.run_id = _text(event.get("run_id")) or None
        for index, call in enumerate(map(_object, _list(event.get("tool_calls")))):
            function = _object(call.get("function"))
            arguments = function.get("arguments")
            self._builder.add_call(
                index,
                id=_text(call.get("id")),
                name=_text(function.get("name")),
                arguments=_object(arguments) or _text(arguments),
            )

    def _end(self, reason: FinishReason, event: JsonObject) -> None:
        self._finish_reason = reason
        self._raw_finish_reason = _text(event.get("status")) or _text(event.get("type"))
        input_tokens = _count(event.get("input_tokens"))
        self._usage = Usage(
            input_tokens=input_tokens,
            output_tokens=_count(event.get("output_tokens")),
            cached_tokens=min(input_tokens, _count(event.get("cached_input_tokens"))),
        )


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
