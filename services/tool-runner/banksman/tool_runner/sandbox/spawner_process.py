"""The process that every sandbox of a runner is a child of.

A program of its own: small, with one thread, never root, and alive for a moment longer than its runner. It
ends what bwrap's parent-death signal does not: a sandbox whose outer bwrap is killed while it starts stays
for ever (https://github.com/containers/bubblewrap/issues/633). It is started by path, without site-packages,
and may not be able to read a file once it has dropped root: only the standard library, imported at the top.

Both sides speak in packets of words separated by NUL. Runner: `spawn {number} {names}` with descriptors,
and `kill {number}`. Spawner: `started {number} {pid}`, `failed {number} {reason}`, `ended {number}`.
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
from collections.abc import Generator, Iterable, Mapping, Sequence

MAX_PACKET_BYTES = 4096
OPTIONS_FD, STATUS_FD, SECCOMP_FD = 3, 4, 5
"""What bwrap finds under these numbers."""
GATE_FD, LIFE_FD = 6, 7
"""What bash finds under these numbers: its start-up file, and a pipe that ends with the spawner."""
PROXY_PORT = 3128
"""Where a sandbox with a way out finds its proxy, on its own loopback."""
MAX_SPAWN_FDS = 6
"""The descriptors of `spawn`: what `pack_command` made, standard output and error, bwrap's report; then those
that the words of the packet name.

way_out  a socket, by which the runner gets the listening socket of `PROXY_PORT`
cgroup   `cgroup.procs` of the cgroup that the sandbox belongs in
"""
SEPARATOR = b"\0"

_GATE = b"""
unset BASH_ENV
until
    mapfile -t one </proc/1/status
    mapfile -t own </proc/self/status
    [[ ${one[*]} =~ Seccomp_filters:.[0-9]+ ]] && one=${BASH_REMATCH[0]} || one=
    [[ ${own[*]} == *"$one "* ]]
do :; done
unset one own BASH_REMATCH
read -t 0 -u 7 && exit 1
exec 6<&- 7<&-
"""
"""Run by the bash of a call before the command, which thus only starts where its end is certain.

The first process of a namespace asks to die with its parent, then takes the filter that bash has already. A
spawner that lives after that is survived by nothing; one that was killed before ends here. Kernels before 5.9
do not tell the number of filters.
"""
_HIGHEST_OOM_SCORE = b"1000"
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP, _IFF_RUNNING = 0x1, 0x40
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DEFAULT = (*_IGNORED, signal.SIGPIPE, signal.SIGXFSZ)
"""The signals that this process, or Python, ignores and a sandbox must not."""


def become_subreaper() -> None:
    """Make the kernel hand orphaned descendants to this process instead of to init.

    Raises:
        OSError: when the kernel refuses.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def pack_command(options: Sequence[str], command: Sequence[str]) -> bytes:
    """The content of the first descriptor of `spawn`: bwrap's options, and what it is to start."""
    packed_options, packed_command = (os.fsencode("\0".join(words)) for words in (options, command))
    return b"%d\0%b\0%b" % (len(packed_options) + 1, packed_options, packed_command)


def _unpack_command(content: bytes) -> tuple[bytes, list[bytes]]:
    """The options as `--args` wants them, and the words of the command."""
    length, _, packed = content.partition(SEPARATOR)
    return packed[: int(length)], packed[int(length) :].split(SEPARATOR)


class _OomScore:
    """What the kernel kills first when memory is short: a sandbox, never the spawner.

    A child inherits the score. Its own file would not do: until its exec is over, it belongs to root.
    """

    def __init__(self) -> None:
        self._fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        self._own = os.read(self._fd, 16)

    @contextlib.contextmanager
    def raised(self) -> Generator[None]:
        """While it lasts, children are born with the highest score; to go back needs no privilege."""
        os.pwrite(self._fd, _HIGHEST_OOM_SCORE, 0)
        try:
            yield
        finally:
            os.pwrite(self._fd, self._own, 0)


