"""The part of the store of snapshots that a tenant, and a runner, may fill."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from banksman.bus.connection import Bus
from banksman.bus.names import WORKSPACES, object_stream
from banksman.bus.storage.objects import Objects
from banksman.contracts.errors import Overloaded
from banksman.contracts.workspaces import OWN_SHARE
from banksman.quotas.stored import StreamUse, is_crowded, lent_bytes_problem, stream_use

LISTED_S: Final = 600.0
"""Seconds for which the bytes of all tenants are cached, because listing costs time for each snapshot."""
REFUSED_S: Final = 60.0
"""Seconds for which the bytes are cached when they cause a refusal: snapshots may have been removed since."""
RETRY_AFTER_S: Final = 60.0


class SnapshotRoom:
    """Refuses snapshots of a tenant whose snapshots fill its part: three times the free bytes of the store.

    It also refuses snapshots that exceed the part of this runner: three quarters of the store.

    While all snapshots together fill less than three quarters of the store, no tenant and no runner can be
    above its part, and a check costs one request. Above that, the descriptions of all snapshots are listed.
    """

    def __init__(self, bus: Bus, objects: Objects, runner: str) -> None:
        self._bus = bus
        self._objects = objects
        self._runner = runner
        self._stored = Counter[str]()
        self._own = 0
        self._listed_at = float("-inf")

    async def check(self, tenant: str, size: int = 0) -> None:
        """Check that a tenant may store a snapshot of `size` bytes.

        Raises:
            Overloaded: The tenant's snapshots fill its part.
            Unavailable: The broker does not respond.
        """
        use = await stream_use(self._bus, object_stream(WORKSPACES))
        if use is None or not is_crowded(use, size):
            return
        if await self._problem(tenant, use, size, LISTED_S) is None:
            return
        if problem := await self._problem(tenant, use, size, REFUSED_S):
            raise Overloaded(problem, retry_after_s=RETRY_AFTER_S)

    async def _problem(self, tenant: str, use: StreamUse, size: int, listed_s: float) -> str | None:
        stored = await self._bytes_of(tenant, listed_s)
        if self._own + size > OWN_SHARE * use.max_bytes:
            return (
                f"storage_full: the snapshots of runner {self._runner} have {self._own} of {use.max_bytes} "
                f"bytes; one runner may have {OWN_SHARE:.0%}"
            )
        return lent_bytes_problem(use, stored, "snapshots", "conversations or files", size=size)

    def add(self, tenant: str, size: int) -> None:
        """Count a stored snapshot until all are listed again."""
        self._stored[tenant] += size
        self._own += size

    async def _bytes_of(self, tenant: str, listed_s: float) -> int:
        now = asyncio.get_running_loop().time()
        if now - self._listed_at >= listed_s:
            stored, own = Counter[str](), 0
            async for info in self._objects.list():
                stored[info.path.partition("/")[0]] += info.size
                own += info.size if info.owner == self._runner else 0
            self._stored, self._own, self._listed_at = stored, own, now
        return self._stored[tenant]
