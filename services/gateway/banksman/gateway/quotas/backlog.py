"""Admission control: count the runs that wait for agents, and refuse more when there are too many.

Tenants share the capacity of the queue: a tenant that fills its share leaves capacity to the others. While
the system is congested, the capacity shrinks to the runs that keep it busy: accepting more would take the
processor and the broker from those. While it is busy, the capacity grows as fast as runs end, and a little
faster.
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
from banksman.contracts.errors import Overloaded, Unavailable
from banksman.contracts.subjects import ANY
from banksman.contracts.usage import UsageTotals, usage_key
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.quotas.starts import Returns, StartQueue, TooManyWaiting, counted
from banksman.quotas.adaptive import AdaptiveLimit
from banksman.quotas.places import within_share
from banksman.quotas.stored import MessageRoom, StorageRoom, is_crowded, lent_bytes_problem

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
        with counted():
            self.starts.check(tenant)
            async with self._turn:
                await self._admit(tenant)

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
            async with self._turn:
                await self._admit(tenant)
                self._total += 1
                if tenant in self._by_tenant:
                    self._by_tenant[tenant] += 1

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
