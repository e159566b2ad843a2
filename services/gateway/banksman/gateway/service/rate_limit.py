"""Rate limits: token buckets."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class TokenBucket:
    """Allows `rate` actions a second, and `burst` at once after a pause."""

    rate: float
    burst: float
    _level: float = field(init=False)
    _at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._level = self.burst

    def take(self) -> bool:
        """Take one token; return False if the bucket is empty."""
        now = time.monotonic()
        self._level = min(self.burst, self._level + (now - self._at) * self.rate)
        self._at = now
        if self._level < 1:
            return False
        self._level -= 1
        return True

    @property
    def wait_s(self) -> float:
        """Seconds until the bucket holds a token."""
        return max(0.0, (1 - self._level) / self.rate)
