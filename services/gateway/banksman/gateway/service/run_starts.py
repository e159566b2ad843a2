"""Start the runs of messages, and steer open runs."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from banksman.bus.publish import RunQueue
from banksman.contracts.assistants import Branch, RunSettings
from banksman.contracts.errors import BadInput, NotFound, Refused
from banksman.contracts.frames import Ack, ChatSend
from banksman.contracts.messages import Content, FilePart, Part, TextPart, text_of
from banksman.contracts.work import StartRun, SteerRun
from banksman.gateway.service.auth import Caller
from banksman.gateway.service.backlog import Backlog
from banksman.gateway.service.conversations import Conversations, CreatedConversations
from banksman.gateway.service.idempotency import RequestIds, ids_once
from banksman.gateway.service.policies import GovernedAssistants
from banksman.gateway.service.request_checks import check_content
from banksman.gateway.service.run_settings import resolve
from banksman.gateway.service.views import Views
from banksman.runs.branches import Paths
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
            caller: Who sent it.
            request: The message.
            requests: The ids of requests.

        Raises:
            CallerMistake: The message is at fault.
            Refused: The message may be accepted later.
        """
        check_content(request.content)
        created = self.created.take(caller.tenant, request.conversation_id)
        record = created or await self.conversations.get(caller.tenant, request.conversation_id)
        assistant = await self.assistants.in_use(caller.tenant, record.assistant)
        settings = resolve(
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
            # The run is accepted: an error would make the client send the message again.
            logger.warning("%s: its time in the list was not updated: %s", request.conversation_id, error)
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


def _with_attachments(content: Content, paths: tuple[str, ...]) -> Content:
    """Return a message with its attached workspace files."""
    if not paths:
        return content
    parts: tuple[Part, ...] = (TextPart(text=content),) if isinstance(content, str) else content
    return (*parts, *(FilePart(path=path) for path in paths))
