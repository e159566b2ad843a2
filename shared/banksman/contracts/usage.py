"""What model requests consumed, counted by calendar day and month in UTC. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal

from pydantic import Field

from banksman.contracts.events import Event, HistoryCompacted, MessageCompleted, ProtocolRetry
from banksman.contracts.wire import Stored, Timestamp

Window = Literal["day", "month"]
"""
day    from midnight to midnight, UTC
month  from the first to the first, UTC
"""
WINDOWS: tuple[Window, ...] = ("day", "month")


@dataclass(frozen=True, slots=True)
class CommitUsage:
    """What the requests behind one commit consumed."""

    requests: int = 0
    """Replies of models, summaries included."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    """Requests of models whose price is unknown add nothing."""

    @classmethod
    def of(cls, events: Iterable[Event]) -> CommitUsage:
        """What the events of a commit tell of."""
        usages = [
            event.data.usage
            for event in events
            if isinstance(event.data, MessageCompleted | ProtocolRetry | HistoryCompacted)
            and event.data.model
        ]
        return cls(
            requests=len(usages),
            input_tokens=sum(usage.input_tokens for usage in usages),
            output_tokens=sum(usage.output_tokens for usage in usages),
            cost_usd=sum(usage.cost_usd or 0.0 for usage in usages),
        )

    @classmethod
    def from_header(cls, text: str) -> CommitUsage:
        """Read what `header` wrote; nothing when it cannot be read."""
        match text.split(" "):
            case [requests, input_tokens, output_tokens, cost_usd]:
                try:
                    return cls(int(requests), int(input_tokens), int(output_tokens), float(cost_usd))
                except ValueError:
                    return cls()
            case _:
                return cls()

    @property
    def header(self) -> str:
        """The four numbers in one line."""
        return f"{self.requests} {self.input_tokens} {self.output_tokens} {self.cost_usd!r}"


class UsageCount(Stored):
    """What was counted in one window."""

    begins: date = date.min
    """The window's first day."""
    requests: int = 0
    """Replies of models, summaries included."""
    input_tokens: int = 0
    """Cached ones included."""
    output_tokens: int = 0
    cost_usd: float = 0.0
    """Requests of models whose price is unknown add nothing."""

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens

    def add(self, consumed: CommitUsage) -> UsageCount:
        """With what one more commit tells of."""
        return self.model_copy(
            update={
                "requests": self.requests + consumed.requests,
                "input_tokens": self.input_tokens + consumed.input_tokens,
                "output_tokens": self.output_tokens + consumed.output_tokens,
                "cost_usd": self.cost_usd + consumed.cost_usd,
            }
        )


def usage_key(tenant: str) -> str:
    """Where a tenant's totals are kept in bucket `usage`."""
    return f"tenant.{tenant}"


class UsageTotals(Stored):
    """What one tenant, or all of them, consumed: a fold of the logs in which each commit counts once."""

    upto: int = Field(default=0, ge=0)
    """Stream sequence of the last commit that was looked at; those after it are not counted."""
    as_of: Timestamp | None = None
    """When the last commit that consumed anything was stored; None before the first."""
    day: UsageCount = UsageCount()
    month: UsageCount = UsageCount()

    def with_commit(self, stream_seq: int, at: datetime, consumed: CommitUsage) -> UsageTotals:
        """With the commit at `stream_seq`, stored at `at`; unchanged when it is counted already."""
        if stream_seq <= self.upto:
            return self
        return self.model_copy(
            update={
                "upto": stream_seq,
                "as_of": at,
                "day": _with(self.day, "day", at, consumed),
                "month": _with(self.month, "month", at, consumed),
            }
        )

    def current(self, window: Window, now: datetime) -> UsageCount:
        """What counts now: nothing when the window that was counted is over."""
        counted = self.day if window == "day" else self.month
        begins = first_day(window, now)
        return counted if counted.begins >= begins else UsageCount(begins=begins)


def first_day(window: Window, at: datetime) -> date:
    """The day that a moment's window begins with."""
    day = at.astimezone(UTC).date()
    return day if window == "day" else day.replace(day=1)


def ends_at(window: Window, at: datetime) -> datetime:
    """When a moment's window is over."""
    first = first_day(window, at)
    following = first + timedelta(days=1) if window == "day" else (first + timedelta(days=31)).replace(day=1)
    return datetime(following.year, following.month, following.day, tzinfo=UTC)


def _with(counted: UsageCount, window: Window, at: datetime, consumed: CommitUsage) -> UsageCount:
    begins = first_day(window, at)
    if begins < counted.begins:
        return counted
    return (counted if begins == counted.begins else UsageCount(begins=begins)).add(consumed)


class UsageWindow(Stored):
    """One window as it is shown: what was consumed of what may be."""

    window: Window
    begins: date
    ends_at: Timestamp
    """When it is over, and what was consumed counts no more."""
    requests: int
    input_tokens: int
    output_tokens: int
    cost_usd: float
    max_tokens: int | None = None
    """Input and output tokens together; None for no bound."""
    max_cost_usd: float | None = None


class UsageReport(Stored):
    """What a tenant consumed, a few seconds ago at the earliest."""

    tenant: str
    as_of: Timestamp | None
    """When the last request that is counted was stored; None before the first."""
    windows: tuple[UsageWindow, ...]
