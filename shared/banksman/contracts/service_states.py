"""What operators see: the state of each process, and the records that show whether a log lost its end."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from banksman.contracts.wire import Stored, Timestamp, Token

CheckName = Literal[
    "background",
    "lease",
    "logs",
    "nats",
    "nats_api",
    "process",
    "relay",
    "sandbox",
    "storage",
    "streams",
]
"""The checks of a process; `process` fails while it starts or shuts down."""


class ServiceState(Stored):
    """The state of one process of a service."""

    service: str
    """`gateway`, `agent` or `workflows`."""
    host: str
    """The host name of its machine or container."""
    pid: int
    version: str
    started_at: Timestamp
    ready: bool
    problems: dict[str, str]
    """Why it is not ready, by check."""
    warnings: dict[str, str]
    """Warnings of a ready process by check, such as full streams or damaged logs."""
    used: int
    """Number of runs that it drives, or of its open websockets."""
    places: int | None
    """Limit of `used`; null for no limit."""


class HeadsMark(Stored):
    """The start of the record of all logs; replaced when the record is rebuilt."""

    generation: Token
    """Id of this record; the keys of its segments begin with it."""
    stream_created: Timestamp
    """When the server created the stream EVENTS. A stream with another time is a different stream."""
    began_at: Timestamp


class LogHead(Stored):
    """The commits of one log in one segment of the stream."""

    commits: int = Field(ge=1)
    """Number of its commits in the segment."""
    last: int = Field(ge=1)
    """Stream sequence of the last of these commits."""


class HeadsSegment(Stored):
    """The logs with commits in one segment of the stream."""

    upto: int = Field(ge=0)
    """Stream sequence of the last counted commit. Later commits are not counted."""
    heads: dict[str, LogHead] = Field(default_factory=dict[str, LogHead])
    """Heads by `{tenant}.{conversation}`."""


class DamagedLog(Stored):
    """A log in which no run continues until an operator restores it or accepts the loss."""

    tenant: str
    """Empty, like `conversation_id`, if the record concerns all logs."""
    conversation_id: str
    problem: str
    found_at: Timestamp
