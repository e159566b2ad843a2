"""Websockets: authentication at the upgrade, requests in, replies and events out, and draining."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from sys import getsizeof
from typing import Any

from starlette.websockets import WebSocket

from banksman.contracts import frames
from banksman.contracts.errors import BadInput, BanksmanError, ErrorCode
from banksman.contracts.ids import conversation_of_approval, new_id
from banksman.gateway.approvals.pending import PendingApprovals
from banksman.gateway.identity.auth import Keys, Tickets
from banksman.gateway.interfaces.http.perimeter import know_client
from banksman.gateway.interfaces.websocket import transport
from banksman.gateway.interfaces.websocket.session import CallerSession, CallerSockets
from banksman.gateway.interfaces.websocket.subscriptions import SocketSubscriptions
from banksman.gateway.live.feeds import Feeds
from banksman.gateway.operation.caller import Caller, bearer
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.operation.errors import error_response
from banksman.gateway.operation.intake import JsonIntake, values_cost
from banksman.gateway.settings import GatewaySettings
from banksman.quotas.rates import TokenBucket, TooManyRequests
from banksman.runtime.waits import set_within

logger = logging.getLogger(__name__)

FRAME_BYTES = 256 * 1024
INFLIGHT = 64
"""Maximum number of requests without a reply."""
WARNINGS = 100
"""Frames above the rate after which the connection is closed. Their count decreases by one each second."""
WARNING_BYTES = 4096
"""Bytes of a refused frame that count as one further frame: a flood of large ones ends after a few."""
DRAIN_S = 5.0
"""Seconds that websockets may take to close: two for the queued frames, two for the close frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionContext:
    settings: GatewaySettings
    keys: Keys
    tickets: Tickets
    dispatcher: Dispatcher
    feeds: Feeds
    pending: PendingApprovals
    sockets: CallerSockets
    intake: JsonIntake
    version: str
    """The server's version, for `welcome`."""
    notices: Callable[[str], tuple[str, ...]]
    """Returns the sentences that every page of a tenant shows."""
    operator_notices: Callable[[], tuple[str, ...]]
    """Returns the sentences that the page also shows to operators."""


