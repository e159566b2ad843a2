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
from banksman.deployment.streams import stream_info
from banksman.runtime.shares import within_share

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
        info = await stream_info(self._bus, object_stream(WORKSPACES))
        most, held = (int(info["config"]["max_bytes"]), int(info["state"]["bytes"])) if info else (0, 0)
        free = max(0, most - held - size)
        if most <= 0 or within_share(held + size, free):
            return
        stored = await self._bytes_of(tenant, LISTED_S)
        if self._own + size > OWN_SHARE * most:
            stored = await self._bytes_of(tenant, REFUSED_S)
        if self._own + size > OWN_SHARE * most:
            raise Overloaded(
                f"storage_full: the snapshots of runner {self._runner} have {self._own} of {most} bytes; one "
                f"runner may have {OWN_SHARE:.0%}",
                retry_after_s=RETRY_AFTER_S,
            )
        if not within_share(stored + size, free):
            stored = await self._bytes_of(tenant, REFUSED_S)
        if not within_share(stored + size, free):
            raise Overloaded(
                f"storage_full: the snapshots of this tenant have {stored} bytes, {most - held} of {most} "
                "are free for all tenants; delete conversations or files first",
                retry_after_s=RETRY_AFTER_S,
            )

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
