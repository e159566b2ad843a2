"""The components that run the supervised loops of the services, by the names of their background tasks."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from banksman.agent.logs.heads_recorder import HeadsRecorder
from banksman.agent.logs.usage_ledger import UsageLedger
from banksman.agent.providers.base import ProviderSettings
from banksman.agent.providers.catalog import Providers
from banksman.agent.router import control_queues
from banksman.agent.runners.presence import RunnerPresence
from banksman.agent.runners.room import RunnerRoom
from banksman.agent.runners.stores import RunnerStores
from banksman.agent.tools import ToolRegistry
from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.names import RUNNERS, TOOLS
from banksman.bus.queues.handling import Done, Outcome, WorkMessage
from banksman.bus.queues.work import work
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.live import LiveHub
from banksman.bus.storage.log import EventLog
from banksman.bus.storage.slots import CallSlots
from banksman.bus.storage.watch import BucketView
from banksman.contracts.calls import RunnerLease
from banksman.contracts.registry import ToolRegistration
from banksman.gateway.app import serving
from banksman.gateway.interfaces.passthrough.upstreams import Upstreams
from banksman.gateway.oidc.tokens import oidc_tokens
from banksman.gateway.settings import GatewayServiceSettings, GatewaySettings, OidcSettings
from banksman.gateway.usage.passthrough import PassthroughUsage
from banksman.log_integrity.damage import DamagedLogs
from banksman.log_integrity.heads import LogHeads
from banksman.runs.runners.placement import Placements
from banksman.runs.schema_checks.checker import SchemaChecker
from banksman.runtime.disk import DiskLimits
from banksman.runtime.health import Health
from banksman.runtime.model_servers import ProviderEntry
from banksman.runtime.service import Memory, ServiceProcess
from banksman.runtime.settings import ApprovalSettings
from banksman.runtime.tenants import TenantLimits, TenantSettings
from banksman.tool_runner import app as tool_runner
from banksman.tool_runner.settings import ToolRunnerServiceSettings, ToolRunnerSettings
from banksman.tool_runner.workspaces.quota import delete_tree
from banksman.workflows import app as workflows
from banksman.workflows.settings import WorkflowServiceSettings, WorkflowSettings
from tests.support.polling import eventually

TENANT = "t-loops"
UNREACHABLE = "http://127.0.0.1:9"

Component = Callable[[Bus], AbstractAsyncContextManager[object]]


@asynccontextmanager
async def checked(bus: Bus) -> AsyncGenerator[object]:
    async with DamagedLogs(bus, checks=True) as damaged:
        yield damaged


@asynccontextmanager
async def registry(bus: Bus) -> AsyncGenerator[object]:
    async with (
        BrokerClock(bus) as clock,
        Placements(bus, clock) as placements,
        BucketView(Bucket(bus, TOOLS, ToolRegistration)) as registered,
        SchemaChecker() as schemas,
        ToolRegistry(bus, clock, registered, placements, schemas) as serving,
    ):
        yield serving


@asynccontextmanager
async def presence(bus: Bus) -> AsyncGenerator[object]:
    async with (
        BrokerClock(bus) as clock,
        Placements(bus, clock) as placements,
        RunnerPresence(bus, placements) as checking,
    ):
        yield checking


@asynccontextmanager
async def following(bus: Bus) -> AsyncGenerator[object]:
    async with LiveHub(EventLog(bus), check_s=0.1, first_check_s=0.1) as hub, hub.tail(TENANT, "c-live"):
        yield hub


@asynccontextmanager
async def heads(bus: Bus) -> AsyncGenerator[object]:
    async with (
        DamagedLogs(bus) as damaged,
        UsageLedger(bus) as usage,
        HeadsRecorder(LogHeads(bus), damaged, usage, write_every_s=0.1, standby_s=0.1) as keeper,
    ):
        yield keeper


@asynccontextmanager
async def upstreams(bus: Bus) -> AsyncGenerator[object]:
    async with Upstreams((), bus.background, timeout_s=1.0) as listing:
        yield listing


@asynccontextmanager
async def working(bus: Bus) -> AsyncGenerator[object]:
    async def handler(message: WorkMessage) -> Outcome:
        return Done()

    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(work(bus, "RUNS", "agents", handler, slots=1, stop=stop))
        yield stop
        stop.set()


@asynccontextmanager
async def agent_queues(bus: Bus) -> AsyncGenerator[object]:
    worker: Any = SimpleNamespace(on_signal=None, on_decision=None, on_timer=None)
    async with control_queues(bus, worker):
        yield worker


@asynccontextmanager
async def removing(bus: Bus) -> AsyncGenerator[object]:
    slots = CallSlots(bus)
    await slots.forget(TENANT, ("a-removed",))
    yield slots


@asynccontextmanager
async def passthrough_usage(bus: Bus) -> AsyncGenerator[object]:
    async with (
        BrokerClock(bus) as clock,
        PassthroughUsage(bus, clock, TenantSettings(), {}, write_every_s=0.1) as usage,
    ):
        yield usage


@asynccontextmanager
async def gateway(bus: Bus) -> AsyncGenerator[object]:
    settings = GatewayServiceSettings(
        nats=bus.settings,
        approvals=ApprovalSettings.model_validate({"signing_key": "k" * 32}),
        gateway=GatewaySettings(port=0, keyless_tenant=TENANT, default_model="demo:demo"),
        tenants=TenantSettings(named={TENANT: TenantLimits(retention_days=7)}),
        allow_weak_durability=True,
    )
    async with serving(settings, Health("gateway", background=bus.background)) as running:
        yield running


def reachable_directory() -> Path:
    """Return a new directory that the sandbox user can reach, other than pytest's own ones."""
    directory = Path(tempfile.mkdtemp(prefix="banksman-test-", dir="/var/tmp"))
    directory.chmod(0o711)
    return directory