class WebsocketConnection:
    """One client. The requests of each conversation are handled in order, beside those of the others.

    Decisions do not delay later requests, because they may wait for their approval request.
    """

    def __init__(self, context: ConnectionContext, websocket: WebSocket, caller: Caller | None) -> None:
        self.id = new_id("ws")
        self._context = context
        self._settings = context.settings
        self._scope = websocket.scope
        self.transport = transport.SocketTransport(websocket)
        self._address = websocket.client.host if websocket.client else ""
        self.session = CallerSession(context.keys, context.sockets, caller, self.transport.end)
        self._subscriptions = SocketSubscriptions(
            context.feeds, context.pending, self.transport.outbox, self.transport.send, self._spawn
        )
        # Lists, and tasks only while requests wait: a queue and a task per idle websocket would take 7 KB.
        self._requests: dict[str, list[tuple[frames.ClientFrame, int]]] = {}
        """With their bytes, by conversation. Those of the connection, under "", precede all later ones."""
        self._unanswered = 0
        rate = self._settings.frames_per_s
        self._rate = TokenBucket(rate, rate * 2)
        self._warnings = TokenBucket(1, WARNINGS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._group: asyncio.TaskGroup

    async def run(self) -> None:
        ending: transport.CloseFrame | None = None
        timeout_s = self._settings.hello_timeout_s
        greeting = asyncio.get_running_loop().call_later(timeout_s, self._check_greeted)
        try:
            async with asyncio.TaskGroup() as self._group:
                for work in (self._read(), self.transport.write()):
                    self._spawn(work)
                ending = await self.transport.ended()
                for task in tuple(self._tasks):
                    task.cancel()
        except* Exception:
            logger.exception("a websocket failed")
            ending = transport.INTERNAL_ERROR, "internal error"
        finally:
            greeting.cancel()
            self.session.close()
            await self._subscriptions.close()
            if ending is not None:
                await self.transport.close(*ending)
            # The objects of a connection refer to each other, and may be collected much later.
            self._requests.clear()
            self.transport.outbox.clear()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check_greeted(self) -> None:
        if self.session.caller is None:
            self.transport.end(transport.TIMED_OUT, f"no hello within {self._settings.hello_timeout_s:g} s")

    async def _read(self) -> None:
        while await self._read_frame():
            pass

    async def _read_frame(self) -> bool:
        """Read a frame, which an idle websocket does not keep; return False after the end."""
        if (text := await self.transport.receive()) is None:
            return False
        if self.session.has_expired():
            return True
        data = text.encode()
        if not self._rate.take():
            self._refuse_rate(
                data, f"more than {self._settings.frames_per_s} frames a second", self._rate.wait_s
            )
            return True
        try:
            frame = transport.parse_frame(await self._admitted(data))
            if isinstance(frame, frames.Hello | frames.AuthRefresh):
                await self._context.keys.prepare(frame.token)
            # One character outside Latin-1 makes all others take two or four bytes.
            self._accept(frame, getsizeof(text) + values_cost(data))
        except TooManyRequests as error:
            self._refuse_rate(data, "too much JSON", error.retry_after_s or 1.0)
        except transport.FrameRefused as refused:
            self.transport.send(refused.frame)
        return True

    async def _admitted(self, data: bytes) -> bytes:
        payer = self.session.caller.tenant if self.session.caller else self._address
        try:
            return await self._context.intake.admit(payer, data, what="frame")
        except BadInput as error:
            raise transport.FrameRefused(frames.error_frame(error, transport.id_in(data))) from error

    def _refuse_rate(self, data: bytes, message: str, wait_s: float) -> None:
        if not self._warnings.take(1 + len(data) // WARNING_BYTES):
            self.transport.end(transport.RATE_LIMITED, "too many frames")
            return
        reply_to = transport.id_in(data)
        self._refuse(reply_to, ErrorCode.RATE_LIMITED, message, retry_after_s=round(wait_s, 3))

    def _refuse(self, reply_to: str | None, code: ErrorCode, message: str, *, retry_after_s: float) -> None:
        error = frames.ErrorFrame(
            reply_to=reply_to, code=code, message=message, retryable=True, retry_after_s=retry_after_s
        )
        self.transport.send(error)

    def _accept(self, frame: frames.ClientFrame, size: int) -> None:
        """Reply to a frame that needs no handling, and queue any other one, of `size` bytes."""
        match frame:
            case frames.Ping():
                now = datetime.now(UTC).isoformat()
                self.transport.send(frames.Pong(reply_to=frame.id, t=frame.t, ts=now))
            case frames.Hello() if self.session.caller is not None:
                self.transport.end(transport.SECOND_HELLO, "a second hello")
            case frames.Hello() if not self._greet(frame):
                pass  # `_greet` has closed the connection.
            case _ if self.session.caller is None:
                error = BadInput("type", frame.type, "hello as the first frame")
                self.transport.send(frames.error_frame(error, frame.id))
            case _ if self._unanswered >= INFLIGHT:
                message = f"more than {INFLIGHT} frames wait for their reply"
                self._refuse(frame.id, ErrorCode.BUSY, message, retry_after_s=1.0)
            case _ if not self.session.hold(size):
                message = "too many bytes of this websocket, user or tenant wait for their reply"
                self._refuse(frame.id, ErrorCode.BUSY, message, retry_after_s=1.0)
            case _:
                self._queue("" if "" in self._requests else _lane(frame), frame, size)

    def _queue(self, lane: str, frame: frames.ClientFrame, size: int) -> None:
        self._unanswered += 1
        waiting = self._requests.setdefault(lane, [])
        waiting.append((frame, size))
        if len(waiting) == 1:
            self._spawn(self._handle_requests(lane))

    def _greet(self, hello: frames.Hello) -> bool:
        greeted = self.session.greet(hello.token)
        if greeted and (caller := self.session.caller):
            try:
                know_client(self._scope, caller.key or f"{caller.tenant}/{caller.user}")
            except TooManyRequests:
                self.transport.end(transport.RATE_LIMITED, "too many connections of one key")
                return False
        return greeted

    async def _welcome(self, caller: Caller, hello: frames.Hello) -> None:
        feeds, not_resumed = await self._subscriptions.resume(caller, hello.resume)
        self.transport.send(
            frames.Welcome(
                reply_to=hello.id,
                server_version=self._context.version,
                connection_id=self.id,
                tenant=caller.tenant,
                user=caller.user,
                limits=frames.ConnectionLimits(
                    frame_bytes=FRAME_BYTES, inflight=INFLIGHT, rate=self._settings.frames_per_s
                ),
                notices=self._notices(caller),
                rights=tuple(sorted(caller.rights)),
                resumed=tuple(feed.conversation_id for feed in feeds),
                not_resumed=not_resumed,
            )
        )
        for feed in feeds:
            await self._subscriptions.start(feed, None)

    def _notices(self, caller: Caller) -> tuple[str, ...]:
        mine = self._context.operator_notices() if "operator" in caller.rights else ()
        return (*self._context.notices(caller.tenant), *mine)

    async def _handle_requests(self, lane: str) -> None:
        waiting = self._requests[lane]
        while waiting:
            if isinstance(waiting[0][0], frames.ApprovalDecision | frames.InputReply):
                # A decision may wait until its approval request is stored, and must not delay a later cancel.
                self._spawn(self._handle(*waiting[0]))
            else:
                await self._handle(*waiting[0])
            waiting.pop(0)
        del self._requests[lane]

    async def _handle(self, frame: frames.ClientFrame, size: int) -> None:
        try:
            await self._reply(frame)
        finally:
            self._unanswered -= 1
            self.session.release(size)

    async def _reply(self, frame: frames.ClientFrame) -> None:
        caller = self.session.caller
        assert caller is not None
        try:
            match frame:
                case frames.Subscribe():
                    await self._subscriptions.subscribe(caller, frame)
                case frames.Unsubscribe():
                    await self._subscriptions.unsubscribe(frame.conversation_id)
                    self.transport.send(frames.Ack(reply_to=frame.id, conversation_id=frame.conversation_id))
                case frames.ApprovalsSubscribe():
                    await self._subscriptions.follow_approvals(caller)
                    self.transport.send(frames.Ack(reply_to=frame.id))
                case frames.AuthRefresh():
                    if self.session.refresh(frame.token, caller):
                        self._subscriptions.act_as(self.session.caller or caller)
                        self.transport.send(frames.Ack(reply_to=frame.id))
                case frames.ConversationCreate():
                    await self._create(caller, frame)
                case frames.Hello():
                    await self._welcome(caller, frame)
                case frames.Ping():
                    raise BadInput("type", frame.type, "a frame that is queued")
                case _:
                    # Each further frame is an operation of a feature.
                    self.transport.send(await self._context.dispatcher.handle(caller, frame))
        except BanksmanError as error:
            if error.code is ErrorCode.INTERNAL:
                logger.error("handling %s failed: %s", frame.type, error)
            self.transport.send(frames.error_frame(error, frame.id))
        except Exception:
            logger.exception("handling %s failed", frame.type)
            self.transport.send(
                frames.ErrorFrame(reply_to=frame.id, code=ErrorCode.INTERNAL, message="internal error")
            )

    async def _create(self, caller: Caller, frame: frames.ConversationCreate) -> None:
        self._subscriptions.check(None)
        ack = await self._context.dispatcher.handle(caller, frame)
        live = frames.Resume(conversation_id=ack.conversation_id or "", after_seq=0, detail=frame.detail)
        try:
            feed = await self._subscriptions.open(caller, live)
        except BanksmanError as error:
            # The request has its reply: the conversation exists.
            self.transport.send(ack)
            self.transport.send(frames.error_frame(error))
            return
        # With the acknowledgement the client may end the subscription, which must exist then.
        self.transport.send(ack)
        await self._subscriptions.start(feed, None, quiet=True)


def _lane(frame: frames.ClientFrame) -> str:
    """Return the conversation of a request, or its own id; "" if all later requests wait for it."""
    found: str | None
    match frame:
        case frames.Hello() | frames.AuthRefresh():
            return ""
        case frames.RunCancel(run_id=run_id):
            found = run_id.rpartition("-")[0]
        case frames.ApprovalDecision(approval_id=request_id) | frames.InputReply(request_id=request_id):
            found = conversation_of_approval(request_id)
        case _:
            found = frame.conversation_id
    return found or frame.id or "-"


@dataclass
class Connections:
    context: ConnectionContext
    open: set[WebsocketConnection] = field(default_factory=lambda: set[WebsocketConnection]())
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._idle.set()

    async def serve(self, websocket: WebSocket) -> None:
        offered = websocket.scope.get("subprotocols", [])
        try:
            caller = await self._upgrade_caller(websocket)
        except BanksmanError as error:
            await websocket.send_denial_response(error_response("/ws", error))
            return
        chosen = frames.SUBPROTOCOL if frames.SUBPROTOCOL in offered else None
        await websocket.accept(subprotocol=chosen)
        if offered and chosen is None:
            await websocket.close(
                transport.UNSUPPORTED_PROTOCOL, f"this server supports {frames.SUBPROTOCOL} only"
            )
            return
        connection = WebsocketConnection(self.context, websocket, caller)
        self.open.add(connection)
        self._idle.clear()
        try:
            await connection.run()
        finally:
            self.open.discard(connection)
            if not self.open:
                self._idle.set()

    async def _upgrade_caller(self, websocket: WebSocket) -> Caller | None:
        ticket = websocket.query_params.get("ticket")
        if ticket is not None:
            return await self.context.tickets.redeem(ticket)
        token = bearer(websocket.headers.get("authorization"))
        return None if token is None else self.context.keys.caller(token)

    def revoke(self, key: str) -> None:
        for connection in tuple(self.open):
            connection.session.revoke(key)

    async def drain(self, reconnect_after_s: float) -> None:
        """Send `server.draining` to every client and close; wait up to 5 s for the websockets to end."""
        for number, connection in enumerate(tuple(self.open)):
            # Spread the reconnects over another `reconnect_after_s`, so that they do not arrive at once.
            spread = reconnect_after_s * (1 + number / max(1, len(self.open)))
            connection.transport.send(frames.Draining(reconnect_after_s=round(spread, 2)))
            connection.transport.end(transport.RESTART, "the server is restarting")
        await set_within(self._idle, DRAIN_S)
