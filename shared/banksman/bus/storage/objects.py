"""Object stores in the standard layout of NATS clients, read in batches and under a deadline.

An object has at most 16 MB; larger data is stored in parts. Chunks and parts are stored before the
description that names them, so a crash leaves no incomplete object. Layout: ADR-20,
https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-20.md.

An object whose name begins with an owner (`owned_name`) has the owner in its subjects: the description is on
`$O.{store}.M.{owner}.{path}`, the chunks are on `$O.{store}.C.{owner}.{path}.{upload}`. The server permits an
owner to write below its own token only.

Requests raise `Unavailable` if the broker does not respond.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.errors import NO_RESPONSE, MessageTooLarge
from banksman.bus.messages import StoredMessage
from banksman.bus.names import ROLLUP, RUNNER_STORES, api, object_chunks, object_meta, object_stream
from banksman.bus.publish import durable
from banksman.contracts.errors import BadInput, BanksmanError, Fault, NotFound, Refused, Unavailable
from banksman.contracts.ids import check_token, new_id

logger = logging.getLogger(__name__)

MAX_OBJECT_BYTES = 16 * 1024 * 1024
CHUNK_BYTES = 512 * 1024
DEADLINE_S = 60.0
"""Seconds for writing or reading one object."""
ABANDON_S = 5.0
"""Additional seconds for removing the chunks of an object that could not be stored."""


OWNER_END: Final = ":"
Remove = Callable[[str], Awaitable[None]]
"""Removes the object with this name and all objects below it."""


class ObjectBroken(Fault):
    """A stored object differs from what was written: a chunk is missing or changed."""

    def __init__(self, store: str, name: str) -> None:
        super().__init__(f"object {name!r} in {store} does not match its digest")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Description of a stored object."""

    name: str
    size: int
    """Bytes."""
    modified_at: datetime

    @property
    def path(self) -> str:
        """The name without its owner."""
        return self.name.rpartition(OWNER_END)[2]

    @property
    def owner(self) -> str | None:
        """The owner in the name; None for an object without one."""
        return self.name.rpartition(OWNER_END)[0] or None


