"""The handlers of `api.{t}.>`, for services without HTTP.

The queue group delivers each request to one gateway.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from faststream import BaseMiddleware, ContextRepo, StreamMessage
from faststream.nats import NatsRouter
from faststream.nats.subscriber.usecases import LogicSubscriber

from banksman.bus.connection import Bus
from banksman.bus.control import Received
from banksman.bus.dead import NATS_API, dead_letter
from banksman.bus.envelope import error_envelope
from banksman.bus.jetstream import count_below
from banksman.bus.messages import Message
from banksman.bus.names import DEAD
from banksman.contracts import subjects
from banksman.contracts.assistant_requests import (
    AssistantDeleted,
    AssistantList,
    AssistantUpdate,
    NewAssistant,
)
from banksman.contracts.assistants import Assistant
from banksman.contracts.errors import BanksmanError
from banksman.contracts.frames import (
    Ack,
    ApprovalDecision,
    ChatSend,
    ConversationCreate,
    InputReply,
    RunCancel,
    WorkflowStart,
)
from banksman.contracts.ids import new_id
from banksman.contracts.nats_api import REQUEST_ID, Replay
from banksman.contracts.subjects import ANY
from banksman.contracts.tool_views import ToolView, ToolViews
from banksman.contracts.usage import UsageReport
from banksman.gateway.service.auth import Caller
from banksman.gateway.service.event_frames import encoded_event
from banksman.gateway.service.gateway import Gateway

logger = logging.getLogger(__name__)

QUEUE = "gateways"
USER = "nats"
"""The user that logs show for clients of this API."""
REPLAY_PACE = 500
"""Events that a replay publishes before it waits for the broker, which bounds what the broker must buffer."""
MAX_LETTERS = 1_000
"""Dead letters of requests of all tenants. Further requests that fail are only logged."""
MAX_LETTER_BYTES = 64 * 1024
"""Bytes of a request that is dead-lettered."""


def api_router(bus: Bus, gateway: Gateway) -> NatsRouter:
    """Return the handlers of the NATS API."""
    router = NatsRouter()
    router.include_routers(
        _action_router(bus, gateway),
        _replay_router(bus, gateway),
        _tool_router(gateway),
        _resource_router(gateway),
    )
    return router


def _serve(router: NatsRouter, *tokens: str) -> LogicSubscriber[Any]:
    """Return the decorator of a handler of `api.{t}.{tokens}`."""
    title = " ".join(token for token in tokens if token != ANY)
    return router.subscriber(subjects.api(ANY, *tokens), queue=QUEUE, title=title)


def _action_router(bus: Bus, gateway: Gateway) -> NatsRouter:
    def report(msg: Any, /, *, context: ContextRepo) -> _ReportFailures:
        return _ReportFailures(msg, context=context, bus=bus)

    router = NatsRouter(middlewares=(report,))
    handle = gateway.requests.handle

    @_serve(router, "conversation", "create")
    async def create_conversation(frame: ConversationCreate, message: Received) -> Ack:
        """Create a conversation."""
        return await handle(_caller(message), frame)

    @_serve(router, "chat", "send", ANY)
    async def send_message(frame: ChatSend, message: Received) -> Ack:
        """Send a message of the user, which starts a run or steers the open one."""
        return await handle(_caller(message), frame)

    @_serve(router, "run", "cancel", ANY)
    async def cancel_run(frame: RunCancel, message: Received) -> Ack:
        """Cancel a run."""
        return await handle(_caller(message), frame)

    @_serve(router, "approval", "reply", ANY)
    async def decide_approval(frame: ApprovalDecision, message: Received) -> Ack:
        """Decide an approval request."""
        return await handle(_caller(message), frame)

    @_serve(router, "input", "reply", ANY)
    async def provide_input(frame: InputReply, message: Received) -> Ack:
        """Provide the value that a workflow requested."""
        return await handle(_caller(message), frame)

    @_serve(router, "workflow", "start", ANY)
    async def start_workflow(frame: WorkflowStart, message: Received) -> Ack:
        """Start a workflow."""
        return await handle(_caller(message), frame)

    return router


def _replay_router(bus: Bus, gateway: Gateway) -> NatsRouter:
    router = NatsRouter()

    @_serve(router, "replay", ANY)
    async def replay(request: Replay, message: Received) -> None:
        """Send the stored events, each as a message to the reply subject; an empty message ends them."""
        if not message.reply:
            return
        tenant, conversation_id = _tenant(message), _last_token(message)
        await gateway.conversations.get(tenant, conversation_id)
        page = await gateway.views.events(tenant, conversation_id, after_seq=request.after_seq)
        last = request.after_seq
        for sent, event in enumerate(page.events, 1):
            frame = encoded_event(event, conversation_id, page.log_epoch, last)
            await bus.publish(message.reply, frame.encode())
            last = event.seq
            if sent % REPLAY_PACE == 0:
                await bus.ready()
        await bus.publish(message.reply, b"")

    return router


def _tool_router(gateway: Gateway) -> NatsRouter:
    router = NatsRouter()

    @_serve(router, "tool", "list")
    async def list_tools(message: Received) -> ToolViews:
        """List the tools that the tenant's models may call."""
        return ToolViews(items=await gateway.tools.list(_tenant(message)))

    @_serve(router, "tool", "read", ANY)
    async def read_tool(message: Received) -> ToolView:
        """Read a tool that the tenant's models may call."""
        return await gateway.tools.get(_tenant(message), _last_token(message))

    return router


