"""Background tasks survive unforeseen exceptions, count them, and report when they keep failing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx
import pytest
from prometheus_client import REGISTRY

from banksman.agent.heads_recorder import HeadsRecorder
from banksman.agent.log_guard import LogGuard
from banksman.agent.registry import ToolRegistry
from banksman.agent.runner_stores import RunnerStores
from banksman.agent.usage import UsageLedger
from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.kv import Bucket, Entry
from banksman.bus.live import LiveHub
from banksman.bus.log import EventLog
from banksman.bus.names import RUNNERS, TOOLS
from banksman.bus.outcomes import Done, Outcome, WorkMessage
from banksman.bus.watch import BucketView
from banksman.bus.work import work
from banksman.contracts.calls import RunnerLease
from banksman.contracts.errors import Unavailable
from banksman.contracts.registry import ToolRegistration
from banksman.gateway.passthrough.upstreams import Upstreams
from banksman.log_integrity.damage import DamagedLogs
from banksman.log_integrity.heads import LogHeads
from banksman.runs.placement import Placements
from banksman.runs.schemas import SchemaChecker
from banksman.runtime.background import UNREADY_FAILURES, Background
from banksman.runtime.failpoints import TESTING_VARIABLE, VARIABLE, arm
from banksman.runtime.health import Health, health_server
from banksman.runtime.settings import HealthSettings
from tests.support.nats import Broker
from tests.support.timeouts import WAIT_TIMEOUT_S

STEADY_S = 0.2


@pytest.fixture(autouse=True)
def disarmed() -> Generator[None]:
    yield
    arm({})


def fail(task: str, times: int) -> None:
    """Make a background task raise an unforeseen exception in its next rounds."""
    arm({TESTING_VARIABLE: "1", VARIABLE: f"background.{task}:fault={times}"})


def restarts(task: str) -> float:
    return REGISTRY.get_sample_value("banksman_background_restarts_total", {"task": task}) or 0.0


class Log(logging.Handler):
    """Collects the log lines of background tasks."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []
        self._logged = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())
        self._logged.set()

    async def contains(self, start: str, times: int) -> None:
        """Wait until a number of lines begin with `start`."""
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while sum(line.startswith(start) for line in self._lines) < times:
                self._logged.clear()
                await self._logged.wait()


@pytest.fixture
async def log() -> AsyncGenerator[Log]:
    handler, logger = Log(), logging.getLogger("banksman.runtime.background")
    level, logger.level = logger.level, logging.INFO
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture
async def supervised(bus: Bus) -> AsyncGenerator[Bus]:
    """A connection whose background tasks soon count as steady."""
    background = Background(steady_s=STEADY_S)
    async with await Bus.connect(bus.settings, name="supervised", background=background) as connected:
        yield connected


Component = Callable[[Bus], AbstractAsyncContextManager[object]]


@asynccontextmanager
async def guard(bus: Bus) -> AsyncGenerator[object]:
    async with DamagedLogs(bus) as damaged:
        checked = LogGuard(bus, damaged, write_every_s=0.1, scrub_after_s=0.01)
        assert await checked.checked(asyncio.Event())
        async with checked:
            yield checked


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
async def following(bus: Bus) -> AsyncGenerator[object]:
    async with LiveHub(EventLog(bus), check_s=0.1, first_check_s=0.1) as hub, hub.tail("t-live", "c-live"):
        yield hub


@asynccontextmanager
async def heads(bus: Bus) -> AsyncGenerator[object]:
    async with HeadsRecorder(LogHeads(bus), write_every_s=0.1, standby_s=0.1) as keeper:
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


LOOPS: dict[str, Component] = {
    "clock": lambda bus: BrokerClock(bus, request_every_s=0.1),
    "bucket-runners": lambda bus: BucketView(Bucket(bus, RUNNERS, RunnerLease), check_s=0.1),
    "live": following,
    "heads": heads,
    "heartbeats": working,
    "log-scrub": guard,
    "snapshots": lambda bus: RunnerStores(bus, collect_every_s=0.1),
    "tool-registry": registry,
    "upstream-models": upstreams,
    "usage-write": lambda bus: UsageLedger(bus, write_every_s=0.1),
}


