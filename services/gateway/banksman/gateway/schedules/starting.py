"""Starts the run of a schedule, as the user who last changed the schedule."""

from __future__ import annotations

from banksman.contracts.frames import Ack, ChatSend, ConversationCreate, WorkflowStart
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.runs.idempotency import DerivedIds
from banksman.gateway.schedules.models import ScheduledPrompt, ScheduledStart, ScheduledWorkflow


async def start_run(
    dispatcher: Dispatcher, caller: Caller, start: ScheduledStart, *, title: str, source: str
) -> Ack:
    """Start a run; a later call with the same source starts no second run.

    Args:
        dispatcher: Handles the requests of clients.
        caller: The user as whom it runs.
        start: The prompt or the workflow.
        title: The title of a new conversation; empty for one from its message.
        source: Identifies this run. All ids are derived from it.

    Raises:
        BanksmanError: The errors of a client's request.
    """
    ids = DerivedIds(source)
    match start:
        case ScheduledWorkflow():
            frame = WorkflowStart(type="workflow.start", id="scheduled", **start.model_dump(exclude={"type"}))
            return await dispatcher.handle(caller, frame, requests=ids)
        case ScheduledPrompt():
            return await _send(dispatcher, caller, start, title, ids)


async def _send(
    dispatcher: Dispatcher, caller: Caller, start: ScheduledPrompt, title: str, ids: DerivedIds
) -> Ack:
    conversation_id = start.conversation_id
    if conversation_id is None:
        create = ConversationCreate(
            type="conversation.create", id="scheduled", title=title, assistant=start.assistant
        )
        created: Ack = await dispatcher.handle(caller, create, requests=ids, title_from=start.content)
        conversation_id = created.conversation_id or ""
    message = ChatSend(
        type="chat.send",
        id="scheduled",
        conversation_id=conversation_id,
        content=start.content,
        overrides=start.overrides,
        variables=start.variables,
    )
    return await dispatcher.handle(caller, message, requests=ids)
