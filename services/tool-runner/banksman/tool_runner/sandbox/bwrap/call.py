from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from typing import cast

from banksman.tool_runner.sandbox.base import RunningOutput, SandboxUnavailable, Stream
from banksman.tool_runner.sandbox.bwrap import processes
from banksman.tool_runner.sandbox.bwrap.spawner import SpawnedTree, Starter
from banksman.tool_runner.sandbox.listener import ListenerInbox

log = logging.getLogger(__name__)

_READ_BYTES = 64 * 1024
_STATUS_BYTES = 4096


class BwrapCall:
    def __init__(
        self, tree: SpawnedTree, starter: Starter, output: RunningOutput, proxy_inbox: ListenerInbox | None
    ) -> None:
        self.tree = tree
        self._starter = starter
        self._output = output
        self._proxy_inbox = proxy_inbox
        self._report = b""
        self._loop = asyncio.get_running_loop()
        for stream, fd in tree.streams.items():
            # A blocking read would stop the event loop if another process drained the pipe first.
            os.set_blocking(fd, False)
            self._loop.add_reader(fd, self._read, stream)

    async def end(self, wait_s: float) -> None:
        """Kill the remaining processes, read the rest of the output, and close all descriptors.

        Waits at most `wait_s` seconds for the tree; the starter handles processes that end later.
        """
        self._starter.kill(self.tree)
        try:
            async with asyncio.timeout(wait_s):
                await self.tree.ended.wait()
                if self.tree.failure is not None:
                    # Without a spawner, its starters and their orphans belong to the runner (bubblewrap
                    # issues 633 and 700).
                    await processes.kill_orphans()
        except TimeoutError:
            log.warning("processes of a call were killed and have not ended within %g s", wait_s)
        finally:
            self._drain()
            self._close()

    def exit_code(self) -> int | None:
        """Return None if the runner killed the command; raise `SandboxUnavailable` if it was not started."""
        if self._output.stop.reason is not None:
            return None
        if self.tree.failure is not None:
            raise SandboxUnavailable(self.tree.failure)
        # bwrap's `--json-status-fd` has one JSON object per line.
        for line in reversed(self._report.splitlines()):
            status = cast(dict[str, int], json.loads(line))
            if "exit-code" in status:
                return status["exit-code"]
        raise SandboxUnavailable(
            self._output.captured.stderr.text().strip() or "bwrap ended without an exit report"
        )

    def _read(self, stream: Stream) -> bool:
        """Read one chunk; return False if there is none now, or the stream has ended."""
        fd = self.tree.streams[stream]
        try:
            chunk = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._loop.remove_reader(fd)
            return False
        self._output.add(stream, chunk)
        return True

    def _drain(self) -> None:
        for stream in self.tree.streams:
            # A process that could not be killed may still write: the limit bounds this loop.
            while not self._output.full and self._read(stream):
                pass

    def _close(self) -> None:
        os.set_blocking(self.tree.status_fd, False)
        with contextlib.suppress(BlockingIOError):
            self._report = os.read(self.tree.status_fd, _STATUS_BYTES)
        os.close(self.tree.status_fd)
        for fd in self.tree.streams.values():
            self._loop.remove_reader(fd)
            os.close(fd)
        if self._proxy_inbox is not None:
            self._proxy_inbox.close()
