"""Limits of what one tenant may have in the streams that all tenants share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.names import RESULTS, RUNNERS, api, kv_stream, kv_subject
from banksman.contracts import subjects
from banksman.contracts.errors import Overloaded
from banksman.contracts.subjects import ANY

TENANT_SHARE: Final = 8
"""One tenant's results fill about this fraction of their stream at most."""
SMALL_BYTES: Final = 64 * 1024
LARGE_BYTES: Final = 320 * 1024
"""Results of more than `SMALL_BYTES` are refused earlier: as many as fit if all have `LARGE_BYTES`."""
FULL_S: Final = 1.0
"""Seconds for which a tenant without room is refused without another request to the server."""
_PART: Final = 8
"""This fraction of the free room is used before the next count, because other agents use it too."""


@dataclass(frozen=True, slots=True)
class RoomLimits:
    """What one tenant may have stored."""

    leases: int = 256
    """Leases of the processes of one tenant, or of one tool server of the platform. Those that ended in the
    last minute count."""
    slots: int = 5_000
    """Starts of one tenant, and results, when its tool servers store another. Both are removed when the result
    of their call is committed; after a call that was cancelled or sent again the start stays for 30 days."""


LIMITS: Final = RoomLimits()


@dataclass
class _Counted:
    """What is known of the messages of one kind."""

    free: int = 0
    """Messages that may be stored before the next count."""
    full_until: float = float("-inf")


class TenantRoom:
    """Counts the messages of each tenant, by requests to the server that become frequent near a limit."""

    def __init__(self, bus: Bus, limits: RoomLimits) -> None:
        self._bus = bus
        self._limits = limits
        self._counted: dict[tuple[str, bool], _Counted] = {}

    async def take_lease(self, owner: str, *, of_tenant: bool) -> None:
        """Count a new lease of a tenant, or of a tool server of the platform.

        Raises:
            Overloaded: The owner has as many as it may have.
            Unavailable: The server did not respond.
        """
        below = kv_subject(RUNNERS, f"{ANY}.{owner}.{ANY}" if of_tenant else f"{owner}.{ANY}")
        await self._take(kv_stream(RUNNERS), below, lambda _: self._limits.leases, f"leases of {owner}")

    async def take_slot(self, tenant: str, kind: str, size: int) -> None:
        """Count a start or a result of a tenant's tool server.

        Raises:
            Overloaded: The tenant's share of the stream is used.
            Unavailable: The server did not respond.
        """
        if kind == "started":
            await self._take(
                RESULTS, subjects.tool_started(tenant, ANY), lambda _: self._limits.slots, "starts"
            )
            return
        large = size > SMALL_BYTES

        def most(config: Mapping[str, Any]) -> int:
            share = int(config["max_bytes"]) // TENANT_SHARE
            return min(self._limits.slots, share // (LARGE_BYTES if large else SMALL_BYTES))

        await self._take(RESULTS, subjects.tool_result(tenant, ANY), most, "results", large=large)

    async def _take(
        self,
        stream: str,
        below: str,
        most: Callable[[Mapping[str, Any]], int],
        what: str,
        *,
        large: bool = False,
    ) -> None:
        now = asyncio.get_running_loop().time()
        counted = self._counted.setdefault((below, large), _Counted())
        if counted.free <= 0 and counted.full_until <= now:
            info = await call(self._bus, api("STREAM.INFO", stream), {"subjects_filter": below})
            free = most(info["config"]) - len(info["state"].get("subjects") or {})
            counted.free = -(-free // _PART)
            counted.full_until = now + FULL_S if free <= 0 else float("-inf")
        if counted.free <= 0:
            raise Overloaded(f"storage_full: no room for further {what}", retry_after_s=FULL_S)
        counted.free -= 1
