"""Build the objects of the gateway's service."""

from __future__ import annotations

import contextlib

from banksman.bus.connection import Bus
from banksman.bus.names import IDEMPOTENCY
from banksman.bus.publish import RunQueue
from banksman.bus.secrets.sealing import SecretBox
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.bus.storage.live import LiveHub
from banksman.bus.storage.log import EventLog
from banksman.deployment.users import GATEWAY_FILES, inbox_prefix
from banksman.gateway.service.api_keys import ApiKeys
from banksman.gateway.service.asides import Asides
from banksman.gateway.service.assistant_revisions import AssistantHistories
from banksman.gateway.service.assistants import Assistants
from banksman.gateway.service.auth import Keys
from banksman.gateway.service.backlog import Backlog
from banksman.gateway.service.client_requests import ClientRequests
from banksman.gateway.service.conversations import Conversations, CreatedConversations
from banksman.gateway.service.dead_letters import DeadLetters
from banksman.gateway.service.decisions import Decisions
from banksman.gateway.service.enhanced_prompts import EnhancedPrompts
from banksman.gateway.service.feeds import Feeds
from banksman.gateway.service.files import Files
from banksman.gateway.service.gateway import Gateway
from banksman.gateway.service.idempotency import RequestRecord, StoredRequests
from banksman.gateway.service.imports import Imports
from banksman.gateway.service.inputs import Inputs
from banksman.gateway.service.mcp_servers import McpServers
from banksman.gateway.service.mcp_sign_ins import McpSignIns
from banksman.gateway.service.model_catalog import ModelCatalog
from banksman.gateway.service.one_request import OneRequest
from banksman.gateway.service.open_runs import OpenRuns
from banksman.gateway.service.operations import Operations
from banksman.gateway.service.passthrough_usage import PassthroughUsage
from banksman.gateway.service.pending_approvals import PendingApprovals
from banksman.gateway.service.policies import GovernedAssistants, Policies
from banksman.gateway.service.processes import Processes
from banksman.gateway.service.prompts import Prompts
from banksman.gateway.service.remembered import RememberedDecisions
from banksman.gateway.service.retention import Retention
from banksman.gateway.service.run_starts import RunStarts
from banksman.gateway.service.runs import Runs
from banksman.gateway.service.schedules.service import Schedules
from banksman.gateway.service.search import Search
from banksman.gateway.service.shared_bucket import SharedBucket
from banksman.gateway.service.step_details import StepDetails
from banksman.gateway.service.tenant_secrets import SecretStore
from banksman.gateway.service.tenant_store import assistant_store, policy_store, prompt_store
from banksman.gateway.service.tenants import Tenants
from banksman.gateway.service.tickets import Tickets
from banksman.gateway.service.titles import Titles
from banksman.gateway.service.tools import ToolCatalog, Tools
from banksman.gateway.service.trail import Trail
from banksman.gateway.service.usage import UsageReports
from banksman.gateway.service.views import Views
from banksman.gateway.service.webhooks.service import Webhooks
from banksman.gateway.service.workflow_starts import WorkflowStarts
from banksman.gateway.service.workflow_texts import WorkflowTexts
from banksman.gateway.service.workflows import Workflows
from banksman.gateway.settings import GatewayServiceSettings
from banksman.log_integrity.damage import DamagedLogs
from banksman.runs.placement import Placements
from banksman.runs.ports import Clock
from banksman.runs.schemas import SchemaChecker


