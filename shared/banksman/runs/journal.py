"""Log lines of a service about runs. The conversation's log contains all details."""

from __future__ import annotations

import logging

from banksman.contracts.events import (
    Commit,
    EventBody,
    MessageCompleted,
    ProtocolRetry,
    RunFinished,
    ToolCallRequested,
)
from banksman.contracts.messages import text_of

logger = logging.getLogger(__name__)

OUTPUT_CHARS = 2_000
"""Characters of a model's reply that are logged, at level debug only."""

_EXPECTED = frozenset({"completed", "cancelled", "rejected"})
"""Outcomes that a user or the model chose; other outcomes are logged as warnings."""


def log_commit(commit: Commit) -> None:
    """Log the parts of a stored commit that an operator needs (R7, R31, R32, R91)."""
    calls: dict[str | None, int] = {}
    for event in commit.events:
        _log_event(event.run_id, event.data)
        if isinstance(event.data, ToolCallRequested):
            calls[event.run_id] = calls.get(event.run_id, 0) + 1
    for run_id, count in calls.items():
        logger.info("the model requested calls", extra={"run_id": run_id, "calls": count})


def _log_event(run_id: str | None, data: EventBody) -> None:
    match data:
        case RunFinished(status=status, error=error):
            level = logging.INFO if status in _EXPECTED else logging.WARNING
            code = error.code.value if error else None
            extra = {"run_id": run_id, "status": status, "code": code, "iterations": data.iterations}
            logger.log(level, "the run ended: %s", code or status, extra=extra)
        case ProtocolRetry(attempt=attempt, error=error, reply=reply):
            extra = {"run_id": run_id, "attempt": attempt, "error": error}
            logger.warning("the model's call could not be read", extra=extra)
            _log_output(run_id, reply)
        case MessageCompleted(role="assistant", content=content) if content is not None:
            _log_output(run_id, text_of(content))
        case _:
            return


def _log_output(run_id: str | None, text: str) -> None:
    logger.debug("the model wrote", extra={"run_id": run_id, "text": text[:OUTPUT_CHARS]})
