from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.sandbox.base import SandboxUnavailable, Stream
from banksman.tool_runner.sandbox.bwrap import spawner_process
from banksman.tool_runner.sandbox.bwrap.recipe import GATE
from banksman.tool_runner.sandbox.bwrap.spawner_process import MAX_PACKET_BYTES, SEPARATOR

_END_WAIT_S = 5.0
_SHARED_OBJECTS = {
    "max_inotify_instances": "fs/inotify/max_user_instances",
    "max_inotify_watches": "fs/inotify/max_user_watches",
}
"""Limits of a user namespace (`/proc/sys/user`, namespaces(7)), and the limits of a user that they divide.

The kernel counts these objects by user, and commands share one user.
"""


class SpawnedProcess:
    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self.pid: int | None = None
        """None until the parent has reported it."""
        self.failure: str | None = None
        """Why the process was not started, or why its parent was lost; None otherwise."""
        self.ended = asyncio.Event()
        """Set when neither the process nor a descendant is left."""

    def end(self, failure: str | None = None) -> None:
        self.failure = failure
        self.ended.set()
        self._on_end()


class SpawnedTree(SpawnedProcess):
    """The process tree of one call; `pid` is that of the outer bwrap."""

    def __init__(self, on_end: Callable[[], None], streams: dict[Stream, int], status_fd: int) -> None:
        super().__init__(on_end)
        self.streams = streams
        """The read ends of the pipes for the output. The caller of `spawn` closes them, and `status_fd`."""
        self.status_fd = status_fd
        """The read end of the pipe for bwrap's report."""


