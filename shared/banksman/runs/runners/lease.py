"""The lease of a runner: only the process that holds it may execute calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from banksman.bus.connection import Bus
from banksman.bus.errors import WrongLastSequence
from banksman.bus.storage.leases import (
    IDLE_RENEW_EVERY_S,
    RENEW_EVERY_S,
    end_lease,
    renew_lease,
    stop_after_s,
    take_lease,
)
from banksman.contracts.calls import RunnerLease
from banksman.contracts.errors import BanksmanError, Unavailable
from banksman.runtime.waits import set_within

logger = logging.getLogger(__name__)

_RELEASE_S = 2.0
_LASTING_CALL_S = 0.5
"""Seconds after which the first call of an idle holder makes a renewal due; a shorter call causes none."""
_SLOW_S = 2.0
"""Duration of a renewal, in seconds, above which a warning is logged."""


class LeaseLost(BanksmanError):
    """Another process may act for this runner now, so this process ends its commands and exits."""


class Lease:
    def __init__(
        self,
        bus: Bus,
        lease: RunnerLease,
        *,
        key: str | None = None,
        load: Callable[[], int],
        problem: str | None = None,
        warning: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Create the lease; `take` begins it. `key` is None for the id of the runner."""
        self._bus = bus
        self._lease = lease
        self._key = key or lease.runner
        self._load = load
        self._problem = problem
        self._warning = warning
        self._revision = 0
        self.taken = 0
        """The revision with which the lease began."""
        self._stop_after_s = stop_after_s(bus.settings.replicas)
        self._renewed_at = float("-inf")
        self._reported_load = 0
        self._woken = asyncio.Event()
        """Set when the time of the next renewal may have changed."""
        self._changed = False
        """Whether a renewal is due because the lease has changed."""
        self._look: asyncio.TimerHandle | None = None
        self._released = False
        self._renewal = asyncio.Lock()
        """Protects `_revision` during a renewal: a release needs the revision of the last renewal."""

    @property
    def holds(self) -> bool:
        """Whether the last renewal was sent less than `stop_after_s` ago."""
        # Checked by the clock, so that a process that was frozen finds its lease lost at once.
        return (
            not self._released and asyncio.get_running_loop().time() - self._renewed_at < self._stop_after_s
        )

    async def take(self) -> None:
        """Take the lease, even from an earlier process; raise `Forbidden` if this user may not write it."""
        sent = asyncio.get_running_loop().time()
        self._revision = self.taken = await take_lease(self._bus, self._value(), key=self._key)
        self._renewed_at = sent

    async def keep(self) -> None:
        """Renew the lease until it is released.

        Raises:
            LeaseLost: No renewal within `stop_after_s`, or another process holds it.
            Forbidden: This user may not write it.
        """
        while not self._released:
            await self._until_due()
            async with self._renewal:
                if not self._released:
                    await self._renew()

    def withdraw(self, problem: str) -> None:
        """Renew the lease at once with `problem`, so that owners place no workspaces here."""
        self._problem = problem
        self._renew_now()

    def call_began(self) -> None:
        """Make the next renewal due sooner, if the first call of an idle holder lasts.

        Otherwise the older lease of an idle holder would end the call earlier than necessary while the broker
        stalls.
        """
        if not self._reported_load and self._look is None:
            self._look = asyncio.get_running_loop().call_later(_LASTING_CALL_S, self._look_at_load)

    async def release(self) -> None:
        """Release the lease and let `keep` return, so that owners need not wait for expiry; best effort."""
        self._released = True
        self._renew_now()
        if self._look is not None:
            self._look.cancel()
        with contextlib.suppress(BanksmanError, TimeoutError):
            async with asyncio.timeout(_RELEASE_S), self._renewal:
                await end_lease(self._bus, self._key, self._revision, budget_s=_RELEASE_S)

    def _renew_now(self) -> None:
        self._changed = True
        self._woken.set()

    def _look_at_load(self) -> None:
        self._look = None
        if self._load():
            self._woken.set()

    async def _until_due(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._changed:
            # Counted from the start of the last renewal, so a slow renewal is followed by another at once.
            left_s = self._renewed_at + self._renew_every_s - loop.time()
            if left_s <= 0:
                break
            self._woken.clear()
            await set_within(self._woken, left_s)
        self._changed = False

    @property
    def _renew_every_s(self) -> float:
        # Owners place workspaces by the reported load, so a drop to zero must be reported soon too.
        return RENEW_EVERY_S if self._load() or self._reported_load else IDLE_RENEW_EVERY_S

    async def _renew(self) -> None:
        loop = asyncio.get_running_loop()
        sent = loop.time()
        ends_at = self._renewed_at + self._stop_after_s
        value = self._value()
        try:
            async with asyncio.timeout_at(ends_at):
                self._revision = await renew_lease(
                    self._bus, value, self._revision, budget_s=ends_at - sent, key=self._key
                )
        except (TimeoutError, Unavailable) as error:
            raise LeaseLost(f"the lease was not renewed for {self._stop_after_s:g} s") from error
        except WrongLastSequence as error:
            raise LeaseLost("the lease ended, or another process of this runner holds it") from error
        # The broker counts the lifetime from its time of storage, which is later than `sent`.
        self._renewed_at, self._reported_load = sent, value.load
        if (took_s := loop.time() - sent) > _SLOW_S:
            logger.warning("the broker took %.1f s to renew the lease", took_s)

    def _value(self) -> RunnerLease:
        current = {
            "load": self._load(),
            "serving": self._problem is None,
            "problem": self._problem,
            "warning": self._warning(),
        }
        return self._lease.model_copy(update=current)
