"""What a process reports of itself when the operator's view requests it."""

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
"""The checks of a process; `process` is that it starts or shuts down."""


class ServiceState(Stored):
    """The state of one process of a service."""

    service: str
    """`gateway`, `agent` or `workflows`."""
    host: str
    """The name of its machine or container."""
    pid: int
    version: str
    started_at: Timestamp
    ready: bool
    problems: dict[str, str]
    """By check, why it is not ready."""
    warnings: dict[str, str]
    """By check, what needs a look although it is ready: full streams, damaged logs."""
    used: int
    """Runs that it drives, or websockets that are open."""
    places: int | None
    """How many it serves at a time; null for no such limit."""
