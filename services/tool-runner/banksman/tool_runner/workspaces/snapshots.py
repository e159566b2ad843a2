"""Copies of workspaces in the object store: parts first, then the manifest that names them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from banksman.bus.objects import MAX_OBJECT_BYTES, ObjectBroken, Objects
from banksman.contracts.errors import BanksmanError, NotFound
from banksman.contracts.ids import digest, is_token, new_id
from banksman.contracts.workspaces import SnapshotManifest, SnapshotPart, SnapshotRef
from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.limits import WorkspaceLimits
from banksman.tool_runner.workspaces.archive_reading import read_archive
from banksman.tool_runner.workspaces.archive_writing import Contents, CopyRefused, write_archive
from banksman.tool_runner.workspaces.quota import delete_tree

logger = logging.getLogger(__name__)

PART_BYTES = MAX_OBJECT_BYTES
PART_S = 30.0
"""Seconds for storing or reading one part."""
_LARGER_THAN_FILES = 1.1
"""What does not compress takes a little more room in an archive."""


@dataclass(frozen=True, slots=True)
class Archived:
    """A copy on disk that is not stored yet."""

    id: str
    file: BinaryIO
    contents: Contents
    created_at: datetime


class Snapshots:
    """The copies that runners share.

    A copy that was not finished has no manifest, so nobody can take it for one; its parts are removed by
    whoever made them, at the latest when that runner starts again.
    """

    def __init__(
        self,
        objects: Objects,
        scratch: Path,
        identity: SandboxIdentity,
        limits: WorkspaceLimits,
        now: Callable[[], datetime],
    ) -> None:
        self._objects = objects
        self._scratch = scratch
        """On the file system of the workspaces, seen by no sandbox."""
        self._identity = identity
        self._limits = limits
        self._now = now
        """By a clock that all runners share: of two copies the later one counts."""

    def prepare(self) -> None:
        """Make the scratch directory, empty.

        Raises:
            OSError: when it cannot be made.
        """
        delete_tree(self._scratch)
        self._scratch.mkdir(mode=0o700)

    @asynccontextmanager
    async def archived(self, workspace: Path) -> AsyncGenerator[Archived]:
        """A copy of a workspace in which nothing runs; the block stores it.

        Raises:
            CopyRefused: the workspace is larger than what may be restored.
            OSError: it cannot be read, or the copy not be written.
        """
        snapshot = new_id("s")
        created_at = self._now()
        with self._spool(snapshot) as file:
            contents = await asyncio.to_thread(write_archive, workspace, file, self._limits)
            yield Archived(snapshot, file, contents, created_at)

    async def store(
        self, tenant: str, conversation_id: str, archived: Archived, *, term: int, generation: int
    ) -> SnapshotRef:
        """Store a copy; its parts are removed again when that fails.

        Raises:
            Overloaded: the store is full.
            Unavailable: it was not stored in time.
        """
        prefix = _name(tenant, conversation_id, archived.id)
        try:
            parts = await self._store_parts(prefix, archived.file)
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
            )
            data = manifest.model_dump_json().encode()
            await self._objects.put(prefix, data, deadline_s=PART_S)
        except BanksmanError:
            with contextlib.suppress(BanksmanError):
                await self.remove(tenant, conversation_id, archived.id)
            raise
        return SnapshotRef(
            id=archived.id,
            manifest_digest=digest(data),
            created_at=archived.created_at,
            size=sum(part.size for part in parts),
        )

    async def restore(
        self, tenant: str, conversation_id: str, reference: SnapshotRef, target: Path
    ) -> SnapshotManifest:
        """Put a copy where a workspace is to be, whole or not at all.

        Raises:
            CopyRefused: it is missing, damaged, or holds what no copy of ours does.
            Unavailable: it was not read in time.
            OSError: it cannot be written.
        """
        manifest = await self._manifest(tenant, conversation_id, reference)
        prefix = _name(tenant, conversation_id, reference.id)
        temporary = self._scratch / f"{reference.id}-{new_id('x')}"
        try:
            with self._spool(temporary.name + ".tar") as file:
                for number, part in enumerate(manifest.parts):
                    data = await self._part(f"{prefix}/{number}", part)
                    await asyncio.to_thread(file.write, data)
                file.seek(0)
                await asyncio.to_thread(self._unpack, file, temporary, manifest)
            await asyncio.to_thread(os.rename, temporary, target)
        finally:
            await asyncio.to_thread(delete_tree, temporary)
        return manifest

    async def remove(self, tenant: str, conversation_id: str, snapshot: str) -> None:
        """Remove a copy, finished or not; nothing when there is none.

        Raises:
            Unavailable: not everything could be removed.
        """
        prefix = _name(tenant, conversation_id, snapshot)
        await self._objects.delete(prefix)
        number = 0
        while await self._objects.delete(f"{prefix}/{number}"):
            number += 1

    async def remove_leftovers(self, tenant: str, conversation_id: str, snapshot: str) -> None:
        """Remove what is left of a copy whose removal may have been interrupted: not all parts are there.

        Raises:
            Unavailable: not everything could be removed.
        """
        prefix = _name(tenant, conversation_id, snapshot)
        for name in [info.name async for info in self._objects.list(prefix)]:
            if name == prefix or name.startswith(f"{prefix}/"):
                await self._objects.delete(name)

    async def stored_before(self, moment: datetime) -> dict[tuple[str, str], set[str]]:
        """By tenant and conversation, the ids of copies of which something was stored before `moment`.

        Raises:
            Unavailable: the store could not be read.
        """
        found: dict[tuple[str, str], set[str]] = {}
        async for info in self._objects.list():
            tenant, _, rest = info.name.partition("/")
            conversation_id, _, rest = rest.partition("/")
            if rest and is_token(tenant) and is_token(conversation_id) and info.modified_at < moment:
                found.setdefault((tenant, conversation_id), set()).add(rest.partition("/")[0])
        return found

    async def _store_parts(self, prefix: str, file: BinaryIO) -> tuple[SnapshotPart, ...]:
        parts: list[SnapshotPart] = []
        file.seek(0)
        while data := await asyncio.to_thread(file.read, PART_BYTES):
            await self._objects.put(f"{prefix}/{len(parts)}", data, deadline_s=PART_S)
            parts.append(SnapshotPart(size=len(data), digest=digest(data)))
        return tuple(parts)

    async def _manifest(self, tenant: str, conversation_id: str, reference: SnapshotRef) -> SnapshotManifest:
        try:
            data = await self._objects.get(_name(tenant, conversation_id, reference.id), deadline_s=PART_S)
        except NotFound as error:
            raise CopyRefused("it is not in the store any more") from error
        except ObjectBroken as error:
            raise CopyRefused("its manifest is damaged") from error
        if digest(data) != reference.manifest_digest:
            raise CopyRefused("its manifest is not the one that was recorded")
        try:
            manifest = SnapshotManifest.model_validate_json(data)
        except ValidationError as error:
            raise CopyRefused("its manifest cannot be read") from error
        self._check(manifest)
        return manifest

    def _check(self, manifest: SnapshotManifest) -> None:
        limits = self._limits
        if manifest.files > limits.max_entries:
            raise CopyRefused(f"it holds {manifest.files} files, at most {limits.max_entries} are allowed")
        if manifest.size > limits.max_bytes:
            raise CopyRefused(f"its files have {manifest.size} bytes, at most {limits.max_bytes} are allowed")
        if not all(0 < part.size <= PART_BYTES for part in manifest.parts):
            raise CopyRefused(f"it has a part of more than {PART_BYTES} bytes")
        if sum(part.size for part in manifest.parts) > limits.max_bytes * _LARGER_THAN_FILES + PART_BYTES:
            raise CopyRefused("its parts have more bytes than its files may have")

    async def _part(self, name: str, part: SnapshotPart) -> bytes:
        try:
            data = await self._objects.get(name, deadline_s=PART_S, max_bytes=part.size)
        except NotFound as error:
            raise CopyRefused("a part is missing") from error
        except ObjectBroken as error:
            raise CopyRefused("a part is damaged") from error
        if len(data) != part.size or digest(data) != part.digest:
            raise CopyRefused("a part is not what its manifest says")
        return data

    def _unpack(self, file: BinaryIO, target: Path, manifest: SnapshotManifest) -> None:
        target.mkdir(mode=0o700)
        expected = Contents(manifest.files, manifest.size)
        read_archive(file, target, self._identity, self._limits, expected=expected)
        directory = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._identity.own(directory)
        finally:
            os.close(directory)

    @contextlib.contextmanager
    def _spool(self, name: str) -> Generator[BinaryIO]:
        """A file that is gone after the block."""
        path = self._scratch / name
        with path.open("x+b") as file:
            path.unlink()
            yield file


def _name(tenant: str, conversation_id: str, snapshot: str) -> str:
    return f"{tenant}/{conversation_id}/{snapshot}"
