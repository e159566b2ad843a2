"""One websocket: requests in, replies and events out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, assert_never

from pydantic import BaseModel
from starlette.websockets import WebSocket

from banksman.contracts.errors import BadInput, BanksmanError, ErrorCode
from banksman.contracts.frames import (
    Ack,
    ApprovalDecision,
    ApprovalsSubscribe,
    AuthRefresh,
    ChatSend,
    ClientFrame,
    ConnectionLimits,
    ConversationCreate,
    ErrorFrame,
    Hello,
    InputReply,
    Ping,
    Pong,
    Resume,
    RunCancel,
    Subscribe,
    Unsubscribe,
    Welcome,
    WorkflowStart,
    error_frame,
)
from banksman.contracts.ids import new_id
from banksman.gateway.approvals.pending import PendingApprovals
from banksman.gateway.identity.auth import Keys
from banksman.gateway.identity.tickets import Tickets
from banksman.gateway.interfaces.websocket.session import CallerSession, CallerSockets
from banksman.gateway.interfaces.websocket.subscriptions import SocketSubscriptions
from banksman.gateway.interfaces.websocket.transport import (
    INTERNAL_ERROR,
    RATE_LIMITED,
    SECOND_HELLO,
    SHORT_CHARS,
    TIMED_OUT,
    CloseFrame,
    FrameRefused,
    SocketTransport,
    id_in,
    parse_frame,
)
from banksman.gateway.live.feeds import Feeds
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.settings import GatewaySettings
from banksman.quotas.rates import TokenBucket

logger = logging.getLogger(__name__)

FRAME_BYTES = 256 * 1024
INFLIGHT = 64
"""Maximum number of queued requests."""
WARNINGS = 100
"""Frames above the rate after which the connection is closed. Their count decreases by one each second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionContext:
    """The parts that all websockets of a process share."""

    settings: GatewaySettings
    keys: Keys
    tickets: Tickets
    dispatcher: Dispatcher
    feeds: Feeds
    pending: PendingApprovals
    sockets: CallerSockets
    version: str
    """The server's version, for `welcome`."""
    notices: tuple[str, ...]
    """Sentences that every page shows."""


