"""A websocket that reconnects. Requests wait for a connection, and are resent with their ids."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from banksman.bus.errors import RemoteError
from banksman.contracts.errors import BanksmanError, ErrorCode, Unavailable
from banksman.contracts.frames import SUBPROTOCOL, ErrorFrame, Welcome
from banksman.contracts.ids import new_id
from banksman.sdk.transports.http import is_local

logger = logging.getLogger(__name__)

OPEN_TIMEOUT_S = 15.0
RATE_LIMIT_PAUSE_S = 5.0
LAST_CODES: Final = frozenset({1000, 1001, 1009, 4400, 4401, 4403, 4409, 4426})
"""Close codes after which a client does not reconnect."""
UNAUTHENTICATED: Final = 4401
WITHOUT_CLOSE_FRAME: Final = 1006
TOO_MANY: Final = 4429
TOO_MANY_REQUESTS: Final = 429
SERVER_ERROR: Final = 500
"""The lowest HTTP status of a server error."""

JsonFrame = Mapping[str, Any]


class ConnectionEnded(BanksmanError):
    """The gateway ended the connection for a reason that a reconnect cannot fix."""

    def __init__(self, close_code: int, reason: str) -> None:
        self.close_code = close_code
        self.reason = reason
        self.code = ErrorCode.UNAUTHORIZED if close_code == UNAUTHENTICATED else ErrorCode.FORBIDDEN
        super().__init__(f"the gateway ended the connection ({close_code}): {reason or 'without a reason'}")


class WebsocketLost(Unavailable):
    """The connection was lost before the reply to a request that is not repeated."""


@dataclass(slots=True)
class _Waiting:
    frame: JsonFrame
    reply: asyncio.Future[JsonFrame]
    resend: bool


class Websocket:
    """One connection at a time, from `run` until it is cancelled."""

    def __init__(
        self,
        url: str,
        token: str | None,
        name: str,
        reconnect_s: tuple[float, float],
        *,
        on_welcome: Callable[[], None],
        on_frame: Callable[[JsonFrame], None],
    ) -> None:
        """Create a connection that waits `reconnect_s` seconds, at least and at most, between two attempts.

        `on_welcome` is called for each new connection, before waiting requests are resent.
        """
        self._url = url
        self._token = token
        self._name = name
        self._reconnect_s = reconnect_s
        self._on_welcome = on_welcome
        self._on_frame = on_frame
        self._connection: ClientConnection | None = None
        self._waiting: dict[str, _Waiting] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._drain_s: float | None = None
        self._greeted = asyncio.Event()
        self.welcome: Welcome | None = None
        """The last `welcome` frame of the gateway."""
        self.problem = "no response"
        """Why there is no connection."""
        self.ended: asyncio.Future[BanksmanError] = asyncio.get_running_loop().create_future()
        """The final error; set when no further connection is made."""

    @property
    def ready(self) -> bool:
        return self._greeted.is_set()

    async def run(self) -> None:
        """Connect and reconnect until the gateway refuses this client."""
        attempt = 0
        while not self.ended.done():
            accepted, code = await self._attempt()
            attempt = 0 if accepted else attempt + 1
            if not self.ended.done():
                await asyncio.sleep(self._pause_s(attempt, code))

    async def run_once(self) -> None:
        """Serve one connection. After its end requests raise `ConnectionEnded` or `Unavailable`."""
        await self._attempt()
        self.end(Unavailable(self.problem))

    async def _attempt(self) -> tuple[bool, int | None]:
        code = None
        try:
            code = await self._serve()
        except InvalidStatus as error:
            self._refused(error.response.status_code)
        # ValueError: the responding server is not a gateway.
        except (OSError, TimeoutError, WebSocketException, ValueError) as error:
            self.problem = str(error) or type(error).__name__
            logger.info("%s: %s", self._url, self.problem)
        finally:
            accepted = self.ready
            self._lose()
        return accepted, code

    async def welcomed(self) -> Welcome:
        """Wait for the first `welcome`; raise `ConnectionEnded` if the gateway refused the client."""
        greeted = asyncio.create_task(self._greeted.wait())
        try:
            await asyncio.wait((greeted, self.ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            greeted.cancel()
        if self.welcome is None:
            raise self.ended.result()
        return self.welcome

    def end(self, error: BanksmanError) -> None:
        if not self.ended.done():
            self.ended.set_result(error)
        for waiting in self._waiting.values():
            if not waiting.reply.done():
                waiting.reply.set_exception(error)

    async def request(self, frame: JsonFrame, *, resend: bool = True) -> JsonFrame:
        """Send a frame with an id and return its reply.

        Raises:
            RemoteError: The reply is an error.
            WebsocketLost: The connection was lost, and `resend` is False.
            ConnectionEnded: The gateway refused the client.
        """
        if self.ended.done():
            raise self.ended.result()
        reply: asyncio.Future[JsonFrame] = asyncio.get_running_loop().create_future()
        self._waiting[frame["id"]] = _Waiting(frame, reply, resend)
        try:
            if self.ready:
                await self._send(frame)
            elif not resend:
                raise WebsocketLost("there is no connection")
            return await reply
        finally:
            self._waiting.pop(frame["id"], None)

    def post(self, frame: JsonFrame) -> None:
        if self.ready:
            task = asyncio.create_task(self._send(frame))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _serve(self) -> int | None:
        proxy = None if is_local(self._url) else True
        async with connect(
            self._url,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            open_timeout=OPEN_TIMEOUT_S,
            close_timeout=1,
            compression=None,
            max_size=None,
            proxy=proxy,
        ) as connection:
            self._connection = connection
            token = {"token": self._token} if self._token else {}
            hello = {"type": "hello", "id": new_id("h"), "client": {"name": self._name}, **token}
            with contextlib.suppress(ConnectionClosed):
                await connection.send(json.dumps(hello))
                async for text in connection:
                    await self._receive(json.loads(text))
            code, reason = connection.close_code, connection.close_reason or ""
        closed = f"{code} {reason}".strip() if code != WITHOUT_CLOSE_FRAME else "without a close frame"
        self.problem = f"the gateway closed the connection ({closed})"
        if code in LAST_CODES:
            self.end(ConnectionEnded(code, reason))
        return code

    def _refused(self, status: int) -> None:
        """Record a refused upgrade, which only an overloaded or stopping server may accept later."""
        self.problem = f"the upgrade was refused with status {status}"
        if status < SERVER_ERROR and status != TOO_MANY_REQUESTS:
            self.end(ConnectionEnded(status, self.problem))

    async def _receive(self, frame: JsonFrame) -> None:
        match frame["type"]:
            case "welcome":
                await self._welcomed(frame)
                return
            case "server.draining":
                self._drain_s = float(frame["reconnect_after_s"])
            case _:
                pass
        waiting = self._waiting.get(frame.get("reply_to") or "")
        if waiting is not None and not waiting.reply.done():
            if frame["type"] == "error":
                waiting.reply.set_exception(RemoteError(ErrorFrame.model_validate(frame)))
                return
            waiting.reply.set_result(frame)
        self._on_frame(frame)

    async def _welcomed(self, frame: JsonFrame) -> None:
        self.welcome = Welcome.model_validate(frame)
        pending = [waiting.frame for waiting in self._waiting.values()]
        self._greeted.set()
        self._on_welcome()
        for request in pending:
            await self._send(request)

    async def _send(self, frame: JsonFrame) -> None:
        if self._connection is None:
            return
        # The reader of a lost connection notices the loss and sends the frame again.
        with contextlib.suppress(ConnectionClosed):
            await self._connection.send(json.dumps(frame))

    def _lose(self) -> None:
        self._greeted.clear()
        self._connection = None
        for waiting in self._waiting.values():
            if not waiting.resend and not waiting.reply.done():
                waiting.reply.set_exception(WebsocketLost("the connection was lost"))

    def _pause_s(self, attempt: int, code: int | None) -> float:
        """Return the seconds before the next connection: the server's value, or backoff with full jitter."""
        shortest, longest = self._reconnect_s
        bound = min(longest, shortest * 2 ** min(attempt + 1, 10))
        pause_s = random.uniform(shortest, bound) if self._drain_s is None else self._drain_s
        self._drain_s = None
        return max(pause_s, RATE_LIMIT_PAUSE_S) if code == TOO_MANY else pause_s
