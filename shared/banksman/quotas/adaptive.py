"""A limit of concurrency that follows the load: it grows by a factor and shrinks by another.

The measure of load is the time until the broker replies, which contains the wait in this process, the lag of
its event loop, and the load of the broker's processor and disk (Netflix's concurrency-limits does the same
with the latency of a service).
"""

from __future__ import annotations

from collections.abc import Callable

TARGET_S = 0.05
"""Mean time of a reply above which the system counts as congested."""
TOLERANCE = 3.0
"""Multiple of the shortest mean above which it does where the broker is slower: a remote cluster, a slow
disk."""
BUSY = 4.0
"""Multiple of the shortest mean above which work delays other work."""
DRIFT = 1.005
"""Growth of the shortest mean with each period, so that a broker that became slower is accepted."""
GROWTH, SHRINKAGE = 1.25, 0.9
LENT_SHARE = 0.75
"""What a single tenant uses of a limit at most."""
FULL_SHARE = 0.7
"""Share of the highest limit at which it counts as used up: one tenant never uses all of it."""


class ReplyTimes:
    """The seconds that requests to the broker took in the current period."""

    def __init__(self) -> None:
        self._sum_s, self._number = 0.0, 0
        self._shortest_s = TARGET_S / TOLERANCE
        self.busy = False
        """Whether work delayed other work in the last period."""

    def add(self, seconds: float) -> None:
        self._sum_s += seconds
        self._number += 1

    def congested(self) -> bool:
        """Return whether replies took too long in this period, and begin the next one."""
        if not self._number:
            self.busy = False
            return False
        mean_s, self._sum_s, self._number = self._sum_s / self._number, 0.0, 0
        self._shortest_s = min(self._shortest_s * DRIFT, mean_s)
        self.busy = mean_s > BUSY * self._shortest_s
        return mean_s > max(TARGET_S, TOLERANCE * self._shortest_s)


class AdaptiveLimit:
    """A limit between `least` and `most`, which is `initial` while nothing is in use."""

    def __init__(self, most: int, *, least: int, initial: int | None = None) -> None:
        self.most = most
        self._least = min(least, most)
        self._initial = most if initial is None else min(initial, most)
        self._now = float(self._initial)
        self.exhausted = 0
        """Periods in a row in which `most`, and not the load, kept work waiting."""
        self.on_update: Callable[[], None] = lambda: None
        """Called after each period."""

    @property
    def now(self) -> int:
        return round(self._now)

    def update(self, used: int, *, congested: bool, wanted: bool = False, pace: float | None = None) -> int:
        """Return the limit for the next period, of about a second.

        Args:
            used: What is in use.
            congested: Whether the limit shrinks.
            wanted: Whether work waits.
            pace: How much more than what is in use is permitted; None without this bound.
        """
        is_full = wanted and not congested and used >= FULL_SHARE * self.most
        self.exhausted = self.exhausted + 1 if is_full else 0
        if not used:
            self._now = self._initial
        elif congested:
            self._now = max(self._least, SHRINKAGE * min(self._now, used / LENT_SHARE))
        elif pace is not None:
            self._now = max(self._least, min(self._now * GROWTH, used + pace, self.most))
        elif used >= self._now / 2:
            self._now = min(self.most, self._now * GROWTH)
        self.on_update()
        return self.now
