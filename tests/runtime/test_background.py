"""Background tasks survive unforeseen exceptions, count them, and report when they keep failing."""

from __future__ import annotations

import ast
import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Generator

import httpx
import pytest
from prometheus_client import REGISTRY

from banksman.bus.connection import Bus
from banksman.bus.names import RUNNERS
from banksman.bus.storage.kv import Bucket, Entry
from banksman.bus.storage.watch import BucketView
from banksman.contracts.calls import RunnerLease
from banksman.contracts.errors import Unavailable
from banksman.runtime.background import UNREADY_FAILURES, Background
from banksman.runtime.failpoints import TESTING_VARIABLE, VARIABLE, arm
from banksman.runtime.health import Health, health_server
from banksman.runtime.settings import HealthSettings
from tests.runtime.loops import AFTER_RECONNECT, LOOPS
from tests.support.fixtures import provision_all, settings_of
from tests.support.nats import Broker, broker
from tests.support.paths import ROOT
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


@pytest.fixture(scope="module")
def server() -> Generator[Broker]:
    """A server for one module: whole services register their workflows and tools there."""
    with broker() as server:
        provision_all(server)
        yield server


@pytest.fixture
async def supervised(server: Broker) -> AsyncGenerator[Bus]:
    """A connection whose background tasks soon count as steady."""
    background = Background(steady_s=STEADY_S)
    async with await Bus(settings_of(server), name="supervised", background=background).open() as connected:
        yield connected


@pytest.mark.parametrize("task", LOOPS)
async def test_every_loop_continues_after_unforeseen_exceptions(supervised: Bus, task: str, log: Log) -> None:
    """Each failure is counted; repeated ones make the service not ready until the loop works again."""
    before = restarts(task)
    fail(task, UNREADY_FAILURES)
    async with asyncio.TaskGroup() as watching:
        # Before the start: the first loop of a service may work again before its last one begins.
        watched = watching.create_task(fails_and_recovers(supervised, task, log))
        async with LOOPS[task](supervised):
            await watched
    assert restarts(task) == before + UNREADY_FAILURES


@pytest.mark.parametrize("task", AFTER_RECONNECT)
async def test_every_loop_that_follows_a_reconnect_continues_after_unforeseen_exceptions(
    server: Broker, supervised: Bus, task: str, log: Log
) -> None:
    before = restarts(task)
    fail(task, UNREADY_FAILURES)
    async with AFTER_RECONNECT[task](supervised):
        server.restart()
        await fails_and_recovers(supervised, task, log)
    assert restarts(task) == before + UNREADY_FAILURES


async def fails_and_recovers(bus: Bus, task: str, log: Log) -> None:
    await log.contains(f"background task {task} failed", UNREADY_FAILURES)
    assert await bus.background.problem() == (
        f"background task {task!r} failed {UNREADY_FAILURES} times in a row: InjectedFault: background.{task}"
    )
    await log.contains(f"background task {task} works again", 1)
    assert await bus.background.problem() is None


def test_every_supervised_loop_of_the_sources_is_tested() -> None:
    """Each background task of the sources has a component in `loops`, and vice versa."""
    tested = LOOPS.keys() | AFTER_RECONNECT.keys()
    found = supervised_loops()
    assert {name for name in found if not any(re.fullmatch(name, loop) for loop in tested)} == set()
    assert {loop for loop in tested if not any(re.fullmatch(name, loop) for name in found)} == set()


def supervised_loops() -> set[str]:
    """Return the names of the background tasks that the sources start, as patterns."""
    calls = (
        call
        for folder in ("shared", "services", "cli")
        for source in (ROOT / folder).rglob("*.py")
        if "ackground" in (text := source.read_text(encoding="utf-8"))
        for call in ast.walk(ast.parse(text, source))
        if isinstance(call, ast.Call)
    )
    return {pattern(call.args[0]) for call in calls if starts_task(call)}


def starts_task(call: ast.Call) -> bool:
    """Return whether a call is `run`, `repeat` or `running` of a `Background`."""
    match call.func:
        case ast.Attribute(
            attr="run" | "repeat" | "running",
            value=ast.Name(id=receiver) | ast.Attribute(attr=receiver),
        ):
            return receiver.removeprefix("_") == "background"
        case _:
            return False


def pattern(name: ast.expr) -> str:
    """Return a regular expression for the name of a task; one that is no literal is not a word."""
    match name:
        case ast.Constant(value=str(text)):
            return re.escape(text)
        case ast.JoinedStr(values=parts):
            return "".join(pattern(part) for part in parts)
        case ast.FormattedValue():
            return r"\w+"
        case _:
            return f"a name that is no literal: {ast.unparse(name)}"


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


async def test_a_task_ends_whose_work_replaces_a_cancellation_by_an_error() -> None:
    """nats-py does that while its connection is closed. The task went on, so the process could not end."""
    began = asyncio.Event()

    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise Unavailable("the connection to NATS is closed") from None

    task = Background().run("interrupted", work)
    await began.wait()
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        await task.stop()
