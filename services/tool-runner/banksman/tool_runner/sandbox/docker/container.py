from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import socket
import struct
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ValidationError

from banksman.contracts.wire import JsonObject
from banksman.tool_runner.sandbox.base import (
    PROXY_PORT,
    KilledReason,
    OnListener,
    RunningOutput,
    SandboxCommand,
    SandboxUnavailable,
    Stop,
    Stream,
    run_until,
)
from banksman.tool_runner.sandbox.docker import supervisor
from banksman.tool_runner.sandbox.listener import ListenerInbox
from banksman.tool_runner.settings import SandboxLimits

PROXY_MOUNT = "/run/banksman"
"""Where a container has the directory with the local socket of its proxy."""
_PROXY_SOCKET = "proxy"
_READ_BYTES = 64 * 1024
_ENGINE_HEADER = struct.Struct(">BxxxI")
"""Header of each piece of a container's output: stream and length."""
_ENGINE_STDOUT: Final = 1
_ERROR_BYTES = 2000
_STREAMS: dict[bytes, Stream] = {supervisor.STDOUT: "stdout", supervisor.STDERR: "stderr"}
_SUPERVISOR_GRACE_S = 5.0
"""Seconds after the time-out at which the supervisor ends a command that the runner has not ended."""


class ExitReport(BaseModel):
    exit_code: int | None
    killed_reason: KilledReason | None
    failure: str | None
    reusable: bool
    """False if the command has left something that only the end of the container removes."""


