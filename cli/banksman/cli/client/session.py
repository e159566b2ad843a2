"""The gateway's websocket API, read frame by frame."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, cast

from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from banksman.cli.client.address import Address
from banksman.cli.client.errors import GatewayRefused, unreachable
from banksman.contracts.errors import BanksmanError, ErrorCode, Unavailable
from banksman.contracts.frames import SUBPROTOCOL, Detail
from banksman.contracts.ids import new_id

Frame = dict[str, Any]
"""A frame as on the wire."""

_OPEN_TIMEOUT_S = 10.0
_UNAUTHENTICATED = 4401
"""Close code of a connection whose key is missing, wrong or expired."""
_REPLY_TIMEOUT_S = 30.0


class Session:
    """One websocket connection."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._earlier: deque[Frame] = deque()
        """Frames received while waiting for a reply."""

    @classmethod
    @contextmanager
    def to(cls, address: Address) -> Generator[Session]:
        """Connect and send `hello`; the connection closes with the context.

        Raises:
            Unavailable: the gateway does not respond.
            GatewayRefused: the gateway refuses this client.
        """
        try:
            connection = connect(
                address.websocket_url,
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                additional_headers=address.headers,
                open_timeout=_OPEN_TIMEOUT_S,
                compression=None,
                max_size=None,
                proxy=None if address.local else True,
            )
        except InvalidStatus as error:
            code = error.response.status_code
            raise GatewayRefused(f"the gateway refused the websocket with status {code}", None) from error
        except (OSError, WebSocketException) as error:
            raise unreachable(address.url, error) from error
        with connection:
            session = cls(connection)
            session.request("hello", client={"name": "banksman-cli"})
            yield session

    def request(self, type: str, **fields: Any) -> Frame:
        """Send a frame and return its reply; fields that are None are omitted.

        Raises:
            GatewayRefused: the reply is an error, or the key is missing, wrong or expired.
            Unavailable: the connection closed, or the reply timed out.
        """
        id = new_id("f")
        self._send({"type": type, "id": id, **{k: v for k, v in fields.items() if v is not None}})
        while True:
            frame = self._receive(_REPLY_TIMEOUT_S)
            if frame.get("reply_to") != id:
                self._earlier.append(frame)
            elif frame["type"] == "error":
                raise GatewayRefused(str(frame["message"]), frame.get("code"))
            else:
                return frame

    def frames(self) -> Iterator[Frame]:
        """Yield each frame that is not a reply, without end.

        Raises:
            Unavailable: the connection closed.
        """
        while True:
            yield self._earlier.popleft() if self._earlier else self._receive(None)

    def create(
        self,
        *,
        title: str | None = None,
        model: str | None = None,
        assistant: str | None = None,
        detail: Detail = "steps",
    ) -> str:
        """Create a conversation, subscribe to it and return its id."""
        reply = self.request(
            "conversation.create", title=title, model=model, assistant=assistant, detail=detail
        )
        return str(reply["conversation_id"])

    def subscribe(
        self,
        conversation_id: str,
        *,
        after_seq: int | None = None,
        log_epoch: str | None = None,
        detail: Detail = "steps",
    ) -> Frame:
        """Subscribe to a conversation and return its head."""
        return self.request(
            "subscribe",
            conversation_id=conversation_id,
            after_seq=after_seq,
            log_epoch=log_epoch,
            detail=detail,
        )

    def _send(self, frame: Frame) -> None:
        try:
            self._connection.send(json.dumps(frame))
        except ConnectionClosed as error:
            raise _lost(error) from error

    def _receive(self, timeout_s: float | None) -> Frame:
        try:
            return cast(Frame, json.loads(self._connection.recv(timeout_s)))
        except TimeoutError as error:
            raise Unavailable(f"the gateway did not reply within {timeout_s:g} s") from error
        except ConnectionClosed as error:
            raise _lost(error) from error


def _lost(error: ConnectionClosed) -> BanksmanError:
    close = error.rcvd
    if close and close.code == _UNAUTHENTICATED:
        return GatewayRefused(close.reason, ErrorCode.UNAUTHORIZED)
    reason = f"{close.code} {close.reason}".strip() if close else "without a close frame"
    return Unavailable(f"the gateway closed the connection ({reason})")
