from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from banksman.bus.server_disk import show_volume
from banksman.contracts.ids import check_token
from banksman.runtime.disk import DiskLimits, Room
from banksman.runtime.health import Health
from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.settings import WorkspaceLimits
from banksman.tool_runner.workspaces.beneath import opened_directory
from banksman.tool_runner.workspaces.files import sweep_temporaries
from banksman.tool_runner.workspaces.quota import QuotaMeter, delete_tree

_TRAVERSE_ONLY = 0o711
OWNER_ONLY = 0o700
_SHARED_STATE = Path("/var/lib/banksman")


def default_root(data_dir: Path, identity: SandboxIdentity) -> Path:
    """Return the root of the workspaces when no setting names one.

    It is `data_dir/workspaces`. If the runner is root and the sandbox user cannot reach that directory (a
    clone with mode 0700 in a home directory with mode 0700), it is a directory below `/var/lib/banksman`
    whose name is derived from `data_dir`.
    """
    wanted = data_dir / "workspaces"
    if not identity.switches or identity.may_traverse(data_dir):
        return wanted
    name = hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()[:16]
    return _SHARED_STATE / name / "workspaces"


@dataclass
class Workspace:
    tenant: str
    conversation: str
    directory: Path
    identity: SandboxIdentity
    limits: WorkspaceLimits
    has_home: bool = False
    """Whether this process has made the home directory of its commands."""

    def __post_init__(self) -> None:
        self.meter = QuotaMeter(self.directory, self.limits)


class WorkspaceStore:
    """Workspaces below one root as `root/{tenant}/{conversation}`, each owned by the sandbox user."""

    def __init__(self, root: Path, identity: SandboxIdentity, limits: WorkspaceLimits) -> None:
        self.root = root
        self._identity = identity
        self._limits = limits
        self._open: dict[tuple[str, str], Workspace] = {}

    def prepare(self) -> None:
        for directory in (*reversed(self.root.parents), self.root):
            if not directory.exists():
                directory.mkdir(exist_ok=True)
                directory.chmod(_TRAVERSE_ONLY if self._identity.switches else OWNER_ONLY)

    def get(self, tenant: str, conversation: str) -> Workspace:
        """Return the workspace of a conversation; a new one is created empty."""
        key = (check_token(tenant, "tenant"), check_token(conversation, "conversation_id"))
        if key not in self._open:
            directory = self._create(*key)
            self._open[key] = Workspace(*key, directory, self._identity, self._limits)
        return self._open[key]

    def exists(self, tenant: str, conversation: str) -> bool:
        path = self.root / check_token(tenant, "tenant") / check_token(conversation, "conversation_id")
        return path.is_dir()

    async def delete(self, tenant: str, conversation: str) -> None:
        """Delete a workspace and its files; do nothing if it does not exist. No call may run in it."""
        if self.exists(tenant, conversation):
            directory = self.get(tenant, conversation).directory
            await asyncio.to_thread(delete_tree, directory)
        self._open.pop((tenant, conversation), None)

    def path_of(self, tenant: str, conversation: str) -> Path:
        """Return the path of a workspace that a restore creates; its parent directory exists afterwards."""
        self._make_parent(check_token(tenant, "tenant"))
        return self.root / tenant / check_token(conversation, "conversation_id")

    def stored(self) -> Iterator[tuple[str, str]]:
        for tenant in sorted(path for path in self.root.iterdir() if path.is_dir() and path.name[0] != "."):
            for conversation in sorted(path for path in tenant.iterdir() if path.is_dir()):
                yield tenant.name, conversation.name

    def sweep(self, within_s: float) -> int:
        """Delete the temporary files of interrupted writes before any workspace is in use.

        The workspaces that changed last come first. Returns the number of workspaces that were not swept
        within `within_s` seconds.
        """
        deadline = time.monotonic() + within_s
        directories = sorted(
            (self.root.joinpath(*key) for key in self.stored()),
            key=lambda path: path.stat().st_mtime,
            reverse=True,
        )
        for position, directory in enumerate(directories):
            if time.monotonic() > deadline:
                return len(directories) - position
            with contextlib.suppress(OSError):
                sweep_temporaries(directory, deadline=deadline)
        return 0

    def _create(self, tenant: str, conversation: str) -> Path:
        directory = self._make_parent(tenant) / conversation
        directory.mkdir(exist_ok=True, mode=OWNER_ONLY)
        with opened_directory(directory) as fd:
            self._identity.own(fd)
            # mkdir applies the umask, and an earlier command may have changed the mode.
            os.fchmod(fd, OWNER_ONLY)
        return directory

    def _make_parent(self, tenant: str) -> Path:
        parent = self.root / tenant
        parent.mkdir(exist_ok=True)
        parent.chmod(_TRAVERSE_ONLY if self._identity.switches else OWNER_ONLY)
        return parent


@dataclass(frozen=True, slots=True)
class WorkspaceVolume:
    """A full volume makes the runner not ready. It serves calls: they can read, and delete files."""

    root: Path
    limits: DiskLimits

    def report(self, health: Health) -> None:
        health.checks["workspaces"], health.warnings["workspaces"] = self.problem, self.warning
        health.measures["workspaces"] = self.measure

    def described(self) -> str | None:
        """Return a sentence if the volume is nearly full, full or cannot be read."""
        try:
            return self._room().described("the workspaces")
        except OSError as error:
            return f"the disk of the workspaces fails: {error.strerror}"

    async def problem(self) -> str | None:
        return self.described() if self._room().full else None

    async def warning(self) -> str | None:
        return None if self._room().full else self.described()

    async def measure(self) -> None:
        show_volume("workspaces", self._room())

    def _room(self) -> Room:
        return self.limits.room(self.root)