async def compose(
    settings: GatewayServiceSettings,
    keys: Keys,
    bus: Bus,
    clock: Clock,
    backlog: Backlog,
    damaged: DamagedLogs,
    stack: contextlib.AsyncExitStack,
) -> Gateway:
    """Return the gateway's service.

    Args:
        settings: The settings of the process.
        keys: The keys that the HTTP server checks.
        bus: A connection to NATS.
        clock: The broker's clock.
        backlog: Refuses requests for which the queues have no room.
        damaged: The logs that cannot be read.
        stack: Closes the parts of the service.

    Raises:
        Unavailable: NATS does not respond.
    """
    placements = await stack.enter_async_context(Placements(bus, clock, wait_s=settings.workspaces.wait_s))
    log = EventLog(bus)
    hub = await stack.enter_async_context(LiveHub(log))
    views = Views(log, damaged=damaged)
    conversations, approvals = Conversations(bus, views, clock), ApprovalSlots(bus)
    assistants, prompts = assistant_store(bus), prompt_store(bus)
    policies = policy_store(bus)
    await stack.enter_async_context(assistants.recent)
    await stack.enter_async_context(policies.recent)
    governed = GovernedAssistants(assistants, policies)
    requests = StoredRequests(SharedBucket(bus, IDEMPOTENCY, RequestRecord, "accepted requests"))
    tools, workflows = Tools(bus), Workflows(bus)
    schemas = await stack.enter_async_context(SchemaChecker())
    runs_of_tenants = Runs(bus, hub, views, conversations)
    key = settings.approvals.key()
    box = SecretBox(key)
    enhanced_prompts = EnhancedPrompts(
        conversations, views, assistants, prompts, tools, settings.agent, placements
    )
    created, queue = CreatedConversations(), RunQueue(bus)
    remembered = RememberedDecisions(bus, conversations, views, queue, backlog)
    decisions = Decisions(approvals, conversations, tools, schemas, clock, key, remembered)
    client_requests = ClientRequests(
        conversations=conversations,
        created=created,
        assistants=assistants,
        prompts=prompts,
        runs=runs_of_tenants,
        run_starts=RunStarts(
            views=views,
            conversations=conversations,
            created=created,
            assistants=governed,
            queue=queue,
            backlog=backlog,
            default_model=settings.default_model,
        ),
        workflow_starts=WorkflowStarts(
            workflows=workflows,
            conversations=conversations,
            assistants=governed,
            queue=queue,
            backlog=backlog,
            clock=clock,
            default_model=settings.default_model,
        ),
        decisions=decisions,
        inputs=Inputs(approvals, decisions, schemas, clock, key),
        requests=requests,
        queue=queue,
        backlog=backlog,
        clock=clock,
    )
    await stack.enter_async_context(
        Retention(bus, conversations, views, client_requests, clock, settings.tenants)
    )
    one_request = OneRequest(
        runs=runs_of_tenants,
        conversations=conversations,
        assistants=assistants,
        queue=queue,
        backlog=backlog,
        clock=clock,
        default_model=settings.default_model,
    )
    scheduled = Schedules(bus, clock, client_requests, runs_of_tenants, settings.gateway)
    usage = UsageReports(bus, clock, settings.tenants)
    mcp_servers = McpServers(bus, placements, clock, box)
    return Gateway(
        settings=settings.gateway,
        keys=keys,
        mcp_servers=mcp_servers,
        mcp_sign_ins=McpSignIns(mcp_servers, clock),
        secrets=SecretStore(bus, box, clock),
        # The keys are loaded before webhooks start: a device receives nothing while its key is unknown.
        api_keys=await stack.enter_async_context(ApiKeys(bus, keys, clock)),
        webhooks=await stack.enter_async_context(Webhooks(bus, clock, key, keys, settings.gateway)),
        tickets=Tickets(bus, clock),
        requests=client_requests,
        schedules=await stack.enter_async_context(scheduled),
        conversations=conversations,
        views=views,
        runs=runs_of_tenants,
        models=ModelCatalog(settings.default_model, settings.agent.prices),
        search=Search(bus, conversations),
        steps=StepDetails(runs_of_tenants, views, enhanced_prompts),
        feeds=Feeds(bus, hub, views),
        approvals=PendingApprovals(bus, approvals, conversations, clock),
        approval_slots=approvals,
        assistants=Assistants(assistants, prompts, requests, AssistantHistories(bus, clock)),
        policies=Policies(policies),
        remembered=remembered,
        asides=Asides(approvals, queue, backlog, clock),
        prompts=Prompts(prompts, requests, enhanced_prompts),
        tools=ToolCatalog(tools, placements, settings.agent.tools_enabled),
        workflows=workflows,
        workflow_texts=WorkflowTexts(workflows=workflows, model=one_request),
        imports=Imports(
            conversations=conversations,
            assistants=assistants,
            requests=requests,
            queue=queue,
            backlog=backlog,
            clock=clock,
            default_model=settings.default_model,
        ),
        titles=Titles(
            enabled=settings.generates_titles,
            model_name=settings.gateway.title_model,
            conversations=conversations,
            views=views,
            model=one_request,
            queue=queue,
        ),
        files=Files(placements, await _outputs(settings, bus, stack)),
        dead_letters=DeadLetters(bus),
        open_runs=OpenRuns(bus, approvals),
        operations=Operations(bus),
        processes=Processes(bus),
        tenants=Tenants(bus, keys, usage, settings.tenants),
        trail=Trail(bus, clock),
        usage=usage,
        passthrough=await stack.enter_async_context(PassthroughUsage(bus, clock, settings.tenants)),
    )


async def _outputs(settings: GatewayServiceSettings, bus: Bus, stack: contextlib.AsyncExitStack) -> Bus:
    if settings.gateway.outputs is None:
        return bus
    connection = await Bus.connect(
        settings.gateway.outputs, name=GATEWAY_FILES, inbox_prefix=inbox_prefix(GATEWAY_FILES)
    )
    return await stack.enter_async_context(connection)
