"""The history in the form that vendors require: each call with one result, and the parts of messages."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, count
from typing import assert_never

from banksman.agent.providers.untyped import as_object, as_text
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
from banksman.contracts.workspaces import IMAGES_DIRECTORY
from banksman.runtime.addresses import public_url

CALL_ID = re.compile("[a-zA-Z0-9_-]{1,64}")
CALLS_FIELD = "calls"
"""The field of a state with the fields of single calls."""
OWN_ID = "id"
"""The field of a call's state with an id that its server wrote and expects back, of any form."""
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
    key: str
    """The name of the call in the state of its reply; see `state_key`."""


@dataclass(frozen=True, slots=True)
class ModelExchange:
    """A reply of the model and its calls with their results, in order."""

    reply: AssistantMessage
    calls: tuple[CallWithResult, ...]


def paired(
    messages: Iterable[Message], call_id: re.Pattern[str] = CALL_ID
) -> list[UserMessage | ModelExchange]:
    """Pair calls with their results.

    A result without a call is omitted, the first of two results counts, and a call without a result gets
    `unknown_outcome`. Complete logs contain none of these cases, for which a vendor would refuse the request.
    `call_id` is the pattern of the ids that the vendor accepts.
    """
    listed = list(messages)
    results: dict[str, ToolMessage] = {}
    for message in listed:
        if isinstance(message, ToolMessage):
            results.setdefault(message.result.tool_call_id, message)
    ids = _Ids(call_id)
    found: list[UserMessage | ModelExchange] = []
    for message in listed:
        match message:
            case UserMessage():
                found.append(message)
            case AssistantMessage():
                states = as_object((message.provider_state or {}).get(CALLS_FIELD))
                calls = tuple(
                    _with_result(at, call, results, ids, states) for at, call in enumerate(message.calls)
                )
                found.append(ModelExchange(message, calls))
            case ToolMessage():
                pass
    return found


def _with_result(
    at: int, call: ToolCall, results: dict[str, ToolMessage], ids: _Ids, states: JsonObject
) -> CallWithResult:
    message = results.get(call.id)
    if message is None:
        unknown = failed(call.id, "unknown_outcome", "The result of this call is not known.")
        message = ToolMessage(name=call.name, result=unknown)
    name = _NOT_IN_NAMES.sub("_", call.name)[:_MAX_NAME_CHARS] or "unnamed"
    key = state_key(call.provider_call_id, at)
    own = as_text(as_object(states.get(key)).get(OWN_ID))
    return CallWithResult(ids.of(call, own), name, call.arguments, message, key)


def state_key(provider_call_id: str | None, at: int) -> str:
    """Return the name of the call with the index `at` in the state of its reply."""
    return provider_call_id or f"#{at}"


@dataclass(frozen=True, slots=True)
class _Ids:
    """Gives the calls of one request their ids."""

    accepted: re.Pattern[str]
    used: set[str] = field(default_factory=set[str])

    def of(self, call: ToolCall, own: str) -> str:
        """Return the vendor's id if it is accepted and unique in this request; otherwise ours or a short one.

        `own` is an id of the address to which the request is sent. A profile with a pattern decides instead.

        The same call has the same id in later requests, so that the vendor's cache remains valid.
        """
        given = [id for id in (call.provider_call_id or "", call.id) if self.accepted.fullmatch(id)]
        if own and self.accepted is CALL_ID:
            given.insert(0, own)
        short = (_short_id(call.id, number) for number in count())
        id = next(id for id in chain(given, short) if id not in self.used)
        self.used.add(id)
        return id


def _short_id(id: str, number: int) -> str:
    """Return nine letters and digits, the only form of ids that Mistral accepts."""
    return hashlib.sha256(f"{number}:{id}".encode()).hexdigest()[:9]


_DATA_URL = re.compile(r"data:(image/[a-z0-9.+-]+|application/pdf);base64,([A-Za-z0-9+/=\s]*)")


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


@dataclass(frozen=True, slots=True)
class InlineDocument:
    """A PDF document. The text before it names it."""

    base64: str

    @property
    def url(self) -> str:
        return f"data:{PDF};base64,{self.base64}"


PDF = "application/pdf"
SentPart = str | InlineImage | InlineDocument | LinkedImage


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
        content = "".join(data[2].split())
        return InlineDocument(content) if data[1] == PDF else InlineImage(data[1], content)
    if part.is_link:
        try:
            return LinkedImage(str(public_url(part.url)))
        except UrlRefused as refused:
            return f"[The user attached an image at an address that is refused: {refused}.]"
    if part.url.startswith(f"{IMAGES_DIRECTORY}/"):
        return "[An image, which you cannot see.]"
    return f"[The user attached the image {part.url[:4096]}, which is in the workspace.]"
