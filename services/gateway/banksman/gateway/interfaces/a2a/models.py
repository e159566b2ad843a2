"""The requests and errors of A2A's JSON-RPC binding.

Unknown fields are ignored, as in A2A's Protocol Buffers. Some clients send an absent id as an empty string.
https://a2a-protocol.org/latest/specification/
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from banksman.contracts import errors
from banksman.contracts.frames import ApprovalDecision, InputReply
from banksman.contracts.ids import digest
from banksman.contracts.messages import Content, ImagePart, Part, TextPart, text_of
from banksman.contracts.wire import JsonObject, JsonValue, Stored, parse
from banksman.gateway.conversations.view import ConversationView

Id = Annotated[str, Field(max_length=200)]
HeaderValue = Annotated[str, StringConstraints(max_length=2_000, pattern=r"^[\x20-\x7e]*$")]
PARSE_ERROR = (-32700, "PARSE_ERROR")
INVALID_REQUEST = (-32600, "INVALID_REQUEST")
METHOD_NOT_FOUND = (-32601, "METHOD_NOT_FOUND")
INVALID_PARAMS = (-32602, "INVALID_PARAMS")
INTERNAL = (-32603, "INTERNAL_ERROR")
TASK_NOT_FOUND = (-32001, "TASK_NOT_FOUND")
TASK_NOT_CANCELABLE = (-32002, "TASK_NOT_CANCELABLE")
PUSH_NOT_SUPPORTED = (-32003, "PUSH_NOTIFICATION_NOT_SUPPORTED")
UNSUPPORTED_OPERATION = (-32004, "UNSUPPORTED_OPERATION")
CONTENT_TYPE_NOT_SUPPORTED = (-32005, "CONTENT_TYPE_NOT_SUPPORTED")
NO_EXTENDED_CARD = (-32007, "EXTENDED_AGENT_CARD_NOT_CONFIGURED")
VERSION_NOT_SUPPORTED = (-32009, "VERSION_NOT_SUPPORTED")
ANSWER_FIELDS = frozenset(
    {"approval_id", "request_id", "decisions", "all", "remember", "on_reject", "digests", "value", "decline"}
)
DECISION_WORDS = {"approve": "approve", "reject": "reject"}
"""Texts that decide all calls of an approval request."""
DECLINE = "decline"
"""The text that declines what the server of a tool requests: its forms are objects, which no text is."""


class RpcRequest(Stored):
    jsonrpc: Literal["2.0"]
    id: str | int | None = None
    method: Annotated[str, Field(max_length=100)]
    params: JsonObject = Field(default_factory=dict)


class A2aPart(Stored):
    """A part of a message: text, data, or a file as bytes or by its address."""

    text: str | None = None
    data: JsonValue = None
    raw: str | None = None
    """Bytes of a file in base64."""
    url: str | None = None
    media_type: str = Field(default="", alias="mediaType")


class A2aMessage(Stored):
    message_id: Annotated[str, Field(min_length=1, max_length=200)] = Field(alias="messageId")
    """Identifies the message for 24 hours: a repeated message has no further effect."""
    context_id: Id = Field(default="", alias="contextId")
    """The conversation to continue; without it, a new one begins."""
    task_id: Id = Field(default="", alias="taskId")
    """The open run that the message is for; without it, a new run starts."""
    role: Literal["ROLE_USER"] = "ROLE_USER"
    parts: tuple[A2aPart, ...] = Field(min_length=1, max_length=1000)
    metadata: JsonObject = Field(default_factory=dict)


class Authentication(Stored):
    """The credentials that the receiver expects in `Authorization`."""

    scheme: HeaderValue
    credentials: HeaderValue = Field(default="", repr=False)


class PushTarget(Stored):
    """The receiver of notifications about the task of a message."""

    id: Id = ""
    url: str = Field(max_length=2000)
    token: HeaderValue = Field(default="", repr=False)
    authentication: Authentication | None = None


class Configuration(Stored):
    history_length: int | None = Field(default=None, ge=0, alias="historyLength")
    return_immediately: bool = Field(default=False, alias="returnImmediately")
    push: PushTarget | None = Field(default=None, alias="taskPushNotificationConfig")


class SendMessage(Stored):
    message: A2aMessage
    configuration: Configuration = Configuration()


class NamedTask(Stored):
    """The parameters of the methods for one task."""

    id: Annotated[str, Field(min_length=1, max_length=200)]
    history_length: int | None = Field(default=None, ge=0, alias="historyLength")


class ListTasks(Stored):
    context_id: Id = Field(default="", alias="contextId")
    status: str = ""
    page_size: int = Field(default=50, ge=0, le=100, alias="pageSize")
    page_token: str = Field(default="", alias="pageToken", pattern=r"^\d*$", max_length=12)


class PushConfig(PushTarget):
    task_id: Id = Field(min_length=1, alias="taskId")


class ListConfigs(Stored):
    """A task has so few configurations that they are one page."""

    task_id: Id = Field(min_length=1, alias="taskId")


class NamedConfig(ListConfigs):
    id: Id = Field(min_length=1)


class RpcError(Exception):
    def __init__(self, kind: tuple[int, str], message: str) -> None:
        self.kind = kind
        super().__init__(message)

    def body(self) -> dict[str, Any]:
        code, reason = self.kind
        info = {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": reason,
            "domain": "a2a-protocol.org",
        }
        return {"code": code, "message": str(self), "data": [info]}


def rpc_error(error: errors.BanksmanError) -> RpcError:
    """Return the JSON-RPC error for a mistake of the caller; raise errors that an HTTP status reports."""
    match error:
        case errors.Unauthorized() | errors.Forbidden():
            raise error
        case errors.NotFound():
            return RpcError(TASK_NOT_FOUND, error.public)
        case errors.Conflict():
            return RpcError(UNSUPPORTED_OPERATION, error.public)
        case errors.CallerMistake():
            return RpcError(INVALID_PARAMS, error.public)
        case _:
            raise error


def request_id(message: A2aMessage) -> str:
    return f"a2a-{digest(message.message_id.encode())}"


def content_of(message: A2aMessage) -> Content:
    parts = tuple(_part(part) for part in message.parts)
    return text_of(parts) if all(isinstance(part, TextPart) for part in parts) else parts


def answer_of(
    message: A2aMessage, run_id: str, view: ConversationView
) -> ApprovalDecision | InputReply | None:
    """Return the decision or value in a message to an open run; None if it contains neither."""
    given = (part.data for part in message.parts if isinstance(part.data, dict))
    data = next((data for data in given if not ANSWER_FIELDS.isdisjoint(data)), None)
    text = " ".join(part.text or "" for part in message.parts).strip()
    approval = next((id for id, one in view.approvals.items() if one.run_id == run_id), None)
    wanted = next((id for id, one in view.inputs.items() if one.run_id == run_id), None)
    if data is not None:
        return _answer(message, data, approval, wanted)
    if approval is not None and text.casefold() in DECISION_WORDS:
        return _answer(message, {"all": DECISION_WORDS[text.casefold()]}, approval, None)
    if wanted is not None:
        declines = view.inputs[wanted].requested.server is not None and text.casefold() == DECLINE
        return _answer(message, {"decline": True} if declines else {"value": text}, None, wanted)
    return None


def _answer(
    message: A2aMessage, data: JsonObject, approval: str | None, wanted: str | None
) -> ApprovalDecision | InputReply:
    head: JsonObject = {"id": request_id(message)}
    reply = {name: data[name] for name in ("value", "decline") if name in data}
    if reply:
        head |= {"type": "input.reply", "request_id": data.get("request_id", wanted)}
        body, model = {**head, **reply}, InputReply
    else:
        head |= {"type": "approval.reply", "approval_id": data.get("approval_id", approval)}
        given = {
            name: value for name, value in data.items() if name in ANSWER_FIELDS and name != "request_id"
        }
        body, model = {**given, **head}, ApprovalDecision
    if body.get("approval_id", body.get("request_id")) is None:
        raise errors.Conflict("the task waits for no decision or value")
    return parse(model, body, what="message.parts.data")


def _part(part: A2aPart) -> Part:
    if part.text:
        return TextPart(text=part.text)
    if part.data is not None:
        return TextPart(text=json.dumps(part.data, ensure_ascii=False))
    if part.media_type.startswith("image/") and (part.url or part.raw):
        url = part.url or f"data:{part.media_type};base64,{part.raw}"
        if len(url) > 256 * 1024:
            raise errors.BadInput("message.parts.raw", len(url), "an image of at most 256 KiB")
        return ImagePart(url=url, media_type=part.media_type)
    if part.text is not None and not (part.url or part.raw):
        return TextPart(text="")
    raise RpcError(CONTENT_TYPE_NOT_SUPPORTED, "a part must be text, data, or an image")