class WebsocketConnection:
    """One client. Its requests are handled in order, except decisions, which may wait for their request."""

    def __init__(self, context: ConnectionContext, websocket: WebSocket, caller: Caller | None) -> None:
        self.id = new_id("ws")
        self._context = context
        self._settings = context.settings
        self._transport = SocketTransport(websocket)
        self._session = CallerSession(context.keys, context.sockets, caller, self.end)
        self._subscriptions = SocketSubscriptions(
            context.feeds, context.pending, self._transport.outbox, send=self.send, spawn=self._spawn
        )
        # A list, and a task only while requests wait: a queue and a task per idle websocket would take 7 KB.
        self._requests: list[ClientFrame] = []
        self._handling = False
        rate = self._settings.frames_per_s
        self._rate = TokenBucket(rate, rate * 2)
        self._warnings = TokenBucket(1, WARNINGS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._group: asyncio.TaskGroup

    async def run(self) -> None:
        """Serve until the client or the server closes the connection."""
        ending: CloseFrame | None = None
        timeout_s = self._settings.hello_timeout_s
        greeting = asyncio.get_running_loop().call_later(timeout_s, self._check_greeted)
        try:
            async with asyncio.TaskGroup() as self._group:
                for work in (self._read(), self._transport.write()):
                    self._spawn(work)
                ending = await self._transport.ended()
                for task in tuple(self._tasks):
                    task.cancel()
        except* Exception:
            logger.exception("a websocket failed")
            ending = INTERNAL_ERROR, "internal error"
        finally:
            greeting.cancel()
            self._session.close()
            await self._subscriptions.close()
            if ending is not None:
                await self._transport.close(*ending)

    def send(self, frame: BaseModel) -> None:
        self._transport.send(frame)

    def end(self, code: int, reason: str) -> None:
        """Close the connection with a code, after the queued frames."""
        self._transport.end(code, reason)

    def revoke(self, key: str) -> None:
        """Close the connection if its caller uses the key with this SHA-256."""
        self._session.revoke(key)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check_greeted(self) -> None:
        """Close a connection that sends no `hello` in time."""
        if self._session.caller is None:
            self.end(TIMED_OUT, f"no hello within {self._settings.hello_timeout_s:g} s")

    async def _read(self) -> None:
        """Receive frames until the connection ends; refuse invalid ones, and accept the others."""
        while (text := await self._transport.receive()) is not None:
            if self._session.has_expired():
                continue
            if not self._rate.take():
                self._refuse_rate(text)
            else:
                try:
                    frame = parse_frame(text)
                    if isinstance(frame, Hello | AuthRefresh):
                        await self._context.keys.prepare(frame.token)
                    self._accept(frame)
                except FrameRefused as refused:
                    self.send(refused.frame)

    def _refuse_rate(self, text: str) -> None:
        if not self._warnings.take():
            self.end(RATE_LIMITED, "too many frames")
            return
        self._refuse(
            id_in(text) if len(text) <= SHORT_CHARS else None,
            ErrorCode.RATE_LIMITED,
            f"more than {self._settings.frames_per_s} frames a second",
            retry_after_s=round(self._rate.wait_s, 3),
        )

    def _refuse(self, reply_to: str | None, code: ErrorCode, message: str, *, retry_after_s: float) -> None:
        error = ErrorFrame(
            reply_to=reply_to, code=code, message=message, retryable=True, retry_after_s=retry_after_s
        )
        self.send(error)

    def _accept(self, frame: ClientFrame) -> None:
        """Reply to a frame that needs no handling, and queue any other one."""
        match frame:
            case Ping():
                now = datetime.now(UTC).isoformat()
                self.send(Pong(reply_to=frame.id, t=frame.t, ts=now))
            case Hello() if self._session.caller is not None:
                self.end(SECOND_HELLO, "a second hello")
            case Hello() if not self._session.greet(frame.token):
                pass  # `greet` has closed the connection.
            case _ if self._session.caller is None:
                error = BadInput("type", frame.type, "hello as the first frame")
                self.send(error_frame(error, frame.id))
            case _ if len(self._requests) >= INFLIGHT:
                message = f"more than {INFLIGHT} frames wait for their reply"
                self._refuse(frame.id, ErrorCode.BUSY, message, retry_after_s=1.0)
            case _:
                self._requests.append(frame)
                if not self._handling:
                    self._handling = True
                    self._spawn(self._handle_requests())

    async def _welcome(self, caller: Caller, hello: Hello) -> None:
        feeds, not_resumed = await self._subscriptions.resume(caller, hello.resume)
        self.send(
            Welcome(
                reply_to=hello.id,
                server_version=self._context.version,
                connection_id=self.id,
                tenant=caller.tenant,
                user=caller.user,
                limits=ConnectionLimits(
                    frame_bytes=FRAME_BYTES, inflight=INFLIGHT, rate=self._settings.frames_per_s
                ),
                notices=self._context.notices,
                rights=tuple(sorted(caller.rights)),
                resumed=tuple(feed.conversation_id for feed in feeds),
                not_resumed=not_resumed,
            )
        )
        for feed in feeds:
            await self._subscriptions.start(feed, None)

    async def _handle_requests(self) -> None:
        while self._requests:
            frame = self._requests.pop(0)
            if isinstance(frame, ApprovalDecision | InputReply):
                # A decision may wait until its approval request is stored, and must not delay a later cancel.
                self._spawn(self._handle(frame))
            else:
                await self._handle(frame)
        self._handling = False

    async def _handle(self, frame: ClientFrame) -> None:
        """Handle a request, and send its reply or its error."""
        caller = self._session.caller
        assert caller is not None
        try:
            match frame:
                case Subscribe():
                    await self._subscriptions.subscribe(caller, frame)
                case Unsubscribe():
                    await self._subscriptions.unsubscribe(frame.conversation_id)
                    self.send(Ack(reply_to=frame.id, conversation_id=frame.conversation_id))
                case ApprovalsSubscribe():
                    await self._subscriptions.follow_approvals(caller)
                    self.send(Ack(reply_to=frame.id))
                case AuthRefresh():
                    self._refresh(caller, frame)
                case ConversationCreate():
                    await self._create(caller, frame)
                case ChatSend() | RunCancel() | ApprovalDecision() | WorkflowStart() | InputReply():
                    self.send(await self._context.dispatcher.handle(caller, frame))
                case Hello():
                    await self._welcome(caller, frame)
                case Ping():
                    raise BadInput("type", frame.type, "a frame that is queued")
                case _:
                    assert_never(frame)
        except BanksmanError as error:
            if error.code is ErrorCode.INTERNAL:
                logger.error("handling %s failed: %s", frame.type, error)
            self.send(error_frame(error, frame.id))
        except Exception:
            logger.exception("handling %s failed", frame.type)
            self.send(ErrorFrame(reply_to=frame.id, code=ErrorCode.INTERNAL, message="internal error"))

    async def _create(self, caller: Caller, frame: ConversationCreate) -> None:
        ack = await self._context.dispatcher.handle(caller, frame)
        self.send(ack)
        live = Resume(conversation_id=ack.conversation_id or "", after_seq=0, detail=frame.detail)
        feed = await self._subscriptions.open(caller, live)
        await self._subscriptions.start(feed, None, quiet=True)

    def _refresh(self, caller: Caller, frame: AuthRefresh) -> None:
        if self._session.refresh(frame.token, caller):
            self.send(Ack(reply_to=frame.id))
