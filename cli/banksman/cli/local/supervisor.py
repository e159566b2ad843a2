"""Starts the processes of a system, keeps them alive and stops them in order.

`banksman up` becomes `python -m banksman.cli.local.supervisor PID FD`, with the values of its `Provisioner`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Coroutine

from banksman.cli import output
from banksman.cli.local.child_process import CannotStart, Child
from banksman.cli.local.forks import ServiceTemplate
from banksman.cli.local.logs import ChildLog
from banksman.cli.local.provisioner import Provisioner
from banksman.cli.local.screen import Screen
from banksman.cli.local.system import ProcessSpec, System
from banksman.cli.output import Exit
from banksman.cli.processes import ProcessIdentity
from banksman.cli.state import Instance

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RESERVE_S = 1.5
"""Seconds of the drain timeout that are reserved for each later stage."""


class Supervisor:
    """The processes of one system."""

    def __init__(self, system: System, screen: Screen, provisioner: Provisioner) -> None:
        self._system = system
        self._screen = screen
        self._provisioner = provisioner
        self._stop = asyncio.Event()
        self._failure: Exception | None = None
        self._children: list[Child] = []
        self._ready = False
        self._template = ServiceTemplate(system.imported, system.common_environment)

    async def run(self) -> None:
        """Run the system until a signal stops it.

        Raises:
            CannotStart: a setting is invalid, or the streams cannot be created; all processes have ended.
        """
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled)
        # `banksman up` blocked these signals because there were no handlers yet.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
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
        try:
            # The template imports the services while nats-server starts.
            await self._template.start()
            await self._wait_until_ready([self._launch(group, self._system.server)])
            await self._provisioner.finished()
        finally:
            self._provisioner.end()
        await self._wait_until_ready([self._launch(group, spec) for spec in self._system.services])
        self._ready = True
        self._changed()
        self._screen.report(
            "up",
            url=self._system.url,
            pid=os.getpid(),
            nats_url=self._system.nats_url,
            processes={child.spec.name: child.ready.is_set() for child in self._children},
            notices=list(self._system.notices),
        )

    def _launch(self, group: asyncio.TaskGroup, spec: ProcessSpec) -> Child:
        log = ChildLog(
            self._system.data.logs / f"{spec.name}.log",
            lambda text: self._screen.report("warning", spec.name, text=text),
        )
        child = Child(spec, log, self._screen, self._template, on_change=self._changed)
        self._children.append(child)
        group.create_task(self._stop_on_error(child.keep_alive()), name=spec.name)
        return child

    async def _stop_on_error(self, part: Coroutine[None, None, None]) -> None:
        """Run a part of the system. An error stops the system in order, and `run` raises the first one.

        Errors during a stop are ignored: an interrupted part may fail because nats-server ends before it.
        """
        try:
            await part
        except Exception as error:
            if not self._stop.is_set():
                self._failure = error
                self._stop.set()

    async def _wait_until_ready(self, children: list[Child]) -> None:
        """Wait until all are ready. After the timeout, report those that are not; wait for required ones."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._system.ready_timeout_s):
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
        deadline = loop.time() + self._system.drain_timeout_s
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
        system = self._system
        instance = Instance(
            url=system.url,
            supervisor=ProcessIdentity.of(os.getpid()),
            processes={child.spec.name: child.identity for child in self._children if child.identity},
            health={child.spec.name: child.spec.ready_url for child in self._children},
            nats_url=system.nats_url,
            monitoring_url=system.monitoring_url,
            ready=self._ready,
        )
        system.data.write(instance)
        if not self._stop.is_set():
            starting = [] if self._ready else self._children
            self._screen.waiting([child.spec.name for child in starting if not child.ready.is_set()])


def main() -> int:
    """Run the system that the provisioner describes; return the exit code of `banksman up`."""
    provisioner = Provisioner(int(sys.argv[1]), os.fdopen(int(sys.argv[2]), "rb"))
    # This process has the options of `banksman up`, also if it never receives the system.
    as_json = "--json" in sys.argv
    try:
        system = provisioner.system()
        try:
            asyncio.run(Supervisor(system, Screen(json=system.as_json), provisioner).run())
        finally:
            system.data.forget()
    except CannotStart as error:
        return output.print_failure(str(error), error.code, as_json=as_json)
    except OSError as error:
        return output.print_failure(str(error), "os_error", as_json=as_json)
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main())
