"""Rate limits: token buckets."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field

from banksman.contracts.errors import CallerMistake, ErrorCode

BURST_S = 4
"""Size of a burst after a pause, in seconds of the client's rate."""
MAX_BUCKETS = 10_000
"""Maximum number of tracked clients; the least recently active client is forgotten first."""


class TooManyRequests(CallerMistake):
    """A client exceeds its rate limit."""

    code = ErrorCode.RATE_LIMITED
    retryable = True

    def __init__(self, wait_s: float) -> None:
        self.retry_after_s = wait_s
        super().__init__("too many requests")


@dataclass
class TokenBucket:
    """Allows `rate` actions per second, and `burst` at once after a pause."""

    rate: float
    burst: float
    _level: float = field(init=False)
    _at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._level = self.burst

    def take(self, tokens: float = 1) -> bool:
        """Take tokens, also some that are not there yet; return False if the bucket is empty."""
        now = time.monotonic()
        self._level = min(self.burst, self._level + (now - self._at) * self.rate)
        self._at = now
        if self._level < 1:
            return False
        self._level -= tokens
        return True

    @property
    def wait_s(self) -> float:
        """Seconds until the bucket has a token."""
        return max(0.0, (1 - self._level) / self.rate)


class Rarely:
    """Limits how often the log mentions what happens often."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._number, self._at = 0, float("-inf")

    def due(self) -> int:
        """Count an occurrence; return the number since the last line if another one is due, else 0."""
        self._number += 1
        now = time.monotonic()
        if now - self._at < self._every_s:
            return 0
        number, self._number, self._at = self._number, 0, now
        return number


class Rates:
    """The rates of many clients, each with its own bucket."""

    def __init__(self, rate: float | None, *, burst: float | None = None) -> None:
        """Allow each client `rate` requests per second, and `burst` at once; None as rate: no limit.

        Without `burst`, a client may send `BURST_S` times the requests of a second at once.
        """
        self._rate = rate
        self._burst = (rate or 0.0) * BURST_S if burst is None else burst
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def check(self, client: str, tokens: float = 1) -> None:
        """Count a request; raise `TooManyRequests` if the client exceeds its rate."""
        if wait_s := self.take(client, tokens):
            raise TooManyRequests(wait_s)

    def take(self, client: str, tokens: float = 1) -> float:
        """Count a request; return 0, or the seconds until the client's next request is accepted."""
        if self._rate is None:
            return 0.0
        bucket = self._buckets.get(client)
        if bucket is None:
            bucket = self._buckets[client] = TokenBucket(self._rate, self._burst)
            if len(self._buckets) > MAX_BUCKETS:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(client)
        return 0.0 if bucket.take(tokens) else bucket.wait_s
