"""Start the runs of messages with their settings, and steer open runs."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from banksman.bus.publish import RunQueue
from banksman.contracts.assistants import (
    Assistant,
    Branch,
    ConversationSettings,
    RunOverrides,
    RunSettings,
)
from banksman.contracts.errors import BadInput, NotFound, Refused
from banksman.contracts.frames import Ack, ChatSend
from banksman.contracts.messages import Content, FilePart, Part, TextPart, ToolProtocol, text_of
from banksman.contracts.wire import JsonObject
from banksman.contracts.work import StartRun, SteerRun
from banksman.gateway.service.auth import Caller
from banksman.gateway.service.backlog import Backlog
from banksman.gateway.service.conversations import Conversations, CreatedConversations
from banksman.gateway.service.idempotency import RequestIds, ids_once
from banksman.gateway.service.model_catalog import model_name
from banksman.gateway.service.policies import GovernedAssistants
from banksman.gateway.service.request_checks import check_content
from banksman.gateway.service.views import Views
from banksman.runs.history import Paths
from banksman.runtime.failpoints import reach
from banksman.runtime.tracing import current, valid

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarts:
    """Stores the messages of users as work for agents."""

    views: Views
    conversations: Conversations
    created: CreatedConversations
    assistants: GovernedAssistants
    queue: RunQueue
    backlog: Backlog
    default_model: str | None

    async def send(self, caller: Caller, request: ChatSend, requests: RequestIds) -> Ack:
        """Store a message: it starts a run, or steers the open one.

        Args:
            caller: The sender.
            request: The message.
            requests: The ids of accepted requests.

        Raises:
            CallerMistake: The message is invalid, or the caller may not send it.
            Refused: The message may be accepted later.
        """
        check_content(request.content)
        created = self.created.take(caller.tenant, request.conversation_id)
        record = created or await self.conversations.get(caller.tenant, request.conversation_id)
        assistant = await self.assistants.in_use(caller.tenant, record.assistant)
        settings = resolve_settings(
            assistant, record.settings, request.overrides, request.variables, self.default_model
        )
        content = _with_attachments(request.content, request.attachments)
        if created is None:
            await self.views.check_complete(caller.tenant, request.conversation_id)
        own = {
            "branch": await self._branch(caller, request),
            "traceparent": valid(request.traceparent) or current(),
        }
        settings = settings.model_copy(update=own)
        new_run = requests.new_run(request.conversation_id)
        steered = await self._steered_run(caller, request)
        if steered is None:
            await self.backlog.check(caller.tenant, _size(content, settings))
        else:
            await self.backlog.logs.check(caller.tenant)
            await self.backlog.check_signal(caller.tenant, _size(content, settings))
        fresh = {"start": new_run, "run_id": steered or new_run, "message_id": requests.new("m")}
        ids = await ids_once(requests, caller, request, fresh)
        start = StartRun(
            tenant=caller.tenant,
            conversation_id=request.conversation_id,
            run_id=ids["start"],
            message_id=ids["message_id"],
            content=content,
            settings=settings,
            user=caller.user,
            first=created is not None,
        )
        if ids["run_id"] == ids["start"]:
            await self.queue.publish(start)
        else:
            await self.queue.signal(_steer(start, caller), start.message_id)
        await reach("gateway.before_response")
        try:
            await self.conversations.touch(caller.tenant, record, text_of(content))
        except Refused as error:
            # The run is stored: after an error, the client would send the message again.
            logger.warning("%s: its list entry was not updated: %s", request.conversation_id, error)
        return Ack(
            reply_to=request.id,
            conversation_id=request.conversation_id,
            run_id=ids["run_id"],
            message_id=ids["message_id"],
        )

    async def _branch(self, caller: Caller, request: ChatSend) -> Branch | None:
        """Return the branch of a message if it is valid; None if the message names none.

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


def resolve_settings(
    assistant: Assistant,
    conversation: ConversationSettings,
    overrides: RunOverrides,
    variables: JsonObject,
    default_model: str | None,
) -> RunSettings:
    """Return the settings of a run: the request overrides the conversation, which overrides the assistant.

    Raises:
        BadInput: No model is set anywhere, or its name has no known provider.
    """
    layers = (overrides, conversation)
    iterations = next((layer.max_iterations for layer in layers if layer.max_iterations), None)
    timeout_s = next((layer.run_timeout_s for layer in layers if layer.run_timeout_s), None)
    wanted = next((layer.tool_protocol for layer in layers if layer.tool_protocol), None)
    tools, limits = assistant.tools, assistant.limits
    model = model_name(overrides.model or conversation.model or assistant.model or default_model)
    prompt_id, prompt = _prompt(assistant, conversation, overrides)
    options = {
        name: value for layer in reversed(layers) for name, value in layer.options if value is not None
    }
    fallbacks = (model_name(name) for name in assistant.fallback_models)
    return RunSettings(
        assistant_id=assistant.id,
        assistant_revision=assistant.revision,
        service=assistant.service,
        model=model,
        fallback_models=tuple(name for name in fallbacks if name != model),
        system_prompt_id=prompt_id,
        system_prompt=prompt,
        options=assistant.options.model_copy(update=options),
        tools=tools.model_copy(update={"max_iterations": iterations}) if iterations else tools,
        tool_protocol=protocol(wanted or tools.tool_protocol),
        limits=limits.model_copy(update={"run_timeout_s": timeout_s}) if timeout_s else limits,
        approval_policy=assistant.approval_policy,
        approvals=assistant.approvals,
        variables={**assistant.variables, **conversation.variables, **overrides.variables, **variables},
    )


def _prompt(
    assistant: Assistant, conversation: ConversationSettings, overrides: RunOverrides
) -> tuple[str | None, str | None]:
    """Return the id and the text of the system prompt; at most one of them applies."""
    if overrides.system_prompt is not None:
        return None, overrides.system_prompt
    if conversation.system_prompt_id is not None or conversation.system_prompt is not None:
        return conversation.system_prompt_id, conversation.system_prompt
    return assistant.system_prompt_id, assistant.system_prompt


def protocol(wanted: str) -> ToolProtocol:
    """Return the format in which the model writes calls. Every provider supports `native`."""
    return "json_text" if wanted == "json_text" else "native"


def _size(content: Content, settings: RunSettings) -> int:
    """Return the approximate size of a start, in characters."""
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


def _with_attachments(content: Content, paths: tuple[str, ...]) -> Content:
    """Return a message with the workspace files at `paths` attached."""
    if not paths:
        return content
    parts: tuple[Part, ...] = (TextPart(text=content),) if isinstance(content, str) else content
    return (*parts, *(FilePart(path=path) for path in paths))
