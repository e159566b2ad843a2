"""Whether NATS can store: what its monitoring port reports, and the room on its volume on this machine.

After a failed write, a stream refuses every further one until its server restarts; nats-server sends no reply
to the publisher. Only `/healthz` names the failure.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from prometheus_client import Gauge

from banksman.bus.settings import NatsSettings
from banksman.runtime.disk import DiskLimits, Room, write_error
from banksman.runtime.http_get import http_get
from banksman.runtime.waits import set_within

if TYPE_CHECKING:  # The launcher imports this module, and must not import a web server.
    from banksman.runtime.health import Health

logger = logging.getLogger(__name__)

INTERVAL_S = 5.0
FAILING_INTERVAL_S = 1.0
STREAMS_EVERY = 6
"""Looks from one list of the streams to the next, which costs five times the CPU time of `/healthz`."""
TIMEOUT_S = 1.5
NEARLY_FULL = 0.8
"""Share of a limit of a stream, or of all streams together, above which it is reported."""
SUSPECTED_S = 0.4
"""Seconds without an acknowledgement of a client's message after which the server is asked for its health."""

_FREE = Gauge("banksman_disk_free_bytes", "Free bytes of a volume.", ["volume"])
_FULL = Gauge("banksman_disk_full", "1 if a volume is full or cannot be written.", ["volume"])
_USED = Gauge("banksman_stream_used_ratio", "Used share of the limit of a stream.", ["account", "stream"])


def show_volume(volume: str, room: Room | None, *, failing: bool = False) -> None:
    """Set the metrics of a volume; None leaves the free bytes unknown."""
    _FULL.labels(volume).set(failing or (room is not None and room.full))
    if room is not None:
        _FREE.labels(volume).set(room.free_bytes)


class ServerDisk:
    """The storage of one server, as of at most `INTERVAL_S` ago while `watch` runs."""

    def __init__(self, settings: NatsSettings) -> None:
        self._url = settings.monitoring
        # In a cluster two other servers store what this one cannot.
        self._alone = settings.replicas == 1
        self._suspected = asyncio.Event()
        self._failed: asyncio.Future[None] | None = None
        self._write_error: str | None = None
        self._full: str | None = None
        self._warnings: tuple[str, ...] = ()
        self._state: str | None = None
        self._storage: Mapping[str, Any] = {}

    @property
    def failing(self) -> str | None:
        """Why the only server cannot store; None if it can."""
        return self._write_error if self._alone else None

    @property
    def full(self) -> str | None:
        """Why no new work may start: the only server cannot store, or has no room but for open work."""
        return (self._write_error or self._full) if self._alone else None

    @property
    def failed(self) -> asyncio.Future[None]:
        """A future that is done while the only server cannot store."""
        if self._failed is None:
            self._failed = asyncio.get_running_loop().create_future()
        return self._failed

    def suspect(self) -> None:
        """Let `watch` look at once."""
        self._suspected.set()

    def notices(self) -> tuple[str, ...]:
        """Return a sentence for each reason why the server cannot store, or soon cannot."""
        return tuple(text for text in (self._write_error, self._full, *self._warnings, self._state) if text)

    async def problem(self) -> str | None:
        return self.full

    async def warning(self) -> str | None:
        return "; ".join(text for text in self.notices() if text != self.full) or None

    @asynccontextmanager
    async def watched(
        self, health: Health, limits: DiskLimits, state: Path | None = None
    ) -> AsyncGenerator[None]:
        """Watch the server's storage and report it in the health of this process.

        Args:
            state: A directory of this process, such as that of its logs, whose volume is watched too.
        """
        health.checks["disk"], health.warnings["disk"] = self.problem, self.warning
        async with health.background.running("disk of NATS", partial(self.watch, limits, state)):
            yield

    async def watch(self, limits: DiskLimits, state: Path | None = None) -> None:
        """Look at the server's storage until cancelled."""
        for number in itertools.count():
            await self.look(limits, streams=number % STREAMS_EVERY == 0)
            self._look_at(state, limits)
            self._suspected.clear()
            await set_within(self._suspected, FAILING_INTERVAL_S if self._write_error else INTERVAL_S)

    async def look(self, limits: DiskLimits, *, streams: bool = True) -> None:
        """Ask the server once, for the use of its streams only with `streams`.

        A server that does not respond is another check's concern.
        """
        if self._url is None:
            return
        try:
            health = await http_get(f"{self._url}/healthz", timeout_s=TIMEOUT_S)
            if streams or not self._storage:
                storage = await http_get(f"{self._url}/jsz?streams=true&config=true", timeout_s=TIMEOUT_S)
                self._storage = json.loads(storage.body)
            failure = write_error(health)
            text = failure and f"the disk of NATS is full or fails: {failure}"
            self._read(text, self._storage, limits)
        except (OSError, KeyError, TypeError, ValueError) as error:
            logger.debug("%s does not report its storage: %r", self._url, error)

    def _look_at(self, state: Path | None, limits: DiskLimits) -> None:
        """Measure the volume of a directory if it exists and is not on the volume of NATS."""
        self._state = None
        store = self._storage["config"]["store_dir"] if self._storage else ""
        if state is not None and _device(state) not in (None, _device(store)):
            room = limits.room(state, writes=True)
            self._state = room.described(str(state))
            show_volume("state", room)

    def _read(self, failure: str | None, storage: Mapping[str, Any], limits: DiskLimits) -> None:
        room = _room(storage, limits)
        text = room and room.described("NATS")
        self._full = text if room is not None and room.full else None
        low = text if self._full is None else None
        self._warnings = tuple(filter(None, (low, _all_streams(storage), *_streams(storage))))
        self._failing(failure)
        show_volume("nats", room, failing=failure is not None)

    def _failing(self, failure: str | None) -> None:
        if failure != self._write_error:
            logger.warning("%s", failure or "NATS can store messages again")
        self._write_error = failure
        if failure is None or not self._alone:
            self._failed = None if self._failed is None or self._failed.done() else self._failed
        elif not self.failed.done():
            self.failed.set_result(None)


def _room(storage: Mapping[str, Any], limits: DiskLimits) -> Room | None:
    """Return the room on the server's volume; None if this machine does not have it."""
    try:
        return limits.room(storage["config"]["store_dir"])
    except OSError:
        return None


def _device(directory: Path | str) -> int | None:
    try:
        return os.stat(directory).st_dev
    except OSError:
        return None


def _all_streams(storage: Mapping[str, Any]) -> str | None:
    return _nearly_full("all streams together are", int(storage["storage"]), storage["config"]["max_storage"])


def _streams(storage: Mapping[str, Any]) -> list[str]:
    found: list[str | None] = []
    for account in cast(list[dict[str, Any]], storage.get("account_details") or []):
        for stream in cast(list[dict[str, Any]], account.get("stream_detail") or []):
            held, most = stream["state"]["bytes"], stream["config"]["max_bytes"]
            _USED.labels(account["name"], stream["name"]).set(max(0, held / most))
            found.append(_nearly_full(f"stream {stream['name']} is", held, most))
    return [text for text in found if text]


def _nearly_full(what: str, held: int, most: int) -> str | None:
    if most <= 0 or held <= most * NEARLY_FULL:
        return None
    return f"{what} {held * 100 // most} % full: {held} of {most} bytes"
