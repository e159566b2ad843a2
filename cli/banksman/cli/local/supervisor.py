"""Keeps the processes of the system alive, and ends them in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Generator

import httpx

from banksman.cli.local.child_process import Child
from banksman.cli.local.logs import ChildLog
from banksman.cli.local.plan import Plan, ProcessSpec, Stage
from banksman.cli.local.processes import ProcessIdentity
from banksman.cli.local.screen import Screen
from banksman.cli.local.state import Instance

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RESERVE_S = 1.5
"""Of the time to end, what each later stage is left at least."""


class Supervisor:
    """The processes of one system."""

    def __init__(self, plan: Plan, screen: Screen) -> None:
        self._plan = plan
        self._screen = screen
        self._settings = plan.settings.local
        self._stop = asyncio.Event()
        self._failure: Exception | None = None
        self._children: list[Child] = []
        self._ready = False

    async def run(self) -> None:
        """Start everything, keep it alive until a signal says otherwise, and end it in order.

        Raises:
            CannotStart: a process ended over a wrong setting; everything else has ended too.
            Unavailable: nats-server does not answer.
        """
        with _handling(self._signalled):
            async with httpx.AsyncClient(trust_env=False) as http, asyncio.TaskGroup() as group:
                starting = group.create_task(self._start(group, http), name="start")
                await self._stop.wait()
                starting.cancel()
                await self._drain()
        if self._failure is not None:
            raise self._failure

    async def _start(self, group: asyncio.TaskGroup, http: httpx.AsyncClient) -> None:
        """Start nats-server, then everything else side by side; what fails here ends the system in order."""
        try:
            server = self._launch(group, http, self._plan.server())
            await self._all_ready([server])
            await self._plan.nats.provision()
            await self._all_ready([self._launch(group, http, spec) for spec in self._plan.services()])
        except Exception as error:
            self._fail(error)
            return
        self._ready = True
        self._record()
        self._screen.up(self._facts(), self._plan.notices)

    def _launch(self, group: asyncio.TaskGroup, http: httpx.AsyncClient, spec: ProcessSpec) -> Child:
        log = ChildLog(
            self._plan.nats.data.logs / f"{spec.name}.log",
            lambda text: self._screen.warning(spec.name, text),
        )
        child = Child(spec, log, self._screen, http, on_change=self._record, on_failure=self._fail)
        self._children.append(child)
        group.create_task(child.keep_alive(), name=spec.name)
        return child

    async def _all_ready(self, children: list[Child]) -> None:
        """Wait until all are ready; when that takes too long, say which are not, and wait for the needed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.ready_timeout_s), asyncio.TaskGroup() as waiting:
                for child in children:
                    waiting.create_task(self._wait_ready(child, children))
                self._show_waiting(children)
        self._screen.waiting(())
        for child in children:
            if not child.ready.is_set():
                self._screen.not_ready(child.spec.name, child.problem)
        for child in children:
            if child.spec.needed:
                await child.ready.wait()

    async def _wait_ready(self, child: Child, children: list[Child]) -> None:
        await child.ready.wait()
        self._show_waiting(children)

    def _show_waiting(self, children: list[Child]) -> None:
        self._screen.waiting([child.spec.name for child in children if not child.ready.is_set()])

    async def _drain(self) -> None:
        """End the processes stage by stage, each stage side by side."""
        self._screen.waiting(())
        self._screen.note("ending: no new work is taken, what is under way is finished or handed over")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.drain_timeout_s
        stages = sorted({child.spec.stage for child in self._children})
        for later, stage in zip(reversed(range(len(stages))), stages, strict=True):
            left = deadline - loop.time() - later * _RESERVE_S
            await self._end(stage, max(left, _RESERVE_S))

    async def _end(self, stage: Stage, timeout_s: float) -> None:
        async with asyncio.TaskGroup() as ending:
            for child in self._children:
                if child.spec.stage is stage:
                    ending.create_task(child.stop(timeout_s))

    def _signalled(self) -> None:
        """The first signal drains; the second kills."""
        if not self._stop.is_set():
            self._stop.set()
            return
        for child in self._children:
            child.kill()

    def _fail(self, error: Exception) -> None:
        """End the system because of this; the first failure is the one that is told."""
        self._failure = self._failure or error
        self._stop.set()

    def _record(self) -> None:
        """Bring the run file to what runs now."""
        nats = self._plan.nats
        instance = Instance(
            url=self._plan.url,
            supervisor=ProcessIdentity.of(os.getpid()),
            processes={child.spec.name: child.identity for child in self._children if child.identity},
            health={child.spec.name: child.spec.ready_url for child in self._children},
            nats_url=nats.url,
            monitoring_url=nats.monitoring_url,
            ready=self._ready,
        )
        nats.data.write(instance)

    def _facts(self) -> dict[str, object]:
        """What `--json` tells once the system is up."""
        return {
            "url": self._plan.url,
            "pid": os.getpid(),
            "nats_url": self._plan.nats.url,
            "processes": {child.spec.name: child.ready.is_set() for child in self._children},
        }


@contextlib.contextmanager
def _handling(handler: Callable[[], None]) -> Generator[None]:
    """Call `handler` for each signal that asks the process to end, while the context is open."""
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
