"""Runs as tasks of A2A: their states, and the receivers of their updates.

A2A and the webhooks, which notify the receivers, share this module; neither imports the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

JsonDict = dict[str, Any]

STATES = {
    "queued": "TASK_STATE_SUBMITTED",
    "running": "TASK_STATE_WORKING",
    "cancelling": "TASK_STATE_WORKING",
    "awaiting_approval": "TASK_STATE_INPUT_REQUIRED",
    "awaiting_input": "TASK_STATE_INPUT_REQUIRED",
    "completed": "TASK_STATE_COMPLETED",
    "cancelled": "TASK_STATE_CANCELED",
    "rejected": "TASK_STATE_CANCELED",
    "failed": "TASK_STATE_FAILED",
    "timed_out": "TASK_STATE_FAILED",
    "max_iterations": "TASK_STATE_FAILED",
}
"""A2A's `rejected` is for an agent that refuses a task. A run whose calls a user rejected is `canceled`."""


def status(run_status: str, at: datetime | None = None, message: JsonDict | None = None) -> JsonDict:
    """Return the status of a task."""
    moment = (at or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="milliseconds")
    found: JsonDict = {"state": STATES[run_status], "timestamp": moment.replace("+00:00", "Z")}
    return found if message is None else {**found, "message": message}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReceiver:
    """A receiver of the updates of one task."""

    run_id: str
    config_id: str
    """The client's id: another receiver of the task with this id is replaced."""
    url: str
    headers: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    """Headers that each message to the client contains. Values are secrets, which are not read back."""
