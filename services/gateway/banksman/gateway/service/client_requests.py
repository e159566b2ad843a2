"""Handles client requests of every interface, in the form of the websocket's frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from banksman.bus.publish import RunQueue
from banksman.contracts.assistants import Assistant
from banksman.contracts.errors import BadInput
from banksman.contracts.frames import (
    Ack,
    ApprovalDecision,
    ChatSend,
    ConversationCreate,
    InputReply,
    RunCancel,
    WorkflowStart,
)
from banksman.contracts.ids import conversation_of, new_id
from banksman.contracts.messages import Content, text_of
from banksman.contracts.registry import SystemPrompt
from banksman.contracts.work import CancelRun, DeleteConversation, RenameConversation
from banksman.gateway.service.auth import Caller
from banksman.gateway.service.backlog import Backlog
from banksman.gateway.service.conversations import Conversations, CreatedConversations, new_record, title_of
from banksman.gateway.service.decisions import AWAITING_SECOND, Decisions, SubmittedDecision
from banksman.gateway.service.idempotency import RequestIds, ids_once, request_key
from banksman.gateway.service.inputs import Inputs
from banksman.gateway.service.model_catalog import model_name
from banksman.gateway.service.request_checks import Request, check_conversation
from banksman.gateway.service.run_starts import RunStarts
from banksman.gateway.service.runs import Runs
from banksman.gateway.service.tenant_store import TenantStore
from banksman.gateway.service.workflow_starts import WorkflowStarts
from banksman.runs.ports import Clock


async def publish_title(queue: RunQueue, tenant: str, conversation_id: str, title: str) -> None:
    """Let an agent write a stored title into the log, whose event notifies clients."""
    signal = RenameConversation(
        tenant=tenant, conversation_id=conversation_id, title=title, request_id=new_id("rename-")
    )
    await queue.signal(signal, signal.request_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequests:
    """Handles requests that change a conversation.

    Every request has an id: a repeated request returns the ids of the first one, and has no further effect.
    """

    conversations: Conversations
    created: CreatedConversations
    assistants: TenantStore[Assistant]
    prompts: TenantStore[SystemPrompt]
    runs: Runs
    run_starts: RunStarts
    workflow_starts: WorkflowStarts
    decisions: Decisions
    inputs: Inputs
    requests: RequestIds
    queue: RunQueue
    backlog: Backlog
    clock: Clock

    async def handle(self, caller: Caller, request: Request, *, title_from: Content = "") -> Ack:
        """Handle a request and return its acknowledgement.

        Args:
            caller: The sender.
            request: The request.
            title_from: The first message of a new conversation, from which a missing title is derived.

        Raises:
            CallerMistake: The request is invalid, or the caller may not send it.
            Refused: The request may succeed later.
        """
        caller.check("context")
        caller.need("approve" if isinstance(request, ApprovalDecision | InputReply) else "chat")
        check_conversation(request)
        match request:
            case ConversationCreate():
                return await self._create(caller, request, title_of(text_of(title_from)))
            case ChatSend():
                return await self.run_starts.send(caller, request, self.requests)
            case RunCancel():
                return await self._cancel(caller, request)
            case ApprovalDecision():
                return await self._decide(caller, request)
            case WorkflowStart():
                return await self.workflow_starts.start(caller, request, self.requests)
            case InputReply():
                return await self._provide(caller, request)
            case _:
                assert_never(request)

    async def rename(self, caller: Caller, conversation_id: str, title: str) -> None:
        """Rename a conversation, in the index and in its log.

        Raises:
            NotFound: This tenant has no such conversation.
        """
        await self.backlog.check_signal(caller.tenant, len(title))
        await self.conversations.rename(caller.tenant, conversation_id, title)
        await publish_title(self.queue, caller.tenant, conversation_id, title)

    async def delete(self, caller: Caller, conversation_id: str) -> None:
        """Delete a conversation and end its open runs.

        Raises:
            NotFound: This tenant has no such conversation.
        """
        await self.conversations.get(caller.tenant, conversation_id)
        signal = DeleteConversation(tenant=caller.tenant, conversation_id=conversation_id, by=caller.user)
        await self.queue.signal(signal, f"delete-{conversation_id}")
        await self.conversations.delete(caller.tenant, conversation_id)
        self.created.take(caller.tenant, conversation_id)

    async def _create(self, caller: Caller, request: ConversationCreate, title: str) -> Ack:
        settings = request.settings.model_copy(
            update={
                name: value
                for name in ("model", "system_prompt_id")
                if (value := getattr(request, name)) is not None
            }
        )
        await self.assistants.in_use(caller.tenant, request.assistant)
        if settings.system_prompt_id is not None:
            await self.prompts.get(caller.tenant, settings.system_prompt_id)
        if settings.model is not None:
            model_name(settings.model)
        ids = await ids_once(self.requests, caller, request, {"conversation_id": self.requests.new("c")})
        conversation_id = ids["conversation_id"]
        record = new_record(
            conversation_id,
            request.title or title,
            request.assistant,
            settings,
            by=caller.user,
            now=self.clock.now(),
            title_by="person" if request.title else "message",
        )
        if await self.conversations.create(caller.tenant, record):
            self.created.add(caller.tenant, record)
        return Ack(reply_to=request.id, conversation_id=conversation_id)

    async def _cancel(self, caller: Caller, request: RunCancel) -> Ack:
        conversation_id = conversation_of(request.run_id)
        # A cancel of a run that is only queued is stored; an agent ends the run when its start arrives.
        run = await self.runs.find(caller.tenant, request.run_id)
        if not run.finished_in:
            await self.backlog.check_signal(caller.tenant)
            signal = CancelRun(
                tenant=caller.tenant,
                conversation_id=conversation_id,
                run_id=request.run_id,
                reason=request.reason,
                by=caller.user,
            )
            await self.queue.signal(signal, request_key(caller, request))
        return Ack(reply_to=request.id, conversation_id=conversation_id, run_id=request.run_id)

    async def _decide(self, caller: Caller, request: ApprovalDecision) -> Ack:
        if (request.all is None) == (not request.decisions):
            raise BadInput("decisions", None, "either `decisions` or `all`, and not both")
        ids = await ids_once(self.requests, caller, request, {"answer": new_id("answer-")})
        submitted = SubmittedDecision(
            by=caller.user,
            decisions=request.decisions,
            all=request.all,
            remember=request.remember,
            digests=request.digests,
            link=request.link,
            decision_id=ids["answer"],
        )
        result = await self.decisions.submit(caller.tenant, request.approval_id, submitted)
        reply = result.reply
        return Ack(
            reply_to=request.id,
            conversation_id=reply.conversation_id,
            run_id=reply.run_id,
            resolved_by=None if result.outcome == AWAITING_SECOND else reply.by,
            already_resolved=not result.won,
            outcome=result.outcome,
        )

    async def _provide(self, caller: Caller, request: InputReply) -> Ack:
        ids = await ids_once(self.requests, caller, request, {"answer": new_id("answer-")})
        provided = await self.inputs.submit(
            caller.tenant, request.request_id, request.value, by=caller.user, reply_id=ids["answer"]
        )
        reply = provided.reply
        return Ack(
            reply_to=request.id,
            conversation_id=reply.conversation_id,
            run_id=reply.run_id,
            resolved_by=reply.by,
            already_resolved=not provided.won,
            outcome=provided.outcome,
        )
