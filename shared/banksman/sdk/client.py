"""The client: requests to the door, and what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel

from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.envelope import answer
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
    RunCancel,
    WorkflowStart,
)
from banksman.contracts.ids import check_token, conversation_of, new_id
from banksman.contracts.messages import Content
from banksman.contracts.nats_api import REQUEST_ID, SCHEMA_VERSION
from banksman.contracts.subjects import ANY
from banksman.contracts.usage import UsageReport
from banksman.contracts.wire import WIRE_VERSION, JsonObject, JsonValue
from banksman.contracts.work import ApprovalRequest
from banksman.runtime.backoff import Backoff, retry
from banksman.sdk.events import EventFrame
from banksman.sdk.feed import follow

ANSWER_S = 10.0
"""Seconds to wait for one answer of the door."""
BUDGET_S = 30.0
"""Seconds that a request is tried. Its id stays the same, so it is done once however often it is tried."""
PAUSE_S = 0.2
WAITING_DELTAS = 4_096
"""Pieces of text that may wait for a slow reader; what comes on top is dropped, as deltas may be."""

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
Frame = ConversationCreate | ChatSend | RunCancel | ApprovalDecision | WorkflowStart


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run that was accepted: stored, and sure to end."""

    run_id: str
    message_id: str | None = None
    """Of the user's message; None for a workflow."""

    @property
    def conversation_id(self) -> str:
        """Whose log tells of it."""
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
    """A connection for the length of the context.

    Args:
        url: A server, or several of a cluster.
        tenant: Whose data; the user of the seed must be in that tenant's account.
        nkey_seed_file: File with the user's seed; None connects without a user.
        tls_ca_file: Certificates that the server's is checked against; None for the system's.
        name: What the server shows in its monitoring.
        connect_timeout_s: Seconds until the first connection must stand.

    Raises:
        BadInput: the tenant is no token.
        Unavailable: no server accepted the user in time.
    """
    check_token(tenant, "tenant")
    settings = NatsSettings(
        url=url, nkey_seed_file=nkey_seed_file, tls_ca_file=tls_ca_file, connect_timeout_s=connect_timeout_s
    )
    async with await Bus.connect(settings, name=name) as bus:
        yield Client(bus, tenant)


