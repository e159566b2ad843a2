"""The data directory `.banksman/`: the lock, the run file, keys and logs."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from banksman.cli.processes import ProcessIdentity
from banksman.contracts.local_files import CONTEXT_FILE

_TRAVERSE_ONLY = 0o711
"""A runner that was started as root gives workspaces to another user, who must be able to reach them."""


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
        new = self.run_file.with_suffix(".new")
        new.write_text(json.dumps(asdict(instance), indent=2), encoding="utf-8")
        new.replace(self.run_file)

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

        # Opened with its final mode: there is no moment in which another user could read it.
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as out:
            out.write(key or secrets.token_hex(SIGNING_KEY_BYTES))
    return file.read_text(encoding="ascii")
