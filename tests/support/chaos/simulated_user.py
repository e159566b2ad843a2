"""A client that survives all faults: it reconnects, resumes, and repeats its requests with the same ids."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from banksman.contracts.ids import digest, new_id
from banksman.contracts.wire import JsonObject
from tests.support.chaos import newer
from tests.support.history.records import Recording, Seen
from tests.support.polling import scripted_delay

Frame = dict[str, Any]
OnPhase = Callable[[str, Frame], None]

REPLY_S = 15.0
"""Seconds that a client waits for a reply; then it repeats the request through another gateway."""
CONNECT_S = 10.0
GIVE_UP_S = 300.0
"""Seconds after which a request without a reply fails the recording."""
PAUSE_S = (0.1, 0.6)


class RequestFailed(Exception):
    """The system refused a request permanently."""

    def __init__(self, error: Frame) -> None:
        self.code = str(error.get("code"))
        super().__init__(f"{self.code}: {error.get('message')}")


@dataclass
class Subscription:
    """The position of a user in a conversation."""

    number: int = 0
    after_seq: int = 0
    last: int = 0
    log_epoch: str | None = None


@dataclass
class SimulatedUser:
    """A user with one websocket at a time, to any gateway, that records every durable event it receives."""

    name: str
    urls: list[str]
    recording: Recording
    chance: random.Random
    on_event: Callable[[Frame], None]
    headers: dict[str, str] = field(default_factory=dict[str, str])
    """The headers that identify the user to the gateway."""
    give_up_s: float = GIVE_UP_S
    subscriptions: dict[str, Subscription] = field(default_factory=dict[str, Subscription])
    _socket: ClientConnection | None = None
    _waiting: dict[str, asyncio.Future[Frame | None]] = field(
        default_factory=dict[str, "asyncio.Future[Frame | None]"]
    )
    """The reply of each request; None if its connection was lost first."""
    _connected: asyncio.Event = field(default_factory=asyncio.Event)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def live(self) -> None:
        """Connect, and reconnect after each loss, until cancelled."""
        while True:
            url = self.chance.choice(self.urls).replace("http", "ws", 1) + "/ws"
            with contextlib.suppress(OSError, WebSocketException, TimeoutError):
                async with (
                    asyncio.timeout(CONNECT_S) as opening,
                    connect(
                        url,
                        additional_headers=self.headers,
                        max_size=None,
                        compression=None,
                        ping_interval=5,
                        ping_timeout=10,
                    ) as socket,
                ):
                    await self._hello(socket)
                    opening.reschedule(None)
                    await self._read(socket)
            self._disconnected()
            await scripted_delay(self.chance.uniform(*PAUSE_S))

    async def request(
        self,
        frame: Frame,
        *,
        on_phase: OnPhase | None = None,
        repeats: bool = True,
    ) -> Frame:
        """Repeat a request with the same id until a reply arrives; return the `ack`.

        Args:
            frame: The request without its id.
            on_phase: Called with the phase (`invoke`, `ok`, `fail` or `info`) and the frame.
            repeats: Whether to repeat the request after a time-out.

        Raises:
            RequestFailed: The system refused the request.
            TimeoutError: No reply arrived within `give_up_s`.
        """
        notify = on_phase or _ignore
        request = {**frame, "id": frame.get("id") or new_id("q")}
        async with asyncio.timeout(self.give_up_s):
            while True:
                reply = await self._attempt(request, notify)
                if reply is not None and reply["type"] != "error":
                    notify("ok", reply)
                    return reply
                if reply is not None and not reply.get("retryable"):
                    notify("fail", reply)
                    raise RequestFailed(reply)
                notify("info", reply or {})
                if reply is None and not repeats:
                    raise TimeoutError
                wait = (reply or {}).get("retry_after_s") or self.chance.uniform(*PAUSE_S)
                await scripted_delay(min(float(wait), 2.0))

    async def follow(self, conversation_id: str) -> None:
        """Subscribe to a conversation from its first event."""
        self.subscriptions[conversation_id] = Subscription()
        await self._subscribe(conversation_id)

    async def leave(self, conversation_id: str) -> None:
        """Unsubscribe from it."""
        if self.subscriptions.pop(conversation_id, None) is not None:
            with contextlib.suppress(RequestFailed, TimeoutError):
                await self.request({"type": "unsubscribe", "conversation_id": conversation_id}, repeats=False)

    async def _attempt(self, frame: Frame, notify: OnPhase) -> Frame | None:
        await self._connected.wait()
        socket = self._socket
        if socket is None:
            return None
        # Two connections may carry the same request id at once, but one connection must not.
        reply = self._waiting[frame["id"]] = asyncio.get_running_loop().create_future()
        notify("invoke", frame)
        try:
            await socket.send(json.dumps(frame))
            async with asyncio.timeout(REPLY_S):
                return await reply
        except (OSError, WebSocketException, TimeoutError):
            return None
        finally:
            self._waiting.pop(frame["id"], None)

    async def _hello(self, socket: ClientConnection) -> None:
        await socket.send(json.dumps({"type": "hello"}))
        while json.loads(await socket.recv())["type"] != "welcome":
            pass

    async def _read(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._connected.set()
        resuming = asyncio.create_task(self._resume())
        try:
            async for data in socket:
                self._receive(json.loads(data))
        finally:
            resuming.cancel()

    def _disconnected(self) -> None:
        self._connected.clear()
        self._socket = None
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(None)

    async def _resume(self) -> None:
        for conversation_id in tuple(self.subscriptions):
            await self._subscribe(conversation_id)

    async def _subscribe(self, conversation_id: str) -> None:
        position = self.subscriptions.get(conversation_id)
        if position is None:
            return
        position.number = next(self._numbers)
        position.after_seq = position.last
        frame: Frame = {"type": "subscribe", "conversation_id": conversation_id, "detail": "full"}
        frame["after_seq"] = position.after_seq
        if position.log_epoch is not None:
            frame["log_epoch"] = position.log_epoch
        socket = self._socket
        try:
            await self.request(frame, repeats=False)
        except TimeoutError:
            # The next connection subscribes again.
            if socket is not None:
                await socket.close()

    def _receive(self, frame: Frame) -> None:
        if (waiting := self._waiting.get(str(frame.get("reply_to")))) is not None and not waiting.done():
            waiting.set_result(frame)
        if "seq" not in frame or "prev_seq" not in frame:
            return
        position = self.subscriptions.get(frame["conversation_id"])
        if position is None:
            return
        self.recording.add(seen(self.name, position, frame))
        if frame["seq"] > position.last:
            position.last, position.log_epoch = frame["seq"], frame["log_epoch"]
            self.on_event(frame)


def _ignore(_phase: str, _frame: Frame) -> None:
    return


def seen(reader: str, subscription: Subscription, frame: Frame) -> Seen:
    """Return the line for an event that a reader received."""
    content = {name: _known(frame.get(name)) for name in ("seq", "type", "run_id", "ts", "data", "iteration")}
    return Seen(
        reader=reader,
        subscription=subscription.number,
        after_seq=subscription.after_seq,
        conversation_id=frame["conversation_id"],
        log_epoch=frame["log_epoch"],
        seq=frame["seq"],
        type=frame["type"],
        run_id=frame.get("run_id"),
        ts=_seconds(frame["ts"]),
        digest=digest(json.dumps(content, sort_keys=True).encode())[:16],
        data=_facts(frame["type"], frame["data"]),
    )


def _known(value: Any) -> Any:
    """Return the value without the parts that only gateways of a future version send."""
    match value:
        case dict():
            fields = cast(dict[str, Any], value)
            return {name: _known(one) for name, one in fields.items() if name != newer.FIELD}
        case list():
            return [_known(one) for one in cast(list[Any], value)]
        case _:
            return value


def _facts(type: str, data: JsonObject) -> JsonObject:
    """Return the fields of an event that the checks use."""
    match type:
        case "run.finished":
            return {"status": data["status"], "error": data.get("error")}
        case "run.started" | "run.queued":
            return {"message_id": data["message_id"]}
        case "message.completed":
            return {name: data[name] for name in ("message_id", "role")}
        case "workflow.progress":
            return {name: data[name] for name in ("step", "total")}
        case "workflow.linked":
            return {"workflow_run_id": data["workflow_run_id"]}
        case "tool_call.requested":
            return {name: data[name] for name in ("tool_call_id", "name", "arguments")}
        case "tool_call.completed":
            started = data.get("started_at")
            moment = _seconds(started) if isinstance(started, str) else None
            kept: JsonObject = {name: data.get(name) for name in ("tool_call_id", "error_kind", "exit_code")}
            return {**kept, "started_at": moment, "error": _error(data)}
        case "approval.requested":
            items = cast(list[JsonObject], data["items"])
            kept_items: list[Any] = [{"tool_call_id": item["tool_call_id"]} for item in items]
            return {"approval_id": data["approval_id"], "items": kept_items}
        case "approval.resolved":
            return {name: data.get(name) for name in ("approval_id", "outcome", "decisions", "remember")}
        case _:
            return {}


def _error(data: JsonObject) -> str | None:
    """Return the reason in the result of a failed call."""
    content = data.get("content")
    text = content.get("error") if isinstance(content, dict) else content
    return str(text)[:200] if data.get("error_kind") else None


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
