"""The spawner and its starters: the program whose processes are the parents of a runner's sandboxes.

The runner starts the spawner, the spawner forks starters, and a starter starts one bwrap after another. A
starter is already in a cgroup and in a user namespace with limits of its own, and bwrap inherits both: to
enter them for each command costs more CPU time than bash, and moving a process into a cgroup waits for all
processors. The runner reuses a starter only when no process is left of its last command.

These processes never run as root, and outlive their runner for a moment. They kill the sandboxes that bwrap's
parent-death signal does not reach: if the outer bwrap is killed while it starts, the sandbox never ends
(https://github.com/containers/bubblewrap/issues/633 and /700). Each has one thread, because the kernel sends
the parent-death signal when the *thread* that forked ends (prctl(2)).

The runner starts this file by its path, without site-packages. After dropping root, the process may be unable
to read files, so all code is in this file and in the standard library, imported at the top.

The runner exchanges packets of words separated by NUL with the spawner and with each starter. The runner
sends `spawn {number} {names}` with descriptors, and `kill {number}`. The other side sends
`started {number} {pid}`, `failed {number} {reason}` and `ended {number}`.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

MAX_PACKET_BYTES = 4096
OPTIONS_FD, STATUS_FD, SECCOMP_FD = 3, 4, 5
"""Descriptor numbers that bwrap inherits."""
GATE_FD, LIFE_FD = 6, 7
"""Descriptor numbers that bash inherits: its start-up file, and a pipe that closes with the spawner."""
PROXY_PORT = 3128
"""Port of the proxy on the loopback of a sandbox that may connect."""
MAX_SPAWN_FDS = 8
"""Maximum number of descriptors of a `spawn`. The last ones have names, which the packet lists.

of a starter  its channel; `cgroup0` and so on are `cgroup.procs` of its cgroup, in each hierarchy; with
              `shared`, any descriptor, all its sandboxes have one network namespace
of bwrap      the packed command, standard output, standard error and bwrap's report; `stdin` is standard
              input; `proxy` is a socket, over which the starter sends the listening socket of `PROXY_PORT`
"""
STARTER_NAME = "bm-starter"
"""Name of a starter in `/proc/{pid}/comm`."""
SEPARATOR = b"\0"
_HIGHEST_OOM_SCORE = b"1000"
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 4, 15, 36
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP, _IFF_RUNNING = 0x1, 0x40
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DEFAULT = (*_IGNORED, signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that this process or Python ignores; a sandbox must get the default action."""