class Client:
    """What a tenant may ask of the platform.

    Every request takes a `request_id`: repeated under the same one it is not done again and gets the same
    answer, for 24 hours. All raise `RemoteError` with the door's error, and `Unavailable` when no gateway
    answered within 30 seconds.
    """

    def __init__(self, bus: Bus, tenant: str) -> None:
        self._bus = bus
        self.tenant = tenant

    async def ready(self, timeout_s: float = 2.0) -> None:
        """Make a round trip to the server: what was asked of it before has reached it.

        Raises:
            Unavailable: no answer in time.
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
        """Make a conversation; returns its id."""
        frame = ConversationCreate(
            type="conversation.create",
            id=request_id or new_id("q"),
            title=title,
            assistant=assistant,
            model=model,
            system_prompt_id=system_prompt_id,
            settings=settings or ConversationSettings(),
        )
        ack = await self._ask(subjects.api(self.tenant, "conversation", "create"), frame)
        return _given(ack.conversation_id, "conversation_id")

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
        """Say something that wants an answer.

        Args:
            conversation_id: Where.
            content: Text, or parts.
            request_id: The idempotency key.
            mode: `queue` behind an open run, or `steer` it.
            overrides: What this run does otherwise than its assistant.
            variables: For the system prompt's template.
            attachments: Paths of workspace files that the message is about.
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
        ack = await self._ask(subjects.api(self.tenant, "chat", "send", conversation_id), frame)
        return StartedRun(_given(ack.run_id, "run_id"), ack.message_id)

    async def cancel(
        self, run: StartedRun | str, *, reason: str | None = None, request_id: str | None = None
    ) -> None:
        """Ask for the end of a run, given itself or its id; `outcome` tells when it has ended."""
        run_id = run if isinstance(run, str) else run.run_id
        frame = RunCancel(type="run.cancel", id=request_id or new_id("q"), run_id=run_id, reason=reason)
        await self._ask(subjects.api(self.tenant, "run", "cancel", conversation_of(run_id)), frame)

    async def reply(
        self,
        approval_id: str,
        *,
        all: Literal["approve", "reject"] | None = None,
        decisions: Sequence[ItemDecision] = (),
        remember: Remember | None = None,
        request_id: str | None = None,
    ) -> Ack:
        """Decide an approval: `all` of its calls alike, or one decision for each.

        Returns:
            `already_resolved` is True when another was first; `outcome` and `resolved_by` are the winner's.
        """
        frame = ApprovalDecision(
            type="approval.reply",
            id=request_id or new_id("q"),
            approval_id=approval_id,
            all=all,
            decisions=tuple(decisions),
            remember=remember,
        )
        return await self._ask(subjects.api(self.tenant, "approval", "reply", approval_id), frame)

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
        ack = await self._ask(subjects.api(self.tenant, "workflow", "start", name), frame)
        return StartedRun(_given(ack.run_id, "run_id"), ack.message_id)

    async def assistants(self) -> tuple[Assistant, ...]:
        """All assistants of the tenant, by id."""
        return (await self._assistant("list", AssistantList)).items

    async def assistant(self, assistant_id: str) -> Assistant:
        """One of them; `default` is there for every tenant."""
        return await self._assistant("read", Assistant, assistant_id)

    async def create_assistant(self, given: NewAssistant, *, request_id: str | None = None) -> Assistant:
        """Store a new one; conversations name it by its id."""
        return await self._assistant("create", Assistant, body=given, request_id=request_id)

    async def update_assistant(
        self, assistant_id: str, given: AssistantBody, *, revision: int | None = None
    ) -> Assistant:
        """Store another in its place, from the next run on; the same once more changes nothing.

        Args:
            assistant_id: Which.
            given: All of the other one.
            revision: Replace it only at this revision; None for whichever it is.
        """
        fields = {name: getattr(given, name) for name in AssistantBody.model_fields}
        update = AssistantUpdate(**fields, revision=revision)
        return await self._assistant("update", Assistant, assistant_id, body=update)

    async def delete_assistant(self, assistant_id: str) -> None:
        """Remove one. Runs that it started go on; its conversations can start none."""
        await self._assistant("delete", AssistantDeleted, assistant_id)

    async def usage(self) -> UsageReport:
        """What the tenant's runs consumed in this day and month, and what it may."""
        return await self._request(subjects.api(self.tenant, "usage"), b"{}", new_id("q"), UsageReport)

    def follow(self, conversation_id: str, after_seq: int = 0) -> AsyncGenerator[EventFrame]:
        """Every event after `after_seq`, stored and to come, each once, in order and without gaps.

        It never ends by itself; close it (`contextlib.aclosing`) when the loop over it is left early.

        Raises:
            LogRestored: the log was restored from a backup meanwhile.
            RemoteError: there is no such conversation.
            Unavailable: the stored events could not be read for 30 seconds.
        """
        return follow(self._bus, self.tenant, conversation_id, after_seq)

    async def outcome(self, run: StartedRun, *, after_seq: int = 0) -> RunFinished:
        """Wait for the end of a run; the caller sets the deadline.

        Raises:
            LogRestored, RemoteError, Unavailable: as of `follow`.
        """
        async with aclosing(self.follow(run.conversation_id, after_seq)) as events:
            async for event in events:
                if event.run_id == run.run_id and event.type == "run.finished":
                    return RunFinished.model_validate(event.data)
        raise Unavailable(f"{run.run_id}: its log ended")

    @asynccontextmanager
    async def deltas(self, conversation_id: str) -> AsyncGenerator[AsyncIterator[Delta]]:
        """Text while it is written, from the moment the context opens.

        Pieces may be lost; the `message.completed` event replaces them.
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
        """The tenant's approvals as they are asked, from the moment the context opens.

        Other clients are asked them too; the first answer counts.
        """
        asked: asyncio.Queue[ApprovalRequest] = asyncio.Queue()

        async def received(message: Message) -> None:
            asked.put_nowait(ApprovalRequest.model_validate_json(message.data))

        subscription = await self._bus.subscribe(subjects.approval_request(self.tenant, ANY), received)
        try:
            yield _items(asked)
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

    async def _ask(self, subject: str, frame: Frame) -> Ack:
        return await self._request(subject, frame.model_dump_json(exclude_none=True).encode(), frame.id, Ack)

    async def _request(self, subject: str, body: bytes, request_id: str, reply: type[M]) -> M:
        headers = {REQUEST_ID: request_id, SCHEMA_VERSION: str(WIRE_VERSION)}

        async def attempt() -> M:
            await self._bus.wait_connected()
            data = await self._bus.request(subject, body, ANSWER_S, headers)
            return reply.model_validate_json(answer(data))

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


def _given(value: str | None, field: str) -> str:
    if value is None:
        raise Unavailable(f"the gateway acknowledged without {field}")
    return value
