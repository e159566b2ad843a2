"""A system on this machine: its data directory `.banksman/`, and the processes that the run file names.

Processes are identified by pid and start time, because the system reuses pids.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from banksman.contracts.local_files import CONTEXT_FILE
from banksman.runtime.durable_files import create_file, replace_file
from banksman.runtime.http_get import HttpReply, http_get

NO_RESPONSE = "no response"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_POLL_S = 0.02
_READY_TIMEOUT_S = 3.0
_READY_POLL_S = 0.1
_TRAVERSE_ONLY = 0o711
"""A runner that was started as root gives workspaces to another user, who must be able to reach them."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    pid: int
    started: str
    """Boot id and start time in clock ticks, or the time from `ps`. Empty if it had ended already."""

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        return cls(pid=pid, started=_started(pid) or "")

    @property
    def alive(self) -> bool:
        return bool(self.started) and _started(self.pid) == self.started

    def send(self, number: signal.Signals) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_group(self) -> bool:
        """Kill the process group that it leads; return False if it had ended."""
        if not self.alive:
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return True

    def wait(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.alive:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True


def _started(pid: int) -> str | None:
    """Return when a process started, or None if it does not exist. A zombie counts as ended."""
    try:
        # The program's name may contain spaces and parentheses; the fields after its last `)` do not.
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None if _BOOT_ID.exists() else _started_by_ps(pid)
    return None if after_name[0] == "Z" else f"{_BOOT_ID.read_text().strip()} {after_name[19]}"


def _started_by_ps(pid: int) -> str | None:
    """Return the start time on systems without /proc (macOS)."""
    done = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True)
    return done.stdout.strip() or None


@dataclass(frozen=True, slots=True)
class Instance:
    url: str
    supervisor: ProcessIdentity
    processes: Mapping[str, ProcessIdentity]
    """Running child processes by name; without those that wait for a restart."""
    health: Mapping[str, str]
    nats_url: str
    monitoring_url: str
    ready: bool


class DataDir:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_file = path / "run.json"
        self.lock_file = path / "up.lock"
        """File that the supervisor locks. It exists from the first start on."""
        self.logs = path / "logs"
        self.keys = path / "keys"
        """Directory of the NATS users' seeds and of the key that signs approval decisions."""
        self.nats = path / "nats"
        self.store = self.nats / "streams"
        self.nats_config_file = self.nats / "nats.conf"
        self.nats_context_file = path / CONTEXT_FILE
        """File from which services on this machine read how to connect to NATS."""
        self.signing_key_file = self.keys / "approvals.key"
        self.api_keys_file = self.keys / "api-keys.json"

    def prepare(self) -> None:
        self.path.mkdir(mode=_TRAVERSE_ONLY, parents=True, exist_ok=True)
        for private in (self.logs, self.keys, self.nats):
            private.mkdir(mode=0o700, exist_ok=True)
        write_signing_key(self.signing_key_file)

    def read(self) -> Instance | None:
        """Return the content of the run file, even if that system is dead; None if there is no valid file."""
        # Not for the supervisor, which only writes the file: pydantic would double its memory.
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(Instance).validate_json(self.run_file.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def running(self) -> Instance | None:
        instance = self.read()
        return instance if instance is not None and instance.supervisor.alive else None

    def write(self, instance: Instance) -> None:
        replace_file(self.run_file, json.dumps(asdict(instance), indent=2))

    def forget(self) -> None:
        self.run_file.unlink(missing_ok=True)
        self.nats_context_file.unlink(missing_ok=True)

    def end_leftovers(self) -> list[str]:
        instance = self.read()
        if instance is None or instance.supervisor.alive:
            return []
        ended = [name for name, process in instance.processes.items() if process.kill_group()]
        self.forget()
        return ended


class Lock:
    """Lock of the one supervisor of a data directory. The kernel releases it when the process ends."""

    def __init__(self, data: DataDir) -> None:
        self._file = data.lock_file
        self._descriptor: int | None = None

    def take(self) -> int | None:
        """Take the lock.

        Returns:
            None on success. Otherwise the pid of the process that holds it, or 0 if the pid is unknown.
        """
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 20).decode(errors="replace").strip()
            os.close(descriptor)
            return int(holder) if holder.isdigit() else 0
        # On a full disk, the pid of the holder is unknown.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, str(os.getpid()).encode())
        self._descriptor = descriptor
        return None

    def outlive_exec(self) -> None:
        """Let the program that this process becomes hold the lock until it ends."""
        assert self._descriptor is not None
        os.set_inheritable(self._descriptor, True)

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def write_signing_key(file: Path, key: str | None = None) -> str:
    """Write `key`, or a new one, so that only its owner can read it; return the existing or new key."""
    if not file.exists():
        from banksman.runtime.settings import SIGNING_KEY_BYTES

        create_file(file, (key or secrets.token_hex(SIGNING_KEY_BYTES)).encode("ascii"))
    return file.read_text(encoding="ascii")


async def until_ready(ready_url: str, on_problem: Callable[[str], None]) -> None:
    while (problem := await readiness_problem(ready_url)) is not None:
        on_problem(problem)
        await asyncio.sleep(_READY_POLL_S)


async def readiness_problem(ready_url: str) -> str | None:
    return (await readiness_report(ready_url)).problem


@dataclass(frozen=True, slots=True)
class Readiness:
    problem: str | None = None
    """Why the process is not ready."""
    warning: str | None = None
    """What a ready process reports."""


async def readiness_report(ready_url: str) -> Readiness:
    try:
        reply = await http_get(ready_url, timeout_s=_READY_TIMEOUT_S)
    except (OSError, ValueError):
        return Readiness(NO_RESPONSE)
    if reply.ok:
        return Readiness(warning=_listed(reply, "warnings"))
    return Readiness(_listed(reply, "problems") or _error(reply) or f"responds with status {reply.status}")


def _error(reply: HttpReply) -> str | None:
    """Return why nats-server is not ready."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return str(json.loads(reply.body)["error"])
    return None


def _listed(reply: HttpReply, kind: str) -> str | None:
    """Return the problems or the warnings in a report; None if it has none."""
    try:
        body = json.loads(reply.body)
    except ValueError:
        return None
    found = cast(Mapping[str, object], body).get(kind) if isinstance(body, dict) else None
    if not isinstance(found, dict) or not found:
        return None
    return "; ".join(f"{name}: {text}" for name, text in cast(Mapping[str, object], found).items())
