"""Log lines of a service about runs. The conversation's log contains all details."""

from __future__ import annotations

import logging
from collections import Counter

from banksman.contracts.events import (
    Commit,
    Event,
    MessageCompleted,
    ProtocolRetry,
    RunFinished,
    ToolCallRequested,
)
from banksman.contracts.messages import text_of
from banksman.runs.state import Conversation

logger = logging.getLogger(__name__)

OUTPUT_CHARS = 2_000
"""Characters of a model's reply that are logged, at level debug only."""

_EXPECTED = frozenset({"completed", "cancelled", "rejected"})
"""Outcomes that a user or the model chose; other outcomes are logged as warnings."""


def log_commit(commit: Commit, state: Conversation) -> None:
    """Log the parts of a stored commit that an operator needs (R7, R31, R32, R89, R91).

    A run writes one line when an agent claims it, one for each reply with calls, and one at its end. There
    are no more, because each line takes 35 µs of an agent's CPU time, and the launcher writes it to a file.

    Args:
        commit: The commit.
        state: The state after it.
    """
    if commit.claim and state.run is not None:
        extra = {"run_id": state.run.run_id, "iteration": state.run.iteration}
        logger.info("this agent drives the run", extra=extra)
    calls = Counter((e.run_id, e.iteration) for e in commit.events if isinstance(e.data, ToolCallRequested))
    for (run_id, iteration), count in calls.items():
        extra = {"run_id": run_id, "iteration": iteration, "calls": count}
        logger.info("the model requested calls", extra=extra)
    for event in commit.events:
        _log_event(event)


def _log_event(event: Event) -> None:
    run_id, data = event.run_id, event.data
    match data:
        case RunFinished(status=status, error=error):
            level = logging.INFO if status in _EXPECTED else logging.WARNING
            code = error.code.value if error else None
            extra = {"run_id": run_id, "status": status, "code": code, "iterations": data.iterations}
            logger.log(level, "the run ended: %s", code or status, extra=extra)
        case ProtocolRetry(attempt=attempt, error=error, reply=reply):
            extra = {"run_id": run_id, "iteration": event.iteration, "attempt": attempt, "error": error}
            logger.warning("the model's call could not be read", extra=extra)
            _log_output(run_id, reply)
        case MessageCompleted(role="assistant", content=content) if content is not None:
            _log_output(run_id, text_of(content))
        case _:
            return


def _log_output(run_id: str | None, text: str) -> None:
    logger.debug("the model wrote", extra={"run_id": run_id, "text": text[:OUTPUT_CHARS]})
