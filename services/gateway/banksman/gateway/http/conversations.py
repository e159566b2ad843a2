"""Conversations and their events."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response
from pydantic_core import to_json

from banksman.contracts.assistants import ConversationRecord
from banksman.contracts.errors import BadInput
from banksman.contracts.event_frames import is_shown
from banksman.contracts.frames import ConversationCreate, Detail
from banksman.gateway.asgi.dependencies import CallerDep, RequestId, ServiceDep
from banksman.gateway.asgi.routing import StrictBody, router
from banksman.gateway.http.models import EventPage, NewConversation
from banksman.gateway.service import resources
from banksman.gateway.service.bodies import (
    Conversation,
    ConversationChange,
    ConversationPage,
    ExportedConversation,
)
from banksman.gateway.service.event_frames import encoded_event

MAX_EVENTS = 1_000

routes = router("conversations")


@routes.post("/context/conversations", status_code=201)
async def create_conversation(
    gateway: ServiceDep,
    caller: CallerDep,
    request_id: RequestId,
    body: StrictBody[NewConversation] = NewConversation(),  # noqa: B008  # frozen
) -> ConversationRecord:
    """Create a conversation."""
    ack = await gateway.requests.handle(caller, creation(request_id, body))
    return await gateway.conversations.get(caller.tenant, ack.conversation_id or "")


@routes.post("/context/conversations/import", status_code=201)
async def import_conversation(
    body: StrictBody[ExportedConversation], gateway: ServiceDep, caller: CallerDep, request_id: RequestId
) -> ConversationRecord:
    """Create a conversation with the messages of an exported one. Calls, files and costs are not imported."""
    return await gateway.imports.create(caller, body, request_id)


@routes.get("/context/conversations")
async def list_conversations(
    gateway: ServiceDep,
    caller: CallerDep,
    q: str = "",
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    pinned: bool | None = None,
    archived: bool = False,
) -> ConversationPage:
    """List conversations, newest first; `q` selects by a part of the title, or by id.

    Archived conversations are listed only with `archived=true`, which lists no others. Pinned ones are listed
    among the others; `pinned=true` lists only them.
    """
    return await resources.list_conversations(
        gateway, caller.tenant, query=q, cursor=cursor, limit=limit, pinned=pinned, archived=archived
    )


@routes.get("/context/conversations/{conversation_id}")
async def read_conversation(conversation_id: str, gateway: ServiceDep, caller: CallerDep) -> Conversation:
    """Read a conversation, its open run and its open approval requests."""
    return await resources.read_conversation(gateway, caller.tenant, conversation_id)


@routes.patch("/context/conversations/{conversation_id}")
async def rename_conversation(
    conversation_id: str, body: StrictBody[ConversationChange], gateway: ServiceDep, caller: CallerDep
) -> ConversationRecord:
    """Rename, pin or archive a conversation."""
    if body.title is not None:
        await gateway.requests.rename(caller, conversation_id, body.title)
    if body.pinned is not None or body.archived is not None:
        await gateway.conversations.mark(caller.tenant, conversation_id, body.pinned, body.archived)
    return await gateway.conversations.current(caller.tenant, conversation_id)


@routes.post("/context/conversations/{conversation_id}/title")
async def generate_title(conversation_id: str, gateway: ServiceDep, caller: CallerDep) -> ConversationRecord:
    """Let a model write the title from the first exchange. A title that a user chose is not replaced."""
    return await gateway.titles.generate(caller, conversation_id)


@routes.delete("/context/conversations/{conversation_id}", status_code=204)
async def delete_conversation(conversation_id: str, gateway: ServiceDep, caller: CallerDep) -> None:
    """Delete a conversation, and end its open runs."""
    await gateway.requests.delete(caller, conversation_id)


@routes.get("/context/conversations/{conversation_id}/events", response_model=EventPage)
async def list_events(
    conversation_id: str,
    gateway: ServiceDep,
    caller: CallerDep,
    after_seq: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_EVENTS)] = MAX_EVENTS,
    detail: Detail = "full",
) -> Response:
    """List the stored events after `after_seq`, as the frames that the websocket sends.

    A number beyond the last event is refused: the log was restored from a backup, so read it again from 0.
    """
    await gateway.conversations.get(caller.tenant, conversation_id)
    page = await gateway.views.events(caller.tenant, conversation_id, after_seq=after_seq)
    if after_seq > page.head_seq:
        raise BadInput("after_seq", after_seq, f"at most {page.head_seq}, the number of the last event")
    frames: list[bytes] = []
    last, more = after_seq, False
    for event in page.events:
        if not is_shown(event.data.type, detail):
            continue
        if len(frames) == limit:
            more = True
            break
        frames.append(encoded_event(event, conversation_id, page.log_epoch, last).encode())
        last = event.seq
    head = to_json(
        {
            "head_seq": page.head_seq,
            "oldest_seq": page.oldest_seq,
            "log_epoch": page.log_epoch,
            "next": last if more else None,
        }
    )
    # The frames are JSON already: validating up to 1,000 of them again would cost more than encoding them.
    content = b'{"items":[' + b",".join(frames) + b"]," + head[1:]
    return Response(content, media_type="application/json")


def creation(request_id: str, body: NewConversation) -> ConversationCreate:
    """Return the frame that creates a conversation."""
    fields = {name: getattr(body, name) for name in NewConversation.model_fields}
    return ConversationCreate(type="conversation.create", id=request_id, **fields)


def creation_id(request_id: str) -> str:
    """Return the id of the request that creates a conversation for another request, stable across repeats."""
    return f"{request_id}:conversation"[-128:]
