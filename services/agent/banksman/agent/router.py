"""What an agent handles besides runs: signals, decisions, timers, the tool registry and reports."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from faststream.nats import NatsRouter

from banksman.agent.runners.stores import RunnerStores, WorkspaceReports
from banksman.agent.tools import ToolRegistry
from banksman.agent.worker import RunWorker, is_quick
from banksman.bus import names
from banksman.bus.connection import Bus
from banksman.bus.control_plane.control import CONCURRENCY, Received
from banksman.bus.queues.kept import queue_kept_again
from banksman.bus.queues.work import work
from banksman.contracts import subjects
from banksman.contracts.registry import (
    OfferedTools,
    OfferTools,
    RegisterTool,
    ToolList,
    ToolRegistration,
    WithdrawTool,
)
from banksman.contracts.subjects import ANY
from banksman.contracts.workspaces import (
    ObjectRemoval,
    ObjectRemovalReply,
    WorkspaceReport,
    WorkspaceReportReply,
)
from banksman.deployment.topology import provisioned_queues
from banksman.quotas.places import Shares

PLACES = 16
"""Messages of one durable consumer that a process handles at a time. Tenants share them."""


@asynccontextmanager
async def control_queues(bus: Bus, worker: RunWorker) -> AsyncGenerator[None]:
    """Handle signals, decisions and fired timers while the context is open."""

    async def run_signals() -> None:
        # Behind deletions that wait for their runner there may be a cancel.
        await work(bus, names.RUNS, names.SIGNALS, worker.on_signal, slots=Shares(PLACES), is_short=is_quick)

    async def approval_replies() -> None:
        await work(bus, names.APPROVALS, names.APPROVAL_REPLIES, worker.on_decision, slots=Shares(PLACES))

    async def fired_timers() -> None:
        await work(bus, names.TIMERS, names.FIRED_TIMERS, worker.on_timer, slots=Shares(PLACES))

    kept = partial(queue_kept_again, bus, provisioned_queues())
    async with (
        bus.background.running("kept messages", kept),
        bus.background.running("run signals", run_signals),
        bus.background.running("approval replies", approval_replies),
        bus.background.running("fired timers", fired_timers),
    ):
        yield


def agent_router(registry: ToolRegistry, reports: WorkspaceReports, stores: RunnerStores) -> NatsRouter:
    router = NatsRouter()
    router.include_routers(registry_router(registry), report_router(reports), store_router(stores))
    return router


def registry_router(registry: ToolRegistry) -> NatsRouter:
    router = NatsRouter()
    subscriber = partial(router.subscriber, queue=names.AGENTS, max_workers=CONCURRENCY)

    @subscriber(subjects.registry("tool", "register"))
    @subscriber(subjects.tenant_registry("tool", "register", ANY))
    async def register(request: RegisterTool, message: Received) -> ToolRegistration:
        """Register a tool and return the stored registration; a repeat changes nothing."""
        return await registry.register(subjects.registering_tenant(message.subject), request.definition)

    @subscriber(subjects.registry("tool", "withdraw"))
    @subscriber(subjects.tenant_registry("tool", "withdraw", ANY))
    async def withdraw(request: WithdrawTool, message: Received) -> ToolRegistration:
        """Withdraw a tool and return its registration."""
        tenant = subjects.registering_tenant(message.subject)
        return await registry.withdraw(tenant, request.name, request.server)

    # Only gateways may send this request, after an administrator approved the tools.
    @subscriber(subjects.tenant_registry("tool", "offer", ANY))
    async def offer(request: OfferTools, message: Received) -> OfferedTools:
        """Offer exactly these tools of an MCP server; a repeat changes nothing."""
        tenant = subjects.registering_tenant(message.subject)
        assert tenant is not None, "the subject names a tenant"
        return await registry.offer(tenant, request)

    @subscriber(subjects.registry("tool", "list"))
    @subscriber(subjects.tenant_registry("tool", "list", ANY))
    async def list_tools(message: Received) -> ToolList:
        """Return the tools that the models of the requesting tenant may call."""
        return registry.list(subjects.registering_tenant(message.subject))

    return router


def report_router(reports: WorkspaceReports) -> NatsRouter:
    router = NatsRouter()

    reports_of = subjects.workspace_report(ANY, ANY, ANY)

    @router.subscriber(reports_of, queue=names.AGENTS, max_workers=CONCURRENCY)
    async def report(report: WorkspaceReport, message: Received) -> WorkspaceReportReply:
        """Record a runner's report about a workspace and return the placement of the workspace."""
        return await reports.on_report(report, message.subject)

    return router


def store_router(stores: RunnerStores) -> NatsRouter:
    router = NatsRouter()

    @router.subscriber(subjects.object_removal(ANY), queue=names.AGENTS, max_workers=CONCURRENCY)
    async def remove(request: ObjectRemoval, message: Received) -> ObjectRemovalReply:
        """Remove an object that the requesting runner stored."""
        return await stores.on_removal(request, message.subject)

    return router
