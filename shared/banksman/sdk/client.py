"""The client of the NATS API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel

from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.envelope import checked_reply
from banksman.bus.messages import Message
from banksman.contracts import subjects
from banksman.contracts.assistant_requests import (
    AssistantBody,
    AssistantDeleted,
    AssistantList,
    AssistantUpdate,
    NewAssistant,
)
from banksman.contracts.assistants import Assistant, ConversationSettings, RunOverrides
from banksman.contracts.calls import Delta
from banksman.contracts.errors import Unavailable
from banksman.contracts.events import ItemDecision, Remember, RunFinished
from banksman.contracts.frames import (
    Ack,
    ApprovalDecision,
    ChatSend,
    ConversationCreate,
    InputReply,
    RunCancel,
    WorkflowStart,
)
from banksman.contracts.ids import check_token, conversation_of, new_id
from banksman.contracts.messages import Content
from banksman.contracts.nats_api import REQUEST_ID, SCHEMA_VERSION
from banksman.contracts.subjects import ANY
from banksman.contracts.tool_views import ToolView, ToolViews
from banksman.contracts.usage import UsageReport
from banksman.contracts.wire import WIRE_VERSION, JsonObject, JsonValue
from banksman.contracts.work import ApprovalRequest
from banksman.runtime.backoff import Backoff, retry
from banksman.sdk.events import EventFrame
from banksman.sdk.feed import follow

REPLY_TIMEOUT_S = 10.0
"""Timeout of one request in seconds."""
BUDGET_S = 30.0
"""Seconds for which a request is repeated. All repetitions have the same id, so the request has one
effect."""
PAUSE_S = 0.2
WAITING_DELTAS = 4_096
"""Maximum deltas that wait for a slow reader. Further ones are dropped, which is allowed for deltas."""

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
Frame = ConversationCreate | ChatSend | RunCancel | ApprovalDecision | WorkflowStart | InputReply


@dataclass(frozen=True, slots=True)
class StartedRun:
    """An accepted run. It is stored and will end with an outcome."""

    run_id: str
    message_id: str | None = None
    """Id of the user's message; None for a workflow."""

    @property
    def conversation_id(self) -> str:
        """The conversation whose log contains the run."""
        return conversation_of(self.run_id)


@asynccontextmanager
async def connect(
    url: str | tuple[str, ...],
    tenant: str,
    *,
    nkey_seed_file: Path | None = None,
    tls_ca_file: Path | None = None,
    name: str = "banksman-client",
    connect_timeout_s: float = 30.0,
) -> AsyncGenerator[Client]:
    """Connect a client for the duration of the context.

    Args:
        url: The address of a server, or the addresses of a cluster.
        tenant: The tenant. The user of the seed must belong to its account.
        nkey_seed_file: File with the user's seed; None connects without a user.
        tls_ca_file: CA certificates to verify the server; None uses those of the system.
        name: Name of the connection in the server's monitoring.
        connect_timeout_s: Timeout of the first connection in seconds.

    Raises:
        BadInput: The tenant is not a valid token.
        Unavailable: No server accepted the user in time.
    """
    check_token(tenant, "tenant")
    settings = NatsSettings(
        url=url, nkey_seed_file=nkey_seed_file, tls_ca_file=tls_ca_file, connect_timeout_s=connect_timeout_s
    )
    async with await Bus.connect(settings, name=name) as bus:
        yield Client(bus, tenant)


