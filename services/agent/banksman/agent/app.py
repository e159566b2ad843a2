"""Composition of the agent service."""

from __future__ import annotations

from contextlib import AsyncExitStack

from banksman.agent.catalog import ToolCatalog
from banksman.agent.compactor import Compactor
from banksman.agent.log_guard import LogGuard
from banksman.agent.providers.catalog import Providers
from banksman.agent.registry import ToolRegistry
from banksman.agent.settings import AgentServiceSettings
from banksman.agent.tenants import Tenants
from banksman.agent.thinking import Thinker
from banksman.agent.usage import UsageLedger
from banksman.agent.worker import RUN_SIGNAL, Worker
from banksman.agent.workspace_reports import WorkspaceReports
from banksman.bus import names
from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.control import ControlPlane
from banksman.bus.live import LiveHub
from banksman.bus.log import EventLog
from banksman.bus.slots import ApprovalSlots, CallSlots
from banksman.bus.work import work
from banksman.contracts import subjects
from banksman.contracts.ids import new_id
from banksman.contracts.registry import RegisterTool, ToolList, ToolRegistration, WithdrawTool
from banksman.contracts.subjects import ANY
from banksman.contracts.work import ApprovalReply
from banksman.contracts.workspaces import WorkspaceReport, WorkspaceReportReply
from banksman.deployment.durability import Durability
from banksman.deployment.users import AGENT, inbox_prefix
from banksman.log_integrity.damage import DamagedLogs
from banksman.runs.folded_log import FoldedLog
from banksman.runs.guarded_log import GuardedLog
from banksman.runs.placement import Placements
from banksman.runs.ports import Clock, Log, Ports
from banksman.runs.stores import StoredApprovals, StoredSlots, StoredWork, Watch
from banksman.runtime import service
from banksman.runtime.health import health_server
from banksman.runtime.service import Life


def run() -> int:
    """Run the service until it is told to stop; returns the exit code."""
    return service.run("agent", AgentServiceSettings, main)


async def main(settings: AgentServiceSettings, life: Life) -> None:
    """Serve until `life.stop`.

    Raises:
        BadInput: a setting is wrong.
        Unavailable: NATS cannot be reached.
    """
    key = settings.approvals.key()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(health_server(life.health, settings.agent))
        bus = await stack.enter_async_context(
            await Bus.connect(settings.nats, name=AGENT, inbox_prefix=inbox_prefix(AGENT))
        )
        life.health.checks["nats"] = bus.problem
        if not settings.allow_weak_durability:
            durability = Durability.of_app(bus)
            life.health.checks["streams"] = durability.problem
            if not await durability.holds(life.stop):
                return
        log = FoldedLog(EventLog(bus))
        damaged = await stack.enter_async_context(DamagedLogs(bus, on_found=log.forget))
        guard = LogGuard(bus, damaged)
        life.health.checks["logs"] = guard.problem
        life.health.warnings["logs"] = damaged.warning
        if not await guard.checked(life.stop):
            return
        await stack.enter_async_context(guard)
        hub = await stack.enter_async_context(LiveHub(EventLog(bus)))
        clock = await stack.enter_async_context(BrokerClock(bus))
        placements = await stack.enter_async_context(
            Placements(bus, clock, wait_s=settings.workspaces.wait_s)
        )
        catalog = await stack.enter_async_context(
            ToolCatalog(bus, placements, enabled=settings.agent.tools_enabled, away_s=settings.agent.away_s)
        )
        watch = await stack.enter_async_context(Watch(bus, hub, log, clock))
        usage = await stack.enter_async_context(UsageLedger(bus))
        providers = Providers(settings.models)
        stack.push_async_callback(providers.close)
        worker = Worker(
            ports=ports_of(bus, clock, GuardedLog(log, EventLog(bus), damaged), placements, watch, key),
            log=EventLog(bus),
            watch=watch,
            thinker=Thinker(
                bus,
                providers,
                catalog,
                placements,
                Compactor(providers, settings.agent),
                settings.agent,
                Tenants(settings.tenants, usage),
            ),
        )
        registry = await stack.enter_async_context(
            ToolRegistry(bus, clock, catalog.registered, placements, away_s=settings.agent.away_s)
        )
        await stack.enter_async_context(control_plane(bus, worker, registry))
        life.ready()
        if settings.agent.default_model is not None:
            await providers.warm(settings.agent.default_model)
        await work(
            bus,
            names.RUNS,
            names.AGENTS,
            worker.on_work,
            slots=settings.agent.slots,
            stop=life.stop,
            grace_s=settings.agent.drain_s,
        )


def ports_of(
    bus: Bus, clock: Clock, log: Log, placements: Placements, watch: Watch, signing_key: bytes
) -> Ports:
    """The ports of this process's procedures, over the bus."""
    return Ports(
        agent=new_id("agent-"),
        clock=clock,
        log=log,
        slots=StoredSlots(CallSlots(bus)),
        approvals=StoredApprovals(bus, ApprovalSlots(bus)),
        work=StoredWork(bus),
        runners=placements,
        attention=watch,
        signing_key=signing_key,
    )


def control_plane(bus: Bus, worker: Worker, registry: ToolRegistry) -> ControlPlane:
    """What an agent serves besides the work loop: signals, decisions, timers and the registry of tools."""
    control = ControlPlane(bus, title="Banksman agent")
    control.consume(
        names.SIGNALS,
        names.RUNS,
        worker.on_signal,
        subject=subjects.run_signal(ANY, ANY),
        payload=RUN_SIGNAL,
        title="run signals",
        description="Cancel, steer, rename and delete, beside the queue of runs.",
    )
    control.consume(
        names.APPROVAL_REPLIES,
        names.APPROVALS,
        worker.on_decision,
        subject=subjects.approval_reply(ANY, ANY),
        payload=ApprovalReply,
        title="approval replies",
        description="The one answer to each question, as a gateway or the system stored it.",
    )
    control.consume(
        names.FIRED_TIMERS,
        names.TIMERS,
        worker.on_timer,
        subject=subjects.timer_fired(ANY, ANY, ANY),
        title="fired timers",
        description="Approvals whose time is over.",
    )
    serve_registry(control, registry)
    control.serve(
        subjects.workspace_report(ANY, ANY, ANY),
        WorkspaceReports(bus).on_report,
        queue=names.AGENTS,
        request=WorkspaceReport,
        reply=WorkspaceReportReply,
        title="workspace.report",
        description="A runner tells what became of a workspace, or asks whose it is.",
    )
    return control


def serve_registry(control: ControlPlane, registry: ToolRegistry) -> None:
    """The registry's requests, from services of the platform and from tenants' accounts."""
    served = (
        ("register", registry.on_register, RegisterTool, ToolRegistration),
        ("withdraw", registry.on_withdraw, WithdrawTool, ToolRegistration),
        ("list", registry.on_list, None, ToolList),
    )
    for action, respond, request, reply in served:
        for subject in (subjects.registry("tool", action), subjects.tenant_registry("tool", action, ANY)):
            control.serve(subject, respond, queue=names.AGENTS, request=request, reply=reply)
