"""The history in the form that vendors require: each call with one result, and the parts of messages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

from banksman.contracts.messages import (
    AssistantMessage,
    Content,
    FilePart,
    ImagePart,
    Message,
    TextPart,
    ToolMessage,
    UserMessage,
)
from banksman.contracts.tools import ToolCall, failed
from banksman.contracts.urls import UrlRefused
from banksman.contracts.wire import JsonObject
from banksman.runtime.addresses import public_url

_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_MAX_NAME_CHARS = 64


@dataclass(frozen=True, slots=True)
class CallWithResult:
    """A call and its result, in the form to send."""

    id: str
    """The vendor's id if it is valid and unique in this request; otherwise our id."""
    name: str
    """The tool's name without characters that vendors refuse. Models may write any name."""
    arguments: JsonObject
    message: ToolMessage
    """The message with the result."""


@dataclass(frozen=True, slots=True)
class ModelExchange:
    """A reply of the model and its calls with their results, in order."""

    reply: AssistantMessage
    calls: tuple[CallWithResult, ...]


def exchanges(messages: Iterable[Message]) -> list[UserMessage | ModelExchange]:
    """Pair calls with their results.

    A result without a call is omitted, the first of two results counts, and a call without a result gets
    `unknown_outcome`. Complete logs contain none of these cases, for which a vendor would refuse the request.
    """
    listed = list(messages)
    results: dict[str, ToolMessage] = {}
    for message in listed:
        if isinstance(message, ToolMessage):
            results.setdefault(message.result.tool_call_id, message)
    used: set[str] = set()
    paired: list[UserMessage | ModelExchange] = []
    for message in listed:
        match message:
            case UserMessage():
                paired.append(message)
            case AssistantMessage():
                calls = tuple(_with_result(call, results, used) for call in message.calls)
                paired.append(ModelExchange(message, calls))
            case ToolMessage():
                pass
    return paired


def _with_result(call: ToolCall, results: dict[str, ToolMessage], used: set[str]) -> CallWithResult:
    unknown = failed(call.id, "unknown_outcome", "The result of this call is not known.")
    message = results.get(call.id) or ToolMessage(name=call.name, result=unknown)
    name = _NOT_IN_NAMES.sub("_", call.name)[:_MAX_NAME_CHARS] or "unnamed"
    return CallWithResult(_wire_id(call, used), name, call.arguments, message)


def _wire_id(call: ToolCall, used: set[str]) -> str:
    vendor_id = call.provider_call_id or ""
    wire_id = vendor_id if _ID.fullmatch(vendor_id) and vendor_id not in used else call.id
    number = 1
    while wire_id in used:
        number += 1
        wire_id = f"{call.id[:56]}-{number}"
    used.add(wire_id)
    return wire_id


_DATA_URL = re.compile(r"data:(image/[a-z0-9.+-]+);base64,([A-Za-z0-9+/=\s]*)")


@dataclass(frozen=True, slots=True)
class InlineImage:
    media_type: str
    base64: str

    @property
    def url(self) -> str:
        return f"data:{self.media_type};base64,{self.base64}"


@dataclass(frozen=True, slots=True)
class LinkedImage:
    """An image that the vendor fetches from its URL."""

    url: str


SentPart = str | InlineImage | LinkedImage


def sent_parts(content: Content) -> list[SentPart]:
    """Return the parts of a message. Files and images of the workspace become text with their path."""
    if isinstance(content, str):
        return [content] if content.strip() else []
    return [part for part in map(_sent, content) if not isinstance(part, str) or part.strip()]


def _sent(part: TextPart | ImagePart | FilePart) -> SentPart:
    match part:
        case TextPart():
            return part.text
        case FilePart():
            return f"[The user attached the file {part.path}, which is in the workspace.]"
        case ImagePart():
            return _image(part)
        case _:
            assert_never(part)


def _image(part: ImagePart) -> SentPart:
    data = _DATA_URL.fullmatch(part.url)
    if data is not None:
        return InlineImage(data[1], "".join(data[2].split()))
    if part.is_link:
        try:
            return LinkedImage(str(public_url(part.url)))
        except UrlRefused as refused:
            return f"[The user attached an image at an address that is refused: {refused}.]"
    return f"[The user attached the image {part.url[:4096]}, which is in the workspace.]"
