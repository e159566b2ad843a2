"""Composition of the workflows service."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

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
from banksman.contracts.registry import (
    CheckWorkflow,
    WorkflowCategories,
    WorkflowChecked,
    WorkflowDefinition,
    WorkflowList,
    WorkflowName,
)
from banksman.deployment import users
from banksman.deployment.durability import Durability
from banksman.deployment.streams import provision_consumer
from banksman.deployment.topology import workflow_consumer
from banksman.log_integrity.damage import DamagedLogs
from banksman.runs.guarded_log import GuardedLog
from banksman.runs.placement import Placements, WorkspaceSettings
from banksman.runs.ports import Clock, Log, Ports
from banksman.runs.stores import FoldedLog, StoredApprovals, StoredSlots, StoredWork, Watch
from banksman.runtime import service
from banksman.runtime.health import health_server
from banksman.runtime.service import Life
from banksman.workflows.builtin import BUILTIN
from banksman.workflows.registry import Registry
from banksman.workflows.settings import WorkflowServiceSettings, WorkflowSettings
from banksman.workflows.tools import Tools
from banksman.workflows.worker import Worker
from banksman.workflows.workflow import Workflow

QUEUE = "workflows"
"""Each request goes to one of the processes."""


def run() -> int:
    """Run the service until it is told to stop; returns the exit code."""
    return service.run("workflows", WorkflowServiceSettings, main)


async def main(settings: WorkflowServiceSettings, life: Life) -> None:
    """Serve until `life.stop`.

    Raises:
        Conflict: another server offers a workflow of a built-in one's name.
        Unavailable: NATS cannot be reached.
    """
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(health_server(life.health, settings.workflows))
        bus = await stack.enter_async_context(await connect(settings))
        life.health.checks["nats"] = bus.problem
        if not settings.allow_weak_durability:
            durability = Durability.of_app(bus)
            life.health.checks["streams"] = durability.problem
            if not await durability.holds(life.stop):
                return
        worker = await enter_worker(stack, bus, BUILTIN, settings.workspaces.wait_s)
        await offer(bus, worker)
        await stack.enter_async_context(control_plane(bus, worker))
        life.ready()
        await serve(bus, worker, settings.workflows, life.stop)


async def connect(settings: WorkflowServiceSettings) -> Bus:
    """Connect as the user `workflows`."""
    return await Bus.connect(
        settings.nats, name=users.WORKFLOWS, inbox_prefix=users.inbox_prefix(users.WORKFLOWS)
    )


async def enter_worker(
    stack: AsyncExitStack,
    bus: Bus,
    workflows: tuple[Workflow, ...],
    wait_s: float = WorkspaceSettings().wait_s,
) -> Worker:
    """The worker of this process; what it listens with ends with `stack`."""
    log = FoldedLog(EventLog(bus))
    damaged = await stack.enter_async_context(DamagedLogs(bus, on_found=log.forget))
    hub = await stack.enter_async_context(LiveHub(EventLog(bus)))
    clock = await stack.enter_async_context(BrokerClock(bus))
    placements = await stack.enter_async_context(Placements(bus, clock, wait_s=wait_s))
    tools = await stack.enter_async_context(Tools(bus))
    watch = await stack.enter_async_context(Watch(bus, hub, log, clock))
    return Worker(
        ports=ports_of(bus, clock, GuardedLog(log, EventLog(bus), damaged), placements, watch),
        watch=watch,
        tools=tools,
        workflows={workflow.name: workflow for workflow in workflows},
        registry=Registry(bus),
    )


def ports_of(bus: Bus, clock: Clock, log: Log, placements: Placements, watch: Watch) -> Ports:
    """The ports of this process's procedures, over the bus."""
    return Ports(
        agent=new_id("workflows-"),
        clock=clock,
        log=log,
        slots=StoredSlots(CallSlots(bus)),
        approvals=StoredApprovals(bus, ApprovalSlots(bus)),
        work=StoredWork(bus),
        runners=placements,
        attention=watch,
        # A workflow's calls ask nobody, so there is no answer whose signature it could check.
        signing_key=b"",
    )


async def offer(bus: Bus, worker: Worker) -> None:
    """Register the workflows of this process, each with a durable that holds its starts."""
    for workflow in worker.workflows.values():
        await provision_consumer(bus, workflow_consumer(workflow.name, replicas=bus.settings.replicas))
        await worker.registry.register(workflow.definition)


async def serve(bus: Bus, worker: Worker, settings: WorkflowSettings, stop: asyncio.Event) -> None:
    """Run what is started until `stop` is set.

    Raises:
        Unavailable: the connection is closed for good.
    """
    try:
        async with asyncio.TaskGroup() as group:
            for name in worker.workflows:
                durable = workflow_consumer(name).durable
                loop = work(
                    bus,
                    names.WORKFLOWS,
                    durable,
                    worker.on_start,
                    slots=settings.slots,
                    stop=stop,
                    grace_s=settings.drain_s,
                )
                group.create_task(loop, name=durable)
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures


def control_plane(bus: Bus, worker: Worker) -> ControlPlane:
    """What the service answers besides running workflows."""
    control = ControlPlane(bus, title="Banksman workflows")
    control.serve(
        subjects.workflow_api("list"),
        worker.on_list,
        queue=QUEUE,
        reply=WorkflowList,
        title="list workflows",
    )
    control.serve(
        subjects.workflow_api("categories"),
        worker.on_categories,
        queue=QUEUE,
        reply=WorkflowCategories,
        title="list workflows by category",
    )
    control.serve(
        subjects.workflow_api("get"),
        worker.on_get,
        queue=QUEUE,
        request=WorkflowName,
        reply=WorkflowDefinition,
        title="get a workflow",
    )
    control.serve(
        subjects.workflow_api("start"),
        worker.on_check,
        queue=QUEUE,
        request=CheckWorkflow,
        reply=WorkflowChecked,
        title="check a workflow's start",
        description="Fills in defaults and names the first parameter that does not fit; starts nothing.",
    )
    return control