def _resource_router(gateway: Gateway) -> NatsRouter:
    router = NatsRouter()
    assistants = gateway.assistants

    @_serve(router, "assistant", "list")
    async def list_assistants(message: Received) -> AssistantList:
        """List the tenant's assistants."""
        return AssistantList(items=await assistants.list(_caller(message)))

    @_serve(router, "assistant", "create")
    async def create_assistant(request: NewAssistant, message: Received) -> Assistant:
        """Create an assistant; a repeated request id returns the one that was created."""
        request_id = message.headers.get(REQUEST_ID) or new_id("nats-")
        return await assistants.create(_caller(message), request, request_id)

    @_serve(router, "assistant", "read", ANY)
    async def read_assistant(message: Received) -> Assistant:
        """Read the assistant that the subject names."""
        return await assistants.get(_caller(message), _last_token(message))

    @_serve(router, "assistant", "update", ANY)
    async def update_assistant(request: AssistantUpdate, message: Received) -> Assistant:
        """Replace the assistant that the subject names."""
        return await assistants.update(_caller(message), _last_token(message), request)

    @_serve(router, "assistant", "delete", ANY)
    async def delete_assistant(message: Received) -> AssistantDeleted:
        """Delete the assistant that the subject names."""
        await assistants.delete(_caller(message), _last_token(message))
        return AssistantDeleted(id=_last_token(message))

    @_serve(router, "usage")
    async def usage(message: Received) -> UsageReport:
        """Read what the tenant's runs consumed today and this month, and the operator's limits."""
        return await gateway.usage.of(_tenant(message))

    return router


class _ReportFailures(BaseMiddleware[Any, Any]):
    """Reports the failure of a request without a reply subject, whose sender gets no error envelope."""

    def __init__(self, msg: Any, /, *, context: ContextRepo, bus: Bus) -> None:
        super().__init__(msg, context=context)
        self._bus = bus

    async def consume_scope(
        self, call_next: Callable[[Any], Awaitable[Any]], msg: StreamMessage[Any]
    ) -> bytes | None:
        try:
            ack: Ack = await call_next(msg)
        except BanksmanError as error:
            if msg.reply_to:
                raise
            await self._report(msg, error)
            return None
        return ack.model_dump_json(exclude_none=True).encode()

    async def _report(self, msg: StreamMessage[Any], error: BanksmanError) -> None:
        """Publish the failure on `api.{t}.error`, and dead-letter the request."""
        raw = msg.raw_message
        tenant = raw.subject.split(".")[1]
        await self._bus.publish(subjects.api(tenant, "error"), error_envelope(error))
        # It cannot be replayed, so without room in DEAD little is lost; its sender received the error.
        if len(raw.data) > MAX_LETTER_BYTES or not await self._has_room():
            logger.warning("%s: a request that failed was not dead-lettered: %s", raw.subject, error)
            return
        await dead_letter(
            self._bus,
            subject=raw.subject,
            stream=NATS_API,
            stream_seq=time.time_ns(),
            reason=str(error),
            payload=raw.data,
            headers=raw.headers or {},
        )

    async def _has_room(self) -> bool:
        """Return whether DEAD has fewer than `MAX_LETTERS` letters of requests, of all tenants together."""
        return await count_below(self._bus, DEAD, subjects.all_of("dead", NATS_API)) < MAX_LETTERS


def _caller(message: Message) -> Caller:
    """Return the caller: the tenant of the subject, which the broker has checked, and no known user."""
    return Caller(_tenant(message), USER)


def _tenant(message: Message) -> str:
    return message.subject.split(".")[1]


def _last_token(message: Message) -> str:
    return message.subject.rpartition(".")[2]
