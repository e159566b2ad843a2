from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from banksman.tool_runner.limits import SandboxLimits
from banksman.tool_runner.sandbox.base import SandboxUnavailable
from banksman.tool_runner.sandbox.bwrap.cgroups import CallCgroup, CallCgroups
from banksman.tool_runner.sandbox.bwrap.spawner import Spawner, Starter

UNUSED_S = 30.0
"""Seconds after which an unused starter ends; a starter occupies about 2 MiB of memory."""


@dataclass(slots=True)
class PooledStarter:
    """A starter in its cgroup, which runs at most one command at a time."""

    starter: Starter
    cgroup: CallCgroup | None
    unused_since: float = 0.0

    def reusable(self) -> bool:
        """Return whether earlier commands left no process and little memory."""
        pid = self.starter.process.pid
        if pid is None or not self.starter.idle:
            return False
        return self.cgroup is None or self.cgroup.reusable(pid)

    def end(self) -> None:
        if self.cgroup is not None:
            self.cgroup.end()


class Starters:
    """Lends a starter to each command. With `cgroups`, each starter has its own cgroup."""

    def __init__(
        self,
        spawner: Spawner,
        limits: SandboxLimits,
        cgroups: CallCgroups | None,
        *,
        unused_s: float = UNUSED_S,
    ) -> None:
        self._spawner = spawner
        self._limits = limits
        self._cgroups = cgroups
        self._unused_s = unused_s
        self._unused: list[PooledStarter] = []
        self._lent = 0

    @property
    def has_starters(self) -> bool:
        """Whether a starter exists. Without a starter, no sandbox exists."""
        return bool(self._unused) or self._lent > 0

    @contextlib.asynccontextmanager
    async def lend(self) -> AsyncGenerator[PooledStarter]:
        """Lend a starter for the block.

        Raises:
            SandboxUnavailable: the spawner cannot be started, or the kernel refuses a cgroup.
        """
        self._lent += 1
        try:
            async with self._taken() as place:
                yield place
        finally:
            self._lent -= 1

    @contextlib.asynccontextmanager
    async def _taken(self) -> AsyncGenerator[PooledStarter]:
        place = await self._take()
        try:
            yield place
        finally:
            if place.reusable():
                place.unused_since = time.monotonic()
                self._unused.append(place)
            else:
                # Without the shield, a cancelled caller would leave the cgroup behind.
                await asyncio.shield(self._end(place))

    async def end_unused(self) -> None:
        oldest = time.monotonic() - self._unused_s
        unused = [place for place in self._unused if place.unused_since <= oldest]
        self._unused = [place for place in self._unused if place.unused_since > oldest]
        for place in unused:
            await self._end(place)

    def close(self) -> None:
        self._spawner.close()
        for place in self._unused:
            place.end()
        if self._cgroups is not None:
            self._cgroups.close()

    async def _take(self) -> PooledStarter:
        while self._unused:
            place = self._unused.pop()
            # The starter may have been killed meanwhile.
            if place.starter.idle:
                return place
            await asyncio.shield(self._end(place))
        return self._new()

    def _new(self) -> PooledStarter:
        try:
            cgroup = None if self._cgroups is None else self._cgroups.create(self._limits)
        except OSError as error:
            raise SandboxUnavailable(f"cannot create a cgroup: {error}") from error
        with contextlib.ExitStack() as opened:
            joined = [] if cgroup is None else cgroup.open()
            for fd in joined:
                opened.callback(os.close, fd)
            return PooledStarter(self._spawner.starter(joined), cgroup)

    async def _end(self, place: PooledStarter) -> None:
        place.starter.end()
        await asyncio.to_thread(place.end)
