"""Starts the processes of a system, keeps them alive and stops them in order.

Settings and NATS need twice the memory of the supervisor, which would use them for a second. `banksman up`
imports them, forks a process that creates the streams (`Provisioner`), and becomes
`python -m banksman.cli.local.supervisor PID FD`, which imports neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Coroutine
from typing import IO, TYPE_CHECKING, NoReturn, cast

from banksman.cli import output
from banksman.cli.local.child import die_with
from banksman.cli.local.child_process import CannotStart, ManagedProcess, ProcessSpec, System
from banksman.cli.local.forks import ServiceTemplate
from banksman.cli.local.full_disk import RunFile, StoreWatch
from banksman.cli.local.screen import ChildLog, Screen
from banksman.cli.output import Exit
from banksman.cli.state import Instance, ProcessIdentity, until_ready
from banksman.contracts.errors import BanksmanError, ErrorCode

if TYPE_CHECKING:
    from banksman.cli.local.plan import Plan


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RESERVE_S = 1.5
"""Seconds of the drain timeout that are reserved for each later stage."""
_NO_RESULT = "the process that creates the streams ended without a result"


class Provisioner:
    """The process, and the pipe to which it writes the system and then its result."""

    def __init__(self, pid: int, pipe: IO[bytes]) -> None:
        self.pid = pid
        self.pipe = pipe

    @classmethod
    def fork(cls, plan: Plan, *, as_json: bool) -> Provisioner:
        """Start the process. With `as_json`, the supervisor prints JSON."""
        system, parent = plan.system(as_json=as_json), os.getpid()
        readable, writable = os.pipe()
        if pid := os.fork():
            os.close(writable)
            return cls(pid, os.fdopen(readable, "rb"))
        os.close(readable)
        _provision(plan, system, parent, writable)

    def inherited(self) -> tuple[str, str]:
        """Let the pipe survive exec; return the pid and the descriptor as arguments for the supervisor."""
        os.set_inheritable(self.pipe.fileno(), True)
        return str(self.pid), str(self.pipe.fileno())

    def system(self) -> System:
        """Return the planned system; raise `CannotStart` if the process was killed before it wrote it."""
        try:
            return cast(System, pickle.load(self.pipe))
        except (EOFError, pickle.UnpicklingError) as error:
            raise CannotStart(_NO_RESULT, ErrorCode.INTERNAL) from error

    async def finished(self) -> None:
        """Wait until all streams exist; raise `CannotStart` if the server refused one."""
        result = await asyncio.to_thread(self.pipe.read)
        if not result:
            raise CannotStart(_NO_RESULT, ErrorCode.INTERNAL)
        if problem := json.loads(result):
            raise CannotStart(*problem)

    def end(self) -> None:
        """Kill the process, if it has not ended by itself, and reap it."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _provision(plan: Plan, system: System, parent: int, descriptor: int) -> NoReturn:
    # Only the supervisor must receive a Ctrl-C of the terminal: it stops the processes in order.
    os.setpgid(0, 0)
    try:
        die_with(parent)
        with os.fdopen(descriptor, "wb") as pipe:
            pickle.dump(system, pipe)
            pipe.flush()
            pipe.write(json.dumps(asyncio.run(_problem(plan, system))).encode())
    except Exception:
        with contextlib.suppress(OSError):
            traceback.print_exc()
            sys.stderr.flush()
    finally:
        # Exit handlers and unwritten output belong to the original process.
        os._exit(0)


async def _problem(plan: Plan, system: System) -> tuple[str, str] | None:
    """Create the streams when the server is ready. Return the message and the code of an error."""
    await until_ready(system.server.ready_url, lambda _: None)
    try:
        await plan.nats.provision()
    except (BanksmanError, OSError) as error:
        return output.error_text(error), output.error_code(error)
    return None


class Supervisor:
    def __init__(self, system: System, screen: Screen, provisioner: Provisioner) -> None:
        self._system = system
        self._screen = screen
        self._provisioner = provisioner
        self._stop = asyncio.Event()
        self._failure: Exception | None = None
        self._children: list[ManagedProcess] = []
        self._run_file = RunFile(system.data, screen)
        self._ready = False
        self._template = ServiceTemplate(system.imported, system.common_environment)

    async def run(self) -> None:
        """Run the system until a signal stops it; raise `CannotStart` after all processes have ended."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled)
        # `banksman up` blocked these signals because there were no handlers yet.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        async with asyncio.TaskGroup() as group:
            server = self._launch(group, self._system.server)
            starting = group.create_task(self._stop_on_error(self._start(group, server)), name="start")
            watching = group.create_task(self._stop_on_error(self._watch(server)), name="disk")
            await self._stop.wait()
            starting.cancel()
            watching.cancel()
            await self._drain()
        await self._template.close()
        if self._failure is not None:
            raise self._failure

    async def _watch(self, server: ManagedProcess) -> None:
        system = self._system
        watch = StoreWatch(server, system.data.store, system.disk, self._screen)
        await watch.run(also=self._run_file.retry)

    async def _start(self, group: asyncio.TaskGroup, server: ManagedProcess) -> None:
        """Start nats-server, then all other processes in parallel."""
        try:
            # The template imports the services while nats-server starts.
            await self._template.start()
            await self._wait_until_ready([server])
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

    def _launch(self, group: asyncio.TaskGroup, spec: ProcessSpec) -> ManagedProcess:
        log = ChildLog(
            self._system.data.logs / f"{spec.name}.log",
            lambda text: self._screen.report("warning", spec.name, text=text),
        )
        child = ManagedProcess(spec, log, self._screen, self._template, on_change=self._changed)
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

    async def _wait_until_ready(self, children: list[ManagedProcess]) -> None:
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
        self._run_file.write(instance)
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
        return output.print_failure(output.error_text(error), output.error_code(error), as_json=as_json)
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main())
