"""Where the history is cut when it nears what the model can read. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from banksman.agent.context import Size
from banksman.contracts.messages import AssistantMessage, Message, ToolMessage, UserMessage

KEPT_SHARE = 0.5
"""The most of the limit that the kept messages may take: the next compaction should not follow at once."""
SUMMARY_SHARE = 0.1
"""The most of the limit that a summary may take."""
LEAST_GAIN = 0.1
"""The least share of the limit that a compaction must win; below that the request goes out as it is."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What gives way."""

    kept_from: int
    """Index of the first message that is kept; the number of messages when none is."""
    tokens_before: int
    max_summary_tokens: int


def cut(
    history: tuple[Message, ...],
    size: Size,
    *,
    limit: int,
    asked: UserMessage,
    iterations: int | None,
) -> Cut | None:
    """Where to cut, so that what is kept has room to grow; None when nothing would be won.

    Results stay with the reply that asked for them, so both vendors accept what is left.

    Args:
        history: All messages; every call in it has its result.
        size: Of the request with all of them.
        limit: Tokens that the request shall stay below.
        asked: The message that the open run answers, which is kept wherever it stands.
        iterations: Replies that are kept at most, with what belongs to them; None for all that fit.
    """
    summary = round(limit * SUMMARY_SHARE)
    room = (limit - size.fixed) * KEPT_SHARE
    behind = [0, *accumulate(reversed(size.messages))]
    first = 1 if iterations is None else _beginning(history, iterations)
    at = next(
        (at for at in _borders(history) if at >= first and behind[len(history) - at] <= room), len(history)
    )
    won = sum(size.messages[:at]) - summary - _kept_anyway(history[:at], size, asked)
    return Cut(at, size.total, summary) if won >= limit * LEAST_GAIN else None


def _borders(history: tuple[Message, ...]) -> list[int]:
    """Where a message stands that may come first."""
    return [at for at in range(1, len(history)) if not isinstance(history[at], ToolMessage)]


def _beginning(history: tuple[Message, ...], iterations: int) -> int:
    """Where the last replies begin, with what the first of them answers."""
    replies = [at for at, message in enumerate(history) if isinstance(message, AssistantMessage)]
    if len(replies) <= iterations:
        return 1
    at = replies[-iterations] if iterations else len(history)
    while at > 1 and isinstance(history[at - 1], UserMessage):
        at -= 1
    return at


def _kept_anyway(older: tuple[Message, ...], size: Size, asked: UserMessage) -> int:
    return next((size.messages[at] for at, message in enumerate(older) if message == asked), 0)
