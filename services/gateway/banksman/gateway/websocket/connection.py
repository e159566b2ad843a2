"""One websocket: frames in, answers and events out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, assert_never

from pydantic import BaseModel
from starlette.websockets import WebSocket, WebSocketDisconnect

from banksman.contracts.errors import BadInput, BanksmanError, ErrorCode, Unauthorized
from banksman.contracts.frames import (
    Ack,
    ApprovalDecision,
    AuthRefresh,
    ChatSend,
    ClientFrame,
    ConnectionLimits,
    ConversationCreate,
    ErrorFrame,
    Hello,
    InputReply,
    NotResumed,
    Ping,
    Pong,
    Resume,
    ResyncRequired,
    RunCancel,
    Subscribe,
    Unsubscribe,
    Welcome,
    WorkflowStart,
    error_frame,
)
from banksman.contracts.ids import new_id
from banksman.gateway.service.auth import Caller, Keys
from banksman.gateway.service.client_requests import Service
from banksman.gateway.service.feeds import Fanout, Feed, OutOfReach
from banksman.gateway.service.outbox import Outbox
from banksman.gateway.service.rate_limit import Bucket
from banksman.gateway.websocket.frames import FrameRefused, id_in, parse_frame

logger = logging.getLogger(__name__)

FRAME_BYTES = 256 * 1024
INFLIGHT = 64
WARNINGS = 100
"""Refused frames that a client may cause at once before it is cut off; one a second is forgiven."""
CLOSE_S = 2.0
MAX_SUBSCRIPTIONS = 200

BINARY, UNAUTHENTICATED, HELLO_TIMEOUT, SECOND_HELLO = 4400, 4401, 4408, 4409
UNSUPPORTED_PROTOCOL, RATE_LIMITED, SLOW_CONSUMER, RESTART = 4426, 4429, 4508, 1012
EXPIRED = "the token has expired"


@dataclass(frozen=True, slots=True)
class Terms:
    """What all websockets of a process share."""

    service: Service
    fanout: Fanout
    keys: Keys
    version: str
    notices: tuple[str, ...]
    frames_per_s: int
    hello_s: float
    """Seconds until a client must have said hello."""


class Connection:
    """One client. Its requests are answered in their order, but for decisions, which may have to wait."""

    def __init__(self, terms: Terms, websocket: WebSocket, caller: Caller | None) -> None:
        self.id = new_id("ws")
        self._terms = terms
        self._websocket = websocket
        self._known = caller
        """Who showed a token at the upgrade."""
        self._caller: Caller | None = None
        """Who is served, once `hello` is answered."""
        self._expiry: asyncio.TimerHandle | None = None
        """Ends the connection with the caller's key."""
        self._outbox = Outbox()
        self._feeds: dict[str, Feed] = {}
        self._requests: asyncio.Queue[ClientFrame] = asyncio.Queue(INFLIGHT)
        rate = terms.frames_per_s
        self._rate = Bucket(rate, rate * 2)
        self._warnings = Bucket(1, WARNINGS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Future[tuple[int, str] | None] = asyncio.get_running_loop().create_future()
        self._group: asyncio.TaskGroup

    async def run(self) -> None:
        """Serve until the client or the server ends it."""
        ending: tuple[int, str] | None = None
        try:
            async with asyncio.TaskGroup() as self._group:
                for work in (self._read(), self._write(), self._answer_for_ever(), self._watch()):
                    self._spawn(work)
                ending = await self._ending
                for task in tuple(self._tasks):
                    task.cancel()
        except* Exception:
            logger.exception("a websocket failed")
            ending = 1011, "internal error"
        finally:
            if self._expiry is not None:
                self._expiry.cancel()
            for feed in self._feeds.values():
                await feed.close()
            if ending is not None:
                await self._close(*ending)

    def send(self, frame: BaseModel) -> None:
        """Queue a control frame."""
        self._outbox.put(frame.model_dump_json(exclude_none=True))

    def end(self, code: int, reason: str) -> None:
        """Close with a code, after what is queued."""
        if not self._ending.done():
            self._ending.set_result((code, reason))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close(self, code: int, reason: str) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                while code != SLOW_CONSUMER and not self._outbox.empty:
                    await self._websocket.send_text(await self._outbox.next())
        except (TimeoutError, WebSocketDisconnect, OSError):
            pass
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._websocket.close(code, reason)
        except (TimeoutError, RuntimeError, OSError):
            return

    async def _write(self) -> None:
        while True:
            frame = await self._outbox.next()
            try:
                await self._websocket.send_text(frame)
            except (WebSocketDisconnect, OSError):
                self._lost()
                return

    def _lost(self) -> None:
        if not self._ending.done():
            self._ending.set_result(None)

    async def _watch(self) -> None:
        """End a connection that does not greet, or does not read."""
        try:
            async with asyncio.timeout(self._terms.hello_s):
                await self._outbox.overflowed.wait()
        except TimeoutError:
            if self._caller is None:
                self.end(HELLO_TIMEOUT, f"no hello within {self._terms.hello_s:g} s")
                return
            await self._outbox.overflowed.wait()
        self.end(SLOW_CONSUMER, "too much waits to be read; resume")

    async def _read(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                self._lost()
                return
            text = message.get("text")
            if text is None:
                self.end(BINARY, "frames are JSON text")
                return
            self._receive(text)

    def _receive(self, text: str) -> None:
        if self._caller is not None and self._caller.expired:
            self.end(UNAUTHENTICATED, EXPIRED)
            return
        if not self._rate.take():
            self._refuse_rate(text)
            return
        try:
            frame = parse_frame(text)
        except FrameRefused as refused:
            self.send(refused.frame)
            return
        self._take(frame)

    def _refuse_rate(self, text: str) -> None:
        if not self._warnings.take():
            self.end(RATE_LIMITED, "too many frames")
            return
        wait_s = round(self._rate.wait_s, 3)
        message = f"more than {self._terms.frames_per_s} frames a second"
        self.send(
            ErrorFrame(
                reply_to=id_in(text),
                code=ErrorCode.RATE_LIMITED,
                message=message,
                retryable=True,
                retry_after_s=wait_s,
            )
        )

    def _take(self, frame: ClientFrame) -> None:
        match frame:
            case Ping():
                now = datetime.now(UTC).isoformat()
                self.send(Pong(reply_to=frame.id, t=frame.t, ts=now))
            case Hello() if self._caller is not None:
                self.end(SECOND_HELLO, "hello was said before")
            case Hello():
                self._greet(frame)
            case _ if self._caller is None:
                error = BadInput("type", frame.type, "hello as the first frame")
                self.send(error_frame(error, frame.id))
            case _ if self._requests.full():
                message = f"more than {INFLIGHT} frames wait for their answer"
                busy = ErrorFrame(
                    reply_to=frame.id, code=ErrorCode.BUSY, message=message, retryable=True, retry_after_s=1.0
                )
                self.send(busy)
            case _:
                self._requests.put_nowait(frame)

    def _greet(self, hello: Hello) -> None:
        try:
            caller = self._known if self._known and not hello.token else self._terms.keys.caller(hello.token)
            caller.check("context")
        except BanksmanError as error:
            self.end(UNAUTHENTICATED if isinstance(error, Unauthorized) else 4403, str(error))
            return
        self._serve(caller)
        self._requests.put_nowait(hello)

    def _serve(self, caller: Caller) -> None:
        """Serve a caller for as long as their key is good."""
        self._caller = caller
        if self._expiry is not None:
            self._expiry.cancel()
        if (left_s := caller.left_s) is not None:
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(left_s, self.end, UNAUTHENTICATED, EXPIRED)

    async def _welcome(self, caller: Caller, hello: Hello) -> None:
        feeds: list[Feed] = []
        lost: list[NotResumed] = []
        for resume in hello.resume:
            try:
                feeds.append(await self._feed(caller, resume))
            except (BanksmanError, OutOfReach) as error:
                lost.append(NotResumed(conversation_id=resume.conversation_id, reason=str(error)))
        terms = self._terms
        self.send(
            Welcome(
                reply_to=hello.id,
                server_version=terms.version,
                connection_id=self.id,
                tenant=caller.tenant,
                user=caller.user,
                limits=ConnectionLimits(frame_bytes=FRAME_BYTES, inflight=INFLIGHT, rate=terms.frames_per_s),
                notices=terms.notices,
                resumed=tuple(feed.conversation_id for feed in feeds),
                not_resumed=tuple(lost),
            )
        )
        for feed in feeds:
            await self._start(feed, None)

    async def _answer_for_ever(self) -> None:
        while True:
            frame = await self._requests.get()
            if isinstance(frame, ApprovalDecision):
                self._spawn(self._answer(frame))
            else:
                await self._answer(frame)

    async def _answer(self, frame: ClientFrame) -> None:
        try:
            await self._handle(frame)
        except BanksmanError as error:
            self.send(error_frame(error, frame.id))
        except Exception:
            logger.exception("%s could not be answered", frame.type)
            failed = ErrorFrame(reply_to=frame.id, code=ErrorCode.INTERNAL, message="internal error")
            self.send(failed)

    async def _handle(self, frame: ClientFrame) -> None:
        caller = self._caller
        assert caller is not None
        match frame:
            case Subscribe():
                await self._subscribe(caller, frame)
            case Unsubscribe():
                await self._unsubscribe(frame.conversation_id)
                self.send(Ack(reply_to=frame.id, conversation_id=frame.conversation_id))
            case AuthRefresh():
                self._refresh(frame, caller)
            case ConversationCreate():
                ack = await self._terms.service.answer(caller, frame)
                self.send(ack)
                live = Resume(conversation_id=ack.conversation_id or "", after_seq=0, detail=frame.detail)
                await self._start(await self._feed(caller, live), None, quiet=True)
            case ChatSend() | RunCancel() | ApprovalDecision() | WorkflowStart() | InputReply():
                self.send(await self._terms.service.answer(caller, frame))
            case Hello():
                await self._welcome(caller, frame)
            case Ping():
                raise BadInput("type", frame.type, "a frame that is answered at once")
            case _:
                assert_never(frame)

    def _refresh(self, frame: AuthRefresh, caller: Caller) -> None:
        try:
            fresh = self._terms.keys.caller(frame.token)
        except Unauthorized as error:
            self.end(UNAUTHENTICATED, str(error))
            return
        if fresh.tenant != caller.tenant:
            self.end(4403, "the token is another tenant's")
            return
        self._serve(fresh)
        self.send(Ack(reply_to=frame.id))

    async def _subscribe(self, caller: Caller, frame: Subscribe) -> None:
        try:
            feed = await self._feed(caller, frame)
        except OutOfReach as lost:
            self.send(
                ResyncRequired(
                    reply_to=frame.id,
                    conversation_id=lost.conversation_id,
                    oldest_seq=lost.oldest_seq,
                    reason=lost.reason,
                )
            )
            return
        await self._start(feed, frame.id)

    async def _feed(self, caller: Caller, wanted: Subscribe | Resume) -> Feed:
        terms = self._terms
        if wanted.conversation_id not in self._feeds and len(self._feeds) >= MAX_SUBSCRIPTIONS:
            raise BadInput(
                "conversation_id", wanted.conversation_id, f"at most {MAX_SUBSCRIPTIONS} subscriptions"
            )
        await terms.service.conversations.get(caller.tenant, wanted.conversation_id)
        return await terms.fanout.feed(
            caller.tenant,
            wanted.conversation_id,
            after_seq=wanted.after_seq,
            log_epoch=wanted.log_epoch,
            detail=wanted.detail,
            sink=self._outbox,
        )

    async def _start(self, feed: Feed, reply_to: str | None, *, quiet: bool = False) -> None:
        await self._unsubscribe(feed.conversation_id)
        self._feeds[feed.conversation_id] = feed
        if not quiet:
            self.send(feed.head.model_copy(update={"reply_to": reply_to}))
        if damage := self._terms.service.views.damage(feed.tenant, feed.conversation_id):
            self.send(error_frame(damage))
        self._spawn(self._follow(feed, quiet))

    async def _follow(self, feed: Feed, quiet: bool) -> None:
        try:
            await feed.follow(quiet=quiet)
        except BanksmanError as error:
            logger.warning("%s could not be followed: %s", feed.conversation_id, error)
            self.send(error_frame(error))
        finally:
            if self._feeds.get(feed.conversation_id) is not feed:
                await feed.close()

    async def _unsubscribe(self, conversation_id: str) -> None:
        if feed := self._feeds.pop(conversation_id, None):
            await feed.close()
