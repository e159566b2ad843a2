"""What `.banksman/` holds of a running system: the lock, who runs, where, and the logs."""

from __future__ import annotations

import fcntl
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from banksman.cli.local.processes import ProcessIdentity
from banksman.runtime.settings import SIGNING_KEY_BYTES
from banksman.sdk.local import CONTEXT_FILE

_TRAVERSE_ONLY = 0o711
"""Started as root, the runner gives workspaces to a user who must be able to get to them."""


class Instance(BaseModel):
    """A running system, as its run file tells of it."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    url: str
    """Where people and clients go."""
    supervisor: ProcessIdentity
    processes: dict[str, ProcessIdentity] = {}
    """Every child by its name; those that wait for their next start are left out."""
    health: dict[str, str] = {}
    """Where each child says whether it is ready."""
    nats_url: str
    monitoring_url: str
    ready: bool = False
    """Whether start-up is over."""


@dataclass(frozen=True, slots=True)
class DataDir:
    """The files of one system."""

    path: Path

    @property
    def run_file(self) -> Path:
        """Says what runs."""
        return self.path / "run.json"

    @property
    def lock_file(self) -> Path:
        """Locked by the supervisor, and there since its first start."""
        return self.path / "up.lock"

    @property
    def logs(self) -> Path:
        """One file a process."""
        return self.path / "logs"

    @property
    def keys(self) -> Path:
        """Seeds of NATS users, and the key that signs approvals."""
        return self.path / "keys"

    @property
    def nats(self) -> Path:
        """nats-server's configuration and streams."""
        return self.path / "nats"

    @property
    def nats_context_file(self) -> Path:
        """Tells services on this machine how to reach NATS."""
        return self.path / CONTEXT_FILE

    @property
    def signing_key_file(self) -> Path:
        """The key that signs approvals."""
        return self.keys / "approvals.key"

    def prepare(self) -> None:
        """Create what is missing.

        Raises:
            OSError: the directory cannot be written.
        """
        self.path.mkdir(mode=_TRAVERSE_ONLY, parents=True, exist_ok=True)
        for private in (self.logs, self.keys, self.nats):
            private.mkdir(mode=0o700, exist_ok=True)
        write_signing_key(self.signing_key_file)

    def read(self) -> Instance | None:
        """What the run file says, be it of a dead system; None when there is none."""
        try:
            return Instance.model_validate_json(self.run_file.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def running(self) -> Instance | None:
        """The system that runs; None when none does."""
        instance = self.read()
        return instance if instance is not None and instance.supervisor.alive else None

    def write(self, instance: Instance) -> None:
        """Replace the run file in one step."""
        new = self.run_file.with_suffix(".new")
        new.write_text(instance.model_dump_json(indent=2), encoding="utf-8")
        new.replace(self.run_file)

    def forget(self) -> None:
        """Remove what tells others where the system is."""
        self.run_file.unlink(missing_ok=True)
        self.nats_context_file.unlink(missing_ok=True)

    def end_leftovers(self) -> list[str]:
        """End what a dead supervisor left running; returns the names of the processes."""
        instance = self.read()
        if instance is None or instance.supervisor.alive:
            return []
        ended = [name for name, process in instance.processes.items() if process.kill_group()]
        self.forget()
        return ended


class Lock:
    """Held by the one supervisor of a data directory; the kernel gives it back when that ends, however."""

    def __init__(self, data: DataDir) -> None:
        self._file = data.lock_file
        self._descriptor: int | None = None

    def take(self) -> int | None:
        """Take the lock; gives the pid of the holder when somebody else has it (0 when it is not known).

        Raises:
            OSError: the file cannot be written.
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

    def release(self) -> None:
        """Give it back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def write_signing_key(file: Path, key: str | None = None) -> str:
    """Keep a key that signs approvals where only its owner reads it; one that is there already stays.

    Args:
        file: Where it is kept.
        key: The key; None makes a new one.

    Returns:
        The key that the file holds.
    """
    if not file.exists():
        # Created with its mode, so that no moment exists in which others could read it.
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as out:
            out.write(key or secrets.token_hex(SIGNING_KEY_BYTES))
    return file.read_text(encoding="ascii")
