"""Parses the frames that clients send over the websocket."""

from __future__ import annotations

import json
from typing import Any, cast, get_args

from banksman.contracts.errors import BadInput, ErrorCode
from banksman.contracts.frames import CLIENT_FRAME, ClientFrame, ErrorFrame, error_frame
from banksman.contracts.wire import JsonValue, has_lone_surrogate, parse_as, strict_json

MAX_ID_CHARS = 128
SHORT_CHARS = 16 * 1024
"""Maximum characters of a rate-limited frame whose id is read."""

KNOWN_TYPES = frozenset(
    kind
    for frame in get_args(get_args(ClientFrame)[0])
    for kind in get_args(frame.model_fields["type"].annotation)
)


class FrameRefused(Exception):
    """A client's frame is invalid; `frame` is the error frame to send."""

    def __init__(self, frame: ErrorFrame) -> None:
        self.frame = frame
        super().__init__(frame.message)


def parse_frame(text: str) -> ClientFrame:
    """Parse a client's frame.

    Raises:
        FrameRefused: The frame is not a JSON object, has an unknown type, or has an invalid field.
    """
    reply_to: str | None = None
    try:
        value = strict_json(text, what="frame")
        if not isinstance(value, dict):
            raise BadInput("frame", None, "a JSON object")
        reply_to = _id_of(value)
        kind = value.get("type")
        if not isinstance(kind, str):
            raise BadInput("type", None, "the frame's type, a string")
        if kind not in KNOWN_TYPES:
            message = f"unknown frame type {kind[:80]!r}"
            raise FrameRefused(ErrorFrame(reply_to=reply_to, code=ErrorCode.UNKNOWN_TYPE, message=message))
        return parse_as(CLIENT_FRAME, text, what="frame", request=ClientFrame)
    except BadInput as error:
        raise FrameRefused(error_frame(error, reply_to or id_in(text))) from error


def id_in(text: str) -> str | None:
    """Return the id of a refused frame, whose JSON may violate a rule of `strict_json`; None without one."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return _id_of(cast(dict[str, JsonValue], value)) if isinstance(value, dict) else None


def _id_of(value: dict[str, JsonValue]) -> str | None:
    found = value.get("id")
    if not isinstance(found, str) or len(found) > MAX_ID_CHARS:
        return None
    # A lone surrogate cannot be sent back.
    return None if has_lone_surrogate(found) else found