class Client:
    """Requests of a tenant to the platform.

    Requests take a `request_id`. A request that is repeated with the same id within 24 hours has no further
    effect and gets the same reply. All raise `RemoteError` with the gateway's error, and `Unavailable` if no
    gateway responds within 30 seconds.
    """

    def __init__(self, bus: Bus, tenant: str) -> None:
        self._bus = bus
        self.tenant = tenant

    async def ready(self, timeout_s: float = 2.0) -> None:
        """Make a round trip to the server.

        Afterwards it has processed all earlier messages of this connection.

        Raises:
            Unavailable: The server did not respond in time.
        """
        await self._bus.ready(timeout_s)

    async def create_conversation(
        self,
        *,
        title: str = "",
        assistant: str = "default",
        model: str | None = None,
        system_prompt_id: str | None = None,
        settings: ConversationSettings | None = None,
        request_id: str | None = None,
    ) -> str:
        """Create a conversation and return its id."""
        frame = ConversationCreate(
            type="conversation.create",
            id=request_id or new_id("q"),
            title=title,
            assistant=assistant,
            model=model,
            system_prompt_id=system_prompt_id,
            settings=settings or ConversationSettings(),
        )
        ack = await self._send(subjects.api(self.tenant, "conversation", "create"), frame)
        return _required(ack.conversation_id, "conversation_id")

    async def send(
        self,
        conversation_id: str,
        content: Content,
        *,
        request_id: str | None = None,
        mode: Literal["queue", "steer"] = "queue",
        overrides: RunOverrides | None = None,
        variables: Mapping[str, JsonValue] | None = None,
        attachments: Sequence[str] = (),
    ) -> StartedRun:
        """Send a user's message, which starts or steers a run.

        Args:
            conversation_id: The conversation.
            content: Text, or parts.
            request_id: The idempotency key; None generates one.
            mode: `queue` starts a run after an open one, `steer` adds the message to the open run.
            overrides: Settings of this run that differ from its assistant.
            variables: Variables of the system prompt's template.
            attachments: Paths of workspace files that the message refers to.
        """
        frame = ChatSend(
            type="chat.send",
            id=request_id or new_id("q"),
            conversation_id=conversation_id,
            content=content,
            mode=mode,
            overrides=overrides or RunOverrides(),
            variables=dict(variables or {}),
            attachments=tuple(attachments),
        )
        ack = await self._send(subjects.api(self.tenant, "chat", "send", conversation_id), frame)
        return StartedRun(_required(ack.run_id, "run_id"), ack.message_id)

    async def cancel(
        self, run: StartedRun | str, *, reason: str | None = None, request_id: str | None = None
    ) -> None:
        """Cancel a run, given as an object or by id. `outcome` waits for its end."""
        run_id = run if isinstance(run, str) else run.run_id
        frame = RunCancel(type="run.cancel", id=request_id or new_id("q"), run_id=run_id, reason=reason)
        await self._send(subjects.api(self.tenant, "run", "cancel", conversation_of(run_id)), frame)

    async def reply(
        self,
        approval_id: str,
        *,
        all: Literal["approve", "reject"] | None = None,
        decisions: Sequence[ItemDecision] = (),
        remember: Remember | None = None,
        digests: Sequence[str] = (),
        request_id: str | None = None,
    ) -> Ack:
        """Decide an approval request: `all` decides all calls alike, `decisions` decides each call.

        With the `digests` of the items that the approver saw, a decision on other calls is refused.

        Returns:
            An ack. If `already_resolved` is True, an earlier decision applies, and `outcome` and
            `resolved_by` are those of the earlier decision.
        """
        frame = ApprovalDecision(
            type="approval.reply",
            id=request_id or new_id("q"),
            approval_id=approval_id,
            all=all,
            decisions=tuple(decisions),
            remember=remember,
            digests=tuple(digests),
        )
        return await self._send(subjects.api(self.tenant, "approval", "reply", approval_id), frame)

    async def provide(self, input_id: str, value: JsonValue, *, request_id: str | None = None) -> Ack:
        """Provide the value that a workflow requested, by the id of its `input.requested`.

        Returns:
            An ack. If `already_resolved` is True, an earlier value applies, or the request was closed.
        """
        frame = InputReply(type="input.reply", id=request_id or new_id("q"), request_id=input_id, value=value)
        return await self._send(subjects.api(self.tenant, "input", "reply", input_id), frame)

    async def start_workflow(
        self,
        name: str,
        parameters: JsonObject | None = None,
        *,
        conversation_id: str | None = None,
        request_id: str | None = None,
    ) -> StartedRun:
        """Run a workflow; with `conversation_id` in that conversation's workspace."""
        frame = WorkflowStart(
            type="workflow.start",
            id=request_id or new_id("q"),
            workflow=name,
            parameters=parameters or {},
            conversation_id=conversation_id,
        )
        ack = await self._send(subjects.api(self.tenant, "workflow", "start", name), frame)
        return StartedRun(_required(ack.run_id, "run_id"), ack.message_id)

    async def assistants(self) -> tuple[Assistant, ...]:
        """Return all assistants of the tenant, sorted by id."""
        return (await self._assistant("list", AssistantList)).items

    async def assistant(self, assistant_id: str) -> Assistant:
        """Return one assistant. Every tenant has an assistant `default`."""
        return await self._assistant("read", Assistant, assistant_id)

    async def create_assistant(self, body: NewAssistant, *, request_id: str | None = None) -> Assistant:
        """Create an assistant. Conversations refer to it by its id."""
        return await self._assistant("create", Assistant, body=body, request_id=request_id)

    async def update_assistant(
        self, assistant_id: str, body: AssistantBody, *, revision: int | None = None
    ) -> Assistant:
        """Replace an assistant from the next run on. The same body again changes nothing.

        Args:
            assistant_id: The assistant to replace.
            body: The complete new assistant.
            revision: Replace only this revision; None replaces the current one.
        """
        fields = {name: getattr(body, name) for name in AssistantBody.model_fields}
        update = AssistantUpdate(**fields, revision=revision)
        return await self._assistant("update", Assistant, assistant_id, body=update)

    async def delete_assistant(self, assistant_id: str) -> None:
        """Delete an assistant. Its open runs continue; its conversations cannot start new ones."""
        await self._assistant("delete", AssistantDeleted, assistant_id)

    async def tools(self) -> tuple[ToolView, ...]:
        """Return the tools that the tenant's models may call, the built-in ones first."""
        subject = subjects.api(self.tenant, "tool", "list")
        return (await self._request(subject, b"{}", new_id("q"), ToolViews)).items

    async def tool(self, name: str) -> ToolView:
        """Return a tool that the tenant's models may call.

        Raises:
            RemoteError: They may call no tool of this name.
        """
        subject = subjects.api(self.tenant, "tool", "read", name)
        return await self._request(subject, b"{}", new_id("q"), ToolView)

    async def usage(self) -> UsageReport:
        """Return the tenant's usage of the current day and month, and its limits."""
        return await self._request(subjects.api(self.tenant, "usage"), b"{}", new_id("q"), UsageReport)

    def follow(self, conversation_id: str, after_seq: int = 0) -> AsyncGenerator[EventFrame]:
        """Yield each stored and future event after `after_seq` once, in order and without gaps.

        The generator never ends. Close it (`contextlib.aclosing`) if the loop over it ends early.

        Raises:
            LogRestored: The log was restored from a backup.
            RemoteError: The conversation does not exist.
            Unavailable: The stored events could not be read for 30 seconds.
        """
        return follow(self._bus, self.tenant, conversation_id, after_seq)

    async def outcome(self, run: StartedRun, *, after_seq: int = 0) -> RunFinished:
        """Wait for the end of a run and return its outcome. The caller sets the deadline.

        Raises:
            LogRestored, RemoteError, Unavailable: See `follow`.
        """
        async with aclosing(self.follow(run.conversation_id, after_seq)) as events:
            async for event in events:
                if event.run_id == run.run_id and event.type == "run.finished":
                    return RunFinished.model_validate(event.data)
        raise Unavailable(f"{run.run_id}: its log ended")

    @asynccontextmanager
    async def deltas(self, conversation_id: str) -> AsyncGenerator[AsyncIterator[Delta]]:
        """Receive text while the model writes it, from the start of the context.

        Deltas may be lost. The `message.completed` event replaces them.
        """
        pieces: asyncio.Queue[Delta] = asyncio.Queue(WAITING_DELTAS)

        async def received(message: Message) -> None:
            if not pieces.full():
                pieces.put_nowait(Delta.model_validate_json(message.data))

        subscription = await self._bus.subscribe(subjects.delta(self.tenant, conversation_id), received)
        try:
            yield _items(pieces)
        finally:
            await subscription.unsubscribe()

    @asynccontextmanager
    async def approvals(self) -> AsyncGenerator[AsyncIterator[ApprovalRequest]]:
        """Receive the tenant's new approval requests, from the start of the context.

        Other clients receive them, too. The first decision applies.
        """
        requests: asyncio.Queue[ApprovalRequest] = asyncio.Queue()

        async def received(message: Message) -> None:
            request = ApprovalRequest.model_validate_json(message.data)
            if request.input is None:
                requests.put_nowait(request)

        subscription = await self._bus.subscribe(subjects.approval_request(self.tenant, ANY), received)
        try:
            yield _items(requests)
        finally:
            await subscription.unsubscribe()

    async def _assistant(
        self,
        action: str,
        reply: type[M],
        *names: str,
        body: BaseModel | None = None,
        request_id: str | None = None,
    ) -> M:
        subject = subjects.api(self.tenant, "assistant", action, *names)
        data = b"{}" if body is None else body.model_dump_json().encode()
        return await self._request(subject, data, request_id or new_id("q"), reply)

    async def _send(self, subject: str, frame: Frame) -> Ack:
        # A requested value may be null.
        body = frame.model_dump_json(exclude_none=not isinstance(frame, InputReply)).encode()
        return await self._request(subject, body, frame.id, Ack)

    async def _request(self, subject: str, body: bytes, request_id: str, reply: type[M]) -> M:
        headers = {REQUEST_ID: request_id, SCHEMA_VERSION: str(WIRE_VERSION)}

        async def attempt() -> M:
            await self._bus.wait_connected()
            data = await self._bus.request(subject, body, REPLY_TIMEOUT_S, headers)
            return reply.model_validate_json(checked_reply(data))

        return await retry(
            attempt,
            again=self._bus.may_recover,
            backoff=Backoff(PAUSE_S, PAUSE_S),
            budget_s=BUDGET_S,
            failure=f"{subject}: no gateway responded",
        )


async def _items(queue: asyncio.Queue[T]) -> AsyncIterator[T]:
    while True:
        yield await queue.get()


def _required(value: str | None, field: str) -> str:
    if value is None:
        raise Unavailable(f"the gateway's ack has no {field}")
    return value
