"""Usage of model requests per calendar day and month in UTC. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal

from pydantic import Field

from banksman.contracts.events import Event, HistoryCompacted, MessageCompleted, ProtocolRetry
from banksman.contracts.wire import Stored, Timestamp

Window = Literal["day", "month"]
"""A calendar day or month in UTC."""
WINDOWS: tuple[Window, ...] = ("day", "month")


@dataclass(frozen=True, slots=True)
class CommitUsage:
    """Usage of the model requests that one commit records."""

    requests: int = 0
    """Number of model replies, including summaries."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    """USD; requests to models without a known price add 0."""

    @classmethod
    def of(cls, events: Iterable[Event]) -> CommitUsage:
        """Return the usage recorded in the events of a commit."""
        usages = [
            event.data.usage
            for event in events
            if isinstance(event.data, MessageCompleted | ProtocolRetry | HistoryCompacted)
            and event.data.model
            and not event.imported
        ]
        return cls(
            requests=len(usages),
            input_tokens=sum(usage.input_tokens for usage in usages),
            output_tokens=sum(usage.output_tokens for usage in usages),
            cost_usd=sum(usage.cost_usd or 0.0 for usage in usages),
        )

    def plus(self, other: CommitUsage) -> CommitUsage:
        """Return the sum of both."""
        return CommitUsage(
            self.requests + other.requests,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cost_usd + other.cost_usd,
        )

    @classmethod
    def from_header(cls, text: str) -> CommitUsage:
        """Parse a value of `header`; returns zeros if it is invalid."""
        try:
            requests, input_tokens, output_tokens, cost_usd = text.split(" ")
            return cls(int(requests), int(input_tokens), int(output_tokens), float(cost_usd))
        except ValueError:
            return cls()

    @property
    def header(self) -> str:
        """The four numbers as a header value."""
        return f"{self.requests} {self.input_tokens} {self.output_tokens} {self.cost_usd!r}"


class UsageCount(Stored):
    """Usage in one window."""

    begins: date = date.min
    requests: int = 0
    input_tokens: int = 0
    """Includes cached tokens."""
    output_tokens: int = 0
    cost_usd: float = 0.0

    @property
    def tokens(self) -> int:
        """Sum of input and output tokens."""
        return self.input_tokens + self.output_tokens

    def add(self, usage: CommitUsage | UsageCount) -> UsageCount:
        """Return the sum with the usage of one more commit, or of the same window from another source."""
        return UsageCount(
            begins=self.begins,
            requests=self.requests + usage.requests,
            input_tokens=self.input_tokens + usage.input_tokens,
            output_tokens=self.output_tokens + usage.output_tokens,
            cost_usd=self.cost_usd + usage.cost_usd,
        )


def passthrough_key(tenant: str) -> str:
    """Return the key of a tenant's passthrough usage in the bucket `usage`."""
    return f"passthrough.{tenant}"


def usage_key(tenant: str) -> str:
    """Return the key of a tenant's totals in the bucket `usage`."""
    return f"tenant.{tenant}"


class UsageTotals(Stored):
    """Usage of one tenant or of all tenants: a fold of the logs that counts each commit once."""

    upto: int = Field(default=0, ge=0)
    """Stream sequence of the last commit that was read; later commits are not counted yet."""
    as_of: Timestamp | None = None
    """When the last commit with usage was stored; None before the first."""
    day: UsageCount = UsageCount()
    month: UsageCount = UsageCount()
    stored_bytes: int = Field(default=0, ge=0)
    """Bytes of the tenant's logs, without those of deleted conversations; 0 for all tenants together."""

    def with_commit(
        self, stream_seq: int, at: datetime, usage: CommitUsage, stored_bytes: int = 0
    ) -> UsageTotals:
        """Add the commit at `stream_seq`, stored at `at`. A commit that is already counted has no effect."""
        if stream_seq <= self.upto:
            return self
        stored = {"upto": stream_seq, "stored_bytes": self.stored_bytes + stored_bytes}
        if not usage.requests:
            return self.model_copy(update=stored)
        return self.model_copy(
            update={
                **stored,
                "as_of": at,
                "day": _with(self.day, "day", at, usage),
                "month": _with(self.month, "month", at, usage),
            }
        )

    def without(self, stored_bytes: int) -> UsageTotals:
        """Subtract the bytes of a log that is deleted."""
        return self.model_copy(update={"stored_bytes": max(0, self.stored_bytes - stored_bytes)})

    def plus(self, other: UsageTotals) -> UsageTotals:
        """Return the sum with totals from another source; the position is that of `self`."""
        if other.as_of is None:
            return self
        latest = other.as_of if self.as_of is None else max(self.as_of, other.as_of)
        windows = {"day": _both(self.day, other.day), "month": _both(self.month, other.month)}
        return self.model_copy(update={"as_of": latest, **windows})

    def current(self, window: Window, now: datetime) -> UsageCount:
        """Return the usage in the window that contains `now`; zeros if the stored window has ended."""
        stored = self.day if window == "day" else self.month
        begins = first_day(window, now)
        return stored if stored.begins >= begins else UsageCount(begins=begins)


def first_day(window: Window, at: datetime) -> date:
    """Return the first day of the window that contains `at`."""
    day = at.astimezone(UTC).date()
    return day if window == "day" else day.replace(day=1)


def ends_at(window: Window, at: datetime) -> datetime:
    """Return the end of the window that contains `at`."""
    first = first_day(window, at)
    following = first + timedelta(days=1) if window == "day" else (first + timedelta(days=31)).replace(day=1)
    return datetime(following.year, following.month, following.day, tzinfo=UTC)


def _with(count: UsageCount, window: Window, at: datetime, usage: CommitUsage) -> UsageCount:
    begins = first_day(window, at)
    if begins < count.begins:
        return count
    return (count if begins == count.begins else UsageCount(begins=begins)).add(usage)


def _both(one: UsageCount, other: UsageCount) -> UsageCount:
    """Return the sum of two counts; only the later window counts."""
    if one.begins != other.begins:
        return max(one, other, key=lambda count: count.begins)
    return one.add(other)


class UsageWindow(Stored):
    """The usage and the limits of one window, as reported to clients."""

    window: Window
    begins: date
    ends_at: Timestamp
    """End of the window, after which its usage no longer counts."""
    requests: int
    input_tokens: int
    output_tokens: int
    cost_usd: float
    max_tokens: int | None = None
    """Limit of the sum of input and output tokens; None means no limit."""
    max_cost_usd: float | None = None


class UsageReport(Stored):
    """Usage of a tenant, at most a few seconds old."""

    tenant: str
    as_of: Timestamp | None
    """When the last counted commit was stored; None before the first."""
    windows: tuple[UsageWindow, ...]
