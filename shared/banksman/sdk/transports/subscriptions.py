"""Follow conversations over one websocket: each stored event once and in order, across reconnects.

The server sends a conversation once per websocket. The followers of a conversation share this subscription,
which begins at the earliest position and has the highest level of detail that one of them needs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any

from banksman.contracts.errors import BanksmanError
from banksman.contracts.event_frames import is_shown
from banksman.contracts.frames import DETAILS, Detail
from banksman.contracts.ids import new_id
from banksman.sdk.events import EventFrame, LiveFrame, LogRestored
from banksman.sdk.transports.websocket import JsonFrame, Websocket, WebsocketLost

BUFFERED_FRAMES = 1_000
"""Maximum frames that wait for a slow reader, which receives later events from the log."""
RETRY_S = 1.0


class Follower:
    def __init__(self, after_seq: int, detail: Detail, live: bool, catch_up: Callable[[], None]) -> None:
        self.seq = after_seq
        """Number of the last event that was buffered or is below its level of detail."""
        self.detail: Detail = detail
        self.live = live
        self._catch_up = catch_up
        self._buffer: deque[EventFrame | LiveFrame] = deque()
        self._behind = False
        self._failure: BanksmanError | None = None
        self._changed = asyncio.Event()

    @property
    def subscribed_detail(self) -> Detail:
        """The level of detail of its subscription; `full` only if it reads live output."""
        return "steps" if self.detail == "full" and not self.live else self.detail

    def take_event(self, frame: JsonFrame) -> None:
        if self._behind or frame["seq"] <= self.seq:
            return
        shown = is_shown(frame["type"], self.detail)
        if shown and len(self._buffer) >= BUFFERED_FRAMES:
            self._behind = True
            return
        self.seq = frame["seq"]
        if shown:
            self._put(EventFrame.model_validate(frame))

    def take_live(self, frame: JsonFrame) -> None:
        if self.live and is_shown(frame["type"], self.detail) and len(self._buffer) < BUFFERED_FRAMES:
            self._put(LiveFrame.model_validate(frame))

    def fail(self, error: BanksmanError) -> None:
        """Raise an error after the buffered frames."""
        self._failure = error
        self._changed.set()

    async def next(self) -> EventFrame | LiveFrame:
        while not self._buffer:
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()
        frame = self._buffer.popleft()
        if self._behind and not self._buffer:
            self._behind = False
            self._catch_up()
        return frame

    def _put(self, frame: EventFrame | LiveFrame) -> None:
        self._buffer.append(frame)
        self._changed.set()


class SharedSubscription:
    def __init__(self, websocket: Websocket, conversation_id: str) -> None:
        self.followers: set[Follower] = set()
        self._websocket = websocket
        self._conversation_id = conversation_id
        self._log_epoch: str | None = None
        self._last_seq = 0
        self._after_seq = 0
        self._requested: str | None = None
        """Id of the request that awaits `subscribed`; until then, frames belong to an earlier request."""
        self._task: asyncio.Task[None] | None = None

    def subscribe(self) -> None:
        """Subscribe from the earliest event that a follower needs, if there is a connection."""
        if self._websocket.ready and self.followers:
            self.close()
            self._requested = new_id("f")
            self._after_seq = min(follower.seq for follower in self.followers)
            self._task = asyncio.create_task(self._request(self._requested), name=self._conversation_id)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def receive(self, frame: JsonFrame) -> None:
        match frame["type"]:
            case "resync_required":
                self.fail(LogRestored(self._conversation_id))
            case "subscribed":
                self._subscribed(frame)
            case _ if self._requested is None and "data" in frame:
                self._deliver(frame)
            case _:
                return

    def fail(self, error: BanksmanError) -> None:
        """End all followers with an error. Later followers begin without a known log epoch."""
        for follower in self.followers:
            follower.fail(error)
        self.followers.clear()
        self._log_epoch = None

    async def _request(self, request_id: str) -> None:
        frame: dict[str, Any] = {
            "type": "subscribe",
            "id": request_id,
            "conversation_id": self._conversation_id,
            "after_seq": self._after_seq,
            "detail": max((one.subscribed_detail for one in self.followers), key=DETAILS.index),
        }
        if self._log_epoch is not None:
            frame["log_epoch"] = self._log_epoch
        try:
            await self._websocket.request(frame, resend=False)
        except WebsocketLost:
            return
        except BanksmanError as error:
            if not error.retryable:
                self.fail(error)
                return
            await asyncio.sleep(error.retry_after_s or RETRY_S)
            self._task = None
            self.subscribe()

    def _subscribed(self, frame: JsonFrame) -> None:
        if frame.get("reply_to") != self._requested:
            return
        self._requested = None
        # An empty log has no epoch yet; its first event has one.
        log_epoch = frame["log_epoch"] or None
        if self._log_epoch not in (None, log_epoch):
            self.fail(LogRestored(self._conversation_id))
            return
        self._log_epoch, self._last_seq = log_epoch, self._after_seq

    def _deliver(self, frame: JsonFrame) -> None:
        if "seq" not in frame:
            for follower in self.followers:
                follower.take_live(frame)
        elif frame["seq"] <= self._last_seq:
            return
        elif self._log_epoch not in (None, frame["log_epoch"]):
            self.fail(LogRestored(self._conversation_id))
        elif frame["prev_seq"] != self._last_seq:
            self.subscribe()
        else:
            self._last_seq, self._log_epoch = frame["seq"], frame["log_epoch"]
            for follower in self.followers:
                follower.take_event(frame)


class SharedSubscriptions:
    def __init__(self, websocket: Websocket) -> None:
        self._websocket = websocket
        self._open: dict[str, SharedSubscription] = {}

    async def follow(
        self, conversation_id: str, after_seq: int, detail: Detail, live: bool
    ) -> AsyncGenerator[EventFrame | LiveFrame]:
        if self._websocket.ended.done():
            raise self._websocket.ended.result()
        subscription = self._open.setdefault(
            conversation_id, SharedSubscription(self._websocket, conversation_id)
        )
        follower = Follower(after_seq, detail, live, subscription.subscribe)
        subscription.followers.add(follower)
        subscription.subscribe()
        try:
            while True:
                yield await follower.next()
        finally:
            subscription.followers.discard(follower)
            self.release(conversation_id)

    def resume(self) -> None:
        for subscription in self._open.values():
            subscription.subscribe()

    def receive(self, frame: JsonFrame) -> None:
        subscription = self._open.get(frame.get("conversation_id") or "")
        if subscription is not None:
            subscription.receive(frame)

    def fail(self, error: BanksmanError) -> None:
        for subscription in self._open.values():
            subscription.close()
            subscription.fail(error)

    def release(self, conversation_id: str) -> None:
        """End the subscription to a conversation without followers. Their number per websocket is limited."""
        subscription = self._open.get(conversation_id)
        if subscription is not None:
            if subscription.followers:
                return
            subscription.close()
            del self._open[conversation_id]
        self._websocket.post({"type": "unsubscribe", "id": new_id("f"), "conversation_id": conversation_id})
