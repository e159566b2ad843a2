"""Snapshots of whole streams, taken while they are in use, their restore, and the files of a backup.

The server takes a snapshot of a stream and sends it in chunks, each of which must be acknowledged. Protocol:
https://docs.nats.io/reference/jetstream/api/stream/snapshot and `…/restore`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from banksman.bus import names
from banksman.bus.connection import Bus
from banksman.bus.errors import NoResponders
from banksman.bus.jetstream import call
from banksman.bus.messages import Message
from banksman.bus.names import DESCRIPTION, api
from banksman.contracts.errors import BadInput, BanksmanError, Fault
from banksman.sdk.transports.nats import next_reply

MANIFEST = "manifest.json"
_FORMAT = 1
DERIVED_FROM_LOGS = (names.kv_stream(names.HEADS), names.kv_stream(names.DAMAGED))
"""Streams about the state of the stored logs. A restore replaces the logs, so these start empty."""
NOT_BACKED_UP = (names.kv_stream(names.RUNNERS), names.ADVISORIES, *DERIVED_FROM_LOGS)
"""Streams that a backup omits: derived ones, leases (they expire within seconds), the server's advisories."""


class SavedStream(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    account: str
    name: str
    file: str
    bytes: int
    sha256: str
    messages: int
    config: dict[str, Any]
    state: dict[str, Any]
    """State of the stream at the snapshot; the restore request must contain it."""


class Manifest(BaseModel):
    """Content of a backup. It is written last: a backup without it is incomplete."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = _FORMAT
    made_by: str
    began_at: datetime
    """Everything that was accepted before this time is in the backup."""
    ended_at: datetime
    streams: tuple[SavedStream, ...]


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest; raise `BadInput` if it or a file of the backup is missing or altered."""
    try:
        manifest = Manifest.model_validate_json((directory / MANIFEST).read_bytes())
    except (OSError, ValidationError) as error:
        raise BadInput(str(directory / MANIFEST), None, "the manifest of a complete backup") from error
    for stream in manifest.streams:
        file = directory / stream.file
        digest = hashlib.sha256()
        for chunk in file_chunks(file):
            digest.update(chunk)
        if digest.hexdigest() != stream.sha256:
            raise BadInput(str(file), None, f"{stream.bytes} bytes with SHA-256 {stream.sha256}")
    return manifest


def file_chunks(file: Path) -> Iterator[bytes]:
    """Yield a file in pieces of `CHUNK_BYTES`; raise `BadInput` if it does not exist."""
    if not file.is_file():
        raise BadInput(str(file), None, "the file that the manifest names")
    with file.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            yield chunk


CHUNK_BYTES = 256 * 1024
SILENCE_S = 60.0
"""Seconds without a chunk or an acknowledgement after which a transfer fails."""
INTEREST_S = 10.0
"""Seconds until the servers of a cluster must know the subscription that receives a restore."""
_STATUS_END = "204"


class SnapshotFailed(Fault):
    def __init__(self, stream: str, reason: str) -> None:
        self.stream = stream
        self.reason = reason
        super().__init__(f"stream {stream}: {reason}")


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """A snapshot in transfer: the stream's config and state from the server, and the bytes."""

    config: dict[str, Any]
    state: dict[str, Any]
    chunks: AsyncIterator[bytes]


@asynccontextmanager
async def stream_snapshot(bus: Bus, stream: str) -> AsyncGenerator[StreamSnapshot]:
    """Take a snapshot of a stream without its consumers. The server verifies the checksums of all messages.

    Raises:
        ApiError: no such stream, or one of its messages is damaged.
        SnapshotFailed: raised by `chunks`: the server ended the transfer with an error.
    """
    arrived: asyncio.Queue[Message | BanksmanError] = asyncio.Queue()
    subject = api("STREAM.SNAPSHOT", stream)
    with bus.replies.expect(subject, arrived.put_nowait, arrived.put_nowait, until_reconnect=True) as inbox:
        body = {"deliver_subject": inbox, "no_consumers": True, "chunk_size": CHUNK_BYTES, "jsck": True}
        begun = await call(bus, subject, body, budget_s=SILENCE_S)
        yield StreamSnapshot(begun["config"], begun["state"], _chunks(bus, stream, arrived))


async def restore_stream(
    bus: Bus, config: dict[str, Any], state: dict[str, Any], chunks: Iterable[bytes]
) -> dict[str, Any]:
    """Create a stream from a snapshot, and return its state.

    Args:
        config: Configuration of the new stream, its name included.
        state: State of the original stream as returned with its snapshot.
        chunks: The snapshot in pieces that each fit into a message.
    """
    name = str(config["name"])
    begun = await call(bus, api("STREAM.RESTORE", name), {"config": config, "state": state})
    target = cast(str, begun["deliver_subject"])
    for chunk in chunks:
        _check(name, await _send(bus, target, chunk))
    return cast(dict[str, Any], _check(name, await _send(bus, target, b""))["state"])


async def delete_stream(bus: Bus, stream: str) -> None:
    await call(bus, api("STREAM.DELETE", stream))


async def _send(bus: Bus, target: str, chunk: bytes) -> Message:
    """Send a chunk and return the acknowledgement.

    In a cluster another server may receive the restore, and its interest takes a moment to reach this one.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + INTEREST_S
    while True:
        try:
            return await bus.replies.request(target, chunk, timeout_s=SILENCE_S)
        except NoResponders:
            if loop.time() > deadline:
                raise
        await asyncio.sleep(0.1)


async def _chunks(
    bus: Bus, stream: str, arrived: asyncio.Queue[Message | BanksmanError]
) -> AsyncIterator[bytes]:
    while (chunk := await next_reply(arrived, f"the snapshot of stream {stream}", SILENCE_S)).data:
        yield chunk.data
        if chunk.reply:
            await bus.publish(chunk.reply, b"")
    if chunk.status not in (None, _STATUS_END):
        raise SnapshotFailed(stream, chunk.headers.get(DESCRIPTION) or f"status {chunk.status}")


def _check(stream: str, reply: Message) -> dict[str, Any]:
    body = cast(dict[str, Any], json.loads(reply.data)) if reply.data.startswith(b"{") else {}
    if error := cast(dict[str, Any] | None, body.get("error")):
        raise SnapshotFailed(stream, f"{error.get('description', '')} ({error.get('err_code', 0)})")
    return body