class _Meta(BaseModel):
    """The stored description, with the field names of the standard layout."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    bucket: str
    nuid: str
    size: int
    chunks: int
    digest: str = ""
    deleted: bool = False
    mtime: str = ""
    options: dict[str, int] = Field(default_factory=lambda: {"max_chunk_size": CHUNK_BYTES})


class Objects:
    """An object store.

    `remove` removes an object of an owner in place of a process that may not purge the stream; None: the
    process purges it itself.
    """

    def __init__(self, bus: Bus, store: str, *, remove: Remove | None = None) -> None:
        self._bus = bus
        self._store = store
        self._stream = object_stream(store)
        self._remove = remove

    async def put(self, name: str, data: bytes, *, deadline_s: float = DEADLINE_S) -> ObjectInfo:
        """Store an object, and replace one of the same name. The name of an owner's object is used once.

        Raises:
            MessageTooLarge: The object has more than 16 MB.
            Unavailable: The object was not stored by the deadline.
        """
        if len(data) > MAX_OBJECT_BYTES:
            raise MessageTooLarge(f"{self._store}/{name}", len(data), MAX_OBJECT_BYTES)
        upload = self._upload(name)
        pieces = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]
        meta = _Meta(
            name=name,
            bucket=self._store,
            nuid=upload,
            size=len(data),
            chunks=len(pieces),
            digest=_digest(data),
            mtime=datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        )
        try:
            async with _deadline(f"writing {self._store}/{name}", deadline_s):
                old = await self._meta(name)
                subject = object_chunks(self._store, upload)
                for piece in pieces:
                    # Random: the other writers of a stream must not store a message with its id first.
                    await durable(self._bus, subject, piece, msg_id=new_id("m"), budget_s=deadline_s)
                await self._put_meta(meta, deadline_s)
                if old is not None and OWNER_END not in name:
                    # Last, so that readers always find either the old object or the new one.
                    await self._purge_chunks(old.nuid)
        except Refused:
            await self._abandon(name, upload)
            raise
        return _info(meta)

    async def get(
        self, name: str, *, deadline_s: float = DEADLINE_S, max_bytes: int = MAX_OBJECT_BYTES
    ) -> bytes:
        """Return the bytes of an object after a check of its digest.

        Args:
            deadline_s: Seconds for the whole read.
            max_bytes: A larger object is not read and counts as broken.

        Raises:
            NotFound: The store has no object of that name.
            ObjectBroken: The object differs from what was written.
            Unavailable: The object was not read by the deadline.
        """
        async with _deadline(f"reading {self._store}/{name}", deadline_s):
            meta = await self._meta(name)
            if meta is None:
                raise NotFound("object", name)
            data = b""
            if meta.size <= max_bytes:
                data = await self._chunks(object_chunks(self._store, meta.nuid), max_bytes)
        if len(data) != meta.size or (meta.digest and _digest(data) != meta.digest):
            raise ObjectBroken(self._store, name)
        return data

    async def delete(self, name: str) -> bool:
        """Remove an object; return False without one; raise `ObjectBroken` for an invalid description."""
        meta = await self._meta(name)
        if meta is None:
            return False
        # The description first: after a crash, no reader finds a description without its chunks.
        await jetstream.purge_subject(self._bus, self._stream, self._meta_subject(name))
        await self._purge_chunks(meta.nuid)
        return True

    async def remove(self, name: str) -> None:
        """Remove an object of an owner and all objects below `name/`, including unfinished ones."""
        if self._remove is not None:
            await self._remove(name)
            return
        for subject in subjects_below(self._store, name):
            await jetstream.purge_subject(self._bus, self._stream, subject)

    async def list(self, prefix: str = "", *, owner: str | None = None) -> AsyncIterator[ObjectInfo]:
        """Yield the objects whose paths begin with `prefix`; log and skip undecodable descriptions.

        `owner` None lists all, with and without owners.
        """
        below = ">" if owner is None else f"{check_token(owner, 'owner')}.>"
        async for message in jetstream.read(self._bus, self._stream, object_meta(self._store, below)):
            try:
                meta = self._decoded(message)
            except ObjectBroken as broken:
                logger.warning("%s", broken)
                continue
            if not meta.deleted and (info := _info(meta)).path.startswith(prefix):
                yield info

    async def storage_used(self) -> tuple[int, int]:
        """Return the total bytes of all objects, and the limit of the store; 0 for no limit."""
        info = await jetstream.call(self._bus, api("STREAM.INFO", self._stream))
        return int(info["state"]["bytes"]), max(0, int(info["config"]["max_bytes"]))

    async def _abandon(self, name: str, upload: str) -> None:
        """Remove the chunks of an object that was not stored; retain them if the outcome is unknown."""
        with contextlib.suppress(BanksmanError, TimeoutError):
            async with asyncio.timeout(ABANDON_S):
                stored = await self._meta(name)
                if stored is not None and stored.nuid == upload:
                    return
                if OWNER_END in name:
                    await self.remove(name)
                else:
                    await self._purge_chunks(upload)

    async def _purge_chunks(self, nuid: str) -> None:
        await jetstream.purge_subject(self._bus, self._stream, object_chunks(self._store, nuid))

    async def _chunks(self, subject: str, max_bytes: int) -> bytes:
        """Return the data on a subject, up to the first message that exceeds `max_bytes` in total."""
        data = bytearray()
        async for message in jetstream.read(self._bus, self._stream, subject, current=True):
            data += message.data
            if len(data) > max_bytes:
                break
        return bytes(data)

    async def _meta(self, name: str) -> _Meta | None:
        message = await jetstream.last_message(self._bus, self._stream, self._meta_subject(name))
        meta = None if message is None else self._decoded(message)
        return None if meta is None or meta.deleted else meta

    async def _put_meta(self, meta: _Meta, deadline_s: float) -> None:
        await durable(
            self._bus,
            self._meta_subject(meta.name),
            meta.model_dump_json().encode(),
            msg_id=new_id("m"),
            # With a rollup, a publisher can remove all messages of a stream, so runners' stores allow none.
            headers={} if self._store in RUNNER_STORES else {ROLLUP: "sub"},
            budget_s=deadline_s,
        )

    def _decoded(self, message: StoredMessage) -> _Meta:
        """Decode a description; raise `ObjectBroken` if it is invalid or belongs to another subject."""
        try:
            meta = _Meta.model_validate_json(message.data)
            if message.subject == self._meta_subject(meta.name):
                return meta
        except (ValidationError, BadInput) as error:
            raise ObjectBroken(self._store, message.subject) from error
        raise ObjectBroken(self._store, message.subject)

    def _meta_subject(self, name: str) -> str:
        return object_meta(self._store, subject_tokens(name))

    def _upload(self, name: str) -> str:
        upload = new_id("o")
        return f"{subject_tokens(name)}.{upload}" if OWNER_END in name else upload


def owned_name(owner: str, *path: str) -> str:
    """Return the name `owner:part/part` of an object; raise `BadInput` if the owner or a part is no token."""
    return check_token(owner, "owner") + OWNER_END + "/".join(check_token(part, "path") for part in path)


def subject_tokens(name: str) -> str:
    """Return the subject tokens of a name; raise `BadInput` if its owner or a part is no token."""
    owner, separator, path = name.partition(OWNER_END)
    if not separator:
        return base64.urlsafe_b64encode(name.encode()).decode()
    return ".".join(check_token(token, "object name") for token in (owner, *path.split("/")))


def subjects_below(store: str, name: str) -> tuple[str, ...]:
    """Return the subjects of an owner's object and of the objects below it, its description first."""
    place = subject_tokens(name)
    return object_meta(store, place), object_meta(store, f"{place}.>"), object_chunks(store, f"{place}.>")


def _digest(data: bytes) -> str:
    return "SHA-256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()


def _info(meta: _Meta) -> ObjectInfo:
    return ObjectInfo(meta.name, meta.size, _parse_time(meta.mtime))


def _parse_time(written: str) -> datetime:
    """Parse the time at which an object was written; return the Unix epoch if it is invalid."""
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        return datetime.fromtimestamp(0, UTC)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


@asynccontextmanager
async def _deadline(what: str, seconds: float) -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise Unavailable(f"{what}: not done within {seconds:g} s", public=NO_RESPONSE) from error
