"""Starts the run of a schedule, as the user who last changed the schedule."""

from __future__ import annotations

from dataclasses import replace

from banksman.contracts.frames import Ack, ChatSend, ConversationCreate, WorkflowStart
from banksman.gateway.operation.caller import Caller
from banksman.gateway.requests.client_requests import ClientRequests
from banksman.gateway.requests.idempotency import DerivedIds
from banksman.gateway.schedules.models import ScheduledPrompt, ScheduledStart, ScheduledWorkflow


async def start_run(
    requests: ClientRequests, caller: Caller, start: ScheduledStart, *, title: str, source: str
) -> Ack:
    """Start a run; a later call with the same source starts no second run.

    Args:
        requests: Handles the requests of clients.
        caller: The user as whom it runs.
        start: The prompt or the workflow.
        title: The title of a new conversation; empty for one from its message.
        source: Identifies this run. All ids are derived from it.

    Raises:
        BanksmanError: The errors of a client's request.
    """
    once = replace(requests, requests=DerivedIds(source))
    match start:
        case ScheduledWorkflow():
            frame = WorkflowStart(type="workflow.start", id="scheduled", **start.model_dump(exclude={"type"}))
            return await once.handle(caller, frame)
        case ScheduledPrompt():
            return await _send(once, caller, start, title)


async def _send(requests: ClientRequests, caller: Caller, start: ScheduledPrompt, title: str) -> Ack:
    conversation_id = start.conversation_id
    if conversation_id is None:
        create = ConversationCreate(
            type="conversation.create", id="scheduled", title=title, assistant=start.assistant
        )
        created = await requests.handle(caller, create, title_from=start.content)
        conversation_id = created.conversation_id or ""
    message = ChatSend(
        type="chat.send",
        id="scheduled",
        conversation_id=conversation_id,
        content=start.content,
        overrides=start.overrides,
        variables=start.variables,
    )
    return await requests.handle(caller, message)
