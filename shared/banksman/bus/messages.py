"""A message as it came from the broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from banksman.bus.names import STATUS


@dataclass(frozen=True, slots=True)
class Message:
    """Bytes on a subject."""

    subject: str
    data: bytes
    reply: str = ""
    """Where an answer is expected; empty when none is."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def status(self) -> str | None:
        """The server's own word (`503`, `404` …); None for what a client published."""
        return self.headers.get(STATUS)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message of a stream."""

    subject: str
    stream_seq: int
    data: bytes
    headers: Mapping[str, str]
    time: str
    """When it was stored, RFC 3339 with nanoseconds."""
