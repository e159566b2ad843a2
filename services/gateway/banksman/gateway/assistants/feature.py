"""Builds what a run is configured with: assistants, prompts, tools, models, and the policy of the tenant."""

from __future__ import annotations

from banksman.gateway.assistants.assistants import Assistants
from banksman.gateway.assistants.enhanced_prompts import EnhancedPrompts
from banksman.gateway.assistants.model_catalog import ModelCatalog
from banksman.gateway.assistants.operations import operations
from banksman.gateway.assistants.policies import GovernedAssistants, Policies
from banksman.gateway.assistants.policies import operations as policy_operations
from banksman.gateway.assistants.prompt_operations import operations as prompt_operations
from banksman.gateway.assistants.prompts import Prompts
from banksman.gateway.assistants.revisions import AssistantHistories
from banksman.gateway.assistants.tenant_store import AssistantStore, PolicyStore, PromptStore
from banksman.gateway.assistants.tools import ToolCatalog, Tools
from banksman.gateway.assistants.tools import operations as tool_operations
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.runs.idempotency import StoredRequests
from banksman.runs.runners.placement import Placements


async def build(base: Foundation) -> None:
    """Build the stores of assistants, prompts and policies, and what reads and changes them."""
    services, settings = base.services, base.settings
    store, prompts, policies = AssistantStore(base.bus), PromptStore(base.bus), PolicyStore(base.bus)
    await base.stack.enter_async_context(store.recent)
    await base.stack.enter_async_context(policies.recent)
    tools, placements = Tools(base.bus), services[Placements]
    requests = services[StoredRequests]
    enhancing = EnhancedPrompts(
        services[Conversations], services[Views], store, prompts, tools, settings.agent, placements
    )
    services.add(
        store,
        prompts,
        GovernedAssistants(store, policies),
        Assistants(store, prompts, requests, AssistantHistories(base.bus, base.clock)),
        Prompts(prompts, requests, enhancing),
        Policies(policies),
        enhancing,
        tools,
        ToolCatalog(tools, placements, settings.agent.tools_enabled),
        ModelCatalog(settings.default_model, settings.agent.prices),
    )


FEATURE = Feature((*operations, *policy_operations, *prompt_operations, *tool_operations), build)
