"""A2A's tasks, which are runs: their states, and the notification of clients about them.

The interface `a2a` serves tasks, and the feature `webhooks` delivers their notifications. Neither imports the
other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from banksman.gateway.operation.caller import Caller

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
    """An address that receives the updates of one task."""

    run_id: str
    config_id: str
    """The client's id: another receiver of the task with this id is replaced."""
    url: str
    headers: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    """Headers that each message to the client contains. Values are secrets, and are not read back."""


class TaskNotifications(Protocol):
    """Stores receivers of tasks, and notifies them."""

    async def add(self, caller: Caller, asked: TaskReceiver, conversation_id: str, *, after_seq: int) -> str:
        """Store a receiver, and return the secret of its signatures.

        The newest update that the run's conversation already has after the event `after_seq` is sent too: the
        run may have ended, or requested a decision, before the receiver was stored.

        Raises:
            BadInput: The address is not allowed.
            Conflict: The task or the tenant has too many receivers.
        """
        ...

    async def get(self, caller: Caller, run_id: str, config_id: str) -> TaskReceiver:
        """Return a receiver.

        Raises:
            NotFound: The task has none with this id.
        """
        ...

    async def list(self, caller: Caller, run_id: str) -> tuple[TaskReceiver, ...]:
        """Return the receivers of a task, oldest first."""
        ...

    async def delete(self, caller: Caller, run_id: str, config_id: str) -> None:
        """Delete a receiver, if there is one; pending messages to it are dropped."""
        ...
