"""The part of the event logs that a tenant may fill."""

from __future__ import annotations

from typing import Final

from banksman.bus.connection import Bus
from banksman.bus.names import EVENTS, USAGE
from banksman.bus.storage.kv import Bucket
from banksman.contracts.errors import Overloaded
from banksman.contracts.usage import UsageTotals, usage_key
from banksman.deployment.storage import StorageRoom
from banksman.runtime.shares import within_share

RETRY_AFTER_S: Final = 60.0


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
        """Check that a tenant may add to its logs.

        Raises:
            Overloaded: The logs of all tenants are full, or those of this tenant exceed its part.
            Unavailable: The broker does not respond.
        """
        await self.storage.check()
        use = await self.storage.use(EVENTS)
        if use is None or within_share(use.held_bytes, use.free_bytes):
            return
        entry = await self._totals.get(usage_key(tenant))
        stored = 0 if entry is None else entry.value.stored_bytes
        if not within_share(stored, use.free_bytes):
            raise Overloaded(
                f"storage_full: the conversations of this tenant have {stored} bytes, {use.free_bytes} of "
                f"{use.max_bytes} are free for all tenants; delete conversations first",
                retry_after_s=RETRY_AFTER_S,
            )
