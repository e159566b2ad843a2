"""Tenants share the slots of an agent: one that starts more runs than there are slots delays no other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest
from tests.support.fixtures import settings_of
from tests.support.model_server import ModelServer
from tests.support.nats import Broker
from tests.support.polling import eventually
from tests.support.scripted_models import Gate, ScriptedReply
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.agent import app
from banksman.agent.providers.base import ProviderSettings
from banksman.agent.settings import AgentServiceSettings, AgentSettings
from banksman.bus.connection import Bus
from banksman.bus.messages import BusSubscription, Message
from banksman.bus.publish import RunQueue
from banksman.contracts import subjects
from banksman.contracts.assistants import Limits, RunSettings, ToolSettings
from banksman.contracts.events import Commit, RunFinished
from banksman.contracts.ids import new_id
from banksman.contracts.model_options import ModelOptions
from banksman.contracts.work import StartRun
from banksman.runtime.health import Health
from banksman.runtime.service import ServiceProcess
from banksman.runtime.settings import ApprovalSettings
from banksman.runtime.tenants import TenantLimits, TenantSettings

SLOTS = 16
LENT = 12
"""Slots that a tenant gets while no other tenant has work: three quarters."""
FLOOD = 40
QUEUED = 10
"""Runs of one conversation, of which all but one wait for the others."""
QUIET = [f"quiet{number}" for number in range(9)]


@dataclass
class Runs:
    """Starts runs, and counts those that end."""

    bus: Bus
    ended: Counter[str] = field(default_factory=Counter[str])
    """Runs that completed, by tenant."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    @asynccontextmanager
    async def on(cls, bus: Bus) -> AsyncGenerator[Runs]:
        runs = cls(bus)
        following: BusSubscription = await bus.subscribe(
            subjects.live(subjects.ANY, subjects.ANY), runs._committed
        )
        await bus.ready()
        yield runs
        await following.unsubscribe()

    async def start(self, tenant: str, model: str, number: int = 1, *, each: int = 1) -> None:
        """Start `each` runs in `number` new conversations of a tenant."""
        for conversation in [new_id("c") for _ in range(number)]:
            for _ in range(each):
                await RunQueue(self.bus).publish(start_of(tenant, model, conversation))

    async def until_ended(self, tenant: str, number: int = 1) -> None:
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while self.ended[tenant] < number:
                self._changed.clear()
                await self._changed.wait()

    async def _committed(self, message: Message) -> None:
        for event in Commit.model_validate_json(message.data).events:
            if isinstance(event.data, RunFinished):
                assert event.data.status == "completed"
                self.ended[message.subject.split(".")[1]] += 1
                self._changed.set()


def start_of(tenant: str, model: str, conversation: str) -> StartRun:
    return StartRun(
        tenant=tenant,
        conversation_id=conversation,
        run_id=f"{conversation}-{new_id('r')}",
        message_id=new_id("m"),
        content="go",
        settings=RunSettings(
            assistant_id="default",
            model=f"openai:{model}",
            system_prompt="Be brief.",
            options=ModelOptions(),
            tools=ToolSettings(enabled=False),
            limits=Limits(run_timeout_s=120),
        ),
        user="ann",
    )


@pytest.fixture
async def model() -> AsyncGenerator[ModelServer]:
    async with ModelServer.running() as running:
        yield running


@asynccontextmanager
async def agent_on(server: Broker, model: ModelServer, **tenants: TenantLimits) -> AsyncGenerator[None]:
    """Run the agent service in this process, composed as in production."""
    settings = AgentServiceSettings(
        nats=settings_of(server),
        agent=AgentSettings(slots=SLOTS, drain_s=0.0),
        models=ProviderSettings.model_validate(
            {"openai_base_url": model.openai_url, "openai_api_key": "sk-test"}
        ),
        approvals=ApprovalSettings.model_validate({"signing_key": "k" * 32}),
        tenants=TenantSettings(named=tenants),
        allow_weak_durability=True,
    )
    process = ServiceProcess(Health("agent"))
    serving = asyncio.create_task(app.main(settings, process))
    await eventually(lambda: process.health.started or serving.done())
    assert not serving.done(), serving.exception()
    yield
    process.drain()
    await serving


