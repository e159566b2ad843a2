"""The input of an AG-UI run. Unknown fields are ignored, as the protocol requires.

https://docs.ag-ui.com/spec/1.0/basic/run-input
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from banksman.contracts.assistants import RunOverrides
from banksman.contracts.wire import JsonObject, JsonValue, Stored, Text, Wire, parse

ClientId = Annotated[str, Field(min_length=1, max_length=200)]
"""An id that the client chooses, of any characters."""

MAX_MESSAGES = 10_000


class Input(Stored):
    """A part of the input."""


class InputMessage(Input):
    """A message as the client has it."""

    # The message returns to the client in a snapshot, with all that the client stores in it.
    model_config = ConfigDict(extra="allow")

    id: ClientId
    role: Literal["developer", "system", "assistant", "user", "tool", "activity", "reasoning"]
    content: JsonValue = None
    """Text, or the parts of a user's message."""
    tool_calls: tuple[JsonObject, ...] | None = Field(default=None, alias="toolCalls")

    @property
    def call_ids(self) -> frozenset[str]:
        return frozenset(str(call.get("id")) for call in self.tool_calls or ())


class ContextEntry(Input):
    """Information of the application for the model."""

    description: str = Field(max_length=10_000)
    value: Text


class ResumeEntry(Input):
    """The response to one interrupt."""

    interrupt_id: Annotated[str, Field(min_length=1, max_length=200)] = Field(alias="interruptId")
    status: Literal["resolved", "cancelled"]
    payload: JsonValue = None
    """`{approved, arguments?, reason?}` for a call, the value for a requested value."""


class CallAnswer(Wire):
    """The payload that decides about a call."""

    approved: bool
    arguments: JsonObject | None = None
    """Edited arguments; None leaves the requested ones."""
    reason: str | None = Field(default=None, max_length=2000)


class RunOptions(Wire):
    """Banksman's own options: `forwardedProps.banksman`."""

    on_disconnect: Literal["cancel", "continue"] = "cancel"
    """Whether a client that closes the connection cancels the run."""
    overrides: RunOverrides = RunOverrides()
    variables: JsonObject = Field(default_factory=dict)


class RunInput(Input):
    """AG-UI's `RunAgentInput`."""

    thread_id: ClientId = Field(alias="threadId")
    """A conversation's id, or any other id of the client, which then stands for one conversation."""
    run_id: ClientId = Field(alias="runId")
    """Identifies this request: a repeated one continues with the same run."""
    messages: tuple[InputMessage, ...] = Field(max_length=MAX_MESSAGES)
    """The conversation as the client has it; an empty list without `resume` loads the thread."""
    state: JsonValue = None
    tools: tuple[JsonObject, ...] | None = None
    """Tools of the application, which are not offered to the model."""
    context: tuple[ContextEntry, ...] | None = Field(default=None, max_length=100)
    forwarded_props: JsonValue = Field(default=None, alias="forwardedProps")
    """The properties that the application forwards. Only the member `banksman` is used."""
    resume: tuple[ResumeEntry, ...] | None = Field(default=None, max_length=1000)

    @property
    def options(self) -> RunOptions:
        """Banksman's own options; raises `BadInput` if one is unknown or malformed."""
        props = self.forwarded_props
        own = props.get("banksman") if isinstance(props, dict) else None
        return RunOptions() if own is None else parse(RunOptions, own, what="forwardedProps.banksman")


def as_sent(message: InputMessage) -> dict[str, Any]:
    """Return a message with the names and values that the client sent."""
    return message.model_dump(mode="json", by_alias=True, exclude_unset=True)


PROTOCOL_VERSION = "1.0"
"""https://docs.ag-ui.com/spec/1.0/basic/versioning"""
OWN = "banksman"
"""The key of Banksman's own fields in a state and in metadata."""

AguiEvent = dict[str, Any]


def snapshot(messages: list[dict[str, Any]]) -> AguiEvent:
    """Return the event that replaces the client's messages."""
    return {"type": "MESSAGES_SNAPSHOT", "messages": messages, "timestamp": now_ms()}


def warning(text: str) -> AguiEvent:
    """Return the event that reports a part of the input that has no effect."""
    return custom(f"{OWN}.warning", {"message": text})


def tool_result(data: dict[str, Any]) -> AguiEvent:
    """Return the event of a call's result, from the data of its `tool_call.completed`."""
    details = {name: value for name, value in data.items() if name != "content"}
    return {
        "type": "TOOL_CALL_RESULT",
        "messageId": f"{data['tool_call_id']}-result",
        "toolCallId": data["tool_call_id"],
        "content": json.dumps(data["content"], ensure_ascii=False),
        "role": "tool",
        "metadata": {OWN: details},
    }


def custom(name: str, value: Any) -> AguiEvent:
    """Return a `CUSTOM` event, to which the protocol gives no meaning."""
    return {"type": "CUSTOM", "name": name, "value": value}


def whole_message(message_id: str, text: str, role: str = "assistant") -> list[AguiEvent]:
    return [
        message_start(message_id, role),
        fragment("TEXT_MESSAGE_CONTENT", message_id, text),
        {"type": "TEXT_MESSAGE_END", "messageId": message_id},
    ]


def message_start(message_id: str, role: str = "assistant") -> AguiEvent:
    return {"type": "TEXT_MESSAGE_START", "messageId": message_id, "role": role}


def fragment(kind: str, message_id: str, text: str) -> AguiEvent:
    return {"type": kind, "messageId": message_id, "delta": text}


def usage_of(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the usage of a run; empty if no model was requested."""
    usage = data["usage"]
    read, written = usage["input_tokens"], usage["output_tokens"]
    if not read and not written:
        return []
    provider, _, model = data["model"].partition(":")
    counts: dict[str, Any] = {"inputTokens": read, "outputTokens": written, "totalTokens": read + written}
    if usage["cached_tokens"]:
        counts["cachedInputTokens"] = usage["cached_tokens"]
    return [{"provider": provider, "model": model, **counts}]


def plain_text(content: str | list[dict[str, Any]] | None) -> str:
    if isinstance(content, list):
        return "\n\n".join(part.get("text", "") for part in content)
    return content or ""


def now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)
