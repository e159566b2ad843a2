"""The turns of calls: one call per workspace at a time, and a bounded number of commands and fetches.

Tenants share the commands and the fetches, so that long ones of a tenant do not delay those of another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakValueDictionary

from banksman.contracts.workspace_tools import BASH, WEB_FETCH
from banksman.runtime.shares import SharedPlaces, Shares


def takes_workspace(tool: str) -> bool:
    """Return whether calls of a tool are serialised per workspace.

    `web_fetch` is not: it writes no file before the response has arrived.
    """
    return tool != WEB_FETCH.name


class Turns:
    """The only place that serialises calls. Waiting calls of a tenant get their turns in order of arrival.

    A call waits for its turn before its start is recorded, because owners count its time-out from the start.
    """

    def __init__(self, *, commands: Shares, fetches: Shares) -> None:
        """Create the turns of one runner.

        Args:
            commands: Commands that run at a time, over all workspaces.
            fetches: Fetches that run at a time, over all workspaces.
        """
        self._commands = SharedPlaces(commands)
        self._fetches = SharedPlaces(fetches)
        self._workspaces: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """A lock exists while a call holds it or waits for it."""

    @asynccontextmanager
    async def turn(self, tool: str, tenant: str, conversation: str) -> AsyncGenerator[AsyncExitStack]:
        """Hold the turn of a call for the block; closing the yielded stack ends the turn early."""
        async with AsyncExitStack() as held:
            if takes_workspace(tool):
                await held.enter_async_context(self.workspace(tenant, conversation))
            else:
                await held.enter_async_context(self._fetches.place(tenant))
            if tool == BASH.name:
                await held.enter_async_context(self._commands.place(tenant))
            yield held

    def workspace(self, tenant: str, conversation: str) -> asyncio.Lock:
        """Return the lock that serialises the calls of one workspace."""
        return self._workspaces.setdefault((tenant, conversation), asyncio.Lock())
