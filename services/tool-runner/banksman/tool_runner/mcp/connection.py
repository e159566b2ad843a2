"""Limits, failures and streams of the SDK that both transports share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

MAX_MESSAGE_BYTES: Final = 1024 * 1024
"""Maximum bytes of one message of a server."""
MAX_RECEIVED_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes of all messages of a server during one call."""
MAX_MESSAGES: Final = 10_000
"""Maximum messages of a server during one call: each takes time of the process that serves other tenants."""
MAX_SHOWN_CHARS: Final = 500
"""Maximum characters of a server's text in an error."""

Inbox: TypeAlias = MemoryObjectReceiveStream[SessionMessage | Exception]
Outbox: TypeAlias = MemoryObjectSendStream[SessionMessage]


class ServerFailed(Exception):
    """The server cannot be reached, broke the protocol or exceeded a limit; the text is for users."""


@dataclass
class ReceiptMeter:
    """Counts the messages that a server sends during one call, and their bytes."""

    received: int = 0
    messages: int = 0
    limit: int = MAX_RECEIVED_BYTES
    """Maximum bytes of the call."""

    def add(self, size: int) -> None:
        """Count bytes.

        Raises:
            ServerFailed: The server sent too many bytes.
        """
        self.received += size
        if self.received > self.limit:
            raise ServerFailed(f"the server sent more than {self.limit} bytes")

    def add_messages(self, number: int) -> None:
        """Count messages.

        Raises:
            ServerFailed: The server sent too many messages.
        """
        self.messages += number
        if self.messages > MAX_MESSAGES:
            raise ServerFailed(f"the server sent more than {MAX_MESSAGES} messages")


class Connected(Protocol):
    """A connection to a server."""

    @property
    def streams(self) -> tuple[Inbox, Outbox]:
        """The streams for the SDK's session."""
        ...

    @property
    def problem(self) -> str | None:
        """Why the connection failed, as a text of this runner or the server; None if it did not fail."""
        ...

    @property
    def refused(self) -> bool:
        """Whether the rules of this runner forbid the server."""
        ...

    @property
    def needs_sign_in(self) -> bool:
        """Whether the server responded with 401."""
        ...