class _Spawner:
    """Starts sandboxes, kills them, and says of each when nothing of it is left."""

    def __init__(self, channel: socket.socket, bwrap: str, seccomp: bytes, oom_score: _OomScore) -> None:
        self._channel = channel
        self._oom_score = oom_score
        self._bwrap = bwrap
        self._seccomp = seccomp
        self._null = _reserve_low_descriptors()
        self._gate = _memfd(_GATE)
        self._life, _ = os.pipe2(os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._connected = True
        self._children: dict[int, int] = {}
        """Process id of every child by its pidfd."""
        self._calls: dict[int, int] = {}
        """Number of the call by the process id of its outer bwrap. Children that are not here are orphans."""
        self._awaited: dict[int, set[int]] = {}
        """Of each call whose bwrap has ended: the orphans that may be of it."""

    def serve(self) -> None:
        """Serve until the runner is gone, and then until nothing is left."""
        while self._connected or self._children:
            for fd, _ in self._poll.poll():
                if fd in self._children:
                    self._bury(fd)
                else:
                    self._receive()

    def _receive(self) -> None:
        packet, descriptors = _received(self._channel)
        try:
            match packet.split(SEPARATOR):
                case [b"spawn", number, *names]:
                    self._spawn(int(number), descriptors, names)
                case [b"kill", number]:
                    self._kill(pid for pid, call in self._calls.items() if call == int(number))
                case _:
                    self._hang_up()
        finally:
            for fd in descriptors:
                os.close(fd)

    def _hang_up(self) -> None:
        """The runner is gone: end everything."""
        self._connected = False
        self._poll.unregister(self._channel)
        self._kill(self._calls)

    def _send(self, *words: str) -> None:
        with contextlib.suppress(ConnectionError):
            self._channel.send(SEPARATOR.join(word.encode() for word in words))

    def _spawn(self, number: int, descriptors: Sequence[int], names: Sequence[bytes]) -> None:
        common = len(descriptors) - len(names)
        try:
            special = dict(zip(names, descriptors[common:], strict=True))
            pid = self._start(descriptors[:common], special)
        except OSError as error:
            self._send("failed", str(number), f"cannot start {self._bwrap} as user {os.getuid()}: {error}")
            self._adopt()
            return
        self._calls[pid] = number
        self._watch(pid)
        self._send("started", str(number), str(pid))

    def _start(self, descriptors: Sequence[int], special: Mapping[bytes, int]) -> int:
        command, stdout, stderr, status = descriptors
        options, words = _unpack_command(os.pread(command, os.fstat(command).st_size, 0))
        with contextlib.ExitStack() as opened, self._oom_score.raised():
            files = {0: self._null, 1: stdout, 2: stderr, STATUS_FD: status}
            files |= {GATE_FD: self._gate, LIFE_FD: self._life}
            files[OPTIONS_FD] = _holding(options, opened)
            files[SECCOMP_FD] = _holding(self._seccomp, opened)
            arguments = [os.fsencode(self._bwrap), b"--args", b"%d" % OPTIONS_FD, b"--", *words]
            if special:
                return _started_by_fork(arguments, files, special)
            return os.posix_spawn(
                self._bwrap,
                arguments,
                # --clearenv inside bwrap does not reach what its own processes were started with.
                {},
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in files.items()],
                setsid=True,
                setsigdef=_DEFAULT,
            )

    def _bury(self, pidfd: int) -> None:
        """Reap a child that has ended; say so when it was the last of a call."""
        self._poll.unregister(pidfd)
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
        os.close(pidfd)
        pid = self._children.pop(pidfd)
        self._adopt()
        for awaited in self._awaited.values():
            awaited.discard(pid)
        if pid in self._calls:
            number = self._calls.pop(pid)
            self._awaited[number] = {pid for pid in self._children.values() if pid not in self._calls}
        for number in [number for number, awaited in self._awaited.items() if not awaited]:
            del self._awaited[number]
            self._send("ended", str(number))

    def _adopt(self) -> None:
        """Kill the children that this process did not start.

        Mostly the first process of a namespace on its way out: bwrap does not wait for it. The kernel kills a
        pid namespace with its first process, and ends that one last: when it is reaped, nothing that ran
        below it is left.
        """
        known = set(self._children.values())
        for pid in _children():
            if pid not in known:
                self._watch(pid)
                self._kill([pid])

    def _watch(self, pid: int) -> None:
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)

    @staticmethod
    def _kill(children: Iterable[int]) -> None:
        # A process id of a child is its own until it is reaped, which only this thread does.
        for pid in children:
            os.kill(pid, signal.SIGKILL)


