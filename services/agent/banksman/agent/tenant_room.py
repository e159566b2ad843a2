"""Limits of one tenant's messages in RESULTS and APPROVALS, and of its leases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from banksman.bus.connection import Bus
from banksman.bus.names import APPROVALS, RESULTS, RUNNERS, kv_stream, kv_subject
from banksman.contracts import subjects
from banksman.contracts.errors import Overloaded, Unavailable
from banksman.contracts.subjects import ANY
from banksman.deployment.storage import StreamUse, TenantRoom

TENANT_SHARE: Final = 8
"""One tenant's results fill about this fraction of their stream at most."""
SMALL_BYTES: Final = 64 * 1024
LARGE_BYTES: Final = 320 * 1024
"""Results over `SMALL_BYTES` have a lower limit: the number that fits if each has `LARGE_BYTES`."""


@dataclass(frozen=True, slots=True)
class RoomLimits:
    """Maximum numbers of messages of one tenant."""

    leases: int = 256
    """Leases of the processes of one tenant, or of one tool server of the platform. Leases that ended in the
    last minute count."""
    slots: int = 5_000
    """Starts of one tenant, and results of one tenant. Both are removed when the result of their call is
    committed; the start of a call that was cancelled or sent again stays 30 days."""


LIMITS: Final = RoomLimits()


class RelayRoom:
    """The room for messages of tool servers."""

    def __init__(self, bus: Bus, limits: RoomLimits) -> None:
        self._room = TenantRoom(bus)
        self._limits = limits

    async def take_lease(self, owner: str, *, of_tenant: bool) -> None:
        """Count a new lease of a tenant, or of a tool server of the platform.

        Raises:
            Overloaded: The owner has the maximum number of leases.
            Unavailable: The server did not respond.
        """
        below = kv_subject(RUNNERS, f"{ANY}.{owner}.{ANY}" if of_tenant else f"{owner}.{ANY}")
        await self._room.take(kv_stream(RUNNERS), below, lambda _: self._limits.leases, f"leases of {owner}")

    async def take_slot(self, tenant: str, kind: str, size: int) -> None:
        """Count a start or a result of a tenant's tool server.

        Raises:
            Overloaded: The tenant's share of the stream is used.
            Unavailable: The server did not respond.
        """
        if kind == "started":
            below = subjects.tool_started(tenant, ANY)
            await self._room.take(RESULTS, below, lambda _: self._limits.slots, "starts")
            return
        charged = SMALL_BYTES if size <= SMALL_BYTES else LARGE_BYTES

        def most(use: StreamUse) -> int:
            return min(self._limits.slots, use.max_bytes // TENANT_SHARE // charged)

        below = subjects.tool_result(tenant, ANY)
        await self._room.take(RESULTS, below, most, "results", charged=charged)


class ApprovalRoom:
    """The room for approval requests, which the models of tenants cause."""

    def __init__(self, bus: Bus) -> None:
        self._room = TenantRoom(bus)

    async def problem(self, tenant: str, size: int) -> str | None:
        """Count an approval request of `size` bytes; return why it must not be stored, None if it may be."""
        below = subjects.approval_request(tenant, ANY)
        try:
            await self._room.take_part(APPROVALS, below, size, "approval requests")
        except Unavailable:
            # The reply of the model is already paid for: its commit must not fail because the count is
            # unavailable.
            return None
        except Overloaded as full:
            return str(full)
        return None