@asynccontextmanager
async def runner(bus: Bus) -> AsyncGenerator[object]:
    directory = reachable_directory()
    settings = ToolRunnerServiceSettings(
        nats=bus.settings,
        data_dir=directory,
        tool_runner=ToolRunnerSettings(workspaces_dir=directory, drain_s=0.0),
        allow_weak_durability=True,
    )
    try:
        process = ServiceProcess(Health("tool-runner", background=bus.background))
        async with started(process, tool_runner.main(settings, process)):
            yield process
    finally:
        delete_tree(directory)


@asynccontextmanager
async def workflows_with_example_tools(bus: Bus) -> AsyncGenerator[object]:
    settings = WorkflowServiceSettings(
        nats=bus.settings,
        workflows=WorkflowSettings(drain_s=0.0, example_tools=bus.settings),
        allow_weak_durability=True,
    )
    process = ServiceProcess(Health("workflows", background=bus.background))
    async with started(process, workflows.main(settings, process)):
        yield process


@asynccontextmanager
async def started(process: ServiceProcess, main: Coroutine[object, object, None]) -> AsyncGenerator[None]:
    """Run a service, composed as in production, in this process."""
    running = asyncio.create_task(main)
    await eventually(lambda: process.health.started or running.done())
    assert not running.done(), running.exception()
    yield
    process.drain()
    await running


def warming(bus: Bus) -> AbstractAsyncContextManager[object]:
    providers = Providers(ProviderSettings())
    return bus.background.running("warm-up", partial(providers.warm, "openai:gpt-5-mini"))


@asynccontextmanager
async def retiring(bus: Bus) -> AsyncGenerator[None]:
    """Providers of a tenant whose address changed: the first client is closed later."""
    entries = iter(ProviderEntry(base_url=f"{UNREACHABLE}/{version}") for version in ("v1", "v2"))
    providers = Providers(ProviderSettings(), lambda _tenant: {"mine": next(entries)}, bus.background)
    for _ in range(2):
        providers.choose("mine:any", "t")
    yield
    await providers.close()


LIMITS = DiskLimits(low_bytes=0, low_percent=0, full_bytes=0, full_percent=0)
LOOPS: dict[str, Component] = {
    "approval replies": agent_queues,
    "memory": lambda bus: bus.background.running("memory", Memory().watch),
    "bucket-runners": lambda bus: BucketView(Bucket(bus, RUNNERS, RunnerLease), check_s=0.1),
    "bucket-runners-expiry": lambda bus: BucketView(Bucket(bus, RUNNERS, RunnerLease), ttl_s=0.1),
    "clock": lambda bus: BrokerClock(bus, request_every_s=0.1),
    "disk of NATS": lambda bus: bus.disk.watched(Health("loops", background=bus.background), LIMITS),
    "example tools": workflows_with_example_tools,
    "fired timers": agent_queues,
    "heads": heads,
    "heartbeats": working,
    "kept messages": agent_queues,
    "live": following,
    "oidc": lambda bus: oidc_tokens(OidcSettings(issuer=UNREACHABLE, audience="loops"), bus.background),
    "overdue schedules": gateway,
    "passthrough-usage": passthrough_usage,
    "retention": gateway,
    "retired-provider": retiring,
    "archive": gateway,
    "runner-presence": presence,
    "run signals": agent_queues,
    "runner-room": lambda bus: RunnerRoom(bus, soonest_s=0.1),
    "schedules": gateway,
    "slots": removing,
    "snapshots": lambda bus: RunnerStores(bus, collect_every_s=0.1),
    "tool-registry": registry,
    "upstream-models": upstreams,
    "usage-write": lambda bus: UsageLedger(bus, write_every_s=0.1),
    "warm-up": warming,
    "webhook-deliveries": gateway,
    "webhook-queue": gateway,
    "workspaces": runner,
}
AFTER_RECONNECT: dict[str, Component] = {"log-check": checked}
"""A loop whose work is due after a reconnect only, because a server may have lost data."""
