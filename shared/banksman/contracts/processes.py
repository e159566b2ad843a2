"""Processes that last longer than the call that started them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from banksman.contracts.wire import Stored, Timestamp, Token

SHOWN_COMMAND_CHARS = 200
MAX_PROCESSES = 32
"""Maximum number of running processes of one conversation, whatever the settings of its runner allow."""


class KnownProcess(Stored):
    """A process of which the model was notified that it runs."""

    id: Token
    command: str = Field(max_length=SHOWN_COMMAND_CHARS)
    """The beginning of its command."""


class ProcessInfo(KnownProcess):
    """A process of a conversation, running or ended."""

    run_id: Token | None = None
    """The run whose call started it."""
    session: str | None = None
    """The name of the session that it is; None for a command in the background."""
    status: Literal["running", "ended"]
    exit_code: int | None = None
    """None while it runs, and if the runner killed it."""
    reason: str | None = None
    """Why the runner killed it, as a sentence; None if it ended by itself."""
    started_at: Timestamp | None = None
    """None for a process that ended with its tool-runner, of which nothing else is known."""
    ended_at: Timestamp | None = None
    output_bytes: int = 0
    """Bytes that it has written so far. The last 262,144 of them are kept."""


MAX_OUTPUT_BYTES = 64 * 1024
"""Bytes of output in one part."""


class ProcessOutput(Stored):
    """A part of the output of a process: both streams in order of arrival, as they were written."""

    process: ProcessInfo
    output: str
    """At most 65,536 bytes of UTF-8; others are replaced."""
    start: int
    """Bytes of output before this part: more than `after` if those between are no longer kept."""
    next: int
    """`after` of the part that follows."""
    more: bool
    """Whether bytes after this part were already written."""
