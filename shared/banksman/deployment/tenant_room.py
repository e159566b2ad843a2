"""Limits of one tenant's messages in the streams that all tenants share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from banksman.bus import direct
from banksman.bus.connection import Bus
from banksman.bus.jetstream import call, count_below
from banksman.bus.names import api
from banksman.contracts.errors import Overloaded
from banksman.runtime.shares import LENT

FULL_S: Final = 1.0
"""Seconds for which a tenant without room is refused without another request to the server."""
SIZE_CLASSES: Final = (1024, 16 * 1024, 128 * 1024, 1024 * 1024)
"""Size classes in bytes: before a message is stored, each message of the tenant counts as its size class."""
LEAST: Final = 16
"""Messages that every tenant may have; so few messages do not fill a stream."""
_PART: Final = 32
"""One part in this many of the free room may be used before the next count: other processes use it too."""


@dataclass(frozen=True, slots=True)
class StreamUse:
    """The bytes of a stream."""

    max_bytes: int
    held_bytes: int

    @property
    def free_bytes(self) -> int:
        """Bytes that the stream can still store."""
        return max(0, self.max_bytes - self.held_bytes)


@dataclass
class _Counted:
    """The last count of the messages of one kind."""

    free: int = 0
    """Messages that may be stored before the next count."""
    full_until: float = float("-inf")
    problem: str = ""


def size_class(size: int) -> int:
    """Return the bytes that each message of a tenant counts as when a message of `size` bytes is stored."""
    return next((most for most in SIZE_CLASSES if size <= most), size)


def shared_limit(charged: int) -> Callable[[StreamUse], int]:
    """Return a limit that grows with the free space: a single tenant may fill three quarters of a stream.

    If n tenants store as much as they can, each gets 3 of 3n + 1 parts. Every message counts as `charged`
    bytes, so large messages are refused before small ones. With messages of all sizes, a tenant fills at most
    `len(SIZE_CLASSES)` times its part.
    """
    return lambda use: max(LEAST, LENT * use.free_bytes // charged)


class TenantRoom:
    """Counts the messages of each tenant, by requests to the server that become frequent near a limit."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._counted: dict[tuple[str, int], _Counted] = {}

    async def take(
        self, stream: str, below: str, most: Callable[[StreamUse], int], what: str, *, charged: int = 0
    ) -> None:
        """Count one more message of a tenant.

        Args:
            stream: The stream.
            below: The subject of all messages of the tenant, with wildcards.
            most: Returns the maximum number of messages of the tenant.
            what: The name of the messages in the error.
            charged: The bytes that `most` counts for each message; each value of it has its own count.

        Raises:
            Overloaded: The tenant has reached the maximum.
            Unavailable: The server did not respond.
        """
        now = asyncio.get_running_loop().time()
        counted = self._counted.setdefault((below, charged), _Counted())
        if counted.free <= 0 and counted.full_until <= now:
            info = await call(self._bus, api("STREAM.INFO", stream))
            limit = most(StreamUse(int(info["config"]["max_bytes"]), int(info["state"]["bytes"])))
            held = await self._count(stream, below, by_replica=bool(info["config"].get("allow_direct")))
            counted.free = -(-(limit - held) // _PART)
            counted.full_until = now + FULL_S if held >= limit else float("-inf")
            counted.problem = f"storage_full: no room for further {what}; {held} are stored, of {limit}"
        if counted.free <= 0:
            raise Overloaded(counted.problem, retry_after_s=FULL_S)
        counted.free -= 1

    async def take_part(self, stream: str, below: str, size: int, what: str) -> None:
        """Count one more message of `size` bytes of a tenant, within its part of the stream (`shared_limit`).

        Raises:
            Overloaded, Unavailable: As `take`.
        """
        charged = size_class(size)
        await self.take(stream, below, shared_limit(charged), what, charged=charged)

    async def _count(self, stream: str, below: str, *, by_replica: bool) -> int:
        if by_replica:
            return await direct.count(self._bus, stream, below)
        # Only its consumers read a queue, and it has few messages.
        return await count_below(self._bus, stream, below)
