"""A gateway for one client: it acknowledges requests and sends the events that a test chooses."""

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from tests.support.polling import wait_until

CONVERSATION = "c-1"
RUN = "c-1-r-1"
Frame = dict[str, Any]
ACK: Frame = {"type": "ack", "conversation_id": CONVERSATION, "run_id": RUN}
WELCOME: Frame = {
    "type": "welcome",
    "server_version": "1",
    "connection_id": "n-1",
    "tenant": "local",
    "user": "local",
    "limits": {"frame_bytes": 1_000_000, "inflight": 32, "rate": 100},
}


class FakeGateway:
    """Starts a run for each message, and records the client's frames."""

    def __init__(self, on_message: Callable[["FakeGateway"], None]) -> None:
        self.frames: list[Frame] = []
        """The client's frames in order of arrival."""
        self.replies: dict[str, list[Frame]] = {}
        """Replies to the next frames of a type, in place of an `ack`."""
        self.approvals: list[Frame] = []
        """The open approval requests that it lists."""
        self.fields: Frame = {}
        """Further fields of each response over HTTP."""
        self.url = ""
        self._on_message = on_message
        self._client: ServerConnection | None = None
        self._seq = 0

    def event(self, type: str, **data: Any) -> None:
        """Send an event of the run."""
        self._seq += 1
        position = {"seq": self._seq, "prev_seq": self._seq - 1}
        self._send({"type": type, "conversation_id": CONVERSATION, "run_id": RUN, "data": data, **position})

    def restore(self) -> None:
        """Number the events from 1 again, as after the restore of an older log."""
        self._seq = 0

    def drop(self) -> None:
        """Close the connection of the client."""
        assert self._client is not None
        self._client.close()

    def received(self, type: str, number: int = 1) -> Frame:
        """Wait for the client's frame of this type and number, counted from 1, and return it."""
        return wait_until(
            lambda: next(iter([one for one in [*self.frames] if one["type"] == type][number - 1 :]), None),
            failure=lambda: f"no {type} {number} among {self.frames}",
        )

    def serve(self, client: ServerConnection) -> None:
        """Acknowledge the client's frames until it leaves."""
        self._client = client
        for text in client:
            frame = json.loads(text)
            self.frames.append(frame)
            reply = self.replies.get(frame["type"]) or []
            default = WELCOME if frame["type"] == "hello" else ACK
            self._send({"reply_to": frame["id"], **(reply.pop(0) if reply else default)})
            if frame["type"] == "chat.send":
                self._on_message(self)

    def respond(self, connection: ServerConnection, request: Request) -> Response | None:
        """Return the list of approval requests over HTTP; None for the websocket."""
        if "upgrade" in request.headers:
            return None
        response = connection.respond(200, json.dumps({"items": self.approvals, "next": None, **self.fields}))
        response.headers["content-type"] = "application/json"
        return response

    def _send(self, frame: Frame) -> None:
        assert self._client is not None
        self._client.send(json.dumps(frame))


@contextmanager
def fake_gateway(on_message: Callable[[FakeGateway], None]) -> Generator[FakeGateway]:
    """Serve a gateway on a free port of this machine.

    Args:
        on_message: Called after a message was acknowledged; it sends the first events of the run.
    """
    gateway = FakeGateway(on_message)
    with serve(gateway.serve, "127.0.0.1", 0, process_request=gateway.respond) as server:
        gateway.url = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield gateway
        finally:
            server.shutdown()
            thread.join()