def become_subreaper() -> None:
    """Make this process the parent of its orphaned descendants instead of init (prctl(2))."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int | bytes) -> None:
    _call_libc("prctl", option, value, 0, 0, 0)


def _call_libc(function: str, *arguments: int | bytes) -> None:
    if ctypes.CDLL(None, use_errno=True)[function](*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")


def _unpack_command(content: bytes) -> tuple[bytes, list[bytes]]:
    """Return the options in the format of `--args`, and the words of the command; see `pack_command`."""
    length, _, packed = content.partition(SEPARATOR)
    return packed[: int(length)], packed[int(length) :].split(SEPARATOR)


_Start = Callable[[Sequence[int], dict[bytes, int]], int]
"""Starts a child with the unnamed and the named descriptors of a packet; returns its process id."""


class _Parent:
    """Starts and kills children; reports an end when no process of the child is left."""

    def __init__(self, channel: socket.socket, start: _Start) -> None:
        self._channel = channel
        self._start = start
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._connected = True
        self._children: dict[int, int] = {}
        """Process ids of all children, by pidfd."""
        self._started: dict[int, int] = {}
        """Numbers of `spawn`, by the process id of the child. All other children are orphans."""
        self._awaited: dict[int, set[int]] = {}
        """For each number whose child has ended: the orphans that may belong to it."""

    def serve(self) -> None:
        while self._connected or self._children:
            for fd, _ in self._poll.poll():
                if fd in self._children:
                    self._reap(fd)
                else:
                    self._receive()

    def _receive(self) -> None:
        packet, descriptors = _received(self._channel)
        try:
            match packet.split(SEPARATOR):
                case [b"spawn", number, *names]:
                    self._spawn(int(number), descriptors, names)
                case [b"kill", number]:
                    self._kill(pid for pid, each in self._started.items() if each == int(number))
                case _:
                    self._connected = False
                    self._poll.unregister(self._channel)
                    self._kill(self._started)
        finally:
            for fd in descriptors:
                os.close(fd)

    def _send(self, *words: str) -> None:
        with contextlib.suppress(ConnectionError):
            self._channel.send(SEPARATOR.join(word.encode() for word in words))

    def _spawn(self, number: int, descriptors: Sequence[int], names: Sequence[bytes]) -> None:
        common = len(descriptors) - len(names)
        try:
            special = dict(zip(names, descriptors[common:], strict=True))
            pid = self._start(descriptors[:common], special)
        except OSError as error:
            self._send("failed", str(number), f"cannot start a process as user {os.getuid()}: {error}")
            self._adopt()
            return
        self._started[pid] = number
        self._watch(pid)
        self._send("started", str(number), str(pid))

    def _reap(self, pidfd: int) -> None:
        """Reap a child that has ended; report its number if no other process of it can be left."""
        self._poll.unregister(pidfd)
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
        os.close(pidfd)
        pid = self._children.pop(pidfd)
        self._adopt()
        for awaited in self._awaited.values():
            awaited.discard(pid)
        if pid in self._started:
            number = self._started.pop(pid)
            self._awaited[number] = {pid for pid in self._children.values() if pid not in self._started}
        for number in [number for number, awaited in self._awaited.items() if not awaited]:
            del self._awaited[number]
            self._send("ended", str(number))

    def _adopt(self) -> None:
        """Kill the children that this process did not start.

        Usually such a child is the first process of a namespace that is ending: bwrap does not wait for it.
        When that process dies, the kernel kills the namespace and lets it end last (pid_namespaces(7)). Once
        it is reaped, no process below it is left.
        """
        known = set(self._children.values())
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as listed:
            children = [int(pid) for pid in listed.read().split()]
        for pid in children:
            if pid not in known:
                self._watch(pid)
                self._kill([pid])
                # The child may belong to an orphan that has just ended.
                for awaited in self._awaited.values():
                    awaited.add(pid)

    def _watch(self, pid: int) -> None:
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)

    @staticmethod
    def _kill(children: Iterable[int]) -> None:
        # The kernel reuses the id of a child only after it is reaped, and only this thread reaps.
        for pid in children:
            os.kill(pid, signal.SIGKILL)


@dataclass
class _Starters:
    sandboxes: Callable[[], _Sandboxes]
    shares: Mapping[str, str]

    def start(self, descriptors: Sequence[int], special: dict[bytes, int]) -> int:
        (channel,) = descriptors
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            os.setsid()
            shares_network = special.pop(b"shared", None) is not None
            # bwrap inherits the cgroup, so it is in it from the start.
            for fd in special.values():
                os.write(fd, b"0")
            self._serve(channel, parent, shares_network)
        finally:
            os._exit(0)

    def _serve(self, channel_fd: int, parent: int, shares_network: bool) -> None:
        with socket.socket(fileno=_only_descriptor(channel_fd)) as channel:
            sandboxes = self.sandboxes()
            sandboxes.shares_network = shares_network
            try:
                _confine(self.shares)
                if shares_network:
                    _enter_network()
            except OSError as error:
                sandboxes.problem = error
            # After the namespace was entered, because a change of the credentials resets the signal.
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == parent:
                _Parent(channel, sandboxes.start).serve()


def _only_descriptor(fd: int) -> int:
    """Move a descriptor above those of sandboxes, and close all others, such as those of other channels.

    The numbers that sandboxes use are occupied, so that dup2 overwrites no descriptor in use.
    """
    own = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, LIFE_FD + 1)
    for number in range(OPTIONS_FD, LIFE_FD + 1):
        os.dup2(0, number, inheritable=False)
    os.closerange(LIFE_FD + 1, own)
    os.closerange(own + 1, os.sysconf("SC_OPEN_MAX"))
    return own


def _confine(shares: Mapping[str, str]) -> None:
    """Enter a user namespace with its own limits, and let the OOM killer choose this process first.

    Sandboxes inherit the score. Writing the file of a child is not possible: it belongs to root until exec
    has finished.
    """
    _prctl(_PR_SET_NAME, STARTER_NAME.encode())
    # The /proc files of a process that is not dumpable belong to root (proc(5)).
    _prctl(_PR_SET_DUMPABLE, 1)
    _write("/proc/self/oom_score_adj", _HIGHEST_OOM_SCORE)
    # Enter a user namespace with the same user; creating other namespaces requires it.
    uid, gid = os.getuid(), os.getgid()
    _call_libc("unshare", _CLONE_NEWUSER)
    _write("/proc/self/setgroups", b"deny")
    _write("/proc/self/uid_map", b"%d %d 1" % (uid, uid))
    _write("/proc/self/gid_map", b"%d %d 1" % (gid, gid))
    for name, most in shares.items():
        _write(f"/proc/sys/user/{name}", most.encode())
    # No process with the same user id, such as a command, may trace it.
    _prctl(_PR_SET_DUMPABLE, 0)
    become_subreaper()


class _Sandboxes:
    def __init__(self, bwrap: str, seccomp: bytes, gate: str) -> None:
        self._bwrap = os.fsencode(bwrap)
        self._seccomp = seccomp
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self._gate = _memfd(gate.encode())
        self._life, _ = os.pipe2(os.O_CLOEXEC)
        self.problem: OSError | None = None
        """Why no sandbox can be started."""
        self.shares_network = False
        """Whether this process is already in the network namespace of its sandboxes."""

    def start(self, descriptors: Sequence[int], special: Mapping[bytes, int]) -> int:
        """Start bwrap; with `proxy`, in a network namespace with a loopback and the proxy's socket."""
        if self.problem is not None:
            raise self.problem
        command, stdout, stderr, status = descriptors
        options, words = _unpack_command(os.pread(command, os.fstat(command).st_size, 0))
        with contextlib.ExitStack() as opened:
            files = {0: special.get(b"stdin", self._null), 1: stdout, 2: stderr, STATUS_FD: status}
            files |= {GATE_FD: self._gate, LIFE_FD: self._life}
            files[OPTIONS_FD] = _pipe_with(options, opened)
            files[SECCOMP_FD] = _pipe_with(self._seccomp, opened)
            arguments = [self._bwrap, b"--args", b"%d" % OPTIONS_FD, b"--", *words]
            if b"proxy" in special:
                return _start_by_fork(arguments, files, special[b"proxy"], enters=not self.shares_network)
            # posix_spawn does not copy this process's memory, as fork would.
            return os.posix_spawn(
                self._bwrap,
                arguments,
                # bwrap's --clearenv does not clear its own initial environment, which /proc/1/environ shows.
                {},
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in files.items()],
                setsid=True,
                setsigdef=_DEFAULT,
            )


