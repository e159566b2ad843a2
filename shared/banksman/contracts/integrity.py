"""What is kept beside the logs about the logs, so that one which lost its end is told from one that ended."""

from __future__ import annotations

from pydantic import Field

from banksman.contracts.wire import Stored, Timestamp, Token


class HeadsMark(Stored):
    """Where the account of all logs begins; written anew when the account is."""

    generation: Token
    """Names this account; its segments are kept under it."""
    stream_created: Timestamp
    """When the server made the stream of the logs. A stream that was made later is another one."""
    began_at: Timestamp


class LogHead(Stored):
    """What a segment of the stream holds of one log."""

    commits: int = Field(ge=1)
    """Its commits in the segment."""
    last: int = Field(ge=1)
    """Stream sequence of the last of them."""


class HeadsSegment(Stored):
    """The logs that a stretch of the stream holds commits of."""

    upto: int = Field(ge=0)
    """Stream sequence of the last commit that is counted; those after it are not."""
    heads: dict[str, LogHead] = Field(default_factory=dict[str, LogHead])
    """By `{tenant}.{conversation}`."""


class DamagedLog(Stored):
    """A log that no run goes on in, until an operator restored it or accepted the loss."""

    tenant: str
    """Empty, with `conversation_id`, where all logs are meant."""
    conversation_id: str
    problem: str
    found_at: Timestamp
