from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.sandbox import spawner_process
from banksman.tool_runner.sandbox.base import SandboxUnavailable
from banksman.tool_runner.sandbox.spawner_process import MAX_PACKET_BYTES, SEPARATOR, pack_command

_END_WAIT_S = 5.0


class SpawnedTree:
    """The processes of one call, as the spawner tells of them."""

    def __init__(self, number: int, on_end: Callable[[], None]) -> None:
        self.number = number
        self._on_end = on_end
        self.pid: int | None = None
        """The outer bwrap; None until the spawner has said so."""
        self.failure: str | None = None
        """Why it was not started, or who no longer looks after it."""
        self.ended = asyncio.Event()
        """Set when nothing of it is left."""

    def end(self, failure: str | None = None) -> None:
        """Nothing is left of it, or nobody knows of it any more."""
        self.failure = failure
        self.ended.set()
        self._on_end()


class Spawner:
    """The runner's side of the process that sandboxes are children of; see `spawner_process`.

    That process is started with the first call. When it is gone its sandboxes are gone too, and the next call
    starts another one.
    """

    def __init__(self, identity: SandboxIdentity, bwrap: str, seccomp: bytes) -> None:
        self._identity = identity
        self._bwrap = bwrap
        self._seccomp = seccomp
        self._process: subprocess.Popen[bytes] | None = None
        self._trees: dict[int, SpawnedTree] = {}
        self._last_number = 0

    def spawn(
        self,
        options: Sequence[str],
        command: Sequence[str],
        *,
        stdout: int,
        stderr: int,
        status: int,
        on_end: Callable[[], None],
        special: Mapping[str, int],
    ) -> SpawnedTree:
        """Have bwrap started with these options, command and files; `on_end` is called once.

        `special` names further descriptors: see `spawner_process.MAX_SPAWN_FDS`.

        Raises:
            SandboxUnavailable: when there is no spawner and none can be started.
        """
        if self._process is None:
            self._process = self._start()
        self._last_number += 1
        tree = self._trees[self._last_number] = SpawnedTree(self._last_number, on_end)
        with _memfd(pack_command(options, command)) as packed:
            descriptors = (packed, stdout, stderr, status, *special.values())
            self._send("spawn", tree, descriptors, special)
        return tree

    def kill(self, tree: SpawnedTree) -> None:
        """Have a tree ended; without effect when it has ended."""
        if not tree.ended.is_set():
            self._send("kill", tree)

    def close(self) -> None:
        """End the spawner and everything that it started."""
        if self._process is None:
            return
        self._channel.shutdown(socket.SHUT_WR)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_WAIT_S)
        self._lose("the sandbox was closed")

    def _start(self) -> subprocess.Popen[bytes]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        user = [str(self._identity.uid), str(self._identity.gid)] if self._identity.switches else []
        program = [sys.executable, "-I", "-S", spawner_process.__file__, str(theirs.fileno()), self._bwrap]
        with theirs:
            try:
                process = subprocess.Popen(  # noqa: S603 - our own program
                    [*program, *user],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env={},
                    cwd="/",
                    umask=0o022,
                    # A Ctrl-C at the terminal is for the runner, which then ends its calls in order.
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise SandboxUnavailable(f"cannot start the spawner: {error}") from error
        ours.setblocking(False)
        with contextlib.suppress(ConnectionError):
            ours.send(self._seccomp)
        self._channel = ours
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(ours, self._receive)
        return process

    def _send(
        self, verb: str, tree: SpawnedTree, descriptors: Sequence[int] = (), names: Iterable[str] = ()
    ) -> None:
        packet = SEPARATOR.join(word.encode() for word in (verb, str(tree.number), *names))
        try:
            socket.send_fds(self._channel, [packet], descriptors)
        except OSError as error:
            # Also when it reads nothing any more.
            self._lose(f"the spawner takes no calls: {error}")

    def _receive(self) -> None:
        packet = b""
        with contextlib.suppress(ConnectionError):
            packet = self._channel.recv(MAX_PACKET_BYTES)
        match packet.decode().split("\0"):
            case ["started", number, pid]:
                self._trees[int(number)].pid = int(pid)
            case ["failed", number, reason]:
                self._trees.pop(int(number)).end(reason)
            case ["ended", number]:
                self._trees.pop(int(number)).end()
            case _:
                self._lose("the spawner ended")

    def _lose(self, reason: str) -> None:
        """Take the spawner out of service. With it end its sandboxes: see `--die-with-parent`."""
        if self._process is None:
            return
        if not self._loop.is_closed():
            self._loop.remove_reader(self._channel)
        self._channel.close()
        self._process.kill()
        self._process.wait()
        self._process = None
        trees, self._trees = self._trees, {}
        for tree in trees.values():
            tree.end(reason)


@contextlib.contextmanager
def _memfd(content: bytes) -> Generator[int]:
    fd = os.memfd_create("command", os.MFD_CLOEXEC)
    try:
        os.write(fd, content)
        yield fd
    finally:
        os.close(fd)
