"""Key-value buckets: typed values, changed by compare-and-set."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.dead import UnreadableMessages
from banksman.bus.errors import WrongLastSequence
from banksman.bus.messages import StoredMessage
from banksman.bus.names import KV_OPERATION, MARKER_REASON, MSG_ID, TTL, kv_stream, kv_subject
from banksman.bus.publish import durable, encoded, message_id
from banksman.contracts.errors import BadInput, Poison
from banksman.contracts.ids import check_token, new_id

T = TypeVar("T", bound=BaseModel)

MARKER_TTL = "1h"
"""Lifetime of the marker of a deleted key. A view that was disconnected for longer reads the bucket again."""


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    key: str
    value: T
    revision: int
    """Stream sequence of the value, which a compare-and-set expects."""


class Bucket(Generic[T]):
    """A bucket whose values have one model.

    Keys are tokens joined by dots; `{tenant}.{id}` for the data of a tenant. Writes raise what `durable`
    raises. Reads raise `Unavailable` if the broker does not respond, and `Poison` for a value that cannot be
    decoded.
    """

    def __init__(self, bus: Bus, name: str, model: type[T]) -> None:
        self.bus = bus
        self.name = name
        self.stream = kv_stream(name)
        self.unreadable = UnreadableMessages(bus, self.stream)
        self._model = model

    async def get(self, key: str) -> Entry[T] | None:
        """Return the value, read from the leader; None if the key has no value."""
        message = await self._last(key)
        return None if message is None else self.entry(message)

    async def get_or_skip(self, key: str) -> Entry[T] | None:
        """Return the value as `get` does, but report a value that cannot be decoded, and return None.

        For derived values that another service removes and rebuilds: see `get_or_drop`.
        """
        message = await self._last(key)
        return None if message is None else await self._readable(message)

    async def get_or_drop(self, key: str) -> Entry[T] | None:
        """Return the value as `get` does, but report and remove a value that cannot be decoded.

        For derived values that are rebuilt when they are missing.

        Raises:
            Unavailable, Overloaded: The broker did not respond, or the removal could not be stored.
        """
        message = await self._last(key)
        entry = None if message is None else await self._readable(message)
        if message is not None and entry is None:
            await self.delete(key, revision=message.stream_seq)
        return entry

    async def put(self, key: str, value: T) -> int:
        """Write a value unconditionally; return its revision."""
        ack = await durable(self.bus, self.subject(key), encoded(value), msg_id=new_id("kv-"))
        return ack.stream_seq

    async def create(self, key: str, value: T) -> int | None:
        """Write a value if the key has none; return its revision, or None if the key has a value."""
        expected = 0
        while True:
            written = await self._write(key, encoded(value), expected)
            if isinstance(written, int):
                return written
            last = await jetstream.last_message(self.bus, self.stream, self.subject(key))
            if last is not None and not is_marker(last):
                return None
            # A deleted key: the marker is the last message on its subject, so the write expects its sequence.
            expected = last.stream_seq if last else 0

    async def update(self, key: str, value: T, revision: int) -> int | None:
        """Write a value if the stored one has `revision`; return the new revision, or None if it differs."""
        written = await self._write(key, encoded(value), revision)
        return written if isinstance(written, int) else None

    async def delete(self, key: str, *, revision: int | None = None) -> bool:
        """Remove a value; return False if it does not have the given `revision` (None removes any)."""
        headers = {KV_OPERATION: "DEL", TTL: MARKER_TTL}
        written = await self._write(key, b"", revision, headers)
        return isinstance(written, int)

    async def entries(self, prefix: str = "") -> AsyncIterator[Entry[T]]:
        """Yield the values whose keys begin with the tokens of `prefix`; skip and report undecodable ones."""
        for message in await self._latest(prefix):
            if (entry := await self._readable(message)) is not None:
                yield entry

    async def keys(self, prefix: str = "") -> list[str]:
        return [self.key_of(message.subject) for message in await self._latest(prefix)]

    def subject(self, key: str) -> str:
        """Return the subject of a key; raise `BadInput` if it is not made of tokens, as with a wildcard."""
        if not key:
            raise BadInput("key", key, "tokens joined by dots")
        for token in key.split("."):
            check_token(token, "key")
        return kv_subject(self.name, key)

    def key_of(self, subject: str) -> str:
        return subject.removeprefix(kv_subject(self.name, ""))

    def entry(self, message: StoredMessage) -> Entry[T]:
        """Decode a value; raise `Poison` if the value does not match the model of this bucket."""
        try:
            value = self._model.model_validate_json(message.data)
        except ValidationError as error:
            reason = f"not a {self._model.__name__}: {error.error_count()} fields are wrong"
            raise Poison(message.subject, reason) from error
        return Entry(self.key_of(message.subject), value, message.stream_seq)

    async def _last(self, key: str) -> StoredMessage | None:
        message = await jetstream.last_message(self.bus, self.stream, self.subject(key))
        return None if message is None or is_marker(message) else message

    async def _readable(self, message: StoredMessage) -> Entry[T] | None:
        """Decode a value; report one that cannot be decoded, and return None."""
        try:
            return self.entry(message)
        except Poison as poison:
            await self.unreadable.report(message, poison.reason)
            return None

    def below(self, prefix: str = "") -> str:
        """Return the subject of all keys that begin with the tokens of `prefix`."""
        return f"{self.subject(prefix)}.>" if prefix else kv_subject(self.name, ">")

    async def _latest(self, prefix: str) -> list[StoredMessage]:
        """Return the last message of each key in stream order, without the markers of removed keys."""
        latest: dict[str, StoredMessage] = {}
        async for message in jetstream.read(self.bus, self.stream, self.below(prefix), current=True):
            # A lagging replica may have returned an earlier value of the key before the leader returned this.
            latest.pop(message.subject, None)
            latest[message.subject] = message
        return [message for message in latest.values() if not is_marker(message)]

    async def _write(
        self, key: str, data: bytes, expected: int | None, headers: dict[str, str] | None = None
    ) -> int | WrongLastSequence:
        subject, msg_id = self.subject(key), new_id("kv-")
        try:
            ack = await durable(
                self.bus, subject, data, msg_id=msg_id, expect_last_subject_seq=expected, headers=headers
            )
        except WrongLastSequence as refused:
            return await self._stored_before(subject, msg_id) or refused
        return ack.stream_seq

    async def _stored_before(self, subject: str, msg_id: str) -> int | None:
        """Return the revision if an earlier attempt stored the value and its acknowledgement was lost."""
        last = await jetstream.last_message(self.bus, self.stream, subject)
        mine = last is not None and last.headers.get(MSG_ID) == message_id(subject, msg_id)
        return last.stream_seq if last is not None and mine else None


def is_marker(message: StoredMessage) -> bool:
    """Return whether a message marks its key as removed: deleted, purged or expired."""
    return KV_OPERATION in message.headers or MARKER_REASON in message.headers
