"""Starts the processes of a system, keeps them alive and stops them in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine

from banksman.cli.local.child_process import Child
from banksman.cli.local.forks import ServiceTemplate
from banksman.cli.local.logs import ChildLog
from banksman.cli.local.plan import Plan, ProcessSpec
from banksman.cli.local.screen import Screen
from banksman.cli.processes import ProcessIdentity
from banksman.cli.state import Instance

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RESERVE_S = 1.5
"""Seconds of the drain timeout that are reserved for each later stage."""


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
        self._template = ServiceTemplate(plan.service_names, plan.common_environment)

    async def run(self) -> None:
        """Run the system until a signal stops it.

        Raises:
            CannotStart: a process ended because of an invalid setting; all others have ended too.
            Unavailable: nats-server does not respond.
        """
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._signalled)
        async with asyncio.TaskGroup() as group:
            starting = group.create_task(self._stop_on_error(self._start(group)), name="start")
            await self._stop.wait()
            starting.cancel()
            await self._drain()
        await self._template.close()
        if self._failure is not None:
            raise self._failure

    async def _start(self, group: asyncio.TaskGroup) -> None:
        """Start nats-server, then all other processes in parallel."""
        # It imports the services while nats-server starts.
        await self._template.start()
        await self._wait_until_ready([self._launch(group, self._plan.server())])
        await self._plan.nats.provision()
        await self._wait_until_ready([self._launch(group, spec) for spec in self._plan.services()])
        self._ready = True
        self._changed()
        self._screen.report(
            "up",
            url=self._plan.url,
            pid=os.getpid(),
            nats_url=self._plan.nats.url,
            processes={child.spec.name: child.ready.is_set() for child in self._children},
            notices=list(self._plan.notices),
        )

    def _launch(self, group: asyncio.TaskGroup, spec: ProcessSpec) -> Child:
        log = ChildLog(
            self._plan.nats.data.logs / f"{spec.name}.log",
            lambda text: self._screen.report("warning", spec.name, text=text),
        )
        child = Child(spec, log, self._screen, self._template, on_change=self._changed)
        self._children.append(child)
        group.create_task(self._stop_on_error(child.keep_alive()), name=spec.name)
        return child

    async def _stop_on_error(self, part: Coroutine[None, None, None]) -> None:
        """Run a part of the system. An error stops the system in order, and `run` raises the first one.

        An error during a stop is none: what a signal interrupts may fail, because the server that it talks to
        ends meanwhile.
        """
        try:
            await part
        except Exception as error:
            if not self._stop.is_set():
                self._failure = error
                self._stop.set()

    async def _wait_until_ready(self, children: list[Child]) -> None:
        """Wait until all are ready. After the timeout, name those that are not; wait for the needed ones."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.ready_timeout_s):
                for child in children:
                    await child.ready.wait()
        for child in children:
            if not child.ready.is_set():
                self._screen.report("not_ready", child.spec.name, reason=child.problem)
        for child in children:
            if child.spec.needed:
                await child.ready.wait()

    async def _drain(self) -> None:
        """Stop the processes stage by stage; those of one stage in parallel."""
        self._screen.waiting(())
        text = "stopping: no new work is accepted, running work is finished or handed over"
        self._screen.report("note", text=text)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.drain_timeout_s
        stages = sorted({child.spec.stage for child in self._children})
        for later, stage in zip(reversed(range(len(stages))), stages, strict=True):
            timeout_s = max(deadline - loop.time() - later * _RESERVE_S, _RESERVE_S)
            async with asyncio.TaskGroup() as ending:
                for child in self._children:
                    if child.spec.stage is stage:
                        ending.create_task(child.stop(timeout_s))

    def _signalled(self) -> None:
        """Drain at the first signal, kill at the second."""
        if not self._stop.is_set():
            self._stop.set()
            return
        for child in self._children:
            child.kill()

    def _changed(self) -> None:
        """Update the run file and, during the start, the status line."""
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
        if not self._stop.is_set():
            starting = [] if self._ready else self._children
            self._screen.waiting([child.spec.name for child in starting if not child.ready.is_set()])