def _start_by_fork(arguments: list[bytes], files: Mapping[int, int], proxy: int, *, enters: bool) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        if enters:
            _enter_network()
        listener = socket.create_server(("127.0.0.1", PROXY_PORT), backlog=64)
        with listener, socket.socket(fileno=os.dup(proxy)) as runner:
            socket.send_fds(runner, [b"listener"], [listener.fileno()])
        for number in _DEFAULT:
            signal.signal(number, signal.SIG_DFL)
        for number, fd in files.items():
            os.dup2(fd, number)
        os.execve(arguments[0], arguments, {})  # noqa: S606 - the words are the runner's
    except BaseException as error:
        # Standard error of the call becomes the message of `SandboxUnavailable`.
        os.write(files[2], f"cannot prepare the sandbox: {error}".encode())
    finally:
        os._exit(127)


def _enter_network() -> None:
    """Enter a network namespace that has only a loopback."""
    _call_libc("unshare", _CLONE_NEWNET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh22x", b"lo", _IFF_UP | _IFF_RUNNING)
        fcntl.ioctl(control, _SIOCSIFFLAGS, request)


def _write(path: str, content: bytes) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(content)


def _received(channel: socket.socket) -> tuple[bytes, array.array[int]]:
    """Receive the next packet and its descriptors; empty if the other side has ended."""
    descriptors = array.array("i")
    space = socket.CMSG_SPACE(MAX_SPAWN_FDS * descriptors.itemsize)
    try:
        # `socket.recv_fds` of Python 3.11 ignores the flag; sandboxes would then inherit the descriptors.
        packet, messages, _, _ = channel.recvmsg(MAX_PACKET_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        return b"", descriptors
    for _, _, content in messages:
        descriptors.frombytes(content)
    return packet, descriptors


def _pipe_with(content: bytes, owner: contextlib.ExitStack) -> int:
    """Return the read end of a pipe with `content` and end-of-file. The content must fit into the pipe."""
    read, write = os.pipe2(os.O_CLOEXEC)
    owner.callback(os.close, read)
    os.write(write, content)
    os.close(write)
    return read


def _memfd(content: bytes) -> int:
    fd = os.memfd_create("gate", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    # Every sandbox inherits this file. Sealed, no command can change the start of another one.
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return fd


def main(channel_fd: int, bwrap: str, gate: str, shares: Mapping[str, str], user: Sequence[str]) -> None:
    """Serve the runner at the other end of `channel_fd`; the first packet is the seccomp filter.

    bash runs `gate` before each command. `shares` are values of files in `/proc/sys/user`. `user` is the user
    id and group id to switch to, or empty.
    """
    for number in _IGNORED:
        # On SIGTERM, a runner drains its calls. The signal may have been sent to the whole cgroup or group.
        signal.signal(number, signal.SIG_IGN)
    if user:
        uid, gid = map(int, user)
        # Groups first: after setresuid, the process may no longer change them.
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    # No process with the same user id, such as a command, may trace it.
    _prctl(_PR_SET_DUMPABLE, 0)
    become_subreaper()
    with socket.socket(fileno=channel_fd) as channel:
        channel.set_inheritable(False)
        seccomp = channel.recv(MAX_PACKET_BYTES)
        starters = _Starters(lambda: _Sandboxes(bwrap, seccomp, gate), shares)
        _Parent(channel, starters.start).serve()


if __name__ == "__main__":
    _, fd, program, script, limits, *ids = sys.argv
    main(int(fd), program, script, dict(word.split("=") for word in limits.split(",")), ids)
