"""Limits and failures of connections to servers. Importing this module imports no SDK."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

from banksman.runtime.redaction import Redaction
from banksman.tool_runner.mcp.held_calls import Questions
from banksman.tool_runner.tools.toolbox import WorkspaceLocked

logger = logging.getLogger(__name__)

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


UNAUTHORIZED = (
    "the server responded with status 401: an administrator must sign in to it, or configure a valid token"
)
UNAUTHORIZED_USER = (
    "the server responded with status 401: the user for whom this run acts must sign in to it again, under "
    "Settings on the page"
)
_importing = asyncio.Lock()


class Denied(Exception):
    """The tool is not called; the text is for the model."""


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


def shown(secrets: Redaction, state: ConnectionState, error: BaseException) -> str:
    """Return why a server failed. A cut before the redaction would leave parts of secrets."""
    return secrets.of(_reason(state, error))[:MAX_REASON_CHARS]


def _reason(state: ConnectionState, error: BaseException) -> str:
    """The connection's problem is closer to the cause than the SDK's error."""
    from mcp.shared.exceptions import MCPError

    if state.problem is not None:
        return state.problem
    if state.needs_sign_in:
        return UNAUTHORIZED
    match error:
        case Denied() | WorkspaceLocked() | ServerFailed():
            return str(error)
        case MCPError():
            return f"the server responded with an error: {error.error.message}"
        case _:
            logger.warning("a server of the Model Context Protocol failed: %s", type(error).__name__)
            return f"the server did not follow the protocol: {type(error).__name__}"


async def import_sdk() -> None:
    """Import the SDK in a thread, because the import takes a third of a second."""
    async with _importing:
        await asyncio.to_thread(_imported)


def _imported() -> None:
    # Its `__init__` imports the servers too.
    # The SDK logs the messages of servers, with any secret they contain. Its session uses the second name.
    for name in ("mcp", "client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    from banksman.tool_runner.mcp import transports as transports
