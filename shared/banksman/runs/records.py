"""The starts and results that this process stores."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from banksman.bus.connection import Bus
from banksman.bus.dead import note_late
from banksman.bus.slots import CallSlots
from banksman.contracts.calls import CallFinished, CallStarted, LateResult
from banksman.contracts.errors import BanksmanError, Overloaded, Refused
from banksman.runtime.failpoints import reach

logger = logging.getLogger(__name__)

_TRY_AGAIN_S = 0.5


class CallRecords:
    """The slots of calls, written for as long as the lease holds and never read: a runner may not.

    The start and the result of an attempt have fixed message ids, so writing one again is safe.
    """

    def __init__(self, slots: CallSlots, *, runner_epoch: int, holds: Callable[[], bool]) -> None:
        self._slots = slots
        self._runner_epoch = runner_epoch
        self._holds = holds

    async def start(self, tenant: str, started: CallStarted) -> bool:
        """Store the start. True only when this process stored it, just now.

        Raises:
            Unavailable: whether it is stored is not known; it must not run.
            Overloaded: storage is full, and the lease is over.
        """
        await reach("runner.before_claim")
        while True:
            try:
                fresh = (await self._slots.put_started(tenant, started)).fresh
                await reach("runner.after_claim")
                return fresh
            except Overloaded as full:
                await self._pause(started.attempt, full)

    async def finish(self, tenant: str, finished: CallFinished) -> bool:
        """Store the result unless one is stored.

        Returns:
            False when another's result is stored.

        Raises:
            Refused: not stored, and the lease is over: owners have declared an outcome.
        """
        while True:
            try:
                placed = await self._slots.put_result(tenant, finished, runner_epoch=self._runner_epoch)
                await reach("runner.result_stored")
                return not placed.taken
            except Refused as refused:
                await self._pause(finished.attempt, refused)

    async def _pause(self, attempt: str, reason: Refused) -> None:
        if not self._holds():
            raise reason
        logger.warning("%s: not stored yet: %s", attempt, reason)
        await asyncio.sleep(_TRY_AGAIN_S)


class LateResults:
    """Where the results go that came too late. Losing one is logged, and hurts no call."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def keep(self, late: LateResult) -> None:
        """Store a late result as a note."""
        logger.warning("%s: ended after another result was stored for it; kept as a note", late.attempt)
        try:
            await note_late(self._bus, late)
        except BanksmanError as error:
            logger.error("%s: the note of its late result is not stored: %s", late.attempt, error)
