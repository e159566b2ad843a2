"""The usage and stored bytes of one tenant: the stored totals and the commits counted since."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice

from banksman.contracts.usage import CommitUsage, UsageTotals

NOTHING = UsageTotals()


@dataclass(frozen=True, slots=True)
class Delta:
    """The usage and bytes that one commit adds."""

    stream_seq: int
    time: datetime
    consumed: CommitUsage
    stored_bytes: int


@dataclass(slots=True)
class Account:
    """The stored totals of a tenant, and the commits that this process has counted since."""

    stored: UsageTotals = NOTHING
    revision: int = 0
    """The revision of the stored totals; 0 when there are none yet."""
    stored_at: float = 0.0
    """When the stored totals last changed, by the clock of the event loop."""
    since: deque[Delta] = field(default_factory=deque[Delta])
    _counted: UsageTotals = NOTHING
    """The stored totals and the first `_of_since` commits after them."""
    _of_since: int = 0

    def now(self) -> UsageTotals:
        """Return the totals, as far as this process has counted."""
        for delta in islice(self.since, self._of_since, None):
            self._counted = self._counted.with_commit(
                delta.stream_seq, delta.time, delta.consumed, delta.stored_bytes
            )
        self._of_since = len(self.since)
        return self._counted

    def until(self, stream_seq: int) -> UsageTotals:
        """Return the totals up to a stream sequence, without later commits."""
        totals = self.stored
        for delta in self.since:
            if delta.stream_seq <= stream_seq:
                totals = totals.with_commit(delta.stream_seq, delta.time, delta.consumed, delta.stored_bytes)
        return totals.model_copy(update={"upto": max(totals.upto, stream_seq)})

    def forget(self) -> None:
        """Discard the commits counted here, because another agent counts."""
        self.since.clear()
        self._counted, self._of_since = self.stored, 0

    def restart_from(self, totals: UsageTotals, revision: int, at: float) -> None:
        """Continue from newer stored totals."""
        # The view may deliver an older revision than the one that this process has just written.
        if revision <= self.revision:
            return
        self.stored, self.revision, self.stored_at = totals, revision, at
        while self.since and self.since[0].stream_seq <= totals.upto:
            self.since.popleft()
        self._counted, self._of_since = totals, 0

    def restart_from_nothing(self) -> None:
        """Continue without stored totals, because they were removed."""
        self.stored, self.revision, self.stored_at = NOTHING, 0, 0.0
        self._counted, self._of_since = NOTHING, 0
