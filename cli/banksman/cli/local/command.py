"""`banksman up` and `banksman down`, put together."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from banksman.cli import output
from banksman.cli.local.child_process import CannotStart
from banksman.cli.local.nats import LocalNats
from banksman.cli.local.plan import Plan
from banksman.cli.local.ports import free_port, require_free
from banksman.cli.local.sandbox import choose_sandbox
from banksman.cli.local.screen import JsonScreen, PlainScreen, Screen
from banksman.cli.local.settings import UpSettings
from banksman.cli.local.state import DataDir, Instance, Lock
from banksman.cli.local.supervisor import Supervisor
from banksman.cli.models import adopt_vendor_names
from banksman.cli.output import Exit
from banksman.contracts.errors import Unavailable
from banksman.runtime.settings import load

DEMO_NOTICE = "The demo model answers because no key is set (ANTHROPIC_API_KEY or OPENAI_API_KEY)."
_END_RESERVE_S = 10.0
_DETACH_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What `banksman up` was asked for; None leaves it to the settings."""

    port: int | None = None
    data_dir: Path | None = None
    agents: int | None = None
    without: tuple[str, ...] = ()
    json: bool = False

    def arguments(self) -> list[str]:
        """The same as arguments of a command line."""
        given = {"--port": self.port, "--data-dir": self.data_dir, "--agents": self.agents}
        words = [word for name, value in given.items() if value is not None for word in (name, str(value))]
        return [*words, *(word for name in self.without for word in ("--without", name))]


def up(options: UpOptions) -> Exit:
    """Run the system in the foreground.

    Raises:
        BadInput: a setting is wrong, or the port is taken.
        Unavailable: nats-server is missing or does not answer.
        OSError: the data directory cannot be written.
    """
    screen: Screen = JsonScreen() if options.json else PlainScreen()
    settings = _settings(options)
    data = DataDir(settings.data_dir.resolve())
    data.prepare()
    lock = Lock(data)
    holder = lock.take()
    if holder is not None:
        return _runs_already(data, holder, json=options.json)
    try:
        for name in data.end_leftovers():
            screen.note(f"ended what a dead `banksman up` left running: {name}")
        plan = _plan(settings, data, frozenset(options.without))
        return _supervise(plan, screen)
    finally:
        data.forget()
        lock.release()


def detach(options: UpOptions) -> Exit:
    """Run the system in the background; returns once it is ready.

    Raises:
        BadInput: a setting is wrong, or the port is taken.
        Unavailable: it takes too long to get ready.
    """
    settings = _settings(options)
    data = DataDir(settings.data_dir.resolve())
    data.prepare()
    if running := data.running():
        return _runs_already(data, running.supervisor.pid, json=options.json)
    log = data.logs / "up.log"
    with log.open("wb") as out:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "banksman.cli", "up", *options.arguments()],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    instance = _await_ready(supervisor, data, settings)
    if instance is None:
        if supervisor.poll() is None:
            raise Unavailable(f"not ready yet; it goes on in the background and writes to {log}")
        output.complain(log.read_text(encoding="utf-8", errors="replace").strip())
        return Exit.CRITICAL
    _tell(instance, json=options.json, text=f"Banksman is ready at {instance.url} (`banksman down` ends it)")
    return Exit.OK


def down(data_dir: Path | None, *, json: bool) -> Exit:
    """End the running system in order, or what a dead one left.

    Raises:
        BadInput: a setting is wrong.
    """
    settings = _settings(UpOptions(data_dir=data_dir))
    data = DataDir(settings.data_dir.resolve())
    instance = data.running()
    if instance is None:
        left = data.end_leftovers()
        text = f"ended what a dead `banksman up` left running: {', '.join(left)}" if left else "nothing runs"
        output.emit({"running": False, "ended": left}) if json else output.say(text)
        return Exit.OK
    instance.supervisor.send(signal.SIGTERM)
    if not instance.supervisor.wait(settings.local.drain_timeout_s + _END_RESERVE_S):
        raise Unavailable(f"process {instance.supervisor.pid} does not end: kill it with `kill -9`")
    ended = ["supervisor", *instance.processes]
    output.emit({"running": False, "ended": ended}) if json else output.say("ended")
    return Exit.OK


def _settings(options: UpOptions) -> UpSettings:
    adopt_vendor_names(os.environ)
    if options.data_dir is not None:
        os.environ["BANKSMAN_DATA_DIR"] = str(options.data_dir)
    if options.agents is not None:
        os.environ["BANKSMAN_LOCAL__AGENTS"] = str(options.agents)
    if options.port is not None:
        os.environ["BANKSMAN_GATEWAY__PORT"] = str(options.port)
    return load(UpSettings)


def _plan(settings: UpSettings, data: DataDir, without: frozenset[str]) -> Plan:
    address = settings.gateway
    require_free(address.host, address.port, "BANKSMAN_GATEWAY__PORT")
    sandbox = choose_sandbox()
    left_out = {*without, "tool-runner"} if sandbox.kind == "none" else without
    notices = [DEMO_NOTICE] if settings.demo else []
    nats = LocalNats(data, port=free_port(), http_port=free_port())
    nats.prepare()
    return Plan(
        settings,
        nats,
        gateway_port=address.port or free_port(address.host),
        inherited=dict(os.environ),
        without=frozenset(left_out),
        sandbox="docker" if sandbox.kind == "docker" else None,
        notices=(*notices, *([sandbox.notice] if sandbox.notice else [])),
    )


def _supervise(plan: Plan, screen: Screen) -> Exit:
    try:
        asyncio.run(Supervisor(plan, screen).run())
    except CannotStart as error:
        output.complain(str(error))
        return Exit.CRITICAL
    return Exit.OK


def _runs_already(data: DataDir, holder: int, *, json: bool) -> Exit:
    instance = data.running()
    if instance is None:
        text = f"another `banksman up` (pid {holder}) is starting in {data.path}"
        output.emit({"running": True, "pid": holder}) if json else output.say(text)
    else:
        text = f"runs already: {instance.url} (pid {instance.supervisor.pid}; `banksman down` ends it)"
        _tell(instance, json=json, text=text)
    return Exit.WARNING


def _tell(instance: Instance, *, json: bool, text: str) -> None:
    facts = {"running": True, "pid": instance.supervisor.pid, "url": instance.url}
    output.emit(facts) if json else output.say(text)


def _await_ready(supervisor: subprocess.Popen[bytes], data: DataDir, settings: UpSettings) -> Instance | None:
    """The system once it is ready; None when it ended first, or takes too long."""
    deadline = time.monotonic() + 2 * settings.local.ready_timeout_s
    while supervisor.poll() is None and time.monotonic() < deadline:
        instance = data.read()
        if instance and instance.ready and instance.supervisor.pid == supervisor.pid:
            return instance
        time.sleep(_DETACH_POLL_S)
    return None
