"""The page's files behind a scripted gateway: it shows any state at once and records what the page sends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response, WebSocket
from playwright.async_api import Page, expect
from starlette.websockets import WebSocketDisconnect

from banksman.cli.machine import free_port
from banksman.gateway.interfaces.page.routes import routes
from tests.support.browser import WAIT_TIMEOUT_MS
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

Frame = dict[str, Any]
CONVERSATION = "c1"
RUN = "c1-r1"


@dataclass
class Stage:
    """One conversation, its events so far, and the HTTP resources that the page reads."""

    port: int
    frames: list[Frame] = field(default_factory=list[Frame])
    """The durable events of the conversation."""
    received: list[Frame] = field(default_factory=list[Frame])
    """The frames that the page sent, except for pings."""
    resources: dict[str, Any] = field(default_factory=dict[str, Any])
    """JSON, or bytes, by path, with a query for this one alone; for another method, by method and path."""
    refused: dict[str, Frame] = field(default_factory=dict[str, Frame])
    """Error frames by the type of the request that gets them."""
    failures: dict[str, tuple[int, Frame]] = field(default_factory=dict[str, tuple[int, Frame]])
    """Status and error of the HTTP requests that fail, by method and path."""
    uploads: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """The bodies that the page uploaded, by path."""
    token: str | None = None
    """The token that a client must send."""
    reads_events: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared while requests for stored events have to wait."""
    frozen: bool = False
    """Whether it replies to no frame."""
    notices: tuple[str, ...] = ()
    rights: tuple[str, ...] = ("admin", "approve", "chat", "operator")
    _sockets: set[WebSocket] = field(default_factory=set[WebSocket])

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self.port}"

    def event(self, type: str, data: Frame, *, run_id: str | None = RUN) -> Frame:
        """Append a durable event to the log; return its frame."""
        number = len(self.frames) + 1
        frame = {
            "type": type,
            "seq": number,
            "prev_seq": number - 1,
            "log_epoch": "e1",
            "ts": datetime.now(UTC).isoformat(),
            "conversation_id": CONVERSATION,
            "run_id": run_id,
            "data": data,
        }
        self.frames.append(frame)
        return frame

    async def send(self, *frames: Frame) -> None:
        """Send frames to every open page."""
        for socket in tuple(self._sockets):
            for frame in frames:
                await socket.send_json(frame)

    async def serve_socket(self, socket: WebSocket) -> None:
        await socket.accept(subprotocol="banksman.v1")
        with contextlib.suppress(WebSocketDisconnect):
            async for text in socket.iter_text():
                frame = json.loads(text)
                if frame["type"] == "hello" and self.token not in (None, frame.get("token")):
                    await socket.close(4401)
                    return
                self._sockets.add(socket)
                self.received += [] if frame["type"] == "ping" else [frame]
                for reply in () if self.frozen else self._replies(frame):
                    await socket.send_json(reply)
        self._sockets.discard(socket)

    def _replies(self, frame: Frame) -> list[Frame]:
        to = {"reply_to": frame.get("id")}
        if frame["type"] in self.refused:
            return [{"type": "error", "retryable": False, **to, **self.refused[frame["type"]]}]
        match frame["type"]:
            case "hello":
                welcome: Frame = {
                    "type": "welcome",
                    "heartbeat_s": 20,
                    "notices": self.notices,
                    "rights": self.rights,
                }
                return [{**welcome, "user": "ada", "tenant": "local", "server_version": "1.0", **to}]
            case "subscribe":
                place = {"conversation_id": CONVERSATION, "log_epoch": "e1"}
                subscribed = {"type": "subscribed", "head_seq": len(self.frames), "oldest_seq": 1, **place}
                done = {"type": "replay.done", "seq": len(self.frames), **place}
                newest = self._newest(frame.get("newest_runs"))
                after = max(frame.get("after_seq") or 0, newest.get("after_seq", 0))
                return [{**subscribed, **newest, **to}, *self.frames[after:], done]
            case _:
                return [{"type": "ack", "conversation_id": CONVERSATION, "run_id": RUN, **to}]

    def _newest(self, runs: int | None) -> Frame:
        """Return `after_seq` of a subscription that begins with the newest runs."""
        starts = [frame["seq"] for frame in self.frames if frame["type"] == "run.started"]
        return {} if runs is None else {"after_seq": starts[-runs] - 1 if len(starts) > runs else 0}

    def events(self, after: int, limit: int) -> Frame:
        """Return a page of the stored events."""
        items = self.frames[after : after + limit]
        end = after + len(items)
        return {"items": items, "next": end if end < len(self.frames) else None}


def _failed(status: int, error: Frame) -> Response:
    return Response(json.dumps({"error": error}), status, media_type="application/json")


@asynccontextmanager
async def staged() -> AsyncGenerator[Stage]:
    """Serve the page with an empty conversation."""
    stage = Stage(free_port())
    stage.reads_events.set()
    app = FastAPI()

    @app.websocket("/ws")
    async def ws(socket: WebSocket) -> None:
        await stage.serve_socket(socket)

    app.include_router(routes)

    @app.get("/{path:path}")
    async def resource(request: Request, path: str) -> Response:
        if failure := stage.failures.get(f"GET {path}"):
            return _failed(*failure)
        if path == f"context/conversations/{CONVERSATION}/events":
            await stage.reads_events.wait()
            query = request.query_params
            page = stage.events(int(query["after_seq"]), int(query.get("limit", 1000)))
            return Response(json.dumps(page), media_type="application/json")
        found = stage.resources.get(f"{path}?{request.url.query}", stage.resources.get(path, {"items": []}))
        if isinstance(found, bytes):
            return Response(found, media_type="application/octet-stream")
        return Response(json.dumps(found), media_type="application/json")

    @app.api_route("/{path:path}", methods=["PUT", "PATCH", "POST", "DELETE"])
    async def store(request: Request, path: str) -> Response:
        stage.uploads[path] = await request.body()
        if failure := stage.failures.get(f"{request.method} {path}"):
            return _failed(*failure)
        created = json.dumps(stage.resources.get(f"{request.method} {path}", {}))
        return Response(created, 201, media_type="application/json")

    server = uvicorn.Server(uvicorn.Config(app, port=stage.port, log_level="error", ws="websockets-sansio"))
    task = asyncio.create_task(server.serve())
    try:
        await eventually(lambda: server.started or None, WAIT_TIMEOUT_S)
        yield stage
    finally:
        stage.reads_events.set()
        server.should_exit = True
        await task


async def open_conversation(page: Page, stage: Stage) -> None:
    """Show the conversation as the log has it now."""
    await page.goto(f"{stage.url}/#/c/{CONVERSATION}")
    await page.reload()
    await expect(page.locator(".run").first).to_be_visible(timeout=WAIT_TIMEOUT_MS)
