"""Sends the pings of all websockets of a process by one timer, and recognises pongs without the parser."""

from __future__ import annotations

import asyncio
import math
from itertools import islice
from types import GeneratorType
from typing import Protocol

from websockets.protocol import Protocol as Parser
from websockets.streams import StreamReader

PING_EVERY_S = 20.0
"""Seconds between two pings of a websocket, which is closed if it does not reply before the next ping."""
PING = b"\x89\x00"
"""The frame of a ping without payload (https://www.rfc-editor.org/rfc/rfc6455#section-5.5.2)."""
_PONG, _PONG_BYTES = b"\x8a\x80", 6
"""The first bytes and the length of the reply to `PING`. A mask of four bytes follows the first bytes."""
_TOGETHER_S = 1.0
"""Pings that are due within this many seconds are sent together, so that an idle process rarely wakes up."""
_AT_ONCE = 250
"""Pings that are sent before other tasks run. One ping takes about 10 µs."""


class Pinged(Protocol):
    """A websocket that is pinged."""

    def ping(self) -> bool:
        """Send a ping, or close a websocket that has not replied to the last one.

        Returns:
            False if the websocket is closed or closes.
        """
        ...


class Pings:
    """Pings websockets until they are removed or closed."""

    def __init__(self, every_s: float = PING_EVERY_S) -> None:
        self._every_s = every_s
        self._together_s = min(_TOGETHER_S, every_s / 4)
        self._due: dict[Pinged, float] = {}
        """Due times by the event loop's clock, in order, because all websockets have the same interval."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, socket: Pinged) -> None:
        """Ping a websocket after each interval until it is removed or closed."""
        self._due[socket] = asyncio.get_running_loop().time() + self._every_s
        if self._timer is None:
            self._set_timer()

    def remove(self, socket: Pinged) -> None:
        """Stop pinging a websocket. Safe to call twice."""
        self._due.pop(socket, None)

    def _set_timer(self) -> None:
        """Set the timer to the next multiple of `_together_s` at which a ping is due, if any."""
        self._timer = None
        due_at = next(iter(self._due.values()), None)
        if due_at is not None:
            wake_at = math.ceil(due_at / self._together_s) * self._together_s
            self._timer = asyncio.get_running_loop().call_at(wake_at, self._send)

    def _send(self) -> None:
        now = asyncio.get_running_loop().time()
        due = [socket for socket, due_at in islice(self._due.items(), _AT_ONCE) if due_at <= now]
        for socket in due:
            del self._due[socket]
            if socket.ping():
                self._due[socket] = now + self._every_s
        self._set_timer()


def is_pong(data: bytes, parser: Parser) -> bool:
    """Return whether received bytes are the reply to `PING` and nothing else.

    In the middle of a frame the same bytes are a part of it. The parser takes four times as long.
    """
    return len(data) == _PONG_BYTES and data.startswith(_PONG) and _is_between_frames(parser)


def _is_between_frames(parser: Parser) -> bool:
    waiting = parser.parser
    while isinstance(waiting, GeneratorType) and waiting.gi_yieldfrom is not None:
        waiting = waiting.gi_yieldfrom
    return isinstance(waiting, GeneratorType) and waiting.gi_code is StreamReader.at_eof.__code__
