"""Whose turn it is, first come, first served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakValueDictionary

from banksman.contracts.workspace_tools import BASH, WEB_FETCH


class Turns:
    """Calls of one workspace run one after another; commands and fetches, a bounded number at a time.

    A fetch touches no file before it has its answer, so it takes no turn in the workspace. A call takes its
    turn before its start is recorded: owners count its time-out from there.
    """

    def __init__(self, *, commands: int, fetches: int) -> None:
        self._commands = asyncio.Semaphore(commands)
        self._fetches = asyncio.Semaphore(fetches)
        self._workspaces: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """One for each workspace that somebody holds or waits for."""

    @asynccontextmanager
    async def turn(self, tool: str, tenant: str, conversation_id: str) -> AsyncGenerator[AsyncExitStack]:
        """Wait for the turn of a call and hold it; closing what this gives ends it early."""
        async with AsyncExitStack() as held:
            if tool == WEB_FETCH.name:
                await held.enter_async_context(self._fetches)
            else:
                await held.enter_async_context(self._workspace(tenant, conversation_id))
            if tool == BASH.name:
                await held.enter_async_context(self._commands)
            yield held

    def _workspace(self, tenant: str, conversation_id: str) -> asyncio.Lock:
        return self._workspaces.setdefault((tenant, conversation_id), asyncio.Lock())