@pytest.mark.parametrize("task", LOOPS)
async def test_every_loop_continues_after_unforeseen_exceptions(supervised: Bus, task: str, log: Log) -> None:
    """Each failure is counted; repeated ones make the service not ready until the loop works again."""
    before = restarts(task)
    fail(task, UNREADY_FAILURES)
    async with LOOPS[task](supervised):
        await fails_and_recovers(supervised, task, log)
    assert restarts(task) == before + UNREADY_FAILURES


async def test_the_check_of_all_logs_continues_after_unforeseen_exceptions(
    own_nats: Broker, own_bus: Bus, log: Log
) -> None:
    """The check runs after a reconnect, because a server may have lost data."""
    before = restarts("log-check")
    fail("log-check", UNREADY_FAILURES)
    async with guard(own_bus):
        own_nats.restart()
        await fails_and_recovers(own_bus, "log-check", log)
    assert restarts("log-check") == before + UNREADY_FAILURES


async def fails_and_recovers(bus: Bus, task: str, log: Log) -> None:
    await log.contains(f"background task {task} failed", UNREADY_FAILURES)
    assert await bus.background.problem() == (
        f"background task {task!r} failed {UNREADY_FAILURES} times in a row: InjectedFault: background.{task}"
    )
    await log.contains(f"background task {task} works again", 1)
    assert await bus.background.problem() is None


async def test_an_entry_that_breaks_a_subscriber_does_not_stop_the_view(
    bus: Bus, tenant: str, log: Log
) -> None:
    """The view continues to compare the bucket after a listener raised an exception."""
    seen: list[str] = []

    def listen(key: str, entry: Entry[RunnerLease] | None) -> None:
        seen.append(key)
        if key == f"{tenant}-broken":
            raise KeyError(key)

    leases = Bucket(bus, RUNNERS, RunnerLease)
    async with BucketView(leases, on_change=listen, check_s=0.1) as view, asyncio.timeout(WAIT_TIMEOUT_S):
        for name in (f"{tenant}-broken", f"{tenant}-whole"):
            await leases.create(name, RunnerLease(runner=name, runner_epoch=1))
        await view.wait_for(lambda it: it.get(f"{tenant}-whole") is not None)
    assert {f"{tenant}-broken", f"{tenant}-whole"} <= set(seen)


async def test_a_task_that_keeps_failing_makes_the_process_unready_until_it_works(log: Log) -> None:
    health = Health("test", background=Background(steady_s=STEADY_S))
    health.started = True
    broken, release = asyncio.Event(), asyncio.Event()
    broken.set()

    async def loop() -> None:
        if broken.is_set():
            raise KeyError("ts")
        await release.wait()

    async with (
        health.background.running("example", loop),
        health_server(health, HealthSettings(health_port=0)) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        await log.contains("background task example failed", UNREADY_FAILURES)
        unready = await client.get("/readyz")
        broken.clear()
        await log.contains("background task example works again", 1)
        ready = await client.get("/readyz")
        metrics = await client.get("/metrics")
    assert unready.status_code == 503
    assert "background task 'example' failed" in unready.json()["problems"]["background"]
    assert "KeyError: 'ts'" in unready.json()["problems"]["background"]
    assert (ready.status_code, ready.json()["problems"]) == (200, {})
    assert 'banksman_background_restarts_total{task="example"}' in metrics.text


async def test_foreseen_faults_are_retried_and_do_not_count_as_restarts(log: Log) -> None:
    background, before = Background(), restarts("foreseen")
    faults = iter([Unavailable("the broker is away")] * UNREADY_FAILURES)
    worked = asyncio.Event()

    async def loop() -> None:
        for fault in faults:
            raise fault
        worked.set()

    background.run("foreseen", loop)
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        await worked.wait()
    assert await background.problem() is None
    assert restarts("foreseen") == before


async def test_a_stopped_task_ends_at_once_and_cleanly(log: Log) -> None:
    background, begun = Background(), asyncio.Event()

    async def loop() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = background.run("stopped", loop)
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        await begun.wait()
        await task.stop()
        await task.stop()
    assert await background.problem() is None


async def test_a_loop_that_returns_ends_its_task() -> None:
    background, ended = Background(), asyncio.Event()

    async def loop() -> None:
        return

    background.run("short", loop).when_ended(ended.set)
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        await ended.wait()
