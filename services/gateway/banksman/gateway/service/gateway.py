"""The services of the endpoints that are not declared as operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, cast

from banksman.gateway.approvals.remembered import RememberedDecisions
from banksman.gateway.assistants.assistants import Assistants
from banksman.gateway.assistants.policies import Policies
from banksman.gateway.assistants.prompts import Prompts
from banksman.gateway.assistants.tools import ToolCatalog
from banksman.gateway.audit.trail import Trail
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.conversations.search import Search
from banksman.gateway.files.files import Files
from banksman.gateway.identity.api_keys import ApiKeys
from banksman.gateway.identity.tenant_secrets import SecretStore
from banksman.gateway.identity.tickets import Tickets
from banksman.gateway.mcp_servers.servers import McpServers
from banksman.gateway.mcp_servers.sign_ins import McpSignIns
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.operation.parameters import Services
from banksman.gateway.operator.dead_letters import DeadLetters
from banksman.gateway.operator.open_runs import OpenRuns
from banksman.gateway.operator.overview import Operations
from banksman.gateway.operator.processes import Processes
from banksman.gateway.operator.tenants import Tenants
from banksman.gateway.runs.runs import Runs
from banksman.gateway.steps.details import StepDetails
from banksman.gateway.usage.reports import UsageReports
from banksman.gateway.webhooks.service import Webhooks

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The parts of the service, one for each area of the API."""

    api_keys: ApiKeys
    assistants: Assistants
    conversations: Conversations
    dead_letters: DeadLetters
    dispatcher: Dispatcher
    files: Files
    mcp_servers: McpServers
    mcp_sign_ins: McpSignIns
    open_runs: OpenRuns
    operations: Operations
    policies: Policies
    processes: Processes
    prompts: Prompts
    remembered: RememberedDecisions
    runs: Runs
    search: Search
    secrets: SecretStore
    steps: StepDetails
    tenants: Tenants
    tickets: Tickets
    tools: ToolCatalog
    trail: Trail
    usage: UsageReports
    webhooks: Webhooks

    @classmethod
    def of(cls, services: Services) -> Gateway:
        """Return the locator of services."""
        return cls(
            api_keys=services[ApiKeys],
            assistants=services[Assistants],
            conversations=services[Conversations],
            dead_letters=services[DeadLetters],
            dispatcher=services[Dispatcher],
            files=services[Files],
            mcp_servers=_optional(services, McpServers),
            mcp_sign_ins=_optional(services, McpSignIns),
            open_runs=services[OpenRuns],
            operations=services[Operations],
            policies=services[Policies],
            processes=services[Processes],
            prompts=services[Prompts],
            remembered=services[RememberedDecisions],
            runs=services[Runs],
            search=services[Search],
            secrets=services[SecretStore],
            steps=services[StepDetails],
            tenants=services[Tenants],
            tickets=services[Tickets],
            tools=services[ToolCatalog],
            trail=services[Trail],
            usage=services[UsageReports],
            webhooks=_optional(services, Webhooks),
        )


def _optional(services: Services, kind: type[T]) -> T:
    """Return the service of an optional feature, whose endpoints fail without it."""
    return cast(Any, services.find(kind))
