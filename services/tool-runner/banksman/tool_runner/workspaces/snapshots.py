"""Snapshots of workspaces in the object store: parts first, then the manifest that lists them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final

from pydantic import ValidationError

from banksman.bus.connection import Bus
from banksman.bus.names import WORKSPACES, object_stream
from banksman.bus.secrets import SEAL_BYTES, new_key, opened, sealed
from banksman.bus.storage.objects import MAX_OBJECT_BYTES, ObjectBroken, Objects, owned_name
from banksman.contracts.errors import BanksmanError, NotFound, Overloaded
from banksman.contracts.ids import digest, is_token, new_id
from banksman.contracts.workspaces import OWN_SHARE, SnapshotManifest, SnapshotPart, SnapshotRef
from banksman.quotas.stored import StreamUse, is_crowded, lent_bytes_problem, stream_use
from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.settings import WorkspaceLimits
from banksman.tool_runner.workspaces.archive import Contents, SnapshotRefused, read_archive, write_archive
from banksman.tool_runner.workspaces.beneath import opened_directory
from banksman.tool_runner.workspaces.quota import delete_tree

PART_BYTES = MAX_OBJECT_BYTES
PART_TIMEOUT_S = 30.0
"""Time limit for storing or reading one part, in seconds."""
_ARCHIVE_OVERHEAD = 1.1
"""Maximum ratio of archive bytes to file bytes: incompressible files grow a little in an archive."""
LISTED_S: Final = 600.0
"""Seconds for which the bytes of all tenants are cached, because listing costs time for each snapshot."""
REFUSED_S: Final = 60.0
"""Seconds for which the bytes are cached when they cause a refusal: snapshots may have been removed since."""
RETRY_AFTER_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Archived:
    id: str
    file: BinaryIO
    contents: Contents
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Snapshots:
    """Snapshots in the store. A runner restores those of all runners, and stores and removes its own.

    An interrupted snapshot has no manifest, so it is never restored. The runner that made its parts removes
    them, at the latest after its next start. Agents remove the snapshots of runners that do not return.
    """

    objects: Objects
    runner: str
    scratch: Path
    """A directory that no sandbox sees, on the file system of the workspaces: a rename cannot cross file
    systems."""
    identity: SandboxIdentity
    limits: WorkspaceLimits
    now: Callable[[], datetime]
    """A clock that all runners share: the platform records the later of two snapshots."""
    room: SnapshotRoom

    def prepare(self) -> None:
        delete_tree(self.scratch)
        self.scratch.mkdir(mode=0o700)

    @asynccontextmanager
    async def archived(self, workspace: Path) -> AsyncGenerator[Archived]:
        """Archive a workspace in which nothing runs; the archive exists until the block ends.

        Raises:
            SnapshotRefused: the workspace is larger than a restore allows.
        """
        snapshot = new_id("s")
        created_at = self.now()
        with self._spool(snapshot) as file:
            contents = await asyncio.to_thread(write_archive, workspace, file, self.limits)
            yield Archived(snapshot, file, contents, created_at)

    async def store(
        self, tenant: str, conversation_id: str, archived: Archived, *, term: int, generation: int
    ) -> SnapshotRef:
        """Upload an archive and return a reference to the snapshot; after a failure, remove the parts.

        Raises:
            Overloaded: the store is full, or the tenant's part of it.
        """
        size = archived.file.seek(0, os.SEEK_END)
        await self.room.check(tenant, size)
        prefix = owned_name(self.runner, tenant, conversation_id, archived.id)
        key = new_key()
        try:
            parts = await self._store_parts(prefix, archived.file, key)
            manifest = SnapshotManifest(
                tenant=tenant,
                conversation_id=conversation_id,
                id=archived.id,
                created_at=archived.created_at,
                term=term,
                generation=generation,
                parts=parts,
                files=archived.contents.entries,
                size=archived.contents.size,
                sealed=True,
            )
            data = manifest.model_dump_json().encode()
            # The manifest is stored last, so that an interrupted upload is never taken for a snapshot.
            await self.objects.put(prefix, data, deadline_s=PART_TIMEOUT_S)
        except BanksmanError:
            with contextlib.suppress(BanksmanError):
                await self.remove(tenant, conversation_id, archived.id)
            raise
        self.room.add(tenant, size)
        return SnapshotRef(
            id=archived.id,
            manifest_digest=digest(data),
            created_at=archived.created_at,
            size=sum(part.size for part in parts),
            key=key,
            stored_by=self.runner,
        )

    async def restore(
        self, tenant: str, conversation_id: str, reference: SnapshotRef, target: Path
    ) -> SnapshotManifest:
        """Restore a snapshot as the directory `target`, completely or not at all.

        Raises:
            SnapshotRefused: the snapshot is missing or damaged, or contains entries that no runner writes.
        """
        if reference.key is None:
            raise SnapshotRefused("this runner did not receive its key")
        prefix = owned_name(reference.stored_by, tenant, conversation_id, reference.id)
        manifest = await self._manifest(prefix, reference.manifest_digest)
        temporary = self.scratch / f"{reference.id}-{new_id('x')}"
        try:
            with self._spool(temporary.name + ".tar") as file:
                for number, part in enumerate(manifest.parts):
                    data = await self._part(f"{prefix}/{number}", part, reference.key)
                    await asyncio.to_thread(file.write, data)
                file.seek(0)
                await asyncio.to_thread(self._unpack, file, temporary, manifest)
            # Atomic: a crash leaves either no directory or the complete one.
            await asyncio.to_thread(os.rename, temporary, target)
        finally:
            await asyncio.to_thread(delete_tree, temporary)
        return manifest

    async def remove(self, tenant: str, conversation_id: str, snapshot: str) -> None:
        await self.objects.remove(owned_name(self.runner, tenant, conversation_id, snapshot))

    async def stored_before(self, moment: datetime) -> dict[tuple[str, str], set[str]]:
        found: dict[tuple[str, str], set[str]] = {}
        async for info in self.objects.list(owner=self.runner):
            tenant, _, rest = info.path.partition("/")
            conversation_id, _, rest = rest.partition("/")
            if rest and is_token(tenant) and is_token(conversation_id) and info.modified_at < moment:
                found.setdefault((tenant, conversation_id), set()).add(rest.partition("/")[0])
        return found

    async def _store_parts(self, prefix: str, file: BinaryIO, key: str) -> tuple[SnapshotPart, ...]:
        parts: list[SnapshotPart] = []
        file.seek(0)
        while data := await asyncio.to_thread(file.read, PART_BYTES - SEAL_BYTES):
            name = f"{prefix}/{len(parts)}"
            data = await asyncio.to_thread(sealed, data, key, name)
            await self.objects.put(name, data, deadline_s=PART_TIMEOUT_S)
            parts.append(SnapshotPart(size=len(data), digest=digest(data)))
        return tuple(parts)

    async def _manifest(self, name: str, expected_digest: str) -> SnapshotManifest:
        data = await self._object(name, missing="it is no longer in the store", what="its manifest")
        if digest(data) != expected_digest:
            raise SnapshotRefused("its manifest differs from the recorded one")
        try:
            manifest = SnapshotManifest.model_validate_json(data)
        except ValidationError as error:
            raise SnapshotRefused("its manifest cannot be read") from error
        if not manifest.sealed:
            raise SnapshotRefused("it is not encrypted")
        self._check(manifest)
        return manifest

    def _check(self, manifest: SnapshotManifest) -> None:
        limits = self.limits
        if manifest.files > limits.max_entries:
            raise SnapshotRefused(
                f"it contains {manifest.files} files, at most {limits.max_entries} are allowed"
            )
        if manifest.size > limits.max_bytes:
            raise SnapshotRefused(
                f"its files have {manifest.size} bytes, at most {limits.max_bytes} are allowed"
            )
        if not all(0 < part.size <= PART_BYTES for part in manifest.parts):
            raise SnapshotRefused(f"it has a part of more than {PART_BYTES} bytes")
        if sum(part.size for part in manifest.parts) > limits.max_bytes * _ARCHIVE_OVERHEAD + PART_BYTES:
            raise SnapshotRefused("its parts have more bytes than its files may have")

    async def _part(self, name: str, part: SnapshotPart, key: str) -> bytes:
        data = await self._object(name, missing="a part is missing", what="a part", max_bytes=part.size)
        if len(data) != part.size or digest(data) != part.digest:
            raise SnapshotRefused("a part differs from its manifest")
        content = await asyncio.to_thread(opened, data, key, name)
        if content is None:
            raise SnapshotRefused("a part cannot be decrypted")
        return content

    async def _object(
        self, name: str, *, missing: str, what: str, max_bytes: int = MAX_OBJECT_BYTES
    ) -> bytes:
        try:
            return await self.objects.get(name, deadline_s=PART_TIMEOUT_S, max_bytes=max_bytes)
        except NotFound as error:
            raise SnapshotRefused(missing) from error
        except ObjectBroken as error:
            raise SnapshotRefused(f"{what} is damaged") from error

    def _unpack(self, file: BinaryIO, target: Path, manifest: SnapshotManifest) -> None:
        target.mkdir(mode=0o700)
        expected = Contents(manifest.files, manifest.size)
        read_archive(file, target, self.identity, self.limits, expected=expected)
        with opened_directory(target) as directory:
            self.identity.own(directory)

    @contextlib.contextmanager
    def _spool(self, name: str) -> Generator[BinaryIO]:
        path = self.scratch / name
        with path.open("x+b") as file:
            # The kernel frees an unlinked file when it is closed, even if the process is killed.
            path.unlink()
            yield file


class SnapshotRoom:
    """Refuses snapshots of a tenant whose snapshots fill its part: three times the free bytes of the store.

    It also refuses snapshots that exceed the part of this runner: three quarters of the store.

    While all snapshots together fill less than three quarters of the store, no tenant and no runner can be
    above its part, and a check costs one request. Above that, the descriptions of all snapshots are listed.
    """

    def __init__(self, bus: Bus, objects: Objects, runner: str) -> None:
        self._bus = bus
        self._objects = objects
        self._runner = runner
        self._stored = Counter[str]()
        self._own = 0
        self._listed_at = float("-inf")

    async def check(self, tenant: str, size: int = 0) -> None:
        use = await stream_use(self._bus, object_stream(WORKSPACES))
        if use is None or not is_crowded(use, size):
            return
        if await self._problem(tenant, use, size, LISTED_S) is None:
            return
        if problem := await self._problem(tenant, use, size, REFUSED_S):
            raise Overloaded(problem, retry_after_s=RETRY_AFTER_S)

    async def _problem(self, tenant: str, use: StreamUse, size: int, listed_s: float) -> str | None:
        stored = await self._bytes_of(tenant, listed_s)
        if self._own + size > OWN_SHARE * use.max_bytes:
            return (
                f"storage_full: the snapshots of runner {self._runner} have {self._own} of {use.max_bytes} "
                f"bytes; one runner may have {OWN_SHARE:.0%}"
            )
        return lent_bytes_problem(use, stored, "snapshots", "conversations or files", size=size)

    def add(self, tenant: str, size: int) -> None:
        """Count a stored snapshot until all are listed again."""
        self._stored[tenant] += size
        self._own += size

    async def _bytes_of(self, tenant: str, listed_s: float) -> int:
        now = asyncio.get_running_loop().time()
        if now - self._listed_at >= listed_s:
            stored, own = Counter[str](), 0
            async for info in self._objects.list():
                stored[info.path.partition("/")[0]] += info.size
                own += info.size if info.owner == self._runner else 0
            self._stored, self._own, self._listed_at = stored, own, now
        return self._stored[tenant]
