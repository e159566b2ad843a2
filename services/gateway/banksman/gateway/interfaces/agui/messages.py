"""The input of an AG-UI run, the message of a run that it becomes, and the messages of a thread. Pure.

The server has the history of a thread, so only the user's last messages of an input are used. If a client
begins a thread with a history, the earlier messages precede the user's as text. Unknown fields are ignored,
as the protocol requires: https://docs.ag-ui.com/spec/1.0/basic/run-input
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from banksman.contracts import events
from banksman.contracts.assistants import RunOverrides
from banksman.contracts.errors import BadInput
from banksman.contracts.messages import Content, ImagePart, Part, TextPart, text_of
from banksman.contracts.tools import ToolCall, ToolResult
from banksman.contracts.wire import JsonObject, JsonValue, Stored, Text, Wire, parse

ClientId = Annotated[str, Field(min_length=1, max_length=200)]
"""An id that the client chooses, of any characters."""
MAX_MESSAGES = 10_000
EARLIER = "[Earlier messages of this conversation, as the client sent them:]"
CONTEXT = "[Context from the application:]"
CURRENT = "[The current message:]"
EARLIER_ROLES = frozenset({"developer", "system", "user", "assistant"})
"""The roles of earlier messages that precede the first message of a thread."""
_GAP = "\n\n"
_IMAGE_CHARS = 256 * 1024
SNAPSHOT_CHARS = 4 * 1024 * 1024
"""Size of the newest messages that a snapshot contains. AG-UI's client accepts events of up to 10 MiB."""
AguiMessage = dict[str, Any]


class InputMessage(Stored):
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


class ContextEntry(Stored):
    """Information of the application for the model."""

    description: str = Field(max_length=10_000)
    value: Text


class ResumeEntry(Stored):
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


class RunInput(Stored):
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
    return message.model_dump(mode="json", by_alias=True, exclude_unset=True)


@dataclass(frozen=True, slots=True)
class UserTurn:
    """The user's last messages of an input: `messages[start:end]`."""

    start: int
    end: int
    parts: tuple[Part, ...]
    left_out: int
    """Number of parts that are neither text nor an image of a permitted size."""


def user_turn(messages: tuple[InputMessage, ...]) -> UserTurn:
    """Return the user's last messages; raise `BadInput` if no message is a user's."""
    end = len(messages)
    while end and messages[end - 1].role != "user":
        end -= 1
    start = end
    while start and messages[start - 1].role == "user":
        start -= 1
    if start == end:
        raise BadInput("messages", None, "a message with the role `user`")
    parts = [part for message in messages[start:end] for part in _parts(message.content)]
    kept = tuple(part for part in parts if part is not None)
    return UserTurn(start, end, kept, len(parts) - len(kept))


def content_of(given: RunInput, turn: UserTurn, *, new: bool) -> Content:
    """Return the content of a run's message; `new` is whether the server has no history of the thread."""
    before: list[str] = []
    if new and (earlier := list(_earlier_texts(given.messages[: turn.start]))):
        before += (EARLIER, *earlier)
    if given.context:
        before += (CONTEXT, *(f"{entry.description}: {entry.value}" for entry in given.context))
    parts = turn.parts
    if before:
        parts = (TextPart(text=_GAP.join((*before, CURRENT))), *parts)
    return text_of(parts) if all(isinstance(part, TextPart) for part in parts) else parts


def _earlier_texts(messages: Iterable[InputMessage]) -> Iterable[str]:
    for message in messages:
        texts = [part.text for part in _parts(message.content) if isinstance(part, TextPart)]
        if message.role in EARLIER_ROLES and any(texts):
            yield f"{message.role}: {_GAP.join(texts)}"


def _parts(content: JsonValue) -> list[Part | None]:
    """Return the parts of a message; None for each part that runs do not support."""
    if isinstance(content, str):
        return [TextPart(text=content)]
    return [_part(part) for part in content] if isinstance(content, list) else []


def _part(part: JsonValue) -> Part | None:
    match part:
        case {"type": "text", "text": str(text)}:
            return TextPart(text=text)
        case {"type": "image", "source": {"type": "url", "value": str(url)}} if len(url) <= _IMAGE_CHARS:
            return ImagePart(url=url)
        case {"type": "image", "source": {"type": "data", "value": str(data), "mimeType": str(kind)}} if (
            len(data) + len(kind) + 16 <= _IMAGE_CHARS
        ):
            return ImagePart(url=f"data:{kind};base64,{data}", media_type=kind)
        case _:
            return None


def messages_of(stored: Iterable[events.Event]) -> list[AguiMessage]:
    """Return the messages of a thread, oldest first: the newest ones that fit in `SNAPSHOT_CHARS`."""
    messages: list[AguiMessage] = []
    last: AguiMessage | None = None
    for event in stored:
        match event.data:
            case events.RunStarted(message_id=id, message=content):
                messages.append({"id": id, "role": "user", "content": text_of(content)})
            case events.MessageCompleted(role=role, message_id=id, content=content):
                last = {"id": id, "role": role, "content": text_of(content or "")}
                messages.append(last)
            case events.ToolCallRequested(call=call):
                if last is None or last["role"] != "assistant":
                    last = {"id": f"{call.id}-message", "role": "assistant"}
                    messages.append(last)
                last.setdefault("toolCalls", []).append(_call(call))
            case events.ToolCallCompleted(result=result):
                messages.append(_result(result))
            case events.RunFinished(content=content) if (
                event.run_id and content and (last is None or content != last.get("content"))
            ):
                messages.append({"id": f"{event.run_id}-outcome", "role": "assistant", "content": content})
            case _:
                continue
    return _newest(messages)


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _result(result: ToolResult) -> AguiMessage:
    message: AguiMessage = {
        "id": f"{result.tool_call_id}-result",
        "role": "tool",
        "toolCallId": result.tool_call_id,
        "content": json.dumps(result.content, ensure_ascii=False),
    }
    return {**message, "error": result.error_kind} if result.is_error and result.error_kind else message


def _newest(messages: list[AguiMessage]) -> list[AguiMessage]:
    size, first = 0, len(messages)
    while first and (size := size + len(json.dumps(messages[first - 1]))) <= SNAPSHOT_CHARS:
        first -= 1
    return messages[first:]