@dataclass(slots=True, eq=False)
class ContainerCall:
    output: RunningOutput
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when no process of the command is left, or the container is lost."""
    report: ExitReport | None = None
    failure: str | None = None

    def end(self, *, report: ExitReport | None = None, failure: str | None = None) -> None:
        self.report, self.failure = report, failure
        if report is not None and report.killed_reason is not None:
            self.output.stop.request(report.killed_reason)
        self.output.stop.exited()
        self.ended.set()

    def exit_code(self) -> int | None:
        """Return None if the runner killed the command; raise `SandboxUnavailable` if it was not started."""
        if self.output.stop.reason is not None:
            return None
        if self.report is None or self.report.failure is not None:
            raise SandboxUnavailable(str(self.report.failure if self.report else self.failure))
        return self.report.exit_code


class Container:
    def __init__(
        self, name: str, image: str, directory: Path, directory_id: tuple[int, int], packets: Path
    ) -> None:
        """`packets` is a directory of this container alone, in which the runner receives sockets."""
        self.name = name
        self.image = image
        self.directory = directory
        self.packets = packets
        self._directory_id = directory_id
        """Device and inode of `directory` when it was mounted."""
        self._connection: socket.socket | None = None
        self._frames = _Frames()
        self._call: ContainerCall | None = None
        self._hello = asyncio.Event()
        self._spent = False
        self._last_used = time.monotonic()

    @property
    def usable(self) -> bool:
        """False if the container has ended, or its workspace was replaced by another directory.

        A bind mount still shows the old directory after another one was created at its path.
        """
        return (
            self._connection is not None
            and not self._spent
            and self._directory_id == directory_id(self.directory)
        )

    def serves(self, image: str) -> bool:
        return self.usable and self.image == image

    @property
    def idle_s(self) -> float:
        return 0.0 if self._call is not None else time.monotonic() - self._last_used

    def connect(self, connection: socket.socket) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection, self._receive)

    async def ready(self) -> None:
        """Wait for the supervisor's first frame; raise `SandboxUnavailable` if the container ends."""
        await self._hello.wait()
        if self._connection is None:
            raise SandboxUnavailable(
                f"the container did not start: {self._last_error()}",
                remedy="Its image needs bash, findutils and Python 3.9 or newer.",
            )

    def begin(self, output: RunningOutput) -> ContainerCall:
        """Reserve the container for a command; `run` starts it, and `end` releases the container."""
        self._call = ContainerCall(output)
        return self._call

    async def run(
        self, command: SandboxCommand, limits: SandboxLimits, stop: Stop, on_listener: OnListener | None
    ) -> None:
        """Run a command; `on_listener` receives the socket of its proxy, unless an earlier one did."""
        with _receiving(self.packets, on_listener) as proxy:
            request: dict[str, object] = {
                "script": command.script,
                "environment": command.environment(),
                "has_input": command.stdin is not None,
                "cpu_s": max(limits.cpu_s, math.ceil(command.timeout_s)),
                "deadline_s": command.timeout_s + _SUPERVISOR_GRACE_S,
                "proxy": proxy,
            }
            await self._run(request, command, stop)

    async def _run(self, request: dict[str, object], command: SandboxCommand, stop: Stop) -> None:
        try:
            async with asyncio.timeout(command.timeout_s):
                # Inside the time-out: a frozen engine would block the send.
                await self._send(supervisor.RUN, json.dumps(request).encode())
                if command.stdin is None:
                    await stop.wait()
                else:
                    await run_until(self._forward(command.stdin), stop.wait())
        except TimeoutError:
            stop.request("timeout")

    async def _forward(self, stdin: int) -> None:
        """Send what arrives at a pipe to the standard input of the command, until cancelled."""
        readable = asyncio.Event()
        os.set_blocking(stdin, False)
        self._loop.add_reader(stdin, readable.set)
        try:
            while True:
                await readable.wait()
                readable.clear()
                with contextlib.suppress(BlockingIOError):
                    await self._send(supervisor.INPUT, os.read(stdin, _READ_BYTES))
        finally:
            self._loop.remove_reader(stdin)

    async def end(self, wait_s: float) -> bool:
        """Kill the command; return False if the supervisor does not confirm its end within `wait_s` s."""
        call = self._call
        if call is None:
            return True
        try:
            async with asyncio.timeout(wait_s):
                if not call.ended.is_set():
                    await self._send(supervisor.KILL)
                await call.ended.wait()
        except TimeoutError:
            call.failure = f"the container did not end its processes within {wait_s:g} s"
        finally:
            self._call = None
            self._last_used = time.monotonic()
        return call.report is not None

    def close(self) -> None:
        """Close the connection. The supervisor then ends with all its processes."""
        self._lose("the sandbox was closed")

    async def _send(self, kind: bytes, payload: bytes = b"") -> None:
        if self._connection is None:
            if self._call is not None:
                self._call.end(failure="the container has ended")
            return
        frame = supervisor.HEADER.pack(kind, len(payload)) + payload
        try:
            await self._loop.sock_sendall(self._connection, frame)
        except OSError as error:
            self._lose(f"the connection to the container is broken: {error}")

    def _receive(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            received = connection.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(f"the connection to the container is broken: {error}")
            return
        if not received:
            self._lose(f"the container or its engine ended: {self._last_error()}")
            return
        try:
            for kind, payload in self._frames.take(received):
                self._on_frame(kind, payload)
        except (ValidationError, ValueError) as error:
            self._lose(f"the container sent an invalid frame: {error}")

    def _on_frame(self, kind: bytes, payload: bytes) -> None:
        match kind, self._call:
            case supervisor.HELLO, _:
                self._hello.set()
            case ((supervisor.STDOUT | supervisor.STDERR), ContainerCall() as call):
                if not call.output.full:
                    call.output.add(_STREAMS[kind], payload)
            case supervisor.EXIT, ContainerCall() as call:
                report = ExitReport.model_validate_json(payload)
                self._spent = not report.reusable
                call.end(report=report)
            case _:
                raise ValueError(f"unexpected frame {kind!r}")

    def _last_error(self) -> str:
        errors = self._frames.errors.decode("utf-8", "replace").strip()
        return errors.rpartition("\n")[2] or "no error output"

    def _lose(self, reason: str) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if not self._loop.is_closed():
            self._loop.remove_reader(connection)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
        # Wakes `ready`, which then finds no connection.
        self._hello.set()
        if self._call is not None:
            self._call.end(failure=reason)


class _Frames:
    """Reassembles the supervisor's frames from the pieces that the engine sends.

    Memory is bounded, because a frame longer than `MAX_FRAME_BYTES` is refused.
    """

    def __init__(self) -> None:
        self._received = bytearray()
        self._stdout = bytearray()
        self.errors = b""
        """The last bytes on standard error, from the supervisor or from the runtime that should have started
        it."""

    def take(self, received: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Add bytes from the engine; yield the complete frames. Raise ValueError if one is too long."""
        self._received += received
        self._unwrap()
        while len(self._stdout) >= supervisor.HEADER.size:
            kind, length = supervisor.HEADER.unpack_from(self._stdout)
            if length > supervisor.MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes")
            end = supervisor.HEADER.size + length
            if len(self._stdout) < end:
                return
            payload = bytes(self._stdout[supervisor.HEADER.size : end])
            del self._stdout[:end]
            yield kind, payload

    def _unwrap(self) -> None:
        while len(self._received) >= _ENGINE_HEADER.size:
            stream, length = _ENGINE_HEADER.unpack_from(self._received)
            end = _ENGINE_HEADER.size + length
            if len(self._received) < end:
                return
            piece = bytes(self._received[_ENGINE_HEADER.size : end])
            del self._received[:end]
            if stream == _ENGINE_STDOUT:
                self._stdout += piece
            else:
                self.errors = (self.errors + piece)[-_ERROR_BYTES:]


def directory_id(directory: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(directory)
    except OSError:
        return None
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def _receiving(directory: Path, on_listener: OnListener | None) -> Generator[JsonObject | None]:
    """Receive the listening socket of the proxy during the block; yield what the supervisor needs to send it.

    The supervisor sends it to a local socket in a directory that only its container has. At that time, no
    process of a command runs there that could send another socket.
    """
    if on_listener is None:
        yield None
        return
    with contextlib.ExitStack() as opened:
        packets = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        opened.callback(os.close, fd)
        # The address of a local socket has at most 107 bytes; the path of the workspaces may have more.
        path = f"/proc/self/fd/{fd}/{_PROXY_SOCKET}"
        packets.bind(path)
        opened.callback(os.unlink, path)
        # The user of commands sends to it.
        os.chmod(path, 0o666)  # noqa: S103 - only one container has the directory
        opened.callback(ListenerInbox(packets, on_listener).close)
        yield {"port": PROXY_PORT, "to": f"{PROXY_MOUNT}/{_PROXY_SOCKET}"}
