"""The ends of runs whose model request failed, or whose reply cannot be recorded."""

from __future__ import annotations

import logging
from functools import partial

from banksman.agent.paid_replies import PartialReply, paid_events, partial_events
from banksman.agent.replies import Reply, end_events, failure_events
from banksman.bus.errors import MessageTooLarge
from banksman.contracts.errors import BanksmanError, ErrorCode, ProviderTimedOut
from banksman.contracts.events import EventBody
from banksman.runs.outcome import Ending
from banksman.runs.owner import Build, Ownership, nothing
from banksman.runs.state import Conversation, replace
from banksman.runs.steps import deadline_of, timed_out

logger = logging.getLogger(__name__)


class UnusableReply(ValueError):
    """A reply that may be charged for cannot be read or checked. The cause is an error of this project.

    Args:
        consumed: Returns the events that record the usage of the reply.
    """

    def __init__(self, consumed: Build) -> None:
        self.consumed = consumed
        super().__init__("an unforeseen error")


def unrecorded(error: Exception, reply: Build) -> tuple[Ending, Build] | None:
    """Return the ending of a run whose reply cannot be recorded; None for an error of another commit.

    Only the usage of the reply is recorded. The run also ends for an unforeseen error: without an end, the
    same reply would be paid for again every few seconds, until the time limit of the run.

    Args:
        error: Why the reply cannot be read, encoded or stored.
        reply: The reply; `nothing` for an `UnusableReply`.
    """
    paid = partial(paid_events, reply=reply.paid) if isinstance(reply, Reply) else nothing
    if isinstance(error, MessageTooLarge):
        size = error.size
        text = f"The model's reply and the details of its calls take {size} bytes: too many for the log."
        return Ending("failed", ErrorCode.TOO_LARGE, text, "not_executed"), paid
    if isinstance(error, UnusableReply):
        paid = error.consumed
    elif not isinstance(reply, Reply):
        return None
    logger.error("the reply of the model cannot be processed", exc_info=error)
    text = "The model's reply could not be processed because of an internal error."
    return Ending("failed", ErrorCode.INTERNAL, text, "not_executed"), paid


def failure(
    owned: Ownership, error: BanksmanError, streamed: PartialReply | None, state: Conversation
) -> tuple[EventBody, ...]:
    """Return the end of a run whose model request failed, after the text that was streamed before."""
    text = () if streamed is None else partial_events(state, streamed)
    run = state.run
    if run is None:
        return (*text, *failure_events(state, error))
    if streamed is not None and text:
        # The outcome is in the same commit as the text, so the folded usage does not include the text yet.
        run = replace(run, usage=run.usage + streamed.usage)
        state = replace(state, run=run)
    # The request ends at the run's deadline by a local timer, possibly a moment early by the broker's clock.
    late = isinstance(error, ProviderTimedOut) or owned.ports.clock.now() >= deadline_of(run)
    return (*text, *(end_events(state, timed_out(run)) if late else failure_events(state, error)))
