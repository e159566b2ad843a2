"""Converts the messages of an AG-UI input to the message of a run.

The server has the history of a thread, so only the user's last messages are used. If a client begins a thread
with a history, the earlier messages precede them as text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from banksman.contracts.errors import BadInput
from banksman.contracts.messages import Content, ImagePart, Part, TextPart, text_of
from banksman.contracts.wire import JsonValue
from banksman.gateway.interfaces.agui.models import InputMessage, RunInput

EARLIER = "[Earlier messages of this conversation, as the client sent them:]"
CONTEXT = "[Context from the application:]"
CURRENT = "[The current message:]"
EARLIER_ROLES = frozenset({"developer", "system", "user", "assistant"})
"""The roles of earlier messages that precede the first message of a thread."""
_GAP = "\n\n"
_IMAGE_CHARS = 256 * 1024


@dataclass(frozen=True, slots=True)
class UserTurn:
    """The user's last messages of an input: `messages[start:end]`."""

    start: int
    end: int
    parts: tuple[Part, ...]
    left_out: int
    """Number of parts that are neither text nor an image of a permitted size."""


def user_turn(messages: tuple[InputMessage, ...]) -> UserTurn:
    """Return the user's last messages, which messages of other roles may follow.

    Raises:
        BadInput: No message is a user's.
    """
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
    """Return the content of a run's message.

    Args:
        given: The input.
        turn: Its last user messages.
        new: Whether the server has no history of the thread.
    """
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
