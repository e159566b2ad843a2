"""The gateway that client commands use, through the SDK.

The SDK runs in an event loop of another thread: commands wait for a user's input, and the websocket must
respond meanwhile.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from anyio.from_thread import BlockingPortal, start_blocking_portal

from banksman.bus.errors import RemoteError
from banksman.cli.state import DataDir
from banksman.contracts.errors import BadInput, BanksmanError, ErrorCode, Fault, Unauthorized, Unavailable
from banksman.contracts.frames import Detail
from banksman.contracts.ids import new_id
from banksman.sdk.transports.http import ROUTES, HttpApi, HttpFiles, websocket_url
from banksman.sdk.transports.websocket import UNAUTHENTICATED, ConnectionEnded, Websocket

URL_VARIABLE = "BANKSMAN_GATEWAY_URL"
TOKEN_VARIABLE = "BANKSMAN_TOKEN"
DEFAULT_URL = "http://127.0.0.1:8080"

Frame = dict[str, Any]
T = TypeVar("T")

_OPEN_TIMEOUT_S = 10.0
_REPLY_TIMEOUT_S = 30.0
_LOWEST_CLOSE_CODE = 1000
"""Lower codes are statuses of a refused upgrade."""


def find_url(given: str | None = None) -> str:
    """Return the URL of the option, the environment, the running system or the default, in this order."""
    found = given or os.environ.get(URL_VARIABLE) or _running() or DEFAULT_URL
    if urlsplit(found).scheme not in ("http", "https"):
        raise BadInput("--url" if given else URL_VARIABLE, found, "http://HOST:PORT")
    return found.rstrip("/")


def _running() -> str | None:
    instance = DataDir(Path(os.environ.get("BANKSMAN_DATA_DIR", ".banksman")).resolve()).running()
    return instance.url if instance else None


class GatewayClient:
    """One gateway. Requests are sent once, and all raise `RemoteError`, `Unauthorized` and `Unavailable`."""

    def __init__(self, url: str, portal: BlockingPortal, http: HttpApi) -> None:
        self.url = url
        self._portal = portal
        self._http = http

    @classmethod
    @contextmanager
    def connected(cls, url: str) -> Generator[GatewayClient]:
        with start_blocking_portal() as portal:
            http = portal.call(lambda: HttpApi(url, _token(), retries=False))
            try:
                yield cls(url, portal, http)
            finally:
                portal.call(http.client.aclose)

    def call(self, operation: str, *names: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON of an operation such as `schedule.read` on the object that `names` identifies."""
        fields = None if body is None else dict(body)
        return json.loads(self._requested(self._http.call, operation, names, fields, None))

    def send_file(self, operation: str, data: bytes, **query: Any) -> Any:
        """Return the JSON of an operation whose body is a file."""
        send = partial(self._http.request, *ROUTES[operation], content=data, params=query)
        return self._requested(send).json()

    def read_file(self, conversation_id: str, path: str) -> bytes:
        return self._requested(HttpFiles(self._http).read, conversation_id, path)

    def write_file(self, conversation_id: str, path: str, data: bytes) -> None:
        self._requested(HttpFiles(self._http).write, conversation_id, path, data)

    def _requested(self, request: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        try:
            return self._portal.call(request, *arguments)
        except RemoteError as error:
            raise _with_remedy(error) from error
        except Unavailable as error:
            raise _unreachable(self.url, str(error)) from error

    def items(self, operation: str, *names: str) -> list[Any]:
        """Call an operation that lists items; raise `Fault` if the server is no gateway of this version."""
        body = self.call(operation, *names)
        found = cast(Mapping[str, Any], body).get("items") if isinstance(body, dict) else None
        if not isinstance(found, list):
            raise Fault("the gateway's response has no list 'items'")
        return cast(list[Any], found)

    @contextmanager
    def session(self) -> Generator[FrameSession]:
        session = self._portal.call(FrameSession, self.url, self._portal)
        running = self._portal.start_task_soon(session.websocket.run_once)
        try:
            session.wait(session.websocket.welcomed, _OPEN_TIMEOUT_S)
            yield session
        finally:
            running.cancel()


class FrameSession:
    def __init__(self, url: str, portal: BlockingPortal) -> None:
        self._url = url
        self._portal = portal
        self._frames: SimpleQueue[Frame | None] = SimpleQueue()
        """Frames that are not replies; None at the end of the connection."""
        self.websocket = Websocket(
            websocket_url(url),
            _token(),
            "banksman-cli",
            (0, 0),
            on_welcome=lambda: None,
            on_frame=self._received,
        )
        self.websocket.ended.add_done_callback(lambda _: self._frames.put(None))

    def request(self, type: str, **fields: Any) -> Frame:
        """Send a frame and return its reply; fields that are None are omitted."""
        frame = {"type": type, "id": new_id("f"), **{k: v for k, v in fields.items() if v is not None}}
        return dict(self.wait(lambda: self.websocket.request(frame), _REPLY_TIMEOUT_S))

    def frames(self) -> Iterator[Frame]:
        """Yield each frame that is not a reply; raise `Unavailable` when the connection closes."""
        while (frame := self._frames.get()) is not None:
            yield frame
        raise self._explained(self.websocket.ended.result())

    def create(self, **fields: Any) -> str:
        return str(self.request("conversation.create", detail="steps", **fields)["conversation_id"])

    def subscribe(self, conversation_id: str, *, detail: Detail = "steps", **fields: Any) -> Frame:
        return self.request("subscribe", conversation_id=conversation_id, detail=detail, **fields)

    def wait(self, call: Callable[[], Any], timeout_s: float) -> Any:
        """Return what the coroutine function `call` returns; raise `Unavailable` after `timeout_s`."""
        try:
            return self._portal.start_task_soon(call).result(timeout_s)
        except TimeoutError as error:
            raise Unavailable(f"the gateway did not reply within {timeout_s:g} s") from error
        except RemoteError as error:
            raise _with_remedy(error) from error
        except (ConnectionEnded, Unavailable) as error:
            raise self._explained(error) from error

    def _received(self, frame: Mapping[str, Any]) -> None:
        if not frame.get("reply_to"):
            self._frames.put(dict(frame))

    def _explained(self, error: BanksmanError) -> BanksmanError:
        if isinstance(error, ConnectionEnded):
            if error.close_code == UNAUTHENTICATED:
                return _key_needed(error.reason)
            if error.close_code < _LOWEST_CLOSE_CODE:
                return error
        if self.websocket.welcome is None:
            return _unreachable(self._url, self.websocket.problem)
        return Unavailable(self.websocket.problem)


def _token() -> str | None:
    return os.environ.get(TOKEN_VARIABLE) or None


def _with_remedy(error: RemoteError) -> BanksmanError:
    return _key_needed(str(error)) if error.code is ErrorCode.UNAUTHORIZED else error


def _key_needed(reason: str) -> Unauthorized:
    return Unauthorized(f"{reason}; set {TOKEN_VARIABLE} to your key")


def _unreachable(url: str, reason: str) -> Unavailable:
    return Unavailable(f"no gateway responds at {url} ({reason}); `banksman up` starts one")
