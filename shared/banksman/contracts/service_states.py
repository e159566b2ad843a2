"""The state that a process reports for the operator's view."""

from __future__ import annotations

from typing import Literal

from banksman.contracts.wire import Stored, Timestamp

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
