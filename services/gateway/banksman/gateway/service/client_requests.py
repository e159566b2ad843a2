"""Handle client requests, in the form of the websocket's frames, for every interface."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import assert_never

from banksman.bus.publish import RunQueue
from banksman.contracts.assistants import Assistant, Branch, ConversationSettings, RunOverrides, RunSettings
from banksman.contracts.errors import BadInput, NotFound, Refused
from banksman.contracts.frames import (
    Ack,
    ApprovalDecision,
    ChatSend,
    ConversationCreate,
    Envelope,
    InputReply,
    RunCancel,
    WorkflowStart,
)
from banksman.contracts.ids import conversation_of, digest, new_id
from banksman.contracts.messages import Content, FilePart, Part, TextPart, text_of
from banksman.contracts.registry import SystemPrompt
from banksman.contracts.work import CancelRun, DeleteConversation, RenameConversation, StartRun, SteerRun
from banksman.gateway.service.auth import Caller
from banksman.gateway.service.backlog import Backlog
from banksman.gateway.service.conversations import Conversations, CreatedConversations, new_record, title_of
from banksman.gateway.service.decisions import Decisions, SubmittedDecision
from banksman.gateway.service.idempotency import RequestIds
from banksman.gateway.service.inputs import Inputs
from banksman.gateway.service.request_checks import Request, check_content, check_conversation
from banksman.gateway.service.run_settings import model_name, resolve
from banksman.gateway.service.tenant_store import TenantStore
from banksman.gateway.service.views import Views
from banksman.gateway.service.workflows import Workflows, start_of
from banksman.runs.branches import Paths
from banksman.runs.ports import Clock
from banksman.runtime.failpoints import reach

logger = logging.getLogger(__name__)

_NO_SETTINGS = ConversationSettings()
DEFAULT_ASSISTANT = "default"
"""Every tenant has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequests:
    """Handles requests that change a conversation.

    Every request has an id: a repeated request gets the ids and the effect of the first one.
    """

    views: Views
    conversations: Conversations
    assistants: TenantStore[Assistant]
    prompts: TenantStore[SystemPrompt]
    workflows: Workflows
    decisions: Decisions
    inputs: Inputs
    requests: RequestIds
    queue: RunQueue
    backlog: Backlog
    clock: Clock
    default_model: str | None
    created: CreatedConversations = field(default_factory=CreatedConversations)

    async def handle(self, caller: Caller, request: Request, *, title_from: Content = "") -> Ack:
        """Handle a request and return its acknowledgement.

        Args:
            caller: Who sent it.
            request: The request.
            title_from: The message that follows the creation of a conversation; it names one without a title.

        Raises:
            CallerMistake: The request is at fault.
            Refused: The request may succeed later.
        """
        caller.check("context")
        caller.need("approve" if isinstance(request, ApprovalDecision | InputReply) else "chat")
        check_conversation(request)
        match request:
            case ConversationCreate():
                return await self._create(caller, request, title_of(text_of(title_from)))
            case ChatSend():
                return await self._send(caller, request)
            case RunCancel():
                return await self._cancel(caller, request)
            case ApprovalDecision():
                return await self._decide(caller, request)
            case WorkflowStart():
                return await self._start_workflow(caller, request)
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
        signal = RenameConversation(
            tenant=caller.tenant, conversation_id=conversation_id, title=title, request_id=new_id("rename-")
        )
        await self.queue.signal(signal, signal.request_id or "")

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
        ids = await self._once(caller, request, {"conversation_id": self.requests.new("c")})
        conversation_id = ids["conversation_id"]
        title = request.title or title
        record = new_record(
            conversation_id, title, request.assistant, settings, by=caller.user, now=self.clock.now()
        )
        if await self.conversations.create(caller.tenant, record):
            self.created.add(caller.tenant, record)
        return Ack(reply_to=request.id, conversation_id=conversation_id)

    async def _send(self, caller: Caller, request: ChatSend) -> Ack:
        check_content(request.content)
        created = self.created.take(caller.tenant, request.conversation_id)
        record = created or await self.conversations.get(caller.tenant, request.conversation_id)
        assistant = await self.assistants.in_use(caller.tenant, record.assistant)
        settings = resolve(
            assistant, record.settings, request.overrides, request.variables, self.default_model
        )
        content = with_attachments(request.content, request.attachments)
        if created is None:
            await self.views.check_complete(caller.tenant, request.conversation_id)
        settings = settings.model_copy(update={"branch": await self._branch(caller, request)})
        new_run = self.requests.new_run(request.conversation_id)
        steered = await self._steered_run(caller, request)
        if steered is None:
            await self.backlog.check(caller.tenant, _size(content, settings))
        else:
            await self.backlog.logs.check(caller.tenant)
            await self.backlog.check_signal(caller.tenant, _size(content, settings))
        fresh = {"start": new_run, "run_id": steered or new_run, "message_id": self.requests.new("m")}
        ids = await self._once(caller, request, fresh)
        start = StartRun(
            tenant=caller.tenant,
            conversation_id=request.conversation_id,
            run_id=ids["start"],
            message_id=ids["message_id"],
            content=content,
            settings=settings,
            user=caller.user,
        )
        if ids["run_id"] == ids["start"]:
            await self.queue.publish(start)
        else:
            await self.queue.signal(_steer(start, caller), start.message_id)
        await reach("gateway.before_response")
        try:
            await self.conversations.touch(caller.tenant, record, text_of(content))
        except Refused as error:
            # The run is accepted: an error would make the client send the message again.
            logger.warning("%s: the list shows an old time: %s", request.conversation_id, error)
        return Ack(
            reply_to=request.id,
            conversation_id=request.conversation_id,
            run_id=ids["run_id"],
            message_id=ids["message_id"],
        )

    async def _branch(self, caller: Caller, request: ChatSend) -> Branch | None:
        """Return where the run of a message continues its conversation.

        Raises:
            BadInput: The message steers a run.
            NotFound: The conversation has no such message, or a compaction replaced it.
        """
        branch = request.branch
        if branch is not None and request.mode == "steer":
            raise BadInput("branch", branch.after, "nothing for a message that steers a run")
        if branch is not None and branch.after is not None:
            state = await self.views.state(caller.tenant, request.conversation_id)
            if not Paths(state.history, state.left).reaches(branch.after):
                raise NotFound("message", branch.after)
        return branch

    async def _steered_run(self, caller: Caller, request: ChatSend) -> str | None:
        """Return the open run that a message steers; None if the message starts a run of its own."""
        if request.mode != "steer":
            return None
        view = await self.views.read(caller.tenant, request.conversation_id)
        return None if view.open_run is None else view.open_run.run_id

    async def _cancel(self, caller: Caller, request: RunCancel) -> Ack:
        conversation_id = conversation_of(request.run_id)
        await self.conversations.get(caller.tenant, conversation_id)
        view = await self.views.read(caller.tenant, conversation_id)
        run = view.runs.get(request.run_id)
        if run is None or not run.finished_in:
            await self.backlog.check_signal(caller.tenant)
            signal = CancelRun(
                tenant=caller.tenant,
                conversation_id=conversation_id,
                run_id=request.run_id,
                reason=request.reason,
                by=caller.user,
            )
            await self.queue.signal(signal, _scoped(caller, request))
        return Ack(reply_to=request.id, conversation_id=conversation_id, run_id=request.run_id)

    async def _decide(self, caller: Caller, request: ApprovalDecision) -> Ack:
        if (request.all is None) == (not request.decisions):
            raise BadInput("decisions", None, "either `decisions` or `all`, and not both")
        ids = await self._once(caller, request, {"answer": new_id("answer-")})
        submitted = SubmittedDecision(
            caller.user, request.decisions, request.all, request.remember, request.digests, ids["answer"]
        )
        result = await self.decisions.submit(caller.tenant, request.approval_id, submitted)
        reply = result.reply
        return Ack(
            reply_to=request.id,
            conversation_id=reply.conversation_id,
            run_id=reply.run_id,
            resolved_by=reply.by,
            already_resolved=not result.won,
            outcome=reply.outcome,
        )

    async def _provide(self, caller: Caller, request: InputReply) -> Ack:
        ids = await self._once(caller, request, {"answer": new_id("answer-")})
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

    async def _start_workflow(self, caller: Caller, request: WorkflowStart) -> Ack:
        assistant, agent = await self._workflow_settings(caller, request)
        checked = await self.workflows.check(caller.tenant, request)
        settings_bytes = 0 if agent is None else len(agent.model_dump_json())
        await self.backlog.check_workflow(caller.tenant, len(str(request.parameters)) + settings_bytes)
        conversation_id = self.requests.new("c")
        fresh = {
            "conversation_id": conversation_id,
            "run_id": self.requests.new_run(conversation_id),
            "message_id": self.requests.new("m"),
        }
        ids = await self._once(caller, request, fresh)
        work = start_of(checked, request, caller, ids, assistant, agent)
        title = checked.workflow.title or checked.workflow.name
        record = new_record(
            work.conversation_id, title, "default", _NO_SETTINGS, by=caller.user, now=self.clock.now()
        )
        await self.conversations.create(caller.tenant, record)
        await self.queue.start_workflow(work)
        return Ack(
            reply_to=request.id,
            conversation_id=work.conversation_id,
            run_id=work.run_id,
            message_id=work.message_id,
        )

    async def _workflow_settings(
        self, caller: Caller, request: WorkflowStart
    ) -> tuple[Assistant, RunSettings | None]:
        """Return whose policy decides about a workflow's calls, and the settings of its agent runs."""
        name, settings = DEFAULT_ASSISTANT, _NO_SETTINGS
        if request.conversation_id is not None:
            record = await self.conversations.get(caller.tenant, request.conversation_id)
            name, settings = record.assistant, record.settings
        assistant = await self.assistants.get(caller.tenant, name)
        try:
            agent = resolve(assistant, settings, RunOverrides(), {}, self.default_model)
        except BadInput:
            # No model is configured, which only a workflow with agent runs needs.
            agent = None
        return assistant, agent

    async def _once(self, caller: Caller, request: Request, ids: Mapping[str, str]) -> Mapping[str, str]:
        key = _scoped(caller, request)
        exclude = {"id", "conversation_id"} if isinstance(request, Envelope) else {"id"}
        return await self.requests.once(caller.tenant, key, request, ids, exclude=exclude)


def _scoped(caller: Caller, request: Request) -> str:
    """Return the idempotency key of a request within its tenant.

    The key includes the conversation, run or approval: a client may number its frames per conversation.
    """
    match request:
        case ChatSend():
            scope = request.conversation_id
        case RunCancel():
            scope = request.run_id
        case ApprovalDecision():
            scope = request.approval_id
        case InputReply():
            scope = request.request_id
        case _:
            scope = ""
    return digest(f"{caller.user}\n{scope}\n{request.id}".encode())


def _size(content: Content, settings: RunSettings) -> int:
    """Return the bytes of a run's message, about."""
    return len(str(content)) + len(settings.system_prompt or "") + len(str(settings.variables))


def _steer(start: StartRun, caller: Caller) -> SteerRun:
    return SteerRun(
        tenant=start.tenant,
        conversation_id=start.conversation_id,
        message_id=start.message_id,
        content=start.content,
        start=start,
        by=caller.user,
    )


def with_attachments(content: Content, paths: tuple[str, ...]) -> Content:
    """Return a message with its attached workspace files."""
    if not paths:
        return content
    parts: tuple[Part, ...] = (TextPart(text=content),) if isinstance(content, str) else content
    return (*parts, *(FilePart(path=path) for path in paths))
