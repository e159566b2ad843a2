"""Drives suspect runs one at a time, so that other runs are not blamed for their crashes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from banksman.contracts.errors import BanksmanError
from banksman.runs.state import Conversation

logger = logging.getLogger(__name__)

SUSPECT_CLAIMS = 2
"""Consecutive claims without another commit after which a run is suspected of killing its agents."""
ALONE_S = 5.0
"""Seconds that a suspect is driven alone. A suspect that has not killed its agent by then is cleared. A later
crash loop is ended only by the time limit of the run."""


def is_suspect(state: Conversation) -> bool:
    """Return whether two agents in a row stopped before they committed anything for the open run."""
    return state.run is not None and state.claims_in_row >= SUSPECT_CLAIMS


class Turn:
    """The time in which a run is driven; a suspect occupies the quarantine for it."""

    def __init__(self, place: asyncio.Lock | None) -> None:
        self._place = place

    @property
    def ended(self) -> bool:
        """False while the run is driven alone."""
        return self._place is None

    def end(self) -> None:
        """Give the place to the next suspect. Safe to repeat."""
        place, self._place = self._place, None
        if place is not None:
            place.release()


class Quarantine:
    """One place for suspects in a process.

    A crash loop is detected by claims without a commit. An agent that dies ends the work on all its runs, so
    without the quarantine, innocent runs would fail together with the run that kills their agent.
    """

    def __init__(self) -> None:
        # Held by the suspect that is driven alone.
        self._place = asyncio.Lock()

    @asynccontextmanager
    async def turn(self, suspect: bool, on_cleared: Callable[[], Awaitable[None]]) -> AsyncGenerator[Turn]:
        """Wait for the place if the run is a suspect; other runs do not wait.

        `on_cleared` is called when the suspect has been driven alone for `ALONE_S`.
        """
        if not suspect:
            yield Turn(None)
            return
        await self._place.acquire()
        turn = Turn(self._place)
        clearing = asyncio.create_task(_clear(turn, on_cleared), name="quarantine")
        try:
            yield turn
        finally:
            clearing.cancel()
            await asyncio.wait({clearing})
            turn.end()


async def _clear(turn: Turn, on_cleared: Callable[[], Awaitable[None]]) -> None:
    await asyncio.sleep(ALONE_S)
    try:
        if not turn.ended:
            await on_cleared()
    except BanksmanError as error:
        logger.warning("a suspect run could not be cleared: %s", error)
    finally:
        turn.end()
