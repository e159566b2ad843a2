"""Composition of the agent service."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

from banksman.agent.decisions import record_decision
from banksman.agent.logs.archiver import Archiver
from banksman.agent.logs.heads_recorder import HeadsRecorder
from banksman.agent.logs.usage_ledger import UsageLedger
from banksman.agent.model.checks import ApprovalRoom, CutPrompts, TenantBudgets
from banksman.agent.model.compaction import Compactor
from banksman.agent.model.files import WorkspaceFiles
from banksman.agent.model.request import UnfinishedTexts
from banksman.agent.model.step import ModelStep
from banksman.agent.providers.catalog import Providers
from banksman.agent.relay import Relay
from banksman.agent.relayed_messages import TenantRedaction
from banksman.agent.router import agent_router, control_queues
from banksman.agent.runners.presence import RunnerPresence
from banksman.agent.runners.room import RunnerRoom
from banksman.agent.runners.stores import RunnerStores, WorkspaceReports
from banksman.agent.settings import AgentServiceSettings
from banksman.agent.slots import FIRST_SLOTS, LEAST_SLOTS, SlotsWarning
from banksman.agent.tools import AvailableTools, ToolRegistry
from banksman.agent.worker import RunWorker, capped
from banksman.bus import names
from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.control_plane.control import ControlPlane
from banksman.bus.control_plane.service_states import reported_state
from banksman.bus.first_connection import keep_connecting
from banksman.bus.model_servers import TenantModelServers
from banksman.bus.publish import is_behind
from banksman.bus.queues.work import work
from banksman.bus.secrets import CallTickets, SecretBox, TenantSecrets
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.contracts.administration import CheckName
from banksman.deployment.streams import Durability
from banksman.deployment.users import AGENT, inbox_prefix
from banksman.log_integrity.damage import DamagedLogs
from banksman.log_integrity.heads import LogHeads
from banksman.quotas.adaptive import AdaptiveLimit
from banksman.quotas.places import Shares
from banksman.quotas.stored import StorageRoom
from banksman.runs.bus_ports import OwnerNotifications, bus_ports
from banksman.runs.conversation_log import ConversationLog
from banksman.runs.runners.placement import Placements
from banksman.runs.schema_checks.checker import SchemaChecker
from banksman.runtime import service
from banksman.runtime.health import health_server
from banksman.runtime.service import ServiceProcess


def run() -> int:
    return service.run("agent", AgentServiceSettings, main)


async def main(settings: AgentServiceSettings, process: ServiceProcess) -> None:
    """Connect, without a time limit, and serve until `process.stop`.

    Raises:
        BadInput: A setting is invalid.
    """
    key = settings.approvals.key()
    async with health_server(process.health, settings.agent):
        await process.keep_starting(partial(_serve, settings, process, key))


async def _serve(settings: AgentServiceSettings, process: ServiceProcess, key: bytes) -> None:
    bus = await keep_connecting(lambda: _new_bus(settings, process, AGENT, "nats"), process.stop)
    if bus is None:
        return
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        await enter(bus)
        await enter(bus.disk.watched(process.health, settings.disk.limits()))
        most = settings.agent.most_slots
        limit = AdaptiveLimit(most, least=LEAST_SLOTS, initial=FIRST_SLOTS)
        slots = Shares(limit.now, settings.running_runs)
        process.health.places, process.health.used = most, lambda: slots.used
        process.health.warnings["slots"] = SlotsWarning(limit).problem
        await enter(reported_state(bus, process.health))
        if not settings.allow_weak_durability:
            durability = Durability.of_app(bus)
            process.health.checks["streams"] = durability.problem
            if not await durability.holds(process.stop):
                return
        damaged = await enter(DamagedLogs(bus, checks=True))
        log = ConversationLog(bus, damaged)
        process.health.checks["logs"] = damaged.unready
        process.health.warnings["logs"] = damaged.warning
        process.health.warnings["storage"] = StorageRoom(bus).warning
        if not await damaged.may_work(process.stop):
            return
        usage = await enter(UsageLedger(bus))
        recorder = await enter(HeadsRecorder(LogHeads(bus), damaged, usage))
        process.health.warnings["log_record"] = recorder.incomplete
        clock = await enter(BrokerClock(bus))
        tickets = await CallTickets.load(bus)
        stores = RunnerStores(bus, lambda: placements.leases())
        placements = await enter(
            Placements(
                bus,
                clock,
                wait_s=settings.workspaces.wait_s,
                tickets=tickets,
                signing_key=key,
                search=settings.search,
                remove_objects=stores.remove_snapshots,
            )
        )
        await enter(stores)
        await enter(RunnerRoom(bus))
        away_s = settings.agent.away_s
        catalog = await enter(
            AvailableTools(
                bus, placements, enabled=settings.agent.tools_enabled, search=settings.search, away_s=away_s
            )
        )
        notifications = await enter(OwnerNotifications(bus, clock))
        placements.on_lease_end(notifications.wake_all)
        await enter(RunnerPresence(bus, placements))
        schemas = await enter(SchemaChecker())
        cap = partial(capped, settings.tenants)
        servers = await enter(TenantModelServers(bus, SecretBox(key)))
        providers = Providers(settings.models, servers.entries, process.health.background)
        cut_prompts = CutPrompts()
        process.health.warnings["models"] = cut_prompts.warning
        stack.push_async_callback(providers.close)
        texts = UnfinishedTexts()
        await enter(texts.served(bus))
        approvals = ApprovalSlots(bus)
        worker = RunWorker(
            ports=bus_ports(bus, clock, log, placements, notifications, key, prefix="agent-", capped=cap),
            log=log,
            approvals=approvals,
            record_decision=partial(record_decision, bus, approvals, key),
            notifications=notifications,
            model_step=ModelStep(
                bus,
                providers,
                catalog,
                placements,
                Compactor(bus, providers, settings.agent),
                settings.agent,
                TenantBudgets(settings.tenants, usage, ApprovalRoom(bus), settings.agent),
                schemas,
                WorkspaceFiles(placements),
                cut_prompts,
                texts,
            ),
            archiver=Archiver(bus, log),
        )
        registry = await enter(
            ToolRegistry(
                bus, clock, catalog.registered, placements, schemas, search=settings.search, away_s=away_s
            )
        )
        await enter(control_queues(bus, worker))
        reports = WorkspaceReports(bus, TenantSecrets(bus, SecretBox(key)))
        await enter(ControlPlane(bus, agent_router(registry, reports, stores)))
        redaction = await enter(TenantRedaction(bus, key))
        # A connection of its own: a flood of messages may make the server close it.
        relay_bus = await enter(await _new_bus(settings, process, f"{AGENT} relay", "relay").open())
        await enter(Relay(relay_bus, tickets, redaction))
        process.ready()
        if (model := settings.agent.default_model) is not None:
            # Beside the work: a run that a crash interrupted may wait for a tool, or end without a model.
            await enter(process.health.background.running("warm-up", partial(providers.warm, model)))
        await work(
            bus,
            names.RUNS,
            names.AGENTS,
            worker.on_work,
            slots=slots,
            limit=limit,
            is_short=lambda message: is_behind(message.headers),
            stop=process.stop,
            grace_s=settings.agent.drain_s,
        )


def _new_bus(settings: AgentServiceSettings, process: ServiceProcess, name: str, check: CheckName) -> Bus:
    background = process.health.background
    bus = Bus(settings.nats, name=name, inbox_prefix=inbox_prefix(AGENT), background=background)
    process.health.checks[check] = bus.problem
    return bus
