"""The service that every interface works through."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.gateway.service.api_keys import ApiKeys
from banksman.gateway.service.asides import Asides
from banksman.gateway.service.assistants import Assistants
from banksman.gateway.service.auth import Keys
from banksman.gateway.service.client_requests import ClientRequests
from banksman.gateway.service.conversations import Conversations
from banksman.gateway.service.dead_letters import DeadLetters
from banksman.gateway.service.feeds import Feeds
from banksman.gateway.service.files import Files
from banksman.gateway.service.imports import Imports
from banksman.gateway.service.mcp_servers import McpServers
from banksman.gateway.service.mcp_sign_ins import McpSignIns
from banksman.gateway.service.model_catalog import ModelCatalog
from banksman.gateway.service.open_runs import OpenRuns
from banksman.gateway.service.operations import Operations
from banksman.gateway.service.passthrough_usage import PassthroughUsage
from banksman.gateway.service.pending_approvals import PendingApprovals
from banksman.gateway.service.policies import Policies
from banksman.gateway.service.processes import Processes
from banksman.gateway.service.prompts import Prompts
from banksman.gateway.service.remembered import RememberedDecisions
from banksman.gateway.service.runs import Runs
from banksman.gateway.service.schedules.service import Schedules
from banksman.gateway.service.search import Search
from banksman.gateway.service.step_details import StepDetails
from banksman.gateway.service.tenant_secrets import SecretStore
from banksman.gateway.service.tenants import Tenants
from banksman.gateway.service.tickets import Tickets
from banksman.gateway.service.titles import Titles
from banksman.gateway.service.tools import ToolCatalog
from banksman.gateway.service.trail import Trail
from banksman.gateway.service.usage import UsageReports
from banksman.gateway.service.views import Views
from banksman.gateway.service.webhooks.service import Webhooks
from banksman.gateway.service.workflow_texts import WorkflowTexts
from banksman.gateway.service.workflows import Workflows
from banksman.gateway.settings import GatewaySettings


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
    requests: ClientRequests
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
