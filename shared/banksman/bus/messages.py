"""Messages received from the broker."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from banksman.bus.names import STATUS


@dataclass(frozen=True, slots=True)
class Message:
    subject: str
    data: bytes
    reply: str = ""
    """Subject for the reply; empty if none is expected."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def status(self) -> str | None:
        """The status code of a message of the server (`503`, `404` …); None for a message of a client."""
        return self.headers.get(STATUS)


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """A message of a stream, as a reader or a durable consumer received it."""

    subject: str
    data: bytes
    headers: Mapping[str, str]
    stream_seq: int


@dataclass(frozen=True, slots=True)
class StoredMessage(StreamMessage):
    time: str
    """Time of storage, RFC 3339 with nanoseconds."""


@dataclass(frozen=True, slots=True)
class BusSubscription:
    inner: tuple[Subscription, ...]

    async def unsubscribe(self) -> None:
        """Unsubscribe and drop waiting messages. Safe to call twice and while disconnected."""
        for subscription in self.inner:
            with contextlib.suppress(NatsError):
                await subscription.unsubscribe()
