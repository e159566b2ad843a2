from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import posixpath
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from banksman.bus.server_disk import show_volume
from banksman.contracts.ids import check_token
from banksman.contracts.tools import Change
from banksman.runtime.disk import DiskLimits, Room
from banksman.runtime.health import Health
from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.settings import WorkspaceLimits
from banksman.tool_runner.workspaces.baseline import MAX_TEXT_BYTES, UNKNOWN, Baseline, Content
from banksman.tool_runner.workspaces.beneath import opened_directory
from banksman.tool_runner.workspaces.changes import (
    MANY_FILES,
    Changes,
    FileIndex,
    KeptIndexes,
    bounded,
    differences,
    is_own,
)
from banksman.tool_runner.workspaces.files import PathRefused, read_part, sweep_temporaries
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
    indexes: KeptIndexes
    baseline: Baseline
    has_home: bool = False
    """Whether this process has made the home directory of its commands."""

    def __post_init__(self) -> None:
        self.meter = QuotaMeter(self.directory, self.limits)

    async def index(self) -> FileIndex:
        """Return the last index of the files, or a new one if none is kept."""
        kept = self.indexes.get(self.directory)
        return await self.meter.indexed() if kept is None else kept

    async def changes_since(self, before: FileIndex, bounds: WorkspaceLimits, run_id: str) -> Changes:
        """Record and return what a command of a run has changed, and keep the new index."""
        # The command owns the directory; with chmod it could have made it unusable for every later call.
        self.directory.chmod(OWNER_ONLY)
        after = await self.meter.indexed(bounds)
        self.indexes.keep(self.directory, after)
        if len(after) > MANY_FILES:
            found = await asyncio.to_thread(differences, before, after)
        else:
            found = differences(before, after)
        if found:
            await asyncio.to_thread(self.baseline.record, run_id, found, self.content)
        return bounded(found)

    def record(self, path: str, change: Change, run_id: str = "") -> None:
        """Record that the runner itself has changed a file, for a run or for a user: no command has."""
        path = posixpath.normpath(path)
        self.indexes.record(self.directory, path)
        if not is_own(path):
            self.baseline.record(run_id, {path: change}, self.content)

    def content(self, path: str) -> Content:
        """Return the content of a file, by a path that leads through no link."""
        try:
            status = os.lstat(self.directory / path)
            if not stat.S_ISREG(status.st_mode):
                return UNKNOWN
            part = read_part(self.directory, path, offset=0, max_bytes=MAX_TEXT_BYTES)
            text = part.data.decode()
        except UnicodeDecodeError:
            return Content("binary")
        except (OSError, ValueError, PathRefused):
            return UNKNOWN
        if part.total_bytes > MAX_TEXT_BYTES:
            return Content("too_large")
        kind = "program" if status.st_mode & stat.S_IXUSR else "text"
        return Content("binary") if "\0" in text else Content(kind, text)


class WorkspaceStore:
    """Workspaces below one root as `root/{tenant}/{conversation}`, each owned by the sandbox user."""

    def __init__(self, root: Path, identity: SandboxIdentity, limits: WorkspaceLimits) -> None:
        self.root = root
        self._identity = identity
        self._limits = limits
        self._indexes = KeptIndexes()
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
            directory, baseline = self._create(*key), self._baseline(*key)
            self._open[key] = Workspace(
                *key, directory, self._identity, self._limits, self._indexes, baseline
            )
        return self._open[key]

    def _baseline(self, tenant: str, conversation: str) -> Baseline:
        return Baseline(self.root / ".baselines" / f"{tenant}.{conversation}.db")

    def exists(self, tenant: str, conversation: str) -> bool:
        path = self.root / check_token(tenant, "tenant") / check_token(conversation, "conversation_id")
        return path.is_dir()

    async def delete(self, tenant: str, conversation: str) -> None:
        """Delete a workspace and its files; do nothing if it does not exist. No call may run in it."""
        if self.exists(tenant, conversation):
            directory = self.get(tenant, conversation).directory
            await asyncio.to_thread(delete_tree, directory)
            self._indexes.drop(directory)
            self._baseline(tenant, conversation).delete()
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
    """A volume that is full or read-only makes the runner not ready. It serves calls: they can read."""

    root: Path
    limits: DiskLimits

    def report(self, health: Health) -> None:
        health.checks["workspaces"], health.warnings["workspaces"] = self.problem, self.warning
        health.measures["workspaces"] = self.measure

    def described(self) -> str | None:
        """Return a sentence if the volume is nearly full or full, or cannot be read or written."""
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
        return self.limits.room(self.root, writes=True)
