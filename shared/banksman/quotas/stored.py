"""What one tenant may store in the streams that all share.

There are two limits. A *lent share* grows with the free space, so that a tenant that is alone may fill three
quarters of a stream. A *fixed share* is the same for each tenant, whatever the others store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from prometheus_client import REGISTRY, Gauge
from pydantic import BaseModel

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.jetstream import call, count_below
from banksman.bus.names import APPROVALS, EVENTS, OWNERS, RESULTS, api, kv_stream
from banksman.bus.storage.kv import Bucket
from banksman.contracts.errors import BanksmanError, Overloaded, Unavailable
from banksman.contracts.subjects import ANY
from banksman.deployment.declarations import MAX_MESSAGE_BYTES
from banksman.deployment.streams import stream_info
from banksman.quotas.places import LENT, within_share

logger = logging.getLogger(__name__)

RUN_STREAMS = (EVENTS, APPROVALS, RESULTS, kv_stream(OWNERS))
"""The streams that a run needs to continue. The streams of starts need no check: full ones refuse a start."""
VALID_S = 1.0
"""Seconds for which a result is reused, which limits the requests to the broker."""
RETRY_AFTER_S = 5.0
RESERVE_BYTES = 4 * MAX_MESSAGE_BYTES
LEAST_RESERVE_BYTES = 2_048
"""Limits, in bytes, of the part of a stream that is reserved for open runs: one hundredth of the stream."""

TENANT_SHARE: Final = 8
"""A tenant with a fixed share fills at most about 1 / `TENANT_SHARE` of a stream."""
MEASURED_S: Final = 10.0
"""Seconds for which the measured bytes of a tenant are used."""

_FULL = Gauge("banksman_full_streams", "Streams of runs that are full; starts are refused.", registry=None)

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
        return max(0, self.max_bytes - self.held_bytes)


async def stream_use(bus: Bus, stream: str) -> StreamUse | None:
    """Return the bytes of a stream; None if it does not exist or has no limit."""
    info = await stream_info(bus, stream)
    most, held = (int(info["config"]["max_bytes"]), int(info["state"]["bytes"])) if info else (0, 0)
    return StreamUse(most, held) if most > 0 else None


class StorageRoom:
    """Refuses starts while a stream that every run writes is full, because open runs wait for its space."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._problem: str | None = None
        self._failed: tuple[float, Unavailable] | None = None
        """When the state of the streams could last not be read, and why."""
        self._uses: dict[str, StreamUse] = {}
        self._valid_until = float("-inf")
        # Concurrent callers share the requests to the broker.
        self._turn = asyncio.Lock()
        # Other services import this module, and would export a gauge that they never set.
        with contextlib.suppress(ValueError):
            REGISTRY.register(_FULL)

    async def check(self) -> None:
        """Check that a run may start; raise `Overloaded` if a stream is full."""
        problem = await self.problem()
        if problem is not None:
            raise Overloaded(problem, retry_after_s=RETRY_AFTER_S)

    async def problem(self) -> str | None:
        """Return why no run may start: the disk, as `ServerDisk` knows it, or streams that are full.

        The state of the streams is at most one second old. Raises `Unavailable` if it cannot be read; those
        who wait for it meanwhile share the error.
        """
        if disk := self._bus.disk.full:
            return f"storage_full: {disk}"
        begun = asyncio.get_running_loop().time()
        async with self._turn:
            if self._failed is not None and self._failed[0] > begun:
                raise self._failed[1].with_traceback(None)
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
        try:
            full = [text for stream in RUN_STREAMS if (text := await self._of(stream)) is not None]
        except Unavailable as error:
            self._failed = asyncio.get_running_loop().time(), error
            raise
        _FULL.set(len(full))
        problem = f"storage_full: {'; '.join(full)}" if full else None
        if problem != self._problem:
            logger.warning("%s", problem or "the streams of runs have room again")
        self._problem = problem
        self._valid_until = asyncio.get_running_loop().time() + VALID_S

    async def _of(self, stream: str) -> str | None:
        use = await stream_use(self._bus, stream)
        if use is None:
            return None
        self._uses[stream] = use
        reserve = min(RESERVE_BYTES, max(LEAST_RESERVE_BYTES, use.max_bytes // 100))
        full = use.held_bytes + reserve > use.max_bytes
        return f"stream {stream} holds {use.held_bytes} of {use.max_bytes} bytes" if full else None


def lent_share(use: StreamUse, charged: int) -> int:
    """Return a number of messages that grows with the free space, of which each counts as `charged` bytes.

    If n tenants store as much as they can, each gets 3 of 3n + 1 parts. Large messages are refused before
    small ones. With messages of all sizes, a tenant fills at most `len(SIZE_CLASSES)` times its part.
    """
    return max(LEAST, LENT * use.free_bytes // charged)


def fixed_share(use: StreamUse, charged: int = 1) -> int:
    """Return the number of messages of `charged` bytes in 1 / `TENANT_SHARE` of a stream."""
    return use.max_bytes // TENANT_SHARE // charged


def is_crowded(use: StreamUse, size: int = 0) -> bool:
    """Return whether a tenant could exceed its lent share after `size` more bytes.

    Below three quarters of the stream no tenant can, so its bytes need not be counted.
    """
    return not within_share(use.held_bytes + size, use.free_bytes - size)


def lent_bytes_problem(
    use: StreamUse, stored_bytes: int, what: str, remedy: str, *, size: int = 0
) -> str | None:
    """Return why a tenant with `stored_bytes` must not store `size` bytes more; None if it may."""
    if within_share(stored_bytes + size, use.free_bytes - size):
        return None
    return (
        f"storage_full: the {what} of this tenant have {stored_bytes} bytes, {use.free_bytes} of "
        f"{use.max_bytes} are free for all tenants; delete {remedy} first"
    )


@dataclass
class _CountedBytes:
    held: int
    limit: int
    until: float


class ByteRoom:
    """Limits the bytes of each tenant in a stream to its fixed share.

    The bytes of a tenant are measured every `MEASURED_S` at most; those that this process stores are added.
    """

    def __init__(self, bus: Bus, stream: str, measure: Callable[[str], Awaitable[int]], what: str) -> None:
        """Create the limit; `measure` returns the stored bytes of a tenant, and errors call them `what`."""
        self._bus = bus
        self._stream = stream
        self._measure = measure
        self._what = what
        self._counted: dict[str, _CountedBytes] = {}

    async def take(self, tenant: str, size: int) -> None:
        """Count `size` bytes that a tenant is about to store; raise `Overloaded` if its share is full."""
        now = asyncio.get_running_loop().time()
        counted = self._counted.get(tenant)
        if counted is None or counted.until <= now:
            self._counted = {name: one for name, one in self._counted.items() if one.until > now}
            held = await self._measure(tenant)
            use = await stream_use(self._bus, self._stream)
            limit = fixed_share(use) if use else 0
            counted = self._counted[tenant] = _CountedBytes(held, limit, now + MEASURED_S)
        if counted.held + size > counted.limit:
            raise Overloaded(
                f"storage_full: the {self._what} of this tenant have {counted.held} of {counted.limit} "
                "bytes; delete some first",
                retry_after_s=MEASURED_S,
            )
        counted.held += size

    def forget(self, tenant: str) -> None:
        """Measure the bytes of a tenant again before the next are stored."""
        self._counted.pop(tenant, None)


@dataclass
class _CountedMessages:
    """The last count of the messages of one kind."""

    free: int = 0
    """Messages that may be stored before the next count."""
    full_until: float = float("-inf")
    problem: str = ""


class MessageRoom:
    """Counts the messages of each tenant, by requests to the server that become frequent near a limit."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._counted: dict[tuple[str, int], _CountedMessages] = {}

    async def take(
        self, stream: str, below: str, limit: Callable[[StreamUse], int], what: str, *, charged: int = 0
    ) -> None:
        """Count one more message of a tenant; raise `Overloaded` if it has reached its limit.

        Args:
            below: The subject of all messages of the tenant, with wildcards.
            limit: Returns the maximum number of messages of the tenant.
            what: The name of the messages in the error.
            charged: The bytes that `limit` counts for each message; each value of it has its own count.
        """
        now = asyncio.get_running_loop().time()
        counted = self._counted.setdefault((below, charged), _CountedMessages())
        if counted.free <= 0 and counted.full_until <= now:
            info = await call(self._bus, api("STREAM.INFO", stream))
            most = limit(StreamUse(int(info["config"]["max_bytes"]), int(info["state"]["bytes"])))
            held = await self._count(stream, below, by_replica=bool(info["config"].get("allow_direct")))
            counted.free = -(-(most - held) // _PART)
            counted.full_until = now + FULL_S if held >= most else float("-inf")
            counted.problem = f"storage_full: no room for further {what}; {held} are stored, of {most}"
        if counted.free <= 0:
            raise Overloaded(counted.problem, retry_after_s=FULL_S)
        counted.free -= 1

    async def take_lent(self, stream: str, below: str, size: int, what: str) -> None:
        """Count one more message of `size` bytes of a tenant, within its lent share of the stream."""
        charged = next((most for most in SIZE_CLASSES if size <= most), size)
        await self.take(stream, below, lambda use: lent_share(use, charged), what, charged=charged)

    async def _count(self, stream: str, below: str, *, by_replica: bool) -> int:
        if by_replica:
            return await jetstream.count_on_replica(self._bus, stream, below)
        # Only its consumers read a queue, and it has few messages.
        return await count_below(self._bus, stream, below)


T = TypeVar("T", bound=BaseModel)


class SharedBucket(Bucket[T]):
    """A bucket with keys `{tenant}.{id}`. A tenant that has filled its part cannot create further keys.

    A tenant can always read, replace and delete its stored values.
    """

    def __init__(self, bus: Bus, name: str, model: type[T], what: str) -> None:
        """Open the bucket; errors call the values `what`."""
        super().__init__(bus, name, model)
        self._room = MessageRoom(bus)
        self._what = what

    async def create(self, key: str, value: T) -> int | None:
        """Write a value if the key has none; return its revision, or None if the key has a value.

        Raises:
            Overloaded: The tenant has filled its part.
            MessageTooLarge, Overloaded, Unavailable, Forbidden: As `durable`.
        """
        below = f"{self.subject(key.partition('.')[0])}.{ANY}"
        try:
            await self._room.take_lent(self.stream, below, len(value.model_dump_json()), self._what)
        except Overloaded:
            # A repeated request must find the value that its first attempt stored.
            if await self.get(key) is None:
                raise
            return None
        return await super().create(key, value)
