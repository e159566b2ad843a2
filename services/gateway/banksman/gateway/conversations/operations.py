"""Conversations: create, import, list, read, rename, delete; their titles and events."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response
from pydantic_core import to_json

from banksman.bus.publish import RunQueue
from banksman.contracts.assistants import ConversationRecord
from banksman.contracts.errors import BadInput
from banksman.contracts.event_frames import is_shown
from banksman.contracts.frames import Ack, ConversationCreate, Detail
from banksman.contracts.messages import Content
from banksman.gateway.assistants.run_settings import ModelNames
from banksman.gateway.assistants.tenant_store import AssistantStore, PromptStore
from banksman.gateway.conversations import bodies
from banksman.gateway.conversations.changes import ConversationChanges, Titles
from banksman.gateway.conversations.changes import operations as title_operations
from banksman.gateway.conversations.conversations import Conversations, CreatedConversations
from banksman.gateway.conversations.imports import LIMITS, Imports
from banksman.gateway.conversations.imports import operations as import_operations
from banksman.gateway.conversations.people import ConversationPeople, PeopleBody
from banksman.gateway.conversations.search import Search
from banksman.gateway.conversations.search import operations as search_operations
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.live.event_frames import encoded_event, subscribed
from banksman.gateway.live.feeds import Feeds
from banksman.gateway.live.followed_runs import FollowedRuns
from banksman.gateway.operation.caller import CHAT
from banksman.gateway.operation.declaration import CONFLICT, EARLY, FORBIDDEN, MISSING, Audit, Operations
from banksman.gateway.operation.parameters import CallerDep, RequestId, StrictBody, provided
from banksman.gateway.quotas.backlog import Backlog
from banksman.gateway.runs.idempotency import StoredRequests
from banksman.gateway.runs.one_request import OneRequest
from banksman.gateway.runs.runs import Runs
from banksman.gateway.runs.starts import RunsOverHttp, RunStarts
from banksman.runs.runners.placement import Placements
from banksman.runtime.limited_processes import LimitedProcesses

MAX_EVENTS = 1_000
PAGE_BYTES = 8 * 1024 * 1024
"""Characters of the events of a page above which it ends."""

Changes = Annotated[ConversationChanges, provided(ConversationChanges)]
Index = Annotated[Conversations, provided(Conversations)]
Logs = Annotated[Views, provided(Views)]
Requests = Annotated[StoredRequests, provided(StoredRequests)]

operations = Operations("conversations")


@operations.on_frame(ConversationCreate, right=CHAT, errors=(MISSING, CONFLICT, EARLY))
async def create(
    frame: ConversationCreate,
    changes: Changes,
    requests: Requests,
    caller: CallerDep,
    title_from: Content = "",
) -> Ack:
    """Create a conversation."""
    return await changes.create(caller, frame, requests, title_from=title_from)


@operations.add(
    "conversation.create",
    "POST /context/conversations",
    not_over_nats="the frame `conversation.create` has the same fields",
)
async def create_conversation(
    changes: Changes,
    requests: Requests,
    index: Index,
    caller: CallerDep,
    request_id: RequestId,
    body: StrictBody[bodies.NewConversation] = bodies.NewConversation(),  # noqa: B008  # frozen
) -> ConversationRecord:
    """Create a conversation."""
    ack = await changes.create(caller, body.frame(request_id), requests)
    return await index.get(caller.tenant, ack.conversation_id or "")


@operations.add("conversation.list", "GET /context/conversations")
async def list_conversations(
    index: Index,
    caller: CallerDep,
    q: str = "",
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    pinned: bool | None = None,
    archived: bool = False,
    label: str | None = None,
) -> bodies.ConversationPage:
    """List conversations, newest first; `q` selects by a part of the title or of a label, or by id.

    Archived conversations are listed only with `archived=true`, which lists no others. Pinned ones are listed
    among the others; `pinned=true` lists only them. `label` lists only conversations with this label.
    """
    return await index.list(
        caller,
        query=q,
        cursor=cursor,
        limit=limit,
        pinned=pinned,
        archived=archived,
        label=label,
    )


@operations.add("conversation.read", "GET /context/conversations/{conversation_id}")
async def read_conversation(
    conversation_id: str, index: Index, views: Logs, caller: CallerDep
) -> bodies.Conversation:
    """Read a conversation, its open run and its open approval requests."""
    record = await index.current(caller.tenant, conversation_id)
    view = await views.as_sent(caller.tenant, conversation_id)
    head = subscribed(conversation_id, view).model_dump(exclude={"type", "reply_to"})
    return bodies.Conversation.model_validate({**head, **record.model_dump()})


@operations.add("conversation.rename", "PATCH /context/conversations/{conversation_id}")
async def rename_conversation(
    conversation_id: str,
    body: StrictBody[bodies.ConversationChange],
    changes: Changes,
    index: Index,
    caller: CallerDep,
) -> ConversationRecord:
    """Rename, pin, archive or label a conversation."""
    if body.title is not None:
        await changes.rename(caller, conversation_id, body.title)
    if marks := body.model_dump(include={"pinned", "archived", "labels"}, exclude_none=True):
        await index.mark(caller.tenant, conversation_id, marks)
    return await index.current(caller.tenant, conversation_id)


@operations.add(
    "conversation.share",
    "PUT /context/conversations/{conversation_id}/people",
    right=("chat", "admin"),
    errors=(MISSING, FORBIDDEN, CONFLICT),
    audit=Audit("conversation.shared", ("people",)),
    of_hidden=True,
)
async def share_conversation(
    conversation_id: str, body: StrictBody[PeopleBody], index: Index, caller: CallerDep
) -> ConversationPeople:
    """Limit a conversation to people, or open it to everyone of the tenant.

    The person who created it may limit it, one of its people may change them, and so may an administrator.
    Everyone else gets the answers for a conversation that does not exist, and their subscriptions end.
    """
    record = await index.get(caller.tenant, conversation_id)
    return await index.limited.limit(caller, record, body.people)


@operations.add("conversation.delete", "DELETE /context/conversations/{conversation_id}", audit=())
async def delete_conversation(conversation_id: str, changes: Changes, caller: CallerDep) -> None:
    """Delete a conversation, and end its open runs."""
    await changes.delete(caller, conversation_id)


@operations.add(
    "conversation.events",
    "GET /context/conversations/{conversation_id}/events",
    response_model=bodies.EventPage,
    not_over_nats="`replay` sends the events as frames",
)
async def list_events(
    conversation_id: str,
    index: Index,
    views: Logs,
    caller: CallerDep,
    after_seq: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_EVENTS)] = MAX_EVENTS,
    detail: Detail = "full",
    whole: bool = False,
) -> Response:
    """List the stored events after `after_seq`, as the frames that the websocket sends.

    `whole` leaves long texts uncut, for an export. A page is chosen from the next `limit` events, also those
    that `detail` leaves out, and ends early above 8 MiB: continue with `next` until it is null.

    A number beyond the last event is refused: the log was restored from a backup, so read it again from 0.
    """
    await index.get(caller.tenant, conversation_id)
    page = await views.events(caller.tenant, conversation_id, after_seq=after_seq, limit=limit)
    if after_seq > page.head_seq:
        raise BadInput("after_seq", after_seq, f"at most {page.head_seq}, the number of the last event")
    frames: list[bytes] = []
    last, read, size = after_seq, page.last_seq, 0
    for event in page.events:
        if size > PAGE_BYTES:
            read = event.seq - 1
            break
        if is_shown(event.data.type, detail):
            frame = encoded_event(event, conversation_id, page.log_epoch, last, whole=whole)
            frames.append(frame.encode())
            last, size = event.seq, size + len(frame)
    head = to_json(
        {
            "head_seq": page.head_seq,
            "oldest_seq": page.oldest_seq,
            "log_epoch": page.log_epoch,
            "next": read if read < page.head_seq else None,
            "problem": str(damage) if (damage := views.damage(caller.tenant, conversation_id)) else None,
        }
    )
    # The frames are JSON already: validating up to 1,000 of them again would cost more than encoding them.
    content = b'{"items":[' + b",".join(frames) + b"]," + head[1:]
    return Response(content, media_type="application/json")


async def build(base: Foundation) -> None:
    services, settings, clock = base.services, base.settings, base.clock
    index, queue, backlog, views = (
        services[Conversations],
        services[RunQueue],
        services[Backlog],
        services[Views],
    )
    assistants, prompts, requests = services[AssistantStore], services[PromptStore], services[StoredRequests]
    created, names = services[CreatedConversations], services[ModelNames]
    changes = ConversationChanges(
        index, created, assistants, prompts, queue, backlog, clock, names, services[Placements]
    )
    readers = LimitedProcesses("banksman.gateway.conversations.importing.process", LIMITS)
    await base.stack.enter_async_context(readers)
    imports = Imports(index, requests, queue, backlog, clock, readers)
    titles = Titles(
        index,
        views,
        queue,
        services[OneRequest],
        enabled=settings.generates_titles,
        model_name=settings.gateway.title_model,
    )
    followed = FollowedRuns(base.dispatcher, services[Feeds], views, services[Runs].stopping)
    # Here and not with the runs, because a first message creates its conversation.
    over_http = RunsOverHttp(changes, services[RunStarts], requests, followed, services[Runs])
    services.add(changes, imports, titles, Search(base.bus, index), followed, over_http)


FEATURE = Feature((*operations, *import_operations, *title_operations, *search_operations), build)
