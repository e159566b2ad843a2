"""Assistants, usage and tickets."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query

from banksman.contracts.assistant_requests import (
    AssistantChanges,
    AssistantList,
    AssistantRevisions,
    AssistantUpdate,
    NewAssistant,
)
from banksman.contracts.assistants import Assistant
from banksman.contracts.usage import UsageReport
from banksman.contracts.wire import Stored
from banksman.gateway.http.models import IssuedTicket
from banksman.gateway.identity.tickets import TICKET_S
from banksman.gateway.operation.parameters import CallerDep, ReaderDep, RequestId, ServiceDep
from banksman.gateway.operation.routing import StrictBody, router

routes = router("assistants")


@routes.get("/context/assistants")
async def list_assistants(gateway: ServiceDep, caller: CallerDep) -> AssistantList:
    """List assistants, without the contents of their files."""
    return AssistantList(items=await gateway.assistants.list(caller))


@routes.post("/context/assistants", status_code=201)
async def create_assistant(
    body: StrictBody[NewAssistant],
    gateway: ServiceDep,
    caller: CallerDep,
    request_id: RequestId,
) -> Assistant:
    """Create an assistant."""
    return await gateway.assistants.create(caller, body, request_id)


class PromptPreview(Stored):
    """The system prompt that an assistant's runs begin with."""

    content: str
    """The rendered prompt, with placeholders in place of variables."""
    tools: tuple[str, ...]
    dropped_tools: tuple[str, ...]
    """Tools that do not fit, in the order in which they were dropped."""
    estimated_tokens: int


@routes.post("/context/assistants/preview")
async def preview_assistant(
    body: StrictBody[NewAssistant],
    gateway: ServiceDep,
    caller: CallerDep,
) -> PromptPreview:
    """Show the system prompt with tools and instructions of an assistant that is not stored."""
    assistant = body.assistant(body.id or "preview")
    enhanced = await gateway.prompts.enhancing.of_assistant(caller.tenant, assistant)
    return PromptPreview(
        content=enhanced.text,
        tools=tuple(tool.name for tool in enhanced.tools),
        dropped_tools=enhanced.dropped,
        estimated_tokens=enhanced.estimated_tokens,
    )


@routes.get("/context/assistants/{assistant_id}")
async def read_assistant(assistant_id: str, gateway: ServiceDep, caller: CallerDep) -> Assistant:
    """Read an assistant."""
    return await gateway.assistants.get(caller, assistant_id)


@routes.put("/context/assistants/{assistant_id}")
async def update_assistant(
    assistant_id: str,
    body: StrictBody[AssistantUpdate],
    gateway: ServiceDep,
    caller: CallerDep,
) -> Assistant:
    """Replace an assistant."""
    return await gateway.assistants.update(caller, assistant_id, body)


@routes.get("/context/assistants/{assistant_id}/revisions")
async def list_revisions(assistant_id: str, gateway: ServiceDep, caller: CallerDep) -> AssistantRevisions:
    """List the stored revisions of an assistant, newest first: the last 50, in at most 512 KiB."""
    return await gateway.assistants.revisions(caller, assistant_id)


Revision = Annotated[int, Path(ge=1)]


@routes.get("/context/assistants/{assistant_id}/revisions/{revision}")
async def read_revision(
    assistant_id: str, revision: Revision, gateway: ServiceDep, caller: CallerDep
) -> Assistant:
    """Read a revision of an assistant."""
    return await gateway.assistants.revision(caller, assistant_id, revision)


@routes.get("/context/assistants/{assistant_id}/revisions/{revision}/changes")
async def compare_revisions(
    assistant_id: str,
    revision: Revision,
    gateway: ServiceDep,
    caller: CallerDep,
    since: Annotated[int | None, Query(ge=1)] = None,
) -> AssistantChanges:
    """Show the fields in which a revision differs from revision `since`, or from the one before it."""
    return await gateway.assistants.changes(caller, assistant_id, revision, since)


@routes.post("/context/assistants/{assistant_id}/revisions/{revision}/restore")
async def restore_revision(
    assistant_id: str, revision: Revision, gateway: ServiceDep, caller: CallerDep
) -> Assistant:
    """Store the content of a revision again, as a new revision."""
    return await gateway.assistants.restore(caller, assistant_id, revision)


@routes.delete("/context/assistants/{assistant_id}", status_code=204)
async def delete_assistant(assistant_id: str, gateway: ServiceDep, caller: CallerDep) -> None:
    """Delete an assistant."""
    await gateway.assistants.delete(caller, assistant_id)


@routes.get("/context/usage")
async def read_usage(gateway: ServiceDep, caller: CallerDep) -> UsageReport:
    """Read the usage of the tenant's runs today and this month (UTC), with the operator's limits."""
    return await gateway.usage.of(caller.tenant)


@routes.post("/v1/ws-ticket", status_code=201)
async def issue_ticket(gateway: ServiceDep, caller: ReaderDep) -> IssuedTicket:
    """Issue a ticket that opens one websocket within 30 s: `GET /ws?ticket=…`."""
    return IssuedTicket(ticket=await gateway.tickets.issue(caller), expires_in_s=TICKET_S)
