"""An agent in this process, with real NATS, the vendors' SDKs, and the model server instead of the
vendors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pytest

from banksman.agent.decisions import record_decision
from banksman.agent.logs.archiver import Archiver
from banksman.agent.model.checks import ApprovalRoom, TenantBudgets
from banksman.agent.model.compaction import Compactor
from banksman.agent.model.files import WorkspaceFiles
from banksman.agent.model.step import ModelStep
from banksman.agent.providers.base import ProviderSettings
from banksman.agent.providers.catalog import Providers
from banksman.agent.settings import AgentSettings
from banksman.agent.tools import AvailableTools
from banksman.agent.worker import RunWorker
from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.names import RUNNERS
from banksman.bus.queues.handling import Done, WorkMessage
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.log import EventLog
from banksman.contracts import subjects
from banksman.contracts.assistants import Limits, RunSettings, ToolSettings
from banksman.contracts.calls import RunnerLease
from banksman.contracts.events import Event, EventBody, RunFinished
from banksman.contracts.ids import new_id
from banksman.contracts.model_options import ModelOptions
from banksman.contracts.work import RunSignal, StartRun
from banksman.runs.bus_ports import OwnerNotifications, bus_ports
from banksman.runs.conversation_log import ConversationLog
from banksman.runs.runners.placement import Placements
from banksman.runs.schema_checks.checker import SchemaChecker
from banksman.runtime.tenants import TenantSettings
from tests.support.fixtures import provision_all
from tests.support.model_server import ModelServer
from tests.support.nats import NatsServer
from tests.support.usage import counting

B = TypeVar("B", bound=EventBody)

CONTEXT_TOKENS = 10_000
SUMMARY_MODEL = "openai:scripted/summary"


@dataclass
class Agent:
    """One agent, and a conversation for its runs."""

    worker: RunWorker
    log: EventLog
    tenant: str
    conversation: str
    sent: dict[str, WorkMessage] = field(default_factory=dict[str, WorkMessage])

    def start(self, content: str, model: str, *, compact: bool = False, **limits: Any) -> WorkMessage:
        """Return the work message of a new run; one that compacts has no other effect."""
        run_id = f"{self.conversation}-{new_id('r')}"
        start = StartRun(
            tenant=self.tenant,
            conversation_id=self.conversation,
            run_id=run_id,
            message_id=new_id("m"),
            content=content,
            settings=RunSettings(
                assistant_id="default",
                model=model,
                compact=compact,
                system_prompt="Be brief.",
                options=ModelOptions(),
                tools=ToolSettings(enabled=True, max_iterations=50),
                limits=Limits(**{"context_tokens": CONTEXT_TOKENS, "run_timeout_s": 30, **limits}),
            ),
            user="ann",
        )
        subject = subjects.run_work(self.tenant, self.conversation)
        return WorkMessage(subject, start.model_dump_json().encode(), {}, len(self.sent) + 1, 1)

    async def run(self, content: str, model: str, **limits: Any) -> RunFinished:
        """Drive a run to its end."""
        return await self.drive(self.start(content, model, **limits))

    async def compact(self, model: str) -> RunFinished:
        """Drive a run that compacts the history."""
        return await self.drive(self.start("Compact the conversation.", model, compact=True))

    async def drive(self, message: WorkMessage) -> RunFinished:
        """Handle a work message."""
        assert await self.worker.on_work(message) == Done()
        return (await self.events(RunFinished))[-1]

    async def signal(self, signal: RunSignal) -> None:
        """Handle a signal."""
        subject = subjects.run_signal(self.tenant, self.conversation)
        message = WorkMessage(subject, signal.model_dump_json().encode(), {}, 1, 1)
        assert await self.worker.on_signal(message) == Done()

    async def history(self) -> list[Event]:
        """Return every event of the log."""
        commits = await self.log.read(self.tenant, self.conversation, leader=True)
        return [event for stored in commits for event in stored.commit.events]

    async def events(self, kind: type[B]) -> list[B]:
        """Return the event bodies of one type."""
        return [event.data for event in await self.history() if isinstance(event.data, kind)]


Agents = Callable[..., Any]


@pytest.fixture(scope="session")
def nats_server() -> Generator[NatsServer]:
    """A server for these tests only: they register a runner that does not exist."""
    with NatsServer() as server:
        provision_all(server)
        yield server


@pytest.fixture
async def server() -> AsyncGenerator[ModelServer]:
    async with ModelServer.running() as running:
        yield running


@pytest.fixture
def agents(bus: Bus, server: ModelServer, tenant: str, conversation: str) -> Agents:
    """A function that starts agents that share a tenant and a conversation."""
    shared = bus

    @asynccontextmanager
    async def start(
        own_bus: Bus | None = None, max_wait_s: float = 0, **settings: Any
    ) -> AsyncGenerator[Agent]:
        bus = own_bus or shared
        chosen = AgentSettings(**{"compaction_model": SUMMARY_MODEL, "kept_iterations": 2, **settings})
        where = ProviderSettings(
            anthropic_base_url=server.url,
            openai_base_url=server.openai_url,
            max_attempts=1,
            max_wait_s=max_wait_s,
            first_delay_s=0.05,
        )
        # With a runner, tools are offered in the vendor's format. Scripts omit their arguments, so each
        # call has its result at once.
        await Bucket(bus, RUNNERS, RunnerLease).put("r1", RunnerLease(runner="r1", runner_epoch=1))
        async with AsyncExitStack() as stack:
            clock = await stack.enter_async_context(BrokerClock(bus))
            placements = await stack.enter_async_context(Placements(bus, clock))
            catalog = await stack.enter_async_context(AvailableTools(bus, placements, enabled=True))
            log = ConversationLog(bus)
            notifications = await stack.enter_async_context(OwnerNotifications(bus, clock))
            providers = Providers(where)
            stack.push_async_callback(providers.close)
            tenants = TenantBudgets(
                TenantSettings(),
                await stack.enter_async_context(counting(bus)),
                ApprovalRoom(bus),
                chosen,
            )
            schemas = await stack.enter_async_context(SchemaChecker())
            model_step = ModelStep(
                bus,
                providers,
                catalog,
                placements,
                Compactor(bus, providers, chosen),
                chosen,
                tenants,
                schemas,
                WorkspaceFiles(placements),
            )
            key = b"a key that signs what people decide"
            ports = bus_ports(bus, clock, log, placements, notifications, key, prefix="agent-")
            yield Agent(
                RunWorker(
                    ports,
                    log,
                    slots := ApprovalSlots(bus),
                    notifications,
                    model_step,
                    Archiver(bus, log),
                    partial(record_decision, bus, slots, key),
                ),
                EventLog(bus),
                tenant,
                conversation,
            )

    return start


@pytest.fixture
async def agent(agents: Agents) -> AsyncGenerator[Agent]:
    """One agent."""
    async with agents() as started:
        yield started