def _started_by_fork(arguments: list[bytes], files: Mapping[int, int], special: Mapping[bytes, int]) -> int:
    """Fork, become bwrap in another cgroup, or in a network with a loopback and a proxy's socket only."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        if b"cgroup" in special:
            os.write(special[b"cgroup"], b"0")
        if b"way_out" in special:
            _make_network()
            _give_listener(special[b"way_out"])
        for number in _DEFAULT:
            signal.signal(number, signal.SIG_DFL)
        for number, fd in files.items():
            os.dup2(fd, number)
        os.execve(arguments[0], arguments, {})  # noqa: S606 - the words are the runner's
    except BaseException as error:
        os.write(files[2], f"cannot prepare the sandbox: {error}".encode())
    finally:
        os._exit(127)


def _give_listener(way_out: int) -> None:
    listener = socket.create_server(("127.0.0.1", PROXY_PORT), backlog=64)
    with listener, socket.socket(fileno=os.dup(way_out)) as runner:
        socket.send_fds(runner, [b"listener"], [listener.fileno()])


def _make_network() -> None:
    """Enter a network namespace, which a user namespace of our own permits, and raise its loopback."""
    uid, gid = os.getuid(), os.getgid()
    # A process that may not be traced does not own its files in /proc.
    _prctl(_PR_SET_DUMPABLE, 1)
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")
    for name, content in (
        ("setgroups", b"deny"),
        ("uid_map", b"%d %d 1" % (uid, uid)),
        ("gid_map", b"%d %d 1" % (gid, gid)),
    ):
        with open(f"/proc/self/{name}", "wb") as file:
            file.write(content)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh22x", b"lo", _IFF_UP | _IFF_RUNNING)
        fcntl.ioctl(control, _SIOCSIFFLAGS, request)


def _received(channel: socket.socket) -> tuple[bytes, array.array[int]]:
    """The next packet and its descriptors; nothing when the other side is gone."""
    descriptors = array.array("i")
    space = socket.CMSG_SPACE(MAX_SPAWN_FDS * descriptors.itemsize)
    try:
        # `socket.recv_fds` of Python 3.11 drops the flag, and sandboxes would inherit what is received.
        packet, messages, _, _ = channel.recvmsg(MAX_PACKET_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        return b"", descriptors
    for _, _, content in messages:
        descriptors.frombytes(content)
    return packet, descriptors


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children", "rb") as listed:
        return [int(pid) for pid in listed.read().split()]


def _holding(content: bytes, owner: contextlib.ExitStack) -> int:
    """A descriptor from which `content`, which fits into a pipe, and then the end is read."""
    read, write = os.pipe2(os.O_CLOEXEC)
    owner.callback(os.close, read)
    os.write(write, content)
    os.close(write)
    return read


def _memfd(content: bytes) -> int:
    fd = os.memfd_create("gate", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return fd


def _reserve_low_descriptors() -> int:
    """Take every number that a sandbox is given a file under, so that no file to be given has one of them.

    Returns a descriptor of `/dev/null`.
    """
    while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= LIFE_FD:
        pass
    return fd


def _become(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def main(channel_fd: int, bwrap: str, user: Sequence[str]) -> None:
    """Serve the runner at the other end of `channel_fd`; the first packet is the seccomp filter.

    `user` is empty, or the user id and group id to become.
    """
    for number in _IGNORED:
        # Told to stop, a runner lets its calls finish; whoever tells it may have told the whole cgroup.
        signal.signal(number, signal.SIG_IGN)
    oom_score = _OomScore()
    if user:
        _become(*map(int, user))
    # Nobody with the same user id may trace it.
    _prctl(_PR_SET_DUMPABLE, 0)
    become_subreaper()
    with socket.socket(fileno=channel_fd) as channel:
        channel.set_inheritable(False)
        _Spawner(channel, bwrap, channel.recv(MAX_PACKET_BYTES), oom_score).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