async def test_one_flooding_tenant_among_ten_delays_no_other_tenant(
    own_nats: Broker, own_bus: Bus, model: ModelServer
) -> None:
    """The runs of the others end while all runs of the flood still wait for the model. Then those end too."""
    slow = model.play("slow", [ScriptedReply(text="Done.", gate=Gate(name="slow"))], at_end="repeat")
    quick = model.play("quick", [ScriptedReply(text="Done.")], at_end="repeat")
    async with Runs.on(own_bus) as runs, agent_on(own_nats, model):
        await runs.start("flood", slow, FLOOD)
        await model.wait_for_requests("slow", LENT)
        for _ in range(2):
            for tenant in QUIET:
                await runs.start(tenant, quick)
        for tenant in QUIET:
            await runs.until_ended(tenant, 2)
        at_the_model = len(model.requests("slow"))
        model.open_gate("slow")
        await runs.until_ended("flood", FLOOD)

    assert at_the_model == LENT
    assert (len(model.requests("slow")), len(model.requests("quick"))) == (FLOOD, 2 * len(QUIET))


async def test_several_flooding_tenants_leave_a_slot_for_the_next_tenant(
    own_nats: Broker, own_bus: Bus, model: ModelServer
) -> None:
    """When every slot is taken, the first run of a further tenant gets an additional slot."""
    slow = model.play("slow", [ScriptedReply(text="Done.", gate=Gate(name="slow"))], at_end="repeat")
    quick = model.play("quick", [ScriptedReply(text="Done.")], at_end="repeat")
    floods = [f"flood{number}" for number in range(SLOTS)]
    async with Runs.on(own_bus) as runs, agent_on(own_nats, model):
        for tenant in floods:
            await runs.start(tenant, slow, 4)
        await model.wait_for_requests("slow", SLOTS)
        await runs.start("late", quick)
        await runs.until_ended("late")
        model.open_gate("slow")
        for tenant in floods:
            await runs.until_ended(tenant, 4)


async def test_an_idle_conversation_waits_for_no_queue_of_another_of_its_tenant(
    own_nats: Broker, own_bus: Bus, model: ModelServer
) -> None:
    """P19: as many conversations as slots, and as many again, each with a queue, then one more."""
    slow = model.play("slow", [ScriptedReply(text="Done.", gate=Gate(name="slow"))], at_end="repeat")
    probe = model.play("probe", [ScriptedReply(text="Done.")], at_end="repeat")
    async with Runs.on(own_bus) as runs, agent_on(own_nats, model):
        await runs.start("flood", slow, 2 * LENT, each=QUEUED)
        await model.wait_for_requests("slow", LENT)
        await runs.start("flood", probe)
        model.open_gate("slow")
        await model.wait_for_requests("probe", 1)
        before = runs.ended["flood"]
        await runs.until_ended("flood", 2 * LENT * QUEUED + 1)

    # Each conversation once or twice, and not each queue to its end.
    assert before <= 4 * LENT
    assert runs.ended["flood"] == 2 * LENT * QUEUED + 1


async def test_a_tenant_never_has_more_slots_than_its_limit(
    own_nats: Broker, own_bus: Bus, model: ModelServer
) -> None:
    slow = model.play("slow", [ScriptedReply(text="Done.", gate=Gate(name="slow"))], at_end="repeat")
    other = model.play("other", [ScriptedReply(text="Done.", gate=Gate(name="other"))], at_end="repeat")
    async with AsyncExitStack() as stack:
        runs = await stack.enter_async_context(Runs.on(own_bus))
        await stack.enter_async_context(agent_on(own_nats, model, small=TenantLimits(running_runs=2)))
        await runs.start("small", slow, 6)
        await runs.start("other", other, 6)
        await model.wait_for_requests("other", 6)
        at_the_model = len(model.requests("slow"))
        model.open_gate("other")
        model.open_gate("slow")
        await runs.until_ended("small", 6)
    assert at_the_model == 2
