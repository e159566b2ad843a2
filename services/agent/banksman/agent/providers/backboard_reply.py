"""Map the events of a run on a thread to a `ModelReply`."""

from __future__ import annotations

from banksman.agent.protocols.base import ModelReply
from banksman.agent.providers.base import DeltaSink
from banksman.agent.providers.collect import ReplyBuilder, well_formed
from banksman.agent.providers.loose_json import as_count, as_list, as_object, as_text
from banksman.agent.providers.retries import TransientFault
from banksman.contracts.events import FinishReason
from banksman.contracts.messages import Usage
from banksman.contracts.wire import JsonObject


class ReplyReader:
    """Reads events until the run ends or waits for outputs. Unknown events are ignored."""

    def __init__(self, deltas: DeltaSink) -> None:
        self._builder = ReplyBuilder(deltas)
        self._finish_reason: FinishReason | None = None
        self._raw_finish_reason = ""
        self._usage = Usage()
        self.run_id: str | None = None
        """Id of the run that waits for outputs; None if no run waits."""

    @property
    def done(self) -> bool:
        """True if the rest of the stream is not needed."""
        return self._finish_reason is not None or self._builder.full

    @property
    def cut(self) -> bool:
        """True if the thread contains more of the reply than was read."""
        return self._builder.full

    async def take(self, event: JsonObject) -> None:
        """Read the next event."""
        match event.get("type"):
            case "content_streaming":
                await self._builder.add_text(as_text(event.get("content")))
            case "reasoning_streaming":
                await self._builder.add_reasoning(as_text(event.get("content")))
            case "tool_submit_required":
                self._take_calls(event)
                self._end("tool_calls", event)
            case "run_ended":
                self._end("stop", event)
            case _:
                pass

    def reply(self) -> ModelReply:
        """Return the complete reply, without provider state.

        Raises:
            TransientFault: The stream ended before the run.
        """
        if not self.done:
            raise TransientFault("the stream ended before the run")
        return self._builder.reply(self._finish_reason or "length", self._raw_finish_reason, self._usage)

    def _take_calls(self, event: JsonObject) -> None:
        self.run_id = well_formed(as_text(event.get("run_id"))) or None
        for index, call in enumerate(map(as_object, as_list(event.get("tool_calls")))):
            function = as_object(call.get("function"))
            arguments = function.get("arguments")
            self._builder.add_call(
                index,
                id=as_text(call.get("id")),
                name=as_text(function.get("name")),
                arguments=as_object(arguments) or as_text(arguments),
            )

    def _end(self, reason: FinishReason, event: JsonObject) -> None:
        self._finish_reason = reason
        self._raw_finish_reason = as_text(event.get("status")) or as_text(event.get("type"))
        input_tokens = as_count(event.get("input_tokens"))
        self._usage = Usage(
            input_tokens=input_tokens,
            output_tokens=as_count(event.get("output_tokens")),
            cached_tokens=min(input_tokens, as_count(event.get("cached_input_tokens"))),
        )
