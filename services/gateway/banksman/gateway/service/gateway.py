"""The service that every interface works through."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.gateway.approvals.pending import PendingApprovals
from banksman.gateway.approvals.remembered import RememberedDecisions
from banksman.gateway.approvals.set_aside import Asides
from banksman.gateway.assistants.assistants import Assistants
from banksman.gateway.assistants.model_catalog import ModelCatalog
from banksman.gateway.assistants.policies import Policies
from banksman.gateway.assistants.prompts import Prompts
from banksman.gateway.assistants.tools import ToolCatalog
from banksman.gateway.audit.trail import Trail
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.conversations.imports import Imports
from banksman.gateway.conversations.search import Search
from banksman.gateway.conversations.titles import Titles
from banksman.gateway.conversations.views import Views
from banksman.gateway.files.files import Files
from banksman.gateway.identity.api_keys import ApiKeys
from banksman.gateway.identity.auth import Keys
from banksman.gateway.identity.tenant_secrets import SecretStore
from banksman.gateway.identity.tickets import Tickets
from banksman.gateway.live.feeds import Feeds
from banksman.gateway.live.followed_runs import FollowedRuns
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
from banksman.gateway.schedules.service import Schedules
from banksman.gateway.settings import GatewaySettings
from banksman.gateway.steps.details import StepDetails
from banksman.gateway.usage.passthrough import PassthroughUsage
from banksman.gateway.usage.reports import UsageReports
from banksman.gateway.webhooks.service import Webhooks
from banksman.gateway.workflows.texts import WorkflowTexts
from banksman.gateway.workflows.workflows import Workflows


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The parts of the service, one for each area of the API."""

    settings: GatewaySettings
    keys: Keys
    api_keys: ApiKeys
    mcp_servers: McpServers
    mcp_sign_ins: McpSignIns
    secrets: SecretStore
    webhooks: Webhooks
    schedules: Schedules
    tickets: Tickets
    dispatcher: Dispatcher
    followed: FollowedRuns
    conversations: Conversations
    views: Views
    models: ModelCatalog
    runs: Runs
    search: Search
    steps: StepDetails
    feeds: Feeds
    approvals: PendingApprovals
    approval_slots: ApprovalSlots
    assistants: Assistants
    policies: Policies
    remembered: RememberedDecisions
    asides: Asides
    prompts: Prompts
    tools: ToolCatalog
    workflows: Workflows
    workflow_texts: WorkflowTexts
    titles: Titles
    imports: Imports
    files: Files
    dead_letters: DeadLetters
    open_runs: OpenRuns
    operations: Operations
    processes: Processes
    tenants: Tenants
    trail: Trail
    usage: UsageReports
    passthrough: PassthroughUsage

    @classmethod
    def of(cls, settings: GatewaySettings, keys: Keys, services: Services) -> Gateway:
        """Return the locator of services."""
        return cls(
            settings=settings,
            keys=keys,
            api_keys=services[ApiKeys],
            mcp_servers=services[McpServers],
            mcp_sign_ins=services[McpSignIns],
            secrets=services[SecretStore],
            webhooks=services[Webhooks],
            schedules=services[Schedules],
            tickets=services[Tickets],
            dispatcher=services[Dispatcher],
            followed=services[FollowedRuns],
            conversations=services[Conversations],
            views=services[Views],
            models=services[ModelCatalog],
            runs=services[Runs],
            search=services[Search],
            steps=services[StepDetails],
            feeds=services[Feeds],
            approvals=services[PendingApprovals],
            approval_slots=services[ApprovalSlots],
            assistants=services[Assistants],
            policies=services[Policies],
            remembered=services[RememberedDecisions],
            asides=services[Asides],
            prompts=services[Prompts],
            tools=services[ToolCatalog],
            workflows=services[Workflows],
            workflow_texts=services[WorkflowTexts],
            titles=services[Titles],
            imports=services[Imports],
            files=services[Files],
            dead_letters=services[DeadLetters],
            open_runs=services[OpenRuns],
            operations=services[Operations],
            processes=services[Processes],
            tenants=services[Tenants],
            trail=services[Trail],
            usage=services[UsageReports],
            passthrough=services[PassthroughUsage],
        )
