"""The starts that a gateway stores: a number at a time, a bounded queue, and the times of refusals."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

from prometheus_client import Counter as Metric

from banksman.contracts.errors import ErrorCode, Overloaded
from banksman.quotas.places import SharedPlaces, Shares, within_share
from banksman.quotas.rates import Rarely

logger = logging.getLogger(__name__)

AT_ONCE = 32
"""Starts that a gateway stores at a time. More would only wait for the broker, which stores 16 at a time."""
MAX_QUEUED = 256
"""Starts that wait for their turn; tenants share the places. Further ones are refused."""
MAX_QUEUED_S = 1.0
"""Seconds that a start waits for its turn; then it is refused."""
MAX_RETRY_AFTER_S = 60.0
RUNS_PER_S = 20.0
"""Assumed number of runs that end in a second, until it is measured."""
MIN_RUNS_PER_S = 0.2
MAX_PERIOD_S = 5.0
"""Seconds between two counts above which they do not show how fast runs end."""
_SMOOTHING = 0.2
"""Weight of the latest measurement of the runs that end in a second."""
LOG_EVERY_S = 10.0
"""Minimum seconds between two lines about refusals in the log. The metric counts all."""

_REFUSED = Metric("banksman_refused_starts", "Starts of work that were refused, by reason.", ["reason"])
_log = Rarely(LOG_EVERY_S)


class TooManyWaiting(Overloaded):
    """More work waits than the tenant or the system may have now; `reason` is its label in the metrics."""

    code = ErrorCode.RATE_LIMITED

    def __init__(self, reason: str, message: str, *, retry_after_s: float) -> None:
        self.reason = reason
        super().__init__(message, retry_after_s=retry_after_s)


@contextmanager
def counted() -> Generator[None]:
    """Count and log the refusals of a block."""
    try:
        yield
    except Overloaded as refused:
        reason = refused.reason if isinstance(refused, TooManyWaiting) else "full"
        _REFUSED.labels(reason).inc()
        if number := _log.due():
            logger.warning("%d starts of work were refused, the last one because %s", number, refused)
        raise


class Returns:
    """The times at which refused clients may return: one after another, as fast as runs end."""

    def __init__(self) -> None:
        self.per_s = RUNS_PER_S
        """Runs that end in a second, of late."""
        self._last = 0.0
        """The time promised to the client that was refused last."""

    def ended(self, before: int, after: int, seconds: float) -> None:
        """Measure the runs that ended between two counts of waiting runs.

        With other gateways, their starts make it too few: each gateway measures its part of the runs.
        """
        if before and seconds <= MAX_PERIOD_S:
            measured = max(0, before - after) / seconds
            self.per_s = max(MIN_RUNS_PER_S, self.per_s + _SMOOTHING * (measured - self.per_s))

    def after_s(self) -> float:
        """Return the seconds after which a client may return, from 1 to `MAX_RETRY_AFTER_S`."""
        now = time.monotonic()
        last = min(max(self._last, now) + 1 / self.per_s, now + MAX_RETRY_AFTER_S)
        self._last = last
        return max(1.0, last - now)


class StartQueue:
    """The starts that this gateway stores, and those that wait for their turn."""

    def __init__(self, returns: Returns) -> None:
        self._returns = returns
        self._places = SharedPlaces(Shares(AT_ONCE, extra=0))
        self._waiting: Counter[str] = Counter()

    def check(self, tenant: str) -> None:
        """Raise `TooManyWaiting` if a start of a tenant could not even wait."""
        free = MAX_QUEUED - self._waiting.total()
        if not within_share(self._waiting[tenant], free):
            raise self._refused("queue_full", "the queue of starts is full")

    @asynccontextmanager
    async def place(self, tenant: str) -> AsyncGenerator[None]:
        """Hold one of the places for the block; raise `TooManyWaiting` if none is free in time."""
        async with AsyncExitStack() as stack:
            with counted():
                self.check(tenant)
                await self._enter(stack, tenant)
            yield

    async def _enter(self, stack: AsyncExitStack, tenant: str) -> None:
        self._waiting[tenant] += 1
        try:
            async with asyncio.timeout(MAX_QUEUED_S):
                await stack.enter_async_context(self._places.place(tenant))
        except TimeoutError as error:
            raise self._refused("queue_time", f"it waited {MAX_QUEUED_S:g} s for its turn") from error
        finally:
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant]

    def _refused(self, reason: str, message: str) -> TooManyWaiting:
        return TooManyWaiting(reason, message, retry_after_s=self._returns.after_s())
