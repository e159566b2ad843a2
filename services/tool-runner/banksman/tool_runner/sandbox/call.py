from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from typing import cast

from banksman.tool_runner.sandbox import processes
from banksman.tool_runner.sandbox.base import OnOutput, SandboxUnavailable, Stop
from banksman.tool_runner.sandbox.listener import ListenerInbox
from banksman.tool_runner.sandbox.output import CapturedOutput, Stream
from banksman.tool_runner.sandbox.spawner import SpawnedTree, Spawner

log = logging.getLogger(__name__)

_READ_BYTES = 64 * 1024
_STATUS_BYTES = 4096


class BwrapCall:
    """One bwrap that runs: its process, its output, its own report of how it went."""

    def __init__(
        self,
        tree: SpawnedTree,
        spawner: Spawner,
        *,
        status_fd: int,
        streams: dict[Stream, int],
        output: CapturedOutput,
        stop: Stop,
        max_output_bytes: int,
        on_output: OnOutput | None,
        way_out: ListenerInbox | None = None,
    ) -> None:
        """Take over the file descriptors and begin to read."""
        self._way_out = way_out
        self._tree = tree
        self._spawner = spawner
        self._status_fd = status_fd
        self._streams = streams
        self._output = output
        self._stop = stop
        self._max_output_bytes = max_output_bytes
        self._on_output = on_output
        self._loop = asyncio.get_running_loop()
        for stream, fd in streams.items():
            os.set_blocking(fd, False)
            self._loop.add_reader(fd, self._read, stream)

    @property
    def pid(self) -> int | None:
        """The outer bwrap; None until it was started."""
        return self._tree.pid

    async def end(self, wait_s: float) -> None:
        """Kill what is left of the tree, take the rest of the output, close everything.

        Waits at most `wait_s` for the tree; what the kernel has not ended by then stays with the spawner.
        """
        self._spawner.kill(self._tree)
        try:
            async with asyncio.timeout(wait_s):
                await self._tree.ended.wait()
                if self._tree.failure is not None:
                    await processes.bury_orphans()
        except TimeoutError:
            log.warning("processes of a call were killed and have not ended within %g s", wait_s)
        finally:
            self._drain()
            self._close()

    def exit_code(self) -> int | None:
        """What the command returned; None when it was killed from outside.

        Raises:
            SandboxUnavailable: when the command could not be started, or was lost with its spawner.
        """
        if self._stop.reason is not None:
            return None
        if self._tree.failure is not None:
            raise SandboxUnavailable(self._tree.failure)
        reported = _reported_exit_code(self._report)
        if reported is None:
            raise SandboxUnavailable(self._output.stderr.text().strip() or "bwrap ended without a report")
        return reported

    def _read(self, stream: Stream) -> bool:
        """Take one chunk; False when there is none for now or none will come any more."""
        fd = self._streams[stream]
        try:
            chunk = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._loop.remove_reader(fd)
            return False
        self._output.add(stream, chunk)
        if self._on_output is not None:
            self._on_output(stream, chunk)
        if self._output.total_bytes > self._max_output_bytes:
            self._stop.request("output_limit")
        return True

    def _drain(self) -> None:
        for stream in self._streams:
            while self._output.total_bytes <= self._max_output_bytes and self._read(stream):
                pass

    def _close(self) -> None:
        os.set_blocking(self._status_fd, False)
        with contextlib.suppress(BlockingIOError):
            self._report = os.read(self._status_fd, _STATUS_BYTES)
        for fd in self._streams.values():
            self._loop.remove_reader(fd)
        for fd in (self._status_fd, *self._streams.values()):
            os.close(fd)
        if self._way_out is not None:
            self._way_out.close()

    _report: bytes = b""


def _reported_exit_code(report: bytes) -> int | None:
    """The last `exit-code` in bwrap's `--json-status-fd`: one JSON object a line."""
    for line in reversed(report.splitlines()):
        status = cast(dict[str, int], json.loads(line))
        if "exit-code" in status:
            return status["exit-code"]
    return None
