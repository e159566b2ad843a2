"""Handlers of an agent besides the work loop: signals, decisions, timers, the tool registry and reports."""

from __future__ import annotations

from functools import partial
from typing import Any

from faststream import AckPolicy, ExceptionMiddleware
from faststream.nats import JStream, NatsRouter
from faststream.nats.subscriber.usecases import LogicSubscriber

from banksman.agent.runners.stores import RunnerStores, WorkspaceReports
from banksman.agent.tools import ToolRegistry
from banksman.agent.worker import RunWorker, TimedApproval
from banksman.bus import names
from banksman.bus.connection import Bus
from banksman.bus.control_plane.control import CONCURRENCY, Received, Work, inbox_of, one_at_a_time
from banksman.bus.queues.handling import Continued, Done, Outcome, check_subject
from banksman.contracts import subjects
from banksman.contracts.errors import Poison
from banksman.contracts.mcp import OfferedTools, OfferTools
from banksman.contracts.registry import RegisterTool, ToolList, ToolRegistration, WithdrawTool
from banksman.contracts.subjects import ANY
from banksman.contracts.work import ApprovalReply, RunSignal
from banksman.contracts.workspaces import (
    ObjectRemoval,
    ObjectRemovalReply,
    WorkspaceReport,
    WorkspaceReportReply,
)
from banksman.runs import handlers


def agent_router(
    bus: Bus, worker: RunWorker, registry: ToolRegistry, reports: WorkspaceReports, stores: RunnerStores
) -> NatsRouter:
    router = NatsRouter()
    consumer = partial(_consumer, bus, router)

    @consumer(subjects.run_signal(ANY, ANY), names.RUNS, names.SIGNALS, "run signals")
    async def signal(signal: RunSignal, message: Work) -> Outcome | Continued:
        """Handle a cancel, a steering message, a renaming or a deletion without the queue of runs."""
        return await worker.on_signal(signal, message)

    @consumer(subjects.timer_fired(ANY, ANY, ANY), names.TIMERS, names.FIRED_TIMERS, "fired timers")
    async def timer(approval: TimedApproval, message: Work) -> Outcome:
        """Escalate or expire an approval request, or remove a decided one."""
        return await worker.on_timer(approval, message)

    router.include_routers(
        _decision_router(bus, worker),
        registry_router(registry),
        report_router(reports),
        store_router(stores),
    )
    return router


def _consumer(
    bus: Bus, router: NatsRouter, subject: str, stream: str, durable: str, title: str
) -> LogicSubscriber[Any]:
    """Declare a handler of a durable consumer; the handler's outcome settles each message."""
    return router.subscriber(
        subject,
        stream=JStream(stream, declare=False),
        durable=durable,
        pull_sub=one_at_a_time(bus),
        ack_policy=AckPolicy.MANUAL,
        inbox_prefix=inbox_of(bus),
        no_reply=True,
        title=title,
    )


def _decision_router(bus: Bus, worker: RunWorker) -> NatsRouter:
    invalid = ExceptionMiddleware()
    router = NatsRouter(middlewares=(invalid,))
    consumer = partial(_consumer, bus, router)

    @invalid.add_handler(Poison, publish=True)
    async def discard(poison: Poison, message: Work) -> Outcome:
        if poison.subject != message.subject:
            # Another message cannot be read, such as a commit of the log. The reply may be valid.
            raise poison
        return await worker.on_invalid_decision(message, poison.reason)

    @consumer(subjects.approval_reply(ANY, ANY), names.APPROVALS, names.APPROVAL_REPLIES, "approval replies")
    async def decision(reply: ApprovalReply, message: Work) -> Outcome:
        """Handle the stored decision of an approval request."""
        check_subject(message, subjects.approval_reply(reply.tenant, reply.approval_id))
        await handlers.on_decision(worker.ports, reply)
        return Done()

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

    @router.subscriber(reports_of, queue=names.AGENTS, max_workers=CONCURRENCY, title="workspace.report")
    async def report(report: WorkspaceReport, message: Received) -> WorkspaceReportReply:
        """Record a runner's report about a workspace and return the placement of the workspace."""
        return await reports.on_report(report, message.subject)

    return router


def store_router(stores: RunnerStores) -> NatsRouter:
    router = NatsRouter()

    @router.subscriber(
        subjects.object_removal(ANY), queue=names.AGENTS, max_workers=CONCURRENCY, title="object.remove"
    )
    async def remove(request: ObjectRemoval, message: Received) -> ObjectRemovalReply:
        """Remove an object that the requesting runner stored."""
        return await stores.on_removal(request, message.subject)

    return router
