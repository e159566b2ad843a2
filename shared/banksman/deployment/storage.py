"""Free space in the streams that every run writes, and the limits of one tenant in streams that all share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from prometheus_client import Gauge

from banksman.bus import direct
from banksman.bus.connection import Bus
from banksman.bus.jetstream import call, count_below
from banksman.bus.names import APPROVALS, EVENTS, OWNERS, RESULTS, api, kv_stream
from banksman.contracts.errors import BanksmanError, Overloaded
from banksman.deployment.declarations import MAX_MESSAGE_BYTES
from banksman.deployment.streams import stream_info
from banksman.runtime.shares import LENT

logger = logging.getLogger(__name__)

RUN_STREAMS = (EVENTS, APPROVALS, RESULTS, kv_stream(OWNERS))
"""The streams that a run needs to continue. The streams of starts need no check: full ones refuse a start."""
VALID_S = 1.0
"""Seconds for which a result is reused, which limits the requests to the broker."""
RETRY_AFTER_S = 5.0
RESERVE_BYTES = 4 * MAX_MESSAGE_BYTES
LEAST_RESERVE_BYTES = 2_048
"""Limits, in bytes, of the part of a stream that is reserved for open runs: one hundredth of the stream."""

_FULL = Gauge("banksman_full_streams", "Streams of runs that are full; starts are refused.")

FULL_S: Final = 1.0
"""Seconds for which a tenant without room is refused without another request to the server."""
SIZE_CLASSES: Final = (1024, 16 * 1024, 128 * 1024, 1024 * 1024)
"""Size classes in bytes: before a message is stored, each message of the tenant counts as its size class."""
LEAST: Final = 16
"""Messages that every tenant may have; so few messages do not fill a stream."""
_PART: Final = 32
"""One part in this many of the free room may be used before the next count: other processes use it too."""


class StorageRoom:
    """Refuses starts while a stream that every run writes is full, because open runs wait for its space."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._problem: str | None = None
        self._uses: dict[str, StreamUse] = {}
        self._valid_until = float("-inf")
        # Concurrent callers share the requests to the broker.
        self._turn = asyncio.Lock()

    async def check(self) -> None:
        """Check that a run may start.

        Raises:
            Overloaded: A stream is full.
        """
        problem = await self.problem()
        if problem is not None:
            raise Overloaded(problem, retry_after_s=RETRY_AFTER_S)

    async def problem(self) -> str | None:
        """Return which streams are full, as of at most one second ago; None if all have room."""
        async with self._turn:
            if asyncio.get_running_loop().time() >= self._valid_until:
                await self._refresh()
            return self._problem

    async def use(self, stream: str) -> StreamUse | None:
        """Return the bytes of one of `RUN_STREAMS`, as of at most one second ago; None if it has no limit."""
        await self.problem()
        return self._uses.get(stream)

    async def warning(self) -> str | None:
        """Return which streams are full, for readiness; None also if the broker does not respond."""
        try:
            return await self.problem()
        except BanksmanError:
            return None

    async def _refresh(self) -> None:
        full = [text for stream in RUN_STREAMS if (text := await self._of(stream)) is not None]
        _FULL.set(len(full))
        problem = f"storage_full: {'; '.join(full)}" if full else None
        if problem != self._problem:
            logger.warning("%s", problem or "the streams of runs have room again")
        self._problem = problem
        self._valid_until = asyncio.get_running_loop().time() + VALID_S

    async def _of(self, stream: str) -> str | None:
        info = await stream_info(self._bus, stream)
        if info is None:
            return None
        most, held = int(info["config"]["max_bytes"]), int(info["state"]["bytes"])
        if most > 0:
            self._uses[stream] = StreamUse(most, held)
        reserve = min(RESERVE_BYTES, max(LEAST_RESERVE_BYTES, most // 100))
        full = most > 0 and held + reserve > most
        return f"stream {stream} holds {held} of {most} bytes" if full else None


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
            below: The subject of all messages of the tenant, with wildcards.
            most: Returns the maximum number of messages of the tenant.
            what: The name of the messages in the error.
            charged: The bytes that `most` counts for each message; each value of it has its own count.

        Raises:
            Overloaded: The tenant has reached the maximum.
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
        """Count one more message of `size` bytes of a tenant, within its `shared_limit` of the stream."""
        charged = size_class(size)
        await self.take(stream, below, shared_limit(charged), what, charged=charged)

    async def _count(self, stream: str, below: str, *, by_replica: bool) -> int:
        if by_replica:
            return await direct.count(self._bus, stream, below)
        # Only its consumers read a queue, and it has few messages.
        return await count_below(self._bus, stream, below)
