"""Limits and failures that both transports share. Importing this module imports no SDK."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from banksman.tool_runner.mcp.held_calls import Questions

MAX_MESSAGE_BYTES: Final = 1024 * 1024
"""Maximum bytes of one message of a server."""
MAX_RECEIVED_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes of all messages of a server during one call."""
MAX_MESSAGES: Final = 10_000
"""Maximum messages of a server during one call: each takes time of the process that serves other tenants."""
MAX_SHOWN_CHARS: Final = 500
"""Maximum characters of the standard error of a program in an error."""
MAX_REASON_CHARS: Final = 600
"""Maximum characters of the reason why a server failed."""


class ServerFailed(Exception):
    """The server cannot be reached, broke the protocol or exceeded a limit; the text is for users."""


@dataclass
class ReceiptMeter:
    received: int = 0
    messages: int = 0
    limit: int = MAX_RECEIVED_BYTES
    """Maximum bytes of a call, and of the time before the next one."""

    def add(self, size: int) -> None:
        self.received += size
        if self.received > self.limit:
            raise ServerFailed(f"the server sent more than {self.limit} bytes")

    def add_messages(self, number: int) -> None:
        self.messages += number
        if self.messages > MAX_MESSAGES:
            raise ServerFailed(f"the server sent more than {MAX_MESSAGES} messages")


@dataclass
class ConnectionState:
    problem: str | None = None
    """A text of this runner or the server; None if nothing failed."""
    refused: bool = False
    """Whether the rules of this runner forbid the server."""
    needs_sign_in: bool = False
    """Whether the server responded with 401."""
    status: int = 0
    """Status of the last response of a server over HTTP."""
    headers: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    """Headers of the next requests to a server over HTTP."""
    questions: Questions | None = None
    """Takes what the server requests from the user of its newest call; None without one."""
    meter: ReceiptMeter = field(default_factory=ReceiptMeter)

    def begin_call(self) -> None:
        """Forget what the calls before received."""
        self.meter.received = self.meter.messages = 0
        self.problem, self.needs_sign_in = None, False
