from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

from banksman.contracts.ids import check_token
from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.limits import WorkspaceLimits
from banksman.tool_runner.workspaces.files import sweep_temporaries
from banksman.tool_runner.workspaces.quota import QuotaMeter, delete_tree

_TRAVERSE_ONLY = 0o711
OWNER_ONLY = 0o700
_SHARED_STATE = Path("/var/lib/banksman")


def default_root(data_dir: Path, identity: SandboxIdentity) -> Path:
    """Where workspaces go when nobody says otherwise.

    `data_dir/workspaces`, unless the runner is root and the sandbox user cannot get there: a clone with mode
    0700 under a home with mode 0700. Then a directory of `/var/lib/banksman` that belongs to this `data_dir`.
    """
    wanted = data_dir / "workspaces"
    if not identity.switches or identity.may_traverse(data_dir):
        return wanted
    name = hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()[:16]
    return _SHARED_STATE / name / "workspaces"


class Workspace:
    """The file tree of one conversation."""

    def __init__(
        self,
        tenant: str,
        conversation: str,
        directory: Path,
        identity: SandboxIdentity,
        limits: WorkspaceLimits,
    ) -> None:
        self.tenant = tenant
        self.conversation = conversation
        self.directory = directory
        self.identity = identity
        self.limits = limits
        self.meter = QuotaMeter(directory, limits)
        self._lock = asyncio.Lock()
        """Calls of one workspace run one after another, in the order they came."""

    @contextlib.asynccontextmanager
    async def exclusive(self) -> AsyncGenerator[None]:
        """Hold the workspace for one call."""
        async with self._lock:
            yield


class WorkspaceStore:
    """The workspaces below one root: `root/{tenant}/{conversation}`, each owned by the sandbox user."""

    def __init__(self, root: Path, identity: SandboxIdentity, limits: WorkspaceLimits) -> None:
        self.root = root
        self._identity = identity
        self._limits = limits
        self._open: dict[tuple[str, str], Workspace] = {}

    def prepare(self) -> None:
        """Create the root.

        Raises:
            OSError: when it cannot be created.
        """
        for directory in (*reversed(self.root.parents), self.root):
            if not directory.exists():
                directory.mkdir(exist_ok=True)
                directory.chmod(_TRAVERSE_ONLY if self._identity.switches else OWNER_ONLY)

    def get(self, tenant: str, conversation: str) -> Workspace:
        """The workspace of a conversation, created empty when it is new.

        Raises:
            BadInput: when an id has a character that ids do not have.
            OSError: when the directory cannot be created.
        """
        key = (check_token(tenant, "tenant"), check_token(conversation, "conversation_id"))
        if key not in self._open:
            directory = self._create(*key)
            self._open[key] = Workspace(*key, directory, self._identity, self._limits)
        return self._open[key]

    def exists(self, tenant: str, conversation: str) -> bool:
        """True when the conversation has a directory here; creates nothing."""
        path = self.root / check_token(tenant, "tenant") / check_token(conversation, "conversation_id")
        return path.is_dir()

    async def delete(self, tenant: str, conversation: str) -> None:
        """Delete a workspace with all it holds, after the call that runs in it; nothing when there is none.

        Raises:
            BadInput: when an id has a character that ids do not have.
            OSError: when something could not be deleted.
        """
        if self.exists(tenant, conversation):
            workspace = self.get(tenant, conversation)
            async with workspace.exclusive():
                await asyncio.to_thread(delete_tree, workspace.directory)
        self._open.pop((tenant, conversation), None)

    def place_for(self, tenant: str, conversation: str) -> Path:
        """Where the directory of a workspace belongs that is put there from elsewhere.

        Raises:
            BadInput: when an id has a character that ids do not have.
            OSError: when the directory above it cannot be created.
        """
        self._make_parent(check_token(tenant, "tenant"))
        return self.root / tenant / check_token(conversation, "conversation_id")

    def stored(self) -> Iterator[tuple[str, str]]:
        """Tenant and conversation of every directory below the root, but for the runner's own."""
        for tenant in sorted(path for path in self.root.iterdir() if path.is_dir() and path.name[0] != "."):
            for conversation in sorted(path for path in tenant.iterdir() if path.is_dir()):
                yield tenant.name, conversation.name

    def sweep(self, within_s: float) -> int:
        """Delete what interrupted writes left in the stored workspaces, while none of them is in use.

        Those changed last come first. Returns how many were not reached within `within_s`.
        """
        deadline = time.monotonic() + within_s
        directories = sorted((self.root.joinpath(*key) for key in self.stored()), key=_changed, reverse=True)
        for position, directory in enumerate(directories):
            if time.monotonic() > deadline:
                return len(directories) - position
            with contextlib.suppress(OSError):
                sweep_temporaries(directory, deadline=deadline)
        return 0

    def _create(self, tenant: str, conversation: str) -> Path:
        directory = self._make_parent(tenant) / conversation
        directory.mkdir(exist_ok=True, mode=OWNER_ONLY)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._identity.own(fd)
            os.fchmod(fd, OWNER_ONLY)
        finally:
            os.close(fd)
        return directory

    def _make_parent(self, tenant: str) -> Path:
        parent = self.root / tenant
        parent.mkdir(exist_ok=True)
        parent.chmod(_TRAVERSE_ONLY if self._identity.switches else OWNER_ONLY)
        return parent


def _changed(directory: Path) -> float:
    return directory.stat().st_mtime
