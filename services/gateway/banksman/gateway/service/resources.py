"""The resources that clients read, as the bodies that HTTP and NATS share."""

from __future__ import annotations

from banksman.contracts.call_pages import CallPage, ListedCall
from banksman.gateway.live.event_frames import subscribed
from banksman.gateway.operation.caller import Caller
from banksman.gateway.service.bodies import (
    ApprovalPage,
    Conversation,
    ConversationPage,
    InputPage,
    Listing,
    PendingInput,
    Run,
    run_body,
)
from banksman.gateway.service.gateway import Gateway

MAX_CALLS = 50
"""Calls in one page. A call has up to 256 KiB, usually a few KiB."""
MAX_PENDING = 1_000
"""Open requests in one page."""


async def list_conversations(
    gateway: Gateway,
    tenant: str,
    *,
    query: str,
    cursor: str | None,
    limit: int,
    pinned: bool | None = None,
    archived: bool = False,
) -> ConversationPage:
    """Return a page of conversations, newest first; with a query, those whose title contains it."""
    page = await gateway.conversations.list(
        tenant, query=query, cursor=cursor, limit=limit, pinned=pinned, archived=archived
    )
    return ConversationPage(items=tuple(page.items), next=page.next)


async def read_conversation(gateway: Gateway, tenant: str, conversation_id: str) -> Conversation:
    """Return a conversation, its open run and its open approval requests.

    Raises:
        NotFound: This tenant has no such conversation.
    """
    record = await gateway.conversations.current(tenant, conversation_id)
    view = await gateway.views.read(tenant, conversation_id)
    head = subscribed(conversation_id, view).model_dump(exclude={"type", "reply_to"})
    return Conversation.model_validate({**head, **record.model_dump()})


async def list_runs(gateway: Gateway, tenant: str, conversation_id: str) -> Listing[Run]:
    """Return the runs of a conversation in the order of their requests, without their outcomes.

    Raises:
        NotFound: This tenant has no such conversation.
    """
    found = await gateway.runs.of_conversation(tenant, conversation_id)
    return Listing[Run](items=tuple(run_body(run) for run in found))


async def read_run(gateway: Gateway, tenant: str, run_id: str, wait_s: float) -> Run:
    """Return a run, once it has ended or after `wait_s`.

    Raises:
        NotFound: This tenant has no such run.
    """
    if wait_s:
        return run_body(await gateway.runs.wait(tenant, run_id, wait_s))
    return run_body(await gateway.runs.get(tenant, run_id))


async def list_calls(gateway: Gateway, tenant: str, run_id: str, *, after: int, limit: int) -> CallPage:
    """Return a page of the calls of a run that have a result, with complete parameters and results.

    Raises:
        NotFound: This tenant has no such run.
    """
    calls = await gateway.runs.calls(tenant, run_id)
    page = calls[after : after + limit]
    end = after + len(page)
    return CallPage(
        items=tuple(ListedCall(tool_call_id=one.tool_call_id, **dict(one.tracked)) for one in page),
        next=end if end < len(calls) else None,
        total=len(calls),
    )


async def list_approvals(gateway: Gateway, caller: Caller, *, limit: int, after: int) -> ApprovalPage:
    """Return a page of the open approval requests of the caller's tenant, oldest first."""
    return await gateway.approvals.page(caller.tenant, caller.user, limit=limit, after=after)


async def list_inputs(gateway: Gateway, tenant: str, *, limit: int, after: int) -> InputPage:
    """Return a page of the values that workflows wait for, oldest first."""
    pending = await gateway.approval_slots.pending(tenant, limit=limit, after=after, inputs=True)
    items = (PendingInput.of(one.request) for one in pending)
    return InputPage(
        items=tuple(item for item in items if item is not None),
        next=pending[-1].stream_seq if len(pending) == limit else None,
    )
