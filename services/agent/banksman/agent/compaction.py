"""Choose where to cut a history that nears the context size of the model. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from banksman.agent.context import Size
from banksman.contracts.messages import AssistantMessage, Message, ToolMessage, UserMessage

KEPT_SHARE = 0.5
"""Share of the limit that the kept messages may take: another compaction should not follow at once."""
SUMMARY_SHARE = 0.1
"""Share of the limit that a summary may take."""
LEAST_GAIN = 0.1
"""Share of the limit that a compaction must save; otherwise the request is sent unchanged."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The older part of a history that a compaction replaces."""

    kept_from: int
    """Index of the first message that is kept; the number of messages when none is."""
    tokens_before: int
    max_summary_tokens: int


def cut(
    history: tuple[Message, ...],
    size: Size,
    *,
    limit: int,
    message: UserMessage,
    iterations: int | None,
) -> Cut | None:
    """Return where to cut so that the kept part has room to grow; None when a cut would save too little.

    Results stay with the reply that requested them, so that both vendors accept the kept part.

    Args:
        history: All messages; every call among them has its result.
        size: The size of the request with all of them.
        limit: Tokens that the request must stay below.
        message: The message that the open run answers, which is kept wherever it stands.
        iterations: The most replies to keep, with their results; None for all that fit.
    """
    summary = round(limit * SUMMARY_SHARE)
    room = (limit - size.fixed) * KEPT_SHARE
    behind = [0, *accumulate(reversed(size.messages))]
    first = 1 if iterations is None else _beginning(history, iterations)
    at = next(
        (at for at in _borders(history) if at >= first and behind[len(history) - at] <= room), len(history)
    )
    saved = sum(size.messages[:at]) - summary - _kept_message_tokens(history[:at], size, message)
    return Cut(at, size.total, summary) if saved >= limit * LEAST_GAIN else None


def _borders(history: tuple[Message, ...]) -> list[int]:
    """Return the indexes at which the kept part may begin."""
    return [at for at in range(1, len(history)) if not isinstance(history[at], ToolMessage)]


def _beginning(history: tuple[Message, ...], iterations: int) -> int:
    """Return the index of the last replies, including the user messages before the first of them."""
    replies = [at for at, message in enumerate(history) if isinstance(message, AssistantMessage)]
    if len(replies) <= iterations:
        return 1
    at = replies[-iterations] if iterations else len(history)
    while at > 1 and isinstance(history[at - 1], UserMessage):
        at -= 1
    return at


def _kept_message_tokens(older: tuple[Message, ...], size: Size, message: UserMessage) -> int:
    return next((size.messages[at] for at, one in enumerate(older) if one == message), 0)
