"""Check that the streams that every run writes have free space."""

from __future__ import annotations

import asyncio
import logging

from prometheus_client import Gauge

from banksman.bus.connection import Bus
from banksman.bus.names import APPROVALS, EVENTS, OWNERS, RESULTS, kv_stream
from banksman.contracts.errors import BanksmanError, Overloaded
from banksman.deployment.declarations import MAX_MESSAGE_BYTES
from banksman.deployment.streams import stream_info
from banksman.deployment.tenant_room import StreamUse

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
            Unavailable: The broker does not respond.
        """
        problem = await self.problem()
        if problem is not None:
            raise Overloaded(problem, retry_after_s=RETRY_AFTER_S)

    async def problem(self) -> str | None:
        """Return which streams are full, as of at most one second ago; None if all have room.

        Raises:
            Unavailable: The broker does not respond.
        """
        async with self._turn:
            if asyncio.get_running_loop().time() >= self._valid_until:
                await self._refresh()
            return self._problem

    async def use(self, stream: str) -> StreamUse | None:
        """Return the bytes of one of `RUN_STREAMS`, as of at most one second ago; None if it has no limit.

        Raises:
            Unavailable: The broker does not respond.
        """
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
