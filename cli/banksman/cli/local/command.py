"""`banksman up`, `banksman down` and `banksman reset`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from banksman.cli import output
from banksman.cli.local.full_disk import when_writable
from banksman.cli.local.plan import LocalNats, Plan, port_for_clients
from banksman.cli.local.screen import Screen
from banksman.cli.local.supervisor import SIGNALS, Provisioner
from banksman.cli.machine import choose_sandbox, free_port, require_free
from banksman.cli.output import PROGRAM, Exit, prompt
from banksman.cli.services import service_module
from banksman.cli.settings import UpSettings, adopt_vendor_names
from banksman.cli.state import DataDir, Instance, Lock
from banksman.contracts.errors import Conflict, ErrorCode, Unavailable
from banksman.runtime.settings import load

DEMO_NOTICE = (
    "You're using the demo model. For a real one, enter a key on the page under Manage → Models, "
    "or set ANTHROPIC_API_KEY or OPENAI_API_KEY."
)
_LEFTOVERS = "killed processes of a dead `banksman up`"
_STOP_RESERVE_S = 10.0
_DETACH_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class UpOptions:
    port: int | None = None
    data_dir: Path | None = None
    agents: int | None = None
    runners: int | None = None
    without: tuple[str, ...] = ()
    json: bool = False

    def settings(self) -> UpSettings:
        """Load the settings. Options set environment variables, which a detached process inherits."""
        adopt_vendor_names(os.environ)
        given = {
            "BANKSMAN_DATA_DIR": self.data_dir,
            "BANKSMAN_LOCAL__AGENTS": self.agents,
            "BANKSMAN_LOCAL__RUNNERS": self.runners,
            "BANKSMAN_GATEWAY__PORT": self.port,
        }
        os.environ.update({name: str(value) for name, value in given.items() if value is not None})
        return load(UpSettings)


def up(options: UpOptions) -> Exit:
    """Run the system in the foreground: replace this process by the supervisor, unless a system runs."""
    screen = Screen(json=options.json)
    settings, data = when_writable(screen, lambda: _prepared(options))
    lock = Lock(data)
    holder = lock.take()
    if holder is not None:
        return _already_running(data, holder, as_json=options.json)
    try:
        for name in data.end_leftovers():
            screen.report("note", text=f"{_LEFTOVERS}: {name}")
        for notice in settings.notices:
            screen.report("warning", "models", text=notice)
        plan = when_writable(screen, lambda: _plan(settings, data, frozenset(options.without)))
        supervise(plan, lock, as_json=options.json)
    finally:
        data.forget()
        lock.release()


def supervise(plan: Plan, lock: Lock, *, as_json: bool) -> NoReturn:
    """Replace this process by the supervisor of a system, which takes over the lock and the terminal."""
    provisioner = Provisioner.fork(plan, as_json=as_json)
    lock.outlive_exec()
    # A Ctrl-C waits until the supervisor has its handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    # The supervisor ignores the options; they are visible in `ps`.
    program = ("-P", "-m", "banksman.cli.local.supervisor", *provisioner.inherited(), *sys.argv[1:])
    os.execv(sys.executable, (sys.executable, *program))


def detach(options: UpOptions) -> Exit:
    """Start the system in the background; raise `Unavailable` if it is not ready in time."""
    screen = Screen(json=options.json)
    settings, data = when_writable(screen, lambda: _prepared(options))
    if running := data.running():
        return _already_running(data, running.supervisor.pid, as_json=options.json)
    for notice in settings.notices:
        output.print_error(notice)
    # Another start may win: the log is the winner's, or that of the last start that failed.
    log, own = data.logs / "up.log", data.logs / f".up-{os.getpid()}.log"
    without = [word for name in options.without for word in ("--without", name)]
    with when_writable(screen, lambda: own.open("wb")) as out:
        supervisor = subprocess.Popen(
            [sys.executable, "-P", "-m", "banksman.cli", "up", *without],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    deadline = time.monotonic() + 2 * settings.local.ready_timeout_s
    while supervisor.poll() is None:
        instance = data.read()
        if instance and instance.ready and instance.supervisor.pid == supervisor.pid:
            own.replace(log)
            text = f"Banksman is ready at {instance.url} (`make down` or `banksman down` stops it)"
            return _print_running(instance, text, as_json=options.json)
        if time.monotonic() > deadline:
            own.replace(log)
            raise Unavailable(f"not ready yet; the system continues to start and writes its log to {log}")
        time.sleep(_DETACH_POLL_S)
    text = own.read_text(encoding="utf-8", errors="replace").strip()
    if supervisor.returncode == Exit.WARNING:
        own.unlink()
        output.print_result({"running": True}, text, as_json=options.json)
        return Exit.WARNING
    own.replace(log)
    if options.json:
        last = text.rpartition("\n")[2]
        return output.print_failure(last.removeprefix(f"{PROGRAM}: "), ErrorCode.UNAVAILABLE, as_json=True)
    output.print_error(text)
    return Exit.CRITICAL


def down(data_dir: Path | None, *, as_json: bool) -> Exit:
    """Stop the running system gracefully, or kill the leftovers of a dead one."""
    settings = UpOptions(data_dir=data_dir).settings()
    data = DataDir(settings.data_dir.resolve())
    instance = data.running()
    if instance is None:
        ended = data.end_leftovers()
        text = f"{_LEFTOVERS}: {', '.join(ended)}" if ended else "nothing is running"
    else:
        instance.supervisor.send(signal.SIGTERM)
        if not instance.supervisor.wait(settings.local.drain_timeout_s + _STOP_RESERVE_S):
            raise Unavailable(f"process {instance.supervisor.pid} does not stop: kill it with `kill -9`")
        ended, text = ["supervisor", *instance.processes], "stopped"
    output.print_result({"running": False, "ended": ended}, text, as_json=as_json)
    return Exit.OK


def _prepared(options: UpOptions) -> tuple[UpSettings, DataDir]:
    settings = options.settings()
    data = DataDir(settings.data_dir.resolve())
    data.prepare()
    return settings, data


def _plan(settings: UpSettings, data: DataDir, without: frozenset[str]) -> Plan:
    address = settings.gateway
    require_free(address.host, address.port, "BANKSMAN_GATEWAY__PORT")
    sandbox = choose_sandbox()
    notices = (DEMO_NOTICE if settings.demo else None, sandbox.notice)
    without = without | {"tool-runner"} if sandbox.kind == "none" else without
    runners: Mapping[str, Path] = {} if "tool-runner" in without else local_runners(settings, data)
    nats = LocalNats(
        data,
        port_for_clients(data),
        free_port(),
        storage_bytes=settings.operator.storage_bytes,
        runners=tuple(runners),
    )
    nats.prepare()
    return Plan(
        settings,
        nats,
        gateway_port=address.port or free_port(address.host),
        inherited=dict(os.environ),
        without=without,
        runners=runners,
        sandbox="docker" if sandbox.kind == "docker" else None,
        notices=tuple(notice for notice in notices if notice),
    )


def local_runners(settings: UpSettings, data: DataDir) -> Mapping[str, Path]:
    found: Mapping[str, Path] = service_module("tool-runner", "machine").runners(
        data.path, settings.local.runners
    )
    return found


def _already_running(data: DataDir, holder: int, *, as_json: bool) -> Exit:
    instance = data.running()
    if instance is None:
        named = f" (pid {holder})" if holder else ""
        text = f"another `banksman up`{named} is starting in {data.path}"
        output.print_result({"running": True, "pid": holder or None}, text, as_json=as_json)
    else:
        pid = instance.supervisor.pid
        text = f"already running: {instance.url} (pid {pid}; `make down` or `banksman down` stops it)"
        _print_running(instance, text, as_json=as_json)
    return Exit.WARNING


def _print_running(instance: Instance, text: str, *, as_json: bool) -> Exit:
    facts = {"running": True, "pid": instance.supervisor.pid, "url": instance.url}
    output.print_result(facts, text, as_json=as_json)
    return Exit.OK


def reset(data_dir: Path | None, *, force: bool, as_json: bool) -> Exit:
    """Delete a data directory, and workspaces outside it, after confirmation.

    Raises:
        Conflict: the system is running, or `banksman up` did not create the directory.
    """
    data = DataDir((data_dir or load(UpSettings).data_dir).resolve())
    if data.path.exists() and not data.lock_file.exists():
        raise Conflict(f"{data.path} was not created by `banksman up`; nothing is deleted")
    directories = [path for path in _directories(data) if path.exists()]
    if directories and not force and not _confirmed(directories):
        return Exit.WARNING
    lock = Lock(data)
    if directories and lock.take() is not None:
        raise Conflict(f"a system is running in {data.path}: `make down` or `banksman down` stops it")
    try:
        data.end_leftovers()
        for path in directories:
            shutil.rmtree(path)
    finally:
        lock.release()
    deleted = [str(path) for path in directories]
    text = f"deleted {', '.join(deleted)}" if deleted else "nothing to delete"
    output.print_result({"deleted": deleted}, text, as_json=as_json)
    return Exit.OK


def _directories(data: DataDir) -> tuple[Path, ...]:
    workspaces: Path = service_module("tool-runner", "machine").workspaces_root(data.path)
    return (data.path,) if workspaces.is_relative_to(data.path) else (data.path, workspaces.parent)


def _confirmed(directories: list[Path]) -> bool:
    output.print_error("This deletes all conversations, files and keys in:")
    for path in directories:
        output.print_error(f"  {path}")
    return prompt("Delete? [y/N] ") in ("y", "yes")
