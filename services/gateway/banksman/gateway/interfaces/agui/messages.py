"""The input of an AG-UI run, the frames that it becomes, the messages of a thread, and interrupts. Pure.

The server has the history of a thread, so only the user's last messages of an input are used. If a client
begins a thread with a history, the earlier messages precede the user's as text. Unknown fields are ignored,
as the protocol requires: https://docs.ag-ui.com/spec/1.0/basic/run-input

Interrupts: https://docs.ag-ui.com/spec/1.0/basic/patterns/interrupt-resume
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from banksman.contracts import events
from banksman.contracts.approvals import ItemDecision, Preview
from banksman.contracts.assistants import OnReject, RunOverrides
from banksman.contracts.errors import BadInput
from banksman.contracts.frames import ApprovalDecision, InputReply
from banksman.contracts.ids import is_token
from banksman.contracts.messages import Content, ImagePart, Part, TextPart, text_of
from banksman.contracts.tools import ToolCall, ToolResult
from banksman.contracts.visible import one_line
from banksman.contracts.wire import JsonObject, JsonValue, Stored, Text, Wire, parse
from banksman.gateway.conversations.view import ConversationView

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
    """`{approved, arguments?, reason?, on_reject?}` for a call, the value for a requested value."""


class CallAnswer(Wire):
    """The payload that decides about a call."""

    approved: bool
    arguments: JsonObject | None = None
    """Edited arguments; None leaves the requested ones."""
    reason: str | None = Field(default=None, max_length=2000)
    on_reject: OnReject | None = None
    """What a rejection does to the run; None for what its assistant states."""


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


ABANDONED = "The user abandoned the request."


def approval_interrupts(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one interrupt `APPROVAL/CALL` for each call, from the data of `approval.requested`."""
    approval_id = data["approval_id"]
    return [
        {
            "id": "/".join(
                (approval_id, item["tool_call_id"], *([item["digest"]] if data.get("first") else []))
            ),
            "reason": "tool_call",
            "message": _call_message(item),
            "toolCallId": item["tool_call_id"],
            "responseSchema": _answer_schema(editable=item["editable"]),
            "expiresAt": data["expires_at"],
            "metadata": {"banksman": {"approval_id": approval_id, **item}},
        }
        for item in data["items"]
    ]


def input_interrupt(data: dict[str, Any]) -> dict[str, Any]:
    """Return the interrupt for the data of `input.requested`."""
    interrupt = {
        "id": data["request_id"],
        "reason": "input_required",
        "message": data["message"],
        "responseSchema": data["schema"],
    }
    if server := data.get("server"):
        interrupt["metadata"] = {"banksman": {"server": server}}
    expires = data.get("expires_at")
    return interrupt if expires is None else {**interrupt, "expiresAt": expires}


def answer(
    entries: Iterable[ResumeEntry], request_id: str, view: ConversationView
) -> ApprovalDecision | InputReply:
    """Return the frame that responds to the interrupts of one request, of which there is at least one."""
    answers = [(*_ids_in(entry.interrupt_id), entry) for entry in entries]
    asked, first_call, _, entry = answers[0]
    if any(id != asked for id, _, _, _ in answers):
        raise BadInput("resume", len(answers), "answers to the interrupts of one run")
    if not first_call:
        declines = entry.status == "cancelled"
        value = None if declines else entry.payload
        return InputReply(type="input.reply", id=request_id, request_id=asked, value=value, decline=declines)
    open_ = view.approvals.get(asked)
    calls = [item.tool_call_id for item in open_.requested.items] if open_ else []
    digests = {call: digest for _, call, digest, _ in answers if digest}
    return ApprovalDecision(
        type="approval.reply",
        id=request_id,
        approval_id=asked,
        decisions=tuple(_decision(call, entry) for _, call, _, entry in answers),
        digests=tuple(digests[call] for call in calls if call in digests),
    )


def _ids_in(interrupt_id: str) -> tuple[str, str, str]:
    """Return the ids of request and call, and a digest; raise `BadInput` for another text.

    A requested value has no call. Only after the first of two approvals there is a digest, so that the
    response names what was sent. A missing part is empty.
    """
    parts = interrupt_id.split("/")
    if len(parts) > 3 or not all(map(is_token, parts)):
        raise BadInput("resume.interruptId", interrupt_id, "the id of an interrupt of this thread")
    request_id, call, digest = (*parts, "", "")[:3]
    return request_id, call, digest


def _decision(call: str, entry: ResumeEntry) -> ItemDecision:
    if entry.status == "cancelled":
        return ItemDecision(tool_call_id=call, decision="reject", reason=ABANDONED)
    given = parse(CallAnswer, entry.payload, what="resume.payload")
    if not given.approved:
        reason, choice = given.reason, given.on_reject
        return ItemDecision(tool_call_id=call, decision="reject", reason=reason, on_reject=choice)
    return ItemDecision(tool_call_id=call, decision="approve", arguments=given.arguments, reason=given.reason)


def _call_message(item: dict[str, Any]) -> str:
    subject = Preview.model_validate(item["preview"]).subject
    name = one_line(item["name"])
    return f"Allow {name}?" if subject is None else f"Allow {name}: {subject}"


def _answer_schema(*, editable: bool) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "approved": {"type": "boolean"},
        "reason": {"type": "string", "maxLength": 2000},
        "on_reject": {"enum": ["abort", "feedback"]},
    }
    if editable:
        properties["arguments"] = {
            "type": "object",
            "description": "Arguments in place of the requested ones, complete.",
        }
    return {
        "type": "object",
        "properties": properties,
        "required": ["approved"],
        "additionalProperties": False,
    }
