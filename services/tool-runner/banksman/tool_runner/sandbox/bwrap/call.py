from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
from typing import cast

from banksman.tool_runner.sandbox.base import (
    CapturedOutput,
    OnListener,
    OnOutput,
    SandboxUnavailable,
    Stop,
    Stream,
)
from banksman.tool_runner.sandbox.bwrap import processes
from banksman.tool_runner.sandbox.bwrap.spawner import SpawnedTree, Starter

log = logging.getLogger(__name__)

_READ_BYTES = 64 * 1024
_STATUS_BYTES = 4096
_LISTENER_BYTES = 64


class BwrapCall:
    def __init__(
        self,
        tree: SpawnedTree,
        starter: Starter,
        output: CapturedOutput,
        stop: Stop,
        max_output_bytes: int,
        on_output: OnOutput | None,
        proxy_inbox: ListenerInbox | None,
    ) -> None:
        self._proxy_inbox = proxy_inbox
        self._tree = tree
        self._starter = starter
        self._status_fd = tree.status_fd
        self._streams: dict[Stream, int] = {"stdout": tree.stdout_fd, "stderr": tree.stderr_fd}
        self._output = output
        self._stop = stop
        self._max_output_bytes = max_output_bytes
        self._on_output = on_output
        self._loop = asyncio.get_running_loop()
        for stream, fd in self._streams.items():
            # A blocking read would stop the event loop if another process drained the pipe first.
            os.set_blocking(fd, False)
            self._loop.add_reader(fd, self._read, stream)

    @property
    def pid(self) -> int | None:
        return self._tree.pid

    async def end(self, wait_s: float) -> None:
        """Kill the remaining processes, read the rest of the output, and close all descriptors.

        Waits at most `wait_s` seconds for the tree; the starter handles processes that end later.
        """
        self._starter.kill(self._tree)
        try:
            async with asyncio.timeout(wait_s):
                await self._tree.ended.wait()
                if self._tree.failure is not None:
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
        if self._stop.reason is not None:
            return None
        if self._tree.failure is not None:
            raise SandboxUnavailable(self._tree.failure)
        reported = _reported_exit_code(self._report)
        if reported is None:
            raise SandboxUnavailable(
                self._output.stderr.text().strip() or "bwrap ended without an exit report"
            )
        return reported

    def _read(self, stream: Stream) -> bool:
        """Read one chunk; return False if there is none now, or the stream has ended."""
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
            # A process that could not be killed may still write: the limit bounds this loop.
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
        if self._proxy_inbox is not None:
            self._proxy_inbox.close()

    _report: bytes = b""


class ListenerInbox:
    """Receives the listening socket of a sandbox's proxy.

    The socket belongs to the network namespace of the sandbox, and the runner accepts connections on it in
    its own namespace. No part of the proxy runs in the sandbox, and no sandbox can reach the proxy of
    another.
    """

    def __init__(self, on_listener: OnListener) -> None:
        self._on_listener = on_listener
        self._ours, self.given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        """`given` goes to the spawner; the caller closes it afterwards."""
        self._ours.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._ours, self._receive)

    def close(self) -> None:
        if self._ours.fileno() >= 0:
            self._loop.remove_reader(self._ours)
            self._ours.close()

    def _receive(self) -> None:
        try:
            _, descriptors, _, _ = socket.recv_fds(self._ours, _LISTENER_BYTES, 1)
        except OSError:
            descriptors = []
        self.close()
        if descriptors:
            listener = socket.socket(fileno=descriptors[0])
            listener.set_inheritable(False)
            self._on_listener(listener)


def _reported_exit_code(report: bytes) -> int | None:
    """Return the last `exit-code` of bwrap's `--json-status-fd`, which has one JSON object per line."""
    for line in reversed(report.splitlines()):
        status = cast(dict[str, int], json.loads(line))
        if "exit-code" in status:
            return status["exit-code"]
    return None
