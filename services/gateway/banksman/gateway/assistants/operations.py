"""Assistants and their revisions."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query

from banksman.contracts.assistants import (
    Assistant,
    AssistantChanges,
    AssistantList,
    AssistantRevision,
    AssistantRevisions,
    AssistantUpdate,
    NewAssistant,
)
from banksman.contracts.wire import Stored
from banksman.gateway.assistants.assistants import AssistantHistories, Assistants
from banksman.gateway.assistants.enhanced_prompts import EnhancedPrompts
from banksman.gateway.assistants.policies import GovernedAssistants
from banksman.gateway.assistants.policies import operations as policy_operations
from banksman.gateway.assistants.prompts import Prompts
from banksman.gateway.assistants.prompts import operations as prompt_operations
from banksman.gateway.assistants.run_settings import ModelCatalog, model_names
from banksman.gateway.assistants.tenant_store import AssistantStore, PolicyStore, PromptStore
from banksman.gateway.assistants.tools import Tools
from banksman.gateway.assistants.tools import operations as tool_operations
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation.declaration import CONFLICT, EARLY, MISSING, Operations
from banksman.gateway.operation.parameters import CallerDep, RequestId, StrictBody, provided
from banksman.gateway.runs.idempotency import StoredRequests
from banksman.runs.runners.placement import Placements
from banksman.runs.schema_checks.checker import SchemaChecker

Service = Annotated[Assistants, provided(Assistants)]
Enhancing = Annotated[EnhancedPrompts, provided(EnhancedPrompts)]
Revision = Annotated[int, Path(ge=1)]
DETAILS = ("name", "revision")

operations = Operations("assistants")


@operations.add("assistant.list", "GET /context/assistants")
async def list_assistants(assistants: Service, caller: CallerDep) -> AssistantList:
    """List assistants, without the contents of their files."""
    return AssistantList(items=await assistants.list(caller))


@operations.add(
    "assistant.create", "POST /context/assistants", errors=(MISSING, CONFLICT, EARLY), audit=DETAILS
)
async def create_assistant(
    body: StrictBody[NewAssistant], assistants: Service, caller: CallerDep, request_id: RequestId
) -> Assistant:
    """Create an assistant."""
    return await assistants.create(caller, body, request_id)


class PromptPreview(Stored):
    """The system prompt that an assistant's runs begin with."""

    content: str
    """The rendered prompt, with placeholders in place of variables."""
    tools: tuple[str, ...]
    dropped_tools: tuple[str, ...]
    """Tools that do not fit, in the order in which they were dropped."""
    estimated_tokens: int


@operations.add("assistant.preview", "POST /context/assistants/preview", errors=(MISSING,))
async def preview_assistant(
    body: StrictBody[NewAssistant], prompts: Enhancing, caller: CallerDep
) -> PromptPreview:
    """Show the system prompt with tools and instructions of an assistant that is not stored."""
    enhanced = await prompts.of_assistant(caller, body.assistant(body.id or "preview"))
    return PromptPreview(
        content=enhanced.text,
        tools=tuple(tool.name for tool in enhanced.tools),
        dropped_tools=enhanced.dropped,
        estimated_tokens=enhanced.estimated_tokens,
    )


@operations.add("assistant.read", "GET /context/assistants/{assistant_id}")
async def read_assistant(assistant_id: str, assistants: Service, caller: CallerDep) -> Assistant:
    """Read an assistant."""
    return await assistants.get(caller, assistant_id)


@operations.add(
    "assistant.update", "PUT /context/assistants/{assistant_id}", errors=(MISSING, CONFLICT), audit=DETAILS
)
async def update_assistant(
    assistant_id: str, body: StrictBody[AssistantUpdate], assistants: Service, caller: CallerDep
) -> Assistant:
    """Replace an assistant."""
    return await assistants.update(caller, assistant_id, body)


@operations.add("assistant.revisions", "GET /context/assistants/{assistant_id}/revisions")
async def list_revisions(assistant_id: str, assistants: Service, caller: CallerDep) -> AssistantRevisions:
    """List the stored revisions of an assistant, newest first: the last 50, in at most 512 KiB."""
    items = (await assistants.history(caller, assistant_id)).items
    listed = (
        AssistantRevision(revision=one.assistant.revision, at=one.at, by=one.by, current=one is items[-1])
        for one in reversed(items)
    )
    return AssistantRevisions(items=tuple(listed))


@operations.add("assistant.revision", "GET /context/assistants/{assistant_id}/revisions/{revision}")
async def read_revision(
    assistant_id: str, revision: Revision, assistants: Service, caller: CallerDep
) -> Assistant:
    """Read a revision of an assistant."""
    return (await assistants.history(caller, assistant_id)).at(revision)


@operations.add("assistant.changes", "GET /context/assistants/{assistant_id}/revisions/{revision}/changes")
async def compare_revisions(
    assistant_id: str,
    revision: Revision,
    assistants: Service,
    caller: CallerDep,
    since: Annotated[int | None, Query(ge=1)] = None,
) -> AssistantChanges:
    """Show the fields in which a revision differs from revision `since`, or from the one before it."""
    return (await assistants.history(caller, assistant_id)).changes(revision, since)


@operations.add(
    "assistant.restore", "POST /context/assistants/{assistant_id}/revisions/{revision}/restore", audit=DETAILS
)
async def restore_revision(
    assistant_id: str, revision: Revision, assistants: Service, caller: CallerDep
) -> Assistant:
    """Store the content of a revision again, as a new revision."""
    return await assistants.restore(caller, assistant_id, revision)


@operations.add("assistant.delete", "DELETE /context/assistants/{assistant_id}", audit=())
async def delete_assistant(assistant_id: str, assistants: Service, caller: CallerDep) -> None:
    """Delete an assistant."""
    await assistants.delete(caller, assistant_id)


async def build(base: Foundation) -> None:
    services, settings = base.services, base.settings
    store, prompts, policies = AssistantStore(base.bus), PromptStore(base.bus), PolicyStore(base.bus)
    await base.stack.enter_async_context(store.recent)
    await base.stack.enter_async_context(policies.recent)
    schemas = await base.stack.enter_async_context(SchemaChecker())
    tools = Tools(base.bus, services[Placements], enabled=settings.agent.tools_enabled)
    requests, names = services[StoredRequests], model_names(settings)
    index, views = services[Conversations], services[Views]
    enhancing = EnhancedPrompts(index, views, store, prompts, tools, settings.agent)
    services.add(
        store,
        prompts,
        policies,
        GovernedAssistants(store, policies),
        schemas,
        Assistants(store, prompts, requests, AssistantHistories(base.bus, base.clock), names, schemas),
        Prompts(prompts, requests, enhancing),
        enhancing,
        tools,
        ModelCatalog(names, settings.agent.prices),
    )


FEATURE = Feature((*operations, *policy_operations, *prompt_operations, *tool_operations), build)
