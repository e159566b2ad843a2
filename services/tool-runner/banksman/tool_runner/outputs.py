"""The output of calls: published in pieces while a call runs, and stored whole if the result shows a part.

Losing a piece is harmless, because the result contains the output.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from banksman.bus.connection import Bus
from banksman.bus.secrets import SEAL_BYTES, new_key, sealed
from banksman.bus.storage.objects import MAX_OBJECT_BYTES, ObjectInfo, Objects, owned_name
from banksman.contracts import subjects
from banksman.contracts.calls import PROGRESS_AFTER_S, CallProgress, CallRequest
from banksman.contracts.errors import BanksmanError, Overloaded, Unavailable
from banksman.contracts.workspaces import OWN_SHARE
from banksman.runtime.failpoints import reach
from banksman.tool_runner.sandbox.base import Stream, in_background
from banksman.tool_runner.tools.toolbox import OnProgress

logger = logging.getLogger(__name__)

PIECE_CHARS = 4096
"""Maximum characters of one piece; at most one piece per stream is published every `PIECE_EVERY_S`."""
PIECE_EVERY_S = 0.1
BACKLOG_CHARS = 64 * 1024
"""Maximum waiting characters of one stream; further output is dropped here and stays in the result."""

_UNLISTED_SHARE = 8
"""A tenant may store this fraction of its limit between two listings, so that few calls wait for one."""
_LISTED_S = 600.0
"""Seconds for which the bytes of this runner are cached, because listing costs time for each output."""
_SPARE_SHARE = 32
"""The fraction of a runner's part that is removed in addition when the part is full."""


class _Backlog:
    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._waiting: dict[Stream, str] = {}

    def add(self, stream: Stream, text: str) -> None:
        waiting = self._waiting.get(stream, "")
        self._waiting[stream] = waiting + text[: BACKLOG_CHARS - len(waiting)]
        self.changed.set()

    def pieces(self) -> Iterator[tuple[Stream, str]]:
        waiting, self._waiting = self._waiting, {}
        self.changed.clear()
        for stream, text in waiting.items():
            yield stream, text[:PIECE_CHARS]
            if rest := text[PIECE_CHARS:]:
                self.add(stream, rest)


@asynccontextmanager
async def progress(bus: Bus, runner: str, request: CallRequest) -> AsyncGenerator[OnProgress | None]:
    """Publish the progress of a call during the block; yield what takes its output, or None if unwanted."""
    if not request.progress:
        yield None
        return
    backlog = _Backlog()
    async with in_background(_publish_progress(bus, runner, request, backlog)):
        yield backlog.add


async def _publish_progress(bus: Bus, runner: str, request: CallRequest, backlog: _Backlog) -> None:
    subject = subjects.tool_progress(request.tenant, request.conversation_id)
    started = CallProgress(
        conversation_id=request.conversation_id,
        run_id=request.run_id,
        tool_call_id=request.call.id,
        kind="started",
        runner=runner,
        ticket=request.output_ticket,
    )
    await asyncio.sleep(PROGRESS_AFTER_S)
    await _publish(bus, subject, started)
    while True:
        await backlog.changed.wait()
        await reach("runner.running")
        for stream, text in backlog.pieces():
            piece = started.model_copy(update={"kind": "output", "stream": stream, "text": text})
            await _publish(bus, subject, piece)
        await asyncio.sleep(PIECE_EVERY_S)


async def _publish(bus: Bus, subject: str, progress: CallProgress) -> None:
    with contextlib.suppress(Unavailable):
        await bus.publish(subject, progress.model_dump_json().encode())


@dataclass(frozen=True, slots=True)
class StoredOutput:
    name: str
    key: str
    """The key that decrypts it."""


class Outputs:
    """Whole outputs of one runner's commands, in an object store that all tenants and runners share.

    A tenant may have `max_tenant_bytes` of this runner in the store, exceeded by at most an eighth. Above
    that, its oldest outputs are removed. If the store is full, or this runner fills its part (three
    quarters), the oldest outputs of the tenant with the most bytes are removed.
    """

    def __init__(self, objects: Objects, runner: str, *, max_tenant_bytes: int) -> None:
        self._objects = objects
        self._runner = runner
        self._max_tenant_bytes = max_tenant_bytes
        self._unlisted = Counter[str]()
        """Bytes that this process stored since the last listing, by tenant."""
        self._own = 0
        """Bytes of this runner at the last listing of all its outputs, plus the bytes stored since."""
        self._own_listed_at = float("-inf")

    async def put(
        self, tenant: str, conversation_id: str, attempt: str, data: bytes, deadline_s: float
    ) -> StoredOutput:
        """Store an output; raise `Overloaded` if the store is full and nothing can be removed from it."""
        name = owned_name(self._runner, tenant, conversation_id, attempt)
        key = new_key()
        # An object has a limited size, and a setting allows outputs of that size.
        data = data[: MAX_OBJECT_BYTES - SEAL_BYTES]
        data = await asyncio.to_thread(sealed, data, key, name)
        await self._leave_room(len(data))
        try:
            await self._objects.put(name, data, deadline_s=deadline_s)
        except Overloaded:
            await self._make_room(len(data))
            await self._objects.put(name, data, deadline_s=deadline_s)
        self._unlisted[tenant] += len(data)
        self._own += len(data)
        if self._unlisted[tenant] * _UNLISTED_SHARE >= self._max_tenant_bytes:
            await self._trim(tenant, name)
        return StoredOutput(name, key)

    async def _trim(self, tenant: str, newest: str) -> None:
        try:
            stored = [info async for info in self._objects.list(f"{tenant}/", owner=self._runner)]
            self._unlisted[tenant] = 0
            excess_bytes = sum(info.size for info in stored) - self._max_tenant_bytes
            await self._remove_oldest([info for info in stored if info.name != newest], excess_bytes)
        except BanksmanError as error:
            logger.error("%s: outputs above the tenant's limit were not removed: %s", tenant, error)

    async def _leave_room(self, size: int) -> None:
        """Remove outputs if this runner would exceed its part, above which agents remove its objects."""
        held_bytes, max_bytes = await self._objects.storage_used()
        part_bytes = int(OWN_SHARE * max_bytes)
        # All runners together fill less than the part of one runner.
        if not max_bytes or held_bytes + size <= part_bytes:
            return
        now = asyncio.get_running_loop().time()
        if self._own + size > part_bytes or now - self._own_listed_at >= _LISTED_S:
            self._own = sum([info.size async for info in self._objects.list(owner=self._runner)])
            self._own_listed_at = now
        if self._own + size > part_bytes:
            # More than needed, so that the next outputs find room without a listing.
            await self._make_room(self._own + size - part_bytes + part_bytes // _SPARE_SHARE)

    async def _make_room(self, needed_bytes: int) -> None:
        stored = [info async for info in self._objects.list(owner=self._runner)]
        self._own = sum(info.size for info in stored)
        sizes = Counter[str]()
        for info in stored:
            sizes[_tenant(info)] += info.size
        if sizes:
            largest, _ = sizes.most_common(1)[0]
            await self._remove_oldest([info for info in stored if _tenant(info) == largest], needed_bytes)

    async def _remove_oldest(self, stored: list[ObjectInfo], excess_bytes: int) -> None:
        for info in sorted(stored, key=lambda info: info.modified_at):
            if excess_bytes <= 0:
                return
            await self._objects.remove(info.name)
            excess_bytes -= info.size
            self._own -= info.size


def _tenant(info: ObjectInfo) -> str:
    return info.path.partition("/")[0]
