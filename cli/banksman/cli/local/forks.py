"""Requests to the template process, which forks the services of one system."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from banksman.cli.local.child import launched

_MESSAGE_BYTES = 4096


class TemplateEnded(Exception):
    """The template ended before it forked a requested process."""


@dataclass(frozen=True, slots=True)
class ForkRequest:
    service: str
    title: str
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ForkedProcess:
    pid: int
    _ended: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    async def wait(self) -> int:
        """Wait until the process ends; return its exit code, or the negative number of its fatal signal."""
        return await asyncio.shield(self._ended)

    def end(self, code: int) -> None:
        self._ended.set_result(code)


class ServiceTemplate:
    """The template process. `fork` starts it again if it ended; the kernel then kills its services."""

    def __init__(self, services: tuple[str, ...], environment: Mapping[str, str]) -> None:
        self._services = services
        self._environment = environment
        self._control: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        # One request at a time, so that the next response belongs to it.
        self._requests = asyncio.Lock()
        self._response: asyncio.Future[ForkedProcess] | None = None
        self._running: dict[int, ForkedProcess] = {}

    async def start(self) -> None:
        async with self._requests:
            await self._control_socket()

    async def fork(self, request: ForkRequest, output: int) -> ForkedProcess:
        """Return a new process, which writes to the descriptor `output`; raise `TemplateEnded` on failure."""
        async with self._requests:
            control = await self._control_socket()
            response = self._response = asyncio.get_running_loop().create_future()
            # The environment may exceed the size of a message, and its secrets must not be written to a disk.
            with os.fdopen(os.memfd_create("request", os.MFD_CLOEXEC), "w+b") as file:
                file.write(json.dumps(asdict(request)).encode())
                file.seek(0)
                socket.send_fds(control, [b"fork"], [file.fileno(), output])
            return await response

    async def close(self) -> None:
        if self._control is not None:
            self._forget()
        if self._process is not None:
            await self._process.wait()

    async def _control_socket(self) -> socket.socket:
        if self._control is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            with theirs:
                arguments = ("-P", "-m", "banksman.cli.template", str(theirs.fileno()), *self._services)
                self._process = await asyncio.create_subprocess_exec(
                    *launched((sys.executable, *arguments), os.getpid()),
                    stdin=asyncio.subprocess.DEVNULL,
                    env=dict(self._environment),
                    pass_fds=(theirs.fileno(),),
                    process_group=0,
                )
            self._control = ours
            asyncio.get_running_loop().add_reader(ours, self._receive)
        return self._control

    def _receive(self) -> None:
        assert self._control is not None
        try:
            body = self._control.recv(_MESSAGE_BYTES)
        except ConnectionError:
            body = b""
        if not body:
            self._lost()
            return
        message = json.loads(body)
        if pid := message.get("forked"):
            self._running[pid] = ForkedProcess(pid)
            # After a cancelled request the process has no owner; the caller then ends the whole system.
            if self._response is not None and not self._response.done():
                self._response.set_result(self._running[pid])
        else:
            self._running.pop(message["ended"]).end(message["code"])

    def _lost(self) -> None:
        self._forget()
        if self._response is not None and not self._response.done():
            self._response.set_exception(TemplateEnded)
        for process in self._running.values():
            process.end(-signal.SIGKILL)
        self._running.clear()

    def _forget(self) -> None:
        assert self._control is not None
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        self._control = None
