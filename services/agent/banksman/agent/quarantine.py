"""Runs that may have killed their agents: driven one at a time, so that the others are not blamed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from banksman.contracts.errors import BanksmanError
from banksman.runs.state import Conversation

logger = logging.getLogger(__name__)

SUSPECT_CLAIMS = 2
"""Claims in a row without another commit after which a run may be what ended its agents."""
ALONE_S = 5.0
"""Seconds that a suspect is driven alone. One that has not killed its agent by then is cleared; what takes
longer to do so is bounded by the time limit of the run."""


def is_suspect(state: Conversation) -> bool:
    """Whether two agents in a row stopped without having committed anything for the open run."""
    return state.run is not None and state.claims_in_row >= SUSPECT_CLAIMS


class Quarantine:
    """One place in a process for suspects.

    Claims without a commit are counted to recognise a crash loop. An agent that dies takes down all the runs
    that it drives, so without this the innocent ones among them would be given up with the guilty one.
    """

    def __init__(self) -> None:
        # Held by the one suspect that is driven alone.
        self._place = asyncio.Lock()

    @asynccontextmanager
    async def place(
        self, suspect: bool, on_cleared: Callable[[], Awaitable[None]]
    ) -> AsyncGenerator[Callable[[], None]]:
        """Wait for the place, if it is a suspect; gives what frees it for the next one.

        Args:
            suspect: False waits for nothing.
            on_cleared: Called when the suspect has been driven for long enough.
        """
        if not suspect:
            yield _nothing
            return
        await self._place.acquire()
        held = True

        def free() -> None:
            nonlocal held
            if held:
                held = False
                self._place.release()

        async def clear() -> None:
            await asyncio.sleep(ALONE_S)
            try:
                if held:
                    await on_cleared()
            except BanksmanError as error:
                logger.warning("a suspect could not be cleared: %s", error)
            finally:
                free()

        task = asyncio.create_task(clear())
        try:
            yield free
        finally:
            task.cancel()
            await asyncio.wait({task})
            free()


def _nothing() -> None:
    return
