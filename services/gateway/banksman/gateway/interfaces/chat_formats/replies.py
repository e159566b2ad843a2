"""Outcomes of runs in the formats of OpenAI's Chat Completions and Anthropic's Messages."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from banksman.contracts.errors import ErrorCode
from banksman.contracts.events import RunFinished
from banksman.gateway.live.followed_runs import GrowingText
from banksman.gateway.runs.bodies import EndedRun

Ended = RunFinished | EndedRun
"""The outcome of a run: the event in its log, or the body that shows the run."""
REPLIED = frozenset({"completed", "rejected", "max_iterations"})
"""The statuses whose content is a reply; a run with any other one is an error."""


def failure(outcome: Ended) -> tuple[str, str] | None:
    """Return the code and the text of a run's error; None if the run has a reply."""
    if outcome.status in REPLIED:
        return None
    code = ErrorCode.INTERNAL.value if outcome.error is None else outcome.error.code
    return code, outcome.content or f"The run ended as {outcome.status}."


@dataclass(frozen=True, slots=True)
class Extension:
    """The field `banksman` of a reply, with data for which the formats have no fields."""

    conversation_id: str
    run_id: str

    def of(self, outcome: Ended) -> dict[str, Any]:
        structured = {"structured_output": outcome.structured_output}
        return {
            "conversation_id": self.conversation_id,
            "run_id": self.run_id,
            "status": outcome.status,
            "tool_calls": [call.model_dump(mode="json") for call in outcome.tool_calls],
            "max_iterations_reached": outcome.max_iterations_reached,
            **(structured if outcome.structured_output is not None else {}),
        }


@dataclass(frozen=True, slots=True)
class ChatCompletionWriter:
    """OpenAI's Chat Completions."""

    extension: Extension
    model: str
    include_usage: bool
    created: int = field(default_factory=lambda: int(datetime.now(UTC).timestamp()))

    def body(self, outcome: Ended) -> dict[str, Any]:
        message = {"role": "assistant", "content": outcome.content, "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": _finish(outcome), "logprobs": None}
        more = {"usage": _openai_usage(outcome), "banksman": self.extension.of(outcome)}
        return self._object("chat.completion", [choice]) | more

    def begin(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def text(self, piece: str) -> bytes:
        return self._chunk({"content": piece})

    def end(self, outcome: Ended) -> bytes:
        last = self._chunk({}, finish=_finish(outcome), banksman=self.extension.of(outcome))
        if self.include_usage:
            last += _data(self._object("chat.completion.chunk", []) | {"usage": _openai_usage(outcome)})
        return last + b"data: [DONE]\n\n"

    def error(self, code: str, message: str) -> bytes:
        """No `[DONE]` follows, because clients treat a stream with it as a success."""
        error = {"message": message, "type": "server_error", "param": None, "code": code}
        return _data({"error": error})

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        usage = {"usage": None} if self.include_usage else {}
        return _data(self._object("chat.completion.chunk", [choice]) | usage | more)

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        id = f"chatcmpl-{self.extension.run_id}"
        return {"id": id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


@dataclass(frozen=True, slots=True)
class MessagesWriter:
    """Anthropic's Messages."""

    extension: Extension
    model: str

    def body(self, outcome: Ended) -> dict[str, Any]:
        content = [{"type": "text", "text": outcome.content}] if outcome.content else []
        more = {"stop_reason": _stop(outcome), "usage": _anthropic_usage(outcome)}
        return self._message(content) | more | {"banksman": self.extension.of(outcome)}

    def begin(self) -> bytes:
        block = {"type": "text", "text": ""}
        start = _event("message_start", message=self._message([]))
        return start + _event("content_block_start", index=0, content_block=block)

    def text(self, piece: str) -> bytes:
        return _event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})

    def end(self, outcome: Ended) -> bytes:
        delta = {"stop_reason": _stop(outcome), "stop_sequence": None}
        extension = self.extension.of(outcome)
        return (
            _event("content_block_stop", index=0)
            + _event("message_delta", delta=delta, usage=_anthropic_usage(outcome), banksman=extension)
            + _event("message_stop")
        )

    def error(self, code: str, message: str) -> bytes:
        return _event("error", error={"type": "api_error", "message": f"{code}: {message}"})

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"msg_{self.extension.run_id}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }


Writer = ChatCompletionWriter | MessagesWriter


class StreamedText:
    """The text of a stream, to which the messages of a run are appended."""

    def __init__(self) -> None:
        self._text = GrowingText("")
        self._last = ""

    def delta(self, message_id: str, offset: int, text: str) -> str:
        return self._turn_to(message_id) + self._text.new(offset, text)

    def completed(self, message_id: str, content: str, *, truncated: bool = False) -> str:
        self._last = content
        if not content or (truncated and self._text.sent):
            return ""
        gap = self._turn_to(message_id)
        rest = self._text.rest(content)
        self._text = GrowingText(message_id, content)
        return gap + rest if rest else ""

    def final(self, outcome: Ended) -> str:
        """Return the text that an outcome adds, such as the result of a call that ends the run."""
        return "" if outcome.content == self._last else self.completed("outcome", outcome.content)

    def _turn_to(self, message_id: str) -> str:
        if message_id == self._text.message_id:
            return ""
        gap = "\n\n" if self._text.sent else ""
        self._text = GrowingText(message_id)
        return gap


def _finish(outcome: Ended) -> str:
    return "length" if outcome.max_iterations_reached else "stop"


def _stop(outcome: Ended) -> str:
    return "max_tokens" if outcome.max_iterations_reached else "end_turn"


def _openai_usage(outcome: Ended) -> dict[str, Any]:
    usage = outcome.usage
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _anthropic_usage(outcome: Ended) -> dict[str, Any]:
    usage = outcome.usage
    # Anthropic counts cached tokens separately from `input_tokens`; a run's input tokens include them.
    return {
        "input_tokens": usage.input_tokens - usage.cached_tokens - usage.cache_written_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": usage.cache_written_tokens,
    }


def _data(value: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\n".encode() + _data({"type": kind, **fields})