class _Channel:
    """The runner's end of the channel to the spawner or to a starter; see `spawner_process`."""

    def __init__(self, own: socket.socket, on_loss: Callable[[str], None]) -> None:
        own.setblocking(False)
        self._socket = own
        self._on_loss = on_loss
        self._children: dict[int, SpawnedProcess] = {}
        self._last_number = 0
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(own, self._receive)

    @property
    def connected(self) -> bool:
        """True unless the other side has ended, which the event loop may not have handled yet."""
        if self._socket.fileno() < 0:
            return False
        try:
            return self._socket.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    @property
    def used(self) -> bool:
        return bool(self._children)

    def spawn(self, child: SpawnedProcess, descriptors: Sequence[int], names: Iterable[str]) -> None:
        """Request the start of a child; see `spawner_process.MAX_SPAWN_FDS`."""
        self._last_number += 1
        self._children[self._last_number] = child
        self._send(("spawn", str(self._last_number), *names), descriptors)

    def kill(self, child: SpawnedProcess) -> None:
        for number, each in self._children.items():
            if each is child:
                self._send(("kill", str(number)))
                return

    def send(self, content: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self._socket.send(content)

    def shut(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        if self._socket.fileno() < 0:
            return
        if not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
        self._socket.close()

    def end_children(self, failure: str) -> None:
        children, self._children = self._children, {}
        for child in children.values():
            child.end(failure)

    def _send(self, words: Sequence[str], descriptors: Sequence[int] = ()) -> None:
        try:
            socket.send_fds(self._socket, [SEPARATOR.join(word.encode() for word in words)], descriptors)
        except OSError as error:
            # Also raised if the other side no longer reads, because the socket does not block.
            self._on_loss(f"the spawner accepts no calls: {error}")

    def _receive(self) -> None:
        packet = b""
        with contextlib.suppress(ConnectionError):
            packet = self._socket.recv(MAX_PACKET_BYTES)
        match packet.decode().split("\0"):
            case ["started", number, pid]:
                self._children[int(number)].pid = int(pid)
            case ["failed", number, reason]:
                self._children.pop(int(number)).end(reason)
            case ["ended", number]:
                self._children.pop(int(number)).end()
            case _:
                self._on_loss("the spawner ended")


class Starter:
    """The runner's side of a starter, which starts one bwrap after another; see `spawner_process`."""

    def __init__(
        self, identity: SandboxIdentity, own: socket.socket, kill: Callable[[SpawnedProcess], None]
    ) -> None:
        self._identity = identity
        self._kill = kill
        self._channel = _Channel(own, self._lose)
        self.process = SpawnedProcess(self._on_end)

    @property
    def idle(self) -> bool:
        return self.process.pid is not None and not self._channel.used and self._channel.connected

    def spawn(
        self,
        options: Sequence[str],
        command: Sequence[str],
        *,
        on_end: Callable[[], None],
        special: Mapping[str, int],
    ) -> SpawnedTree:
        """Start bwrap with the given options and command; `on_end` is called once.

        `special` names further descriptors; see `spawner_process.MAX_SPAWN_FDS`. The caller closes them, and
        those of the tree.
        """
        # The write ends are closed in this process, so that the pipes end with the sandbox.
        with contextlib.ExitStack() as given, contextlib.ExitStack() as on_failure:
            packed = given.enter_context(_memfd(pack_command(options, command)))
            (stdout, stdout_fd), (stderr, stderr_fd), (status, status_fd) = (
                _pipe(given, on_failure) for _ in range(3)
            )
            # A command that opens /dev/stdout reopens the pipe by its path, which only its owner may do.
            self._identity.own(stdout)
            self._identity.own(stderr)
            tree = SpawnedTree(on_end, {"stdout": stdout_fd, "stderr": stderr_fd}, status_fd)
            self._channel.spawn(tree, (packed, stdout, stderr, status, *special.values()), special)
            on_failure.pop_all()
        return tree

    def kill(self, tree: SpawnedTree) -> None:
        self._channel.kill(tree)

    def end(self) -> None:
        self._channel.shut()
        self._kill(self.process)

    def _lose(self, reason: str) -> None:
        """Kill a starter that ended or does not read; the spawner reports when nothing of it is left."""
        self._channel.close()
        self._kill(self.process)

    def _on_end(self) -> None:
        self._channel.close()
        self._channel.end_children(self.process.failure or "the starter ended")


@dataclass
class Spawner:
    """The runner's side of the spawner process, the parent of all starters; see `spawner_process`.

    The first call starts that process. If it ends, its starters and their sandboxes end too, and the next
    call starts another.
    """

    identity: SandboxIdentity
    bwrap: str
    seccomp: bytes
    calls: int
    """Number of concurrent calls, which share the limits of the kernel per user."""
    _process: subprocess.Popen[bytes] | None = None

    def starter(self, cgroup: Sequence[int], *, shared: bool = False) -> Starter:
        """Start a starter; `cgroup` has a descriptor of each `cgroup.procs` of its cgroup.

        The sandboxes of a `shared` starter have one network namespace.
        """
        if self._process is None:
            self._process = self._start()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            starter = Starter(self.identity, ours, self._channel.kill)
            special = {f"cgroup{number}": fd for number, fd in enumerate(cgroup)}
            if shared:
                special["shared"] = theirs.fileno()
            self._channel.spawn(starter.process, (theirs.fileno(), *special.values()), special)
        return starter

    def close(self) -> None:
        if self._process is None:
            return
        self._channel.shut()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_WAIT_S)
        self._lose("the sandbox was closed")

    def _start(self) -> subprocess.Popen[bytes]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        user = [str(self.identity.uid), str(self.identity.gid)] if self.identity.switches else []
        program = [sys.executable, "-I", "-S", spawner_process.__file__]
        with theirs:
            try:
                shares = ",".join(_shares(self.calls))
                process = subprocess.Popen(  # noqa: S603 - our own program
                    [*program, str(theirs.fileno()), self.bwrap, GATE, shares, *user],
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
        self._channel = _Channel(ours, self._lose)
        self._channel.send(self.seccomp)
        return process

    def _lose(self, reason: str) -> None:
        """Stop using the spawner and kill it. Parent-death signals then end its starters and sandboxes."""
        if self._process is None:
            return
        # Closing the channel ends a spawner that still runs; the kill covers one that is stuck.
        self._channel.close()
        self._process.kill()
        self._process.wait()
        self._process = None
        self._channel.end_children(reason)


def pack_command(options: Sequence[str], command: Sequence[str]) -> bytes:
    """Return the content of the first descriptor of `spawn`: bwrap's options and the command."""
    packed_options, packed_command = (os.fsencode("\0".join(words)) for words in (options, command))
    return b"%d\0%b\0%b" % (len(packed_options) + 1, packed_options, packed_command)


def _shares(calls: int) -> list[str]:
    """Return `name=value` for each of `_SHARED_OBJECTS`: the share of one of `calls` concurrent calls."""
    limits = {name: int(Path("/proc/sys", file).read_text()) for name, file in _SHARED_OBJECTS.items()}
    return [f"{name}={max(1, limit // calls)}" for name, limit in limits.items()]


@contextlib.contextmanager
def _memfd(content: bytes) -> Generator[int]:
    fd = os.memfd_create("command", os.MFD_CLOEXEC)
    try:
        os.write(fd, content)
        yield fd
    finally:
        os.close(fd)


def _pipe(writer: contextlib.ExitStack, reader: contextlib.ExitStack) -> tuple[int, int]:
    read, write = os.pipe2(os.O_CLOEXEC)
    writer.callback(os.close, write)
    reader.callback(os.close, read)
    return write, read
