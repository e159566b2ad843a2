"""Composition of the workflows service."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial

from banksman.bus import names
from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.control_plane.control import ControlPlane
from banksman.bus.control_plane.service_states import reported_state
from banksman.bus.first_connection import keep_connecting
from banksman.bus.names import CONVERSATIONS
from banksman.bus.publish import RunQueue
from banksman.bus.queues.kept import queue_kept_again
from banksman.bus.queues.work import work
from banksman.bus.secrets import CallTickets
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.live import LiveHub
from banksman.bus.storage.log import EventLog
from banksman.contracts.assistants import ConversationRecord
from banksman.contracts.subjects import SERVED
from banksman.deployment import users
from banksman.deployment.streams import Durability, provision_consumer
from banksman.deployment.topology import workflow_consumer
from banksman.log_integrity.damage import DamagedLogs
from banksman.quotas.places import Shares
from banksman.runs.bus_ports import OwnerNotifications, bus_ports
from banksman.runs.conversation_log import ConversationLog
from banksman.runs.runners.placement import Placements, WorkspaceSettings
from banksman.runs.schema_checks.checker import SchemaChecker
from banksman.runtime import service
from banksman.runtime.health import Health, health_server
from banksman.runtime.search import SearchSettings
from banksman.runtime.service import ServiceProcess
from banksman.sdk.workflows import Workflow
from banksman.workflows.agent_runs import AgentRuns
from banksman.workflows.builtin import BUILTIN
from banksman.workflows.forms import Forms
from banksman.workflows.registry import CallableTools, WorkflowRegistry
from banksman.workflows.router import workflow_router
from banksman.workflows.settings import WorkflowServiceSettings, WorkflowSettings
from banksman.workflows.turns import ProgressReports, Turns
from banksman.workflows.worker import WorkflowWorker


def run() -> int:
    return service.run("workflows", WorkflowServiceSettings, main)


async def main(settings: WorkflowServiceSettings, process: ServiceProcess) -> None:
    """Connect, without a time limit, and serve until `process.stop`."""
    async with health_server(process.health, settings.workflows):
        await process.keep_starting(partial(_serve, settings, process))


async def _serve(settings: WorkflowServiceSettings, process: ServiceProcess) -> None:
    bus = await keep_connecting(lambda: _new_bus(settings, process.health), process.stop)
    if bus is None:
        return
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(bus)
        slots = Shares(settings.workflows.slots)
        process.health.places, process.health.used = settings.workflows.slots, lambda: slots.used
        await stack.enter_async_context(bus.disk.watched(process.health, settings.disk.limits()))
        await stack.enter_async_context(reported_state(bus, process.health))
        if not settings.allow_weak_durability:
            durability = Durability.of_app(bus)
            process.health.checks["streams"] = durability.problem
            if not await durability.holds(process.stop):
                return
        damaged = await stack.enter_async_context(DamagedLogs(bus, checks=True))
        process.health.checks["logs"] = damaged.unready
        if not await damaged.may_work(process.stop):
            return
        worker = await enter_worker(
            stack,
            bus,
            damaged,
            BUILTIN,
            settings.workspaces.wait_s,
            settings.approvals.key_if_set(),
            settings.search,
        )
        await offer(bus, worker, BUILTIN)
        reports = ProgressReports(worker.ports, worker.registry)
        router = workflow_router(worker.registry, Forms(worker.schemas), reports, worker.tools)
        await stack.enter_async_context(ControlPlane(bus, router))
        await _enter_example_tools(stack, settings.example_tools, process.health)
        process.ready()
        await serve(bus, worker, settings.workflows, slots, process.stop)


async def _enter_example_tools(stack: AsyncExitStack, nats: NatsSettings | None, health: Health) -> None:
    if nats is None:
        return
    from banksman.workflows.example_tools import serve_example_tools

    await stack.enter_async_context(
        health.background.running("example tools", partial(serve_example_tools, nats))
    )


def _new_bus(settings: WorkflowServiceSettings, health: Health) -> Bus:
    bus = Bus(
        settings.nats,
        name=users.WORKFLOWS,
        inbox_prefix=users.inbox_prefix(users.WORKFLOWS),
        background=health.background,
    )
    health.checks["nats"] = bus.problem
    return bus


async def enter_worker(
    stack: AsyncExitStack,
    bus: Bus,
    damaged: DamagedLogs,
    workflows: tuple[Workflow, ...],
    wait_s: float = WorkspaceSettings().wait_s,
    signing_key: bytes = b"",
    search: SearchSettings | None = None,
) -> WorkflowWorker:
    log = ConversationLog(bus, damaged)
    hub = await stack.enter_async_context(LiveHub(EventLog(bus)))
    clock = await stack.enter_async_context(BrokerClock(bus))
    tickets = await CallTickets.load(bus)
    placements = await stack.enter_async_context(
        Placements(bus, clock, wait_s=wait_s, tickets=tickets, signing_key=signing_key, search=search)
    )
    tools = await stack.enter_async_context(CallableTools(bus))
    notifications = await stack.enter_async_context(OwnerNotifications(bus, clock))
    placements.on_lease_end(notifications.wake_all)
    schemas = await stack.enter_async_context(SchemaChecker())
    return WorkflowWorker(
        ports=bus_ports(bus, clock, log, placements, notifications, signing_key, prefix="workflows-"),
        notifications=notifications,
        tools=tools,
        turns=Turns(bus, {workflow.name: workflow for workflow in workflows}),
        registry=WorkflowRegistry(bus, schemas),
        schemas=schemas,
        agent_runs=AgentRuns(RunQueue(bus), hub, Bucket(bus, CONVERSATIONS, ConversationRecord)),
    )


async def offer(bus: Bus, worker: WorkflowWorker, workflows: tuple[Workflow, ...]) -> None:
    await provision_consumer(bus, workflow_consumer(SERVED, replicas=bus.settings.replicas))
    for workflow in workflows:
        await worker.registry.register(workflow.definition)


async def serve(
    bus: Bus, worker: WorkflowWorker, settings: WorkflowSettings, slots: Shares, stop: asyncio.Event
) -> None:
    durable = workflow_consumer(SERVED).durable
    kept = partial(queue_kept_again, bus, ((names.WORKFLOWS, durable),))
    async with bus.background.running("kept messages", kept):
        await work(
            bus,
            names.WORKFLOWS,
            durable,
            worker.on_work,
            slots=slots,
            waiting=Shares(settings.waiting),
            stop=stop,
            grace_s=settings.drain_s,
        )
