"""The transport of one websocket: queued frames out, parsed frames in, and one close code."""

from __future__ import annotations

import asyncio
import json
import re
from functools import partial
from typing import Any, cast, get_args

from pydantic import BaseModel
from starlette.websockets import WebSocket, WebSocketDisconnect

from banksman.contracts.errors import BadInput, ErrorCode
from banksman.contracts.frames import CLIENT_FRAME, ClientFrame, ErrorFrame, error_frame
from banksman.contracts.wire import JsonValue, has_lone_surrogate, parse_as, strict_json
from banksman.gateway.live.send_buffer import Outbox

CLOSED = (WebSocketDisconnect, OSError, RuntimeError)
"""Exceptions of sending on a closed websocket. uvicorn raises `RuntimeError` after closing it for invalid
UTF-8, a frame over the size limit, or a message that was not finished in time."""
CLOSE_S = 2.0
"""Seconds that the queued frames, and then the close frame, may take."""

INTERNAL_ERROR, RESTART = 1011, 1012
BINARY, UNAUTHENTICATED, FORBIDDEN, TIMED_OUT, SECOND_HELLO = 4400, 4401, 4403, 4408, 4409
UNSUPPORTED_PROTOCOL, RATE_LIMITED, SLOW_CONSUMER = 4426, 4429, 4508

CloseFrame = tuple[int, str]
"""Code and reason."""
MAX_ID_CHARS = 128
SHORT_BYTES = 16 * 1024
"""Maximum bytes of a refused frame that is parsed for its id."""
_LEADING_ID = re.compile(
    rb'\s*\{\s*(?:"type"\s*:\s*"[\w.]{1,64}"\s*,\s*)?"id"\s*:\s*"([\w.:-]{1,128})"', re.ASCII
)
KNOWN_TYPES = frozenset(
    kind
    for frame in get_args(get_args(ClientFrame)[0])
    for kind in get_args(frame.model_fields["type"].annotation)
)


class SocketTransport:
    def __init__(self, websocket: WebSocket) -> None:
        too_slow = partial(self.end, SLOW_CONSUMER, "the client reads too slowly; resume")
        self.outbox = Outbox(on_overflow=too_slow)
        self._websocket = websocket
        self._ending: asyncio.Future[CloseFrame | None] = asyncio.get_running_loop().create_future()

    async def ended(self) -> CloseFrame | None:
        """Wait until either side ends the websocket; return None if the client has disconnected."""
        return await self._ending

    def send(self, frame: BaseModel) -> None:
        self.outbox.put(frame.model_dump_json(exclude_none=True))

    def end(self, code: int, reason: str) -> None:
        """End the websocket with a close code. The first code counts."""
        self._end((code, reason))

    async def receive(self) -> str | None:
        """Return the text of the next frame; None after the end."""
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            self._end(None)
            return None
        text = message.get("text")
        if text is None:
            self.end(BINARY, "frames are JSON text")
        return text

    async def write(self) -> None:
        while True:
            frame = await self.outbox.next()
            try:
                await self._websocket.send_text(frame)
            except CLOSED:
                self._end(None)
                return

    async def close(self, code: int, reason: str) -> None:
        """Send the queued frames, then the close frame; give up on each after two seconds."""
        try:
            async with asyncio.timeout(CLOSE_S):
                # A slow client would not read the queued frames: it resumes from its last event.
                while code != SLOW_CONSUMER and not self.outbox.empty:
                    await self._websocket.send_text(await self.outbox.next())
        except (TimeoutError, *CLOSED):
            pass
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._websocket.close(code, reason)
        except (TimeoutError, *CLOSED):
            return

    def _end(self, ending: CloseFrame | None) -> None:
        if not self._ending.done():
            self._ending.set_result(ending)


class FrameRefused(Exception):
    """A client's frame is invalid; `frame` is the error frame to send."""

    def __init__(self, frame: ErrorFrame) -> None:
        self.frame = frame
        super().__init__(frame.message)


def parse_frame(data: bytes) -> ClientFrame:
    """Parse a client's frame; raise `FrameRefused` with the error frame if it is invalid."""
    try:
        return parse_as(CLIENT_FRAME, data, what="frame", request=ClientFrame)
    except BadInput as error:
        raise FrameRefused(_refusal(data, error)) from error


def _refusal(data: bytes, error: BadInput) -> ErrorFrame:
    try:
        value = strict_json(data, what="frame")
    except BadInput:
        return error_frame(error, id_in(data))
    if not isinstance(value, dict):
        return error_frame(BadInput("frame", None, "a JSON object"), None)
    reply_to, kind = _id_of(value), value.get("type")
    if not isinstance(kind, str):
        return error_frame(BadInput("type", None, "the frame's type, a string"), reply_to)
    if kind not in KNOWN_TYPES:
        message = f"unknown frame type {kind[:80]!r}"
        return ErrorFrame(reply_to=reply_to, code=ErrorCode.UNKNOWN_TYPE, message=message)
    return error_frame(error, reply_to)


def id_in(data: bytes) -> str | None:
    """Return the id of a refused frame, whose JSON may violate a rule of `strict_json`; None without one.

    In a frame that is too large to be parsed, the id is found if it is the first field, or follows `type`.
    """
    if len(data) > SHORT_BYTES:
        found = _LEADING_ID.match(data)
        return found[1].decode() if found else None
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return _id_of(cast(dict[str, JsonValue], value)) if isinstance(value, dict) else None


def _id_of(value: dict[str, JsonValue]) -> str | None:
    found = value.get("id")
    if not isinstance(found, str) or len(found) > MAX_ID_CHARS:
        return None
    # A lone surrogate cannot be sent back.
    return None if has_lone_surrogate(found) else found
