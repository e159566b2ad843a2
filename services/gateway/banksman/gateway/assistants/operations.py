"""The composition of assistants, and the preview of a prompt."""

from __future__ import annotations

from typing import Annotated

from banksman.contracts.assistants import NewAssistant
from banksman.contracts.wire import Stored
from banksman.gateway.assistants.assistants import AssistantHistories, Assistants, operations
from banksman.gateway.assistants.policies import GovernedAssistants
from banksman.gateway.assistants.policies import operations as policy_operations
from banksman.gateway.assistants.prompts import EnhancedPrompts, Prompts
from banksman.gateway.assistants.prompts import operations as prompt_operations
from banksman.gateway.assistants.run_settings import ModelCatalog, ModelNames
from banksman.gateway.assistants.tenant_store import AssistantStore, PolicyStore, PromptStore
from banksman.gateway.assistants.tools import Tools
from banksman.gateway.assistants.tools import operations as tool_operations
from banksman.gateway.assistants.workspace_options import operations as option_operations
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation.declaration import MISSING
from banksman.gateway.operation.parameters import CallerDep, StrictBody, provided
from banksman.gateway.runs.idempotency import StoredRequests
from banksman.runs.runners.placement import Placements
from banksman.runs.schema_checks.checker import SchemaChecker

Enhancing = Annotated[EnhancedPrompts, provided(EnhancedPrompts)]


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


async def build(base: Foundation) -> None:
    services, settings = base.services, base.settings
    store, prompts, policies = AssistantStore(base.bus), PromptStore(base.bus), PolicyStore(base.bus)
    await base.stack.enter_async_context(store.recent)
    await base.stack.enter_async_context(policies.recent)
    schemas = await base.stack.enter_async_context(SchemaChecker())
    tools = Tools(
        base.bus, services[Placements], policies, enabled=settings.agent.tools_enabled, search=settings.search
    )
    requests, names = services[StoredRequests], services[ModelNames]
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


FEATURE = Feature(
    (*operations, *policy_operations, *prompt_operations, *tool_operations, *option_operations), build
)
