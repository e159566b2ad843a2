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
    """The process tree of one call, as the spawner reports it."""

    def __init__(
        self, number: int, on_end: Callable[[], None], stdout_fd: int, stderr_fd: int, status_fd: int
    ) -> None:
        self.number = number
        self.stdout_fd = stdout_fd
        self.stderr_fd = stderr_fd
        self.status_fd = status_fd
        """The read end of the pipe for bwrap's report; the caller of `spawn` closes all three."""
        self._on_end = on_end
        self.pid: int | None = None
        """Process id of the outer bwrap; None until the spawner has reported it."""
        self.failure: str | None = None
        """Why the tree was not started, or why the spawner was lost; None otherwise."""
        self.ended = asyncio.Event()
        """Set when no process of the tree is left."""

    def end(self, failure: str | None = None) -> None:
        """Record that no process is left, or that the spawner was lost."""
        self.failure = failure
        self.ended.set()
        self._on_end()


class Spawner:
    """The runner's side of the spawner process, the parent of all sandboxes; see `spawner_process`.

    The first call starts that process. If it ends, its sandboxes end too, and the next call starts another.
    """

    def __init__(self, identity: SandboxIdentity, bwrap: str, seccomp: bytes, calls: int) -> None:
        """Create the client; at most `calls` sandboxes run at a time."""
        self._identity = identity
        self._bwrap = bwrap
        self._seccomp = seccomp
        self._calls = calls
        self._process: subprocess.Popen[bytes] | None = None
        self._trees: dict[int, SpawnedTree] = {}
        self._last_number = 0

    def spawn(
        self,
        options: Sequence[str],
        command: Sequence[str],
        *,
        on_end: Callable[[], None],
        special: Mapping[str, int],
    ) -> SpawnedTree:
        """Start bwrap with the given options and command; `on_end` is called once.

        `special` names descriptors for the spawner; see `spawner_process.MAX_SPAWN_FDS`. The caller closes
        them, and those of the tree.

        Raises:
            SandboxUnavailable: the spawner cannot be started.
        """
        if self._process is None:
            self._process = self._start()
        self._last_number += 1
        # The write ends are closed in this process, so that the pipes end with the sandbox.
        with contextlib.ExitStack() as given, contextlib.ExitStack() as on_failure:
            packed = given.enter_context(_memfd(pack_command(options, command)))
            (stdout, stdout_fd), (stderr, stderr_fd), (status, status_fd) = (
                _pipe(given, on_failure) for _ in range(3)
            )
            # A command that opens /dev/stdout reopens the pipe by its path, which only its owner may do.
            self._identity.own(stdout)
            self._identity.own(stderr)
            tree = SpawnedTree(self._last_number, on_end, stdout_fd, stderr_fd, status_fd)
            self._trees[tree.number] = tree
            self._send("spawn", tree, (packed, stdout, stderr, status, *special.values()), special)
            on_failure.pop_all()
        return tree

    def kill(self, tree: SpawnedTree) -> None:
        """Kill a tree; no effect if it has ended."""
        if not tree.ended.is_set():
            self._send("kill", tree)

    def close(self) -> None:
        """End the spawner and all its sandboxes."""
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
        program.append(str(self._calls))
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
                    # Ctrl-C at the terminal must reach the runner only, which then drains its calls.
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
            # Also raised if the spawner no longer reads, because the socket does not block.
            self._lose(f"the spawner accepts no calls: {error}")

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
        """Stop using the spawner and kill it. `--die-with-parent` then ends its sandboxes."""
        if self._process is None:
            return
        if not self._loop.is_closed():
            self._loop.remove_reader(self._channel)
        # Closing the channel ends a spawner that still runs; the kill covers one that is stuck.
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


def _pipe(writer: contextlib.ExitStack, reader: contextlib.ExitStack) -> tuple[int, int]:
    """Return the write end and the read end of a new pipe, each closed by its stack."""
    read, write = os.pipe2(os.O_CLOEXEC)
    writer.callback(os.close, write)
    reader.callback(os.close, read)
    return write, read
