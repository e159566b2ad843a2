"""Admission control: count the runs that wait for agents, and refuse more when there are too many.

Tenants share the capacity of the queue: a tenant that fills its share leaves capacity to the others. While
the system is congested, the capacity shrinks to the runs that keep it busy: accepting more would take the
processor and the broker from those. While it is busy, the capacity grows as fast as runs end, and a little
faster.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import Counter as Metric
from prometheus_client import Gauge

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.names import AGENTS, EVENTS, RUNS, USAGE, WORKFLOWS, api
from banksman.bus.storage.kv import Bucket
from banksman.contracts import subjects
from banksman.contracts.errors import ErrorCode, Overloaded, Unavailable
from banksman.contracts.subjects import ANY
from banksman.contracts.usage import UsageTotals, usage_key
from banksman.gateway.feature import Feature, Foundation
from banksman.quotas.adaptive import AdaptiveLimit
from banksman.quotas.places import SharedPlaces, Shares, within_share
from banksman.quotas.rates import Rarely
from banksman.quotas.stored import MessageRoom, StorageRoom, is_crowded, lent_bytes_problem

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


@dataclass(slots=True)
class StartTurn:
    """The turn of a start, which stores all that belongs to it: a new conversation, and its first run."""

    counted: bool = False
    """Whether its run is among those that wait."""
    over: bool = False


_NO_TURN = StartTurn(over=True)
_TURN: ContextVar[StartTurn] = ContextVar("turn", default=_NO_TURN)
"""The turn of the current task. Tasks that it creates have it too: for them it ends with the block."""


class StartQueue:
    """The starts that this gateway stores, and those that wait for their turn."""

    def __init__(self, returns: Returns) -> None:
        self._returns = returns
        self._places = SharedPlaces(Shares(AT_ONCE, extra=0))
        self._waiting: Counter[str] = Counter()
        self._most = MAX_QUEUED
        """Starts that may wait now: as many as get their turn in time."""

    def check(self, tenant: str) -> None:
        """Raise `TooManyWaiting` if a start of a tenant could not even wait."""
        waiting, total = self._waiting[tenant], self._waiting.total()
        # A slow queue still takes one start of each tenant, whose turn comes before the next of the others.
        if not within_share(waiting, MAX_QUEUED - total) or (waiting and total >= self._most):
            raise self._refused("queue_full", "the queue of starts is full")

    @asynccontextmanager
    async def place(self, tenant: str) -> AsyncGenerator[None]:
        """Hold one of the places for the block, or the one that the current task already holds.

        Raises `TooManyWaiting` if none is free in time.
        """
        if not _TURN.get().over:
            yield
            return
        async with AsyncExitStack() as stack:
            with counted():
                self.check(tenant)
                await self._enter(stack, tenant)
            turn = StartTurn()
            token = _TURN.set(turn)
            try:
                yield
            finally:
                turn.over = True
                _TURN.reset(token)

    async def _enter(self, stack: AsyncExitStack, tenant: str) -> None:
        self._waiting[tenant] += 1
        began = time.monotonic()
        try:
            async with asyncio.timeout(MAX_QUEUED_S):
                await stack.enter_async_context(self._places.place(tenant))
            if time.monotonic() - began < MAX_QUEUED_S / 2:
                self._most = min(MAX_QUEUED, self._most + 1)
        except TimeoutError as error:
            # The next ones are refused on arrival, which costs a third of what one that waited costs.
            self._most = max(AT_ONCE, self._most // 2)
            raise self._refused("queue_time", f"it waited {MAX_QUEUED_S:g} s for its turn") from error
        finally:
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant]

    def _refused(self, reason: str, message: str) -> TooManyWaiting:
        return TooManyWaiting(reason, message, retry_after_s=self._returns.after_s())


COUNT_VALID_S = 0.5
"""Seconds for which a count is used; other gateways may admit runs in this time."""
COUNT_BUDGET_S = 2.0
"""Seconds after which the last count is used instead."""
FIRST_WAITING_RUNS, MIN_WAITING_RUNS = 512, 256
"""Runs that may wait before the load is known, and however congested the system is."""
PACE = 0.25
"""New places in a busy system, as a share of the runs that end."""
FEW = 4
"""Waiting runs of a tenant above which a congested system refuses further ones: it delays no other tenant."""
FULL_RETRY_AFTER_S: Final = 60.0
"""Seconds after which a tenant whose logs fill its part may try again."""

_WAITING = Gauge("banksman_waiting_runs", "Runs that no agent has ended or parked.")
_LIMIT = Gauge("banksman_waiting_runs_limit", "Runs that may wait; fewer than configured while congested.")


@dataclass
class Backlog:
    """The runs that no agent has ended or parked: they are queued, or an agent drives them.

    One request to the broker each half second counts them, however many runs start. A second request counts
    those of one tenant, only while all tenants together have as many waiting runs as one tenant may have, or
    the system is congested.
    """

    bus: Bus
    limit: int
    """Runs of all tenants that may wait."""
    limit_of: Callable[[str], int]
    """Returns how many runs of a tenant may wait."""
    queue_limit: int
    """Runs of one conversation that may wait for its open run."""
    logs: LogRoom
    """No run starts while the logs have no room for its tenant."""
    _total: int = 0
    _counted_at: float = 0.0
    _by_tenant: dict[str, int] = field(default_factory=dict[str, int])
    _valid_until: float = 0.0
    # Concurrent callers share one request to the broker.
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._room = MessageRoom(self.bus)
        self._limit = AdaptiveLimit(self.limit, least=MIN_WAITING_RUNS, initial=FIRST_WAITING_RUNS)
        self._returns = Returns()
        self.starts = StartQueue(self._returns)
        """The starts that this gateway is storing."""

    async def check_load(self, tenant: str) -> None:
        """Refuse work of a tenant that could not start now, before anything is stored; as `check`."""
        if not _TURN.get().over:
            return
        with counted():
            self.starts.check(tenant)
            async with self._turn:
                await self._admit(tenant)

    @asynccontextmanager
    async def one_start(self, tenant: str) -> AsyncGenerator[None]:
        """Hold a place for all that a start stores in the block, after its run is counted; raises as `check`.

        A conversation that is created for a run would otherwise remain when the run is refused.
        """
        async with self.starts.place(tenant):
            with counted():
                await self.logs.check(tenant)
                await self._count(tenant)
            yield

    async def check(self, tenant: str, size: int = 0) -> None:
        """Count one more run of a tenant, whose message has about `size` bytes, or refuse it.

        Raises:
            TooManyWaiting: The tenant has reached its limit of waiting runs, or its share of all.
            Overloaded: All tenants together have reached their limit, or storage is full, for all or for this
                tenant.
        """
        with counted():
            await self.logs.check(tenant)
            await self._room.take_lent(RUNS, subjects.run_work(tenant, ANY), size, "waiting messages")
            if not _TURN.get().counted:
                await self._count(tenant)

    async def _count(self, tenant: str) -> None:
        async with self._turn:
            await self._admit(tenant)
            self._total += 1
            if tenant in self._by_tenant:
                self._by_tenant[tenant] += 1
        if not (turn := _TURN.get()).over:
            turn.counted = True

    async def _admit(self, tenant: str) -> None:
        await self._refresh()
        if self._total >= self.limit:
            wait_s = self._returns.after_s()
            raise Overloaded(f"{self._total} runs wait; the limit is {self.limit}", retry_after_s=wait_s)
        most, free = self.limit_of(tenant), self._limit.now - self._total
        if tenant not in self._by_tenant and not (self._total < most and within_share(self._total, free)):
            runs = subjects.run_work(tenant, ANY)
            self._by_tenant[tenant] = await jetstream.count_below(self.bus, RUNS, runs)
        waiting = self._by_tenant.get(tenant, 0)
        if waiting >= most:
            raise self._too_many("tenant_limit", waiting, f"the limit is {most}")
        adapted = self._limit.now < self.limit
        if not within_share(waiting, free) and not (adapted and waiting < FEW):
            shared = f"all tenants share {self._limit.now} places, {max(0, free)} are free"
            raise self._too_many("load" if adapted else "tenant_share", waiting, shared)

    def _too_many(self, reason: str, waiting: int, text: str) -> TooManyWaiting:
        return TooManyWaiting(reason, f"{waiting} runs wait; {text}", retry_after_s=self._returns.after_s())

    async def check_conversation(self, tenant: str, conversation_id: str, queued: int) -> None:
        """Raise `TooManyWaiting` if the queue of a conversation is full; its log has `queued` runs of it."""
        with counted():
            if queued < self.queue_limit:
                runs = subjects.run_work(tenant, conversation_id)
                queued = max(queued, await jetstream.count_below(self.bus, RUNS, runs))
            if queued >= self.queue_limit:
                limit = f"the limit of a conversation is {self.queue_limit}"
                raise self._too_many("conversation_limit", queued, limit)

    async def check_signal(self, tenant: str, size: int = 0) -> None:
        """Count one more signal of a tenant, or raise `Overloaded` if its signals fill its part."""
        await self._room.take_lent(RUNS, subjects.run_signal(tenant, ANY), size, "waiting signals")

    async def check_workflow(self, tenant: str, size: int) -> None:
        """Count one more start of a workflow of about `size` bytes; raise `Overloaded` if storage is full."""
        await self.logs.check(tenant)
        waiting = subjects.workflow_run(ANY, tenant, ANY)
        await self._room.take_lent(WORKFLOWS, waiting, size, "waiting workflows")

    async def measure(self) -> None:
        """Set the metric to the number of waiting runs, at most half a second old."""
        async with self._turn:
            await self._refresh()

    async def _refresh(self) -> None:
        if time.monotonic() < self._valid_until:
            return
        try:
            info = await jetstream.call(self.bus, api("CONSUMER.INFO", RUNS, AGENTS), budget_s=COUNT_BUDGET_S)
            self._measured(int(info["num_pending"]) + int(info["num_ack_pending"]))
            self._by_tenant.clear()
        except Unavailable:
            pass  # The last count stays.
        finally:
            # After the reply, or its absence: starts must not wait for it one after another.
            self._valid_until = time.monotonic() + COUNT_VALID_S

    def _measured(self, total: int) -> None:
        now = time.monotonic()
        # The runs that this gateway started meanwhile are in the last number.
        period_s = now - self._counted_at
        self._returns.ended(self._total, total, period_s)
        self._total, self._counted_at = total, now
        _WAITING.set(total)
        congested = self.bus.reply_times.congested()
        pace = PACE * self._returns.per_s * period_s if self.bus.reply_times.busy else None
        _LIMIT.set(self._limit.update(total, congested=congested, pace=pace))


class LogRoom:
    """Refuses new messages of a tenant whose logs exceed its part: three times the free space.

    While the logs of all tenants fill less than three quarters of their stream, no tenant can exceed its
    part, and the check costs nothing. Above that, it reads the sizes that agents counted a few seconds
    before.
    """

    def __init__(self, bus: Bus, storage: StorageRoom) -> None:
        self.storage = storage
        self._totals = Bucket(bus, USAGE, UsageTotals)

    async def check(self, tenant: str) -> None:
        """Raise `Overloaded` if the logs of all tenants are full, or those of this tenant exceed its part."""
        await self.storage.check()
        use = await self.storage.use(EVENTS)
        if use is None or not is_crowded(use):
            return
        entry = await self._totals.get(usage_key(tenant))
        stored = 0 if entry is None else entry.value.stored_bytes
        if problem := lent_bytes_problem(use, stored, "conversations", "conversations"):
            raise Overloaded(problem, retry_after_s=FULL_RETRY_AFTER_S)


async def build(base: Foundation) -> None:
    settings = base.settings
    logs = LogRoom(base.bus, StorageRoom(base.bus))
    limit = settings.gateway.max_waiting_runs
    queue_limit = settings.gateway.max_queued_per_conversation
    backlog = Backlog(
        base.bus, limit=limit, limit_of=settings.waiting_runs, queue_limit=queue_limit, logs=logs
    )
    base.services.add(backlog)
    base.dispatcher.admission = backlog


FEATURE = Feature(build=build)
