"""Runs that may have killed their agents: driven one at a time, so that the others are not blamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from banksman.runs.state import Conversation

SUSPECT_CLAIMS = 2
"""Claims in a row without another commit after which a run may be what ended its agents."""
ALONE_S = 3.0
"""Seconds that a suspect is driven alone; one that has lived for longer, or committed, is cleared."""


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
    async def place(self, suspect: bool) -> AsyncGenerator[Callable[[], None]]:
        """Wait for the place, if it is a suspect; gives what to call once it is cleared."""
        if not suspect:
            yield _nothing
            return
        await self._place.acquire()
        held = True

        def clear() -> None:
            nonlocal held
            if held:
                held = False
                self._place.release()

        later = asyncio.get_running_loop().call_later(ALONE_S, clear)
        try:
            yield clear
        finally:
            later.cancel()
            clear()


def _nothing() -> None:
    return
