"""Admission control: count the runs that wait for agents, and refuse more when there are too many.

Tenants share the capacity of the queue: a tenant that fills its share leaves capacity to the others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import Gauge

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.names import AGENTS, EVENTS, RUNS, USAGE, WORKFLOWS, api
from banksman.bus.storage.kv import Bucket
from banksman.contracts import subjects
from banksman.contracts.errors import ErrorCode, Overloaded
from banksman.contracts.subjects import ANY
from banksman.contracts.usage import UsageTotals, usage_key
from banksman.gateway.feature import Feature, Foundation
from banksman.quotas.places import LENT, within_share
from banksman.quotas.stored import MessageRoom, StorageRoom, is_crowded, lent_bytes_problem

COUNT_VALID_S = 0.5
"""Seconds for which a count is used; other gateways may admit runs in this time."""
MAX_RETRY_AFTER_S = 60.0
FULL_RETRY_AFTER_S: Final = 60.0
"""Seconds after which a tenant whose logs fill its part may try again."""
RUNS_PER_S = 20.0
"""Assumed number of runs that agents start in a second, for the `retry_after_s` of a refusal."""

_WAITING = Gauge("banksman_waiting_runs", "Runs that no agent has ended or parked.")


class TooManyWaiting(Overloaded):
    code = ErrorCode.RATE_LIMITED


@dataclass
class Backlog:
    """The runs that no agent has ended or parked: they are queued, or an agent drives them.

    One request to the broker each half second counts them, however many runs start. A second request counts
    those of one tenant, only while all tenants together have as many waiting runs as one tenant may have.
    """

    bus: Bus
    limit: int
    """Runs of all tenants that may wait."""
    limit_of: Callable[[str], int]
    """Returns how many runs of a tenant may wait."""
    logs: LogRoom
    """No run starts while the logs have no room for its tenant."""
    _total: int = 0
    _by_tenant: dict[str, int] = field(default_factory=dict[str, int])
    _valid_until: float = 0.0
    # Concurrent callers share one request to the broker.
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._room = MessageRoom(self.bus)

    async def check(self, tenant: str, size: int = 0) -> None:
        """Count one more run of a tenant, whose message has about `size` bytes, or refuse it.

        Raises:
            TooManyWaiting: The tenant has reached its limit of waiting runs, or its share of all.
            Overloaded: All tenants together have reached their limit, or storage is full, for all or for this
                tenant.
        """
        await self.logs.check(tenant)
        await self._room.take_lent(RUNS, subjects.run_work(tenant, ANY), size, "waiting messages")
        async with self._turn:
            await self._refresh()
            if self._total >= self.limit:
                wait_s = _retry_after(self._total, self.limit)
                raise Overloaded(f"{self._total} runs wait; the limit is {self.limit}", retry_after_s=wait_s)
            most, free = self.limit_of(tenant), self.limit - self._total
            if tenant not in self._by_tenant and not (self._total < most and within_share(self._total, free)):
                runs = subjects.run_work(tenant, ANY)
                self._by_tenant[tenant] = await jetstream.count_below(self.bus, RUNS, runs)
            waiting = self._by_tenant.get(tenant, 0)
            if waiting >= most:
                raise _too_many(waiting, f"the limit is {most}", most)
            if not within_share(waiting, free):
                raise _too_many(
                    waiting, f"all tenants share {self.limit} places, {free} are free", LENT * free
                )
            self._total += 1
            if tenant in self._by_tenant:
                self._by_tenant[tenant] += 1

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
        now = time.monotonic()
        if now < self._valid_until:
            return
        info = await jetstream.call(self.bus, api("CONSUMER.INFO", RUNS, AGENTS))
        self._total = int(info["num_pending"]) + int(info["num_ack_pending"])
        _WAITING.set(self._total)
        self._by_tenant.clear()
        self._valid_until = time.monotonic() + COUNT_VALID_S


def _too_many(waiting: int, reason: str, most: int) -> TooManyWaiting:
    return TooManyWaiting(f"{waiting} runs wait; {reason}", retry_after_s=_retry_after(waiting, most))


def _retry_after(waiting: int, limit: int) -> float:
    """Return the seconds until there should be room for another run."""
    return min(MAX_RETRY_AFTER_S, 1.0 + (waiting - limit) / RUNS_PER_S)


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
    base.services.add(Backlog(base.bus, limit=limit, limit_of=settings.waiting_runs, logs=logs))


FEATURE = Feature(build=build)
