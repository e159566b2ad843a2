"""The spawner: the program that is the parent of every sandbox of a runner.

It is small, has one thread, never runs as root, and outlives its runner for a moment. It kills the sandboxes
that bwrap's parent-death signal does not reach: if the outer bwrap is killed while it starts, the sandbox
stays alive forever (https://github.com/containers/bubblewrap/issues/633 and /700). One thread, because the
kernel sends the parent-death signal when the *thread* that forked ends (prctl(2)).

The runner starts it by path, without site-packages. After dropping root it may be unable to read files, so it
uses only the standard library, imported at the top.

Runner and spawner exchange packets of words separated by NUL. The runner sends `spawn {number} {names}` with
descriptors, and `kill {number}`. The spawner sends `started {number} {pid}`, `failed {number} {reason}` and
`ended {number}`.
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
"""Descriptor numbers that bwrap inherits."""
GATE_FD, LIFE_FD = 6, 7
"""Descriptor numbers that bash inherits: its start-up file, and a pipe that closes with the spawner."""
PROXY_PORT = 3128
"""Port of the proxy on the loopback of a sandbox that may connect."""
MAX_SPAWN_FDS = 8
"""Descriptors of `spawn`: the packed command, standard output, standard error and bwrap's report, then those
that the packet names.

proxy                    a socket, over which the spawner sends the listening socket of `PROXY_PORT`
cgroup0 cgroup1 cgroup2  `cgroup.procs` of the sandbox's cgroup; of version 1, in each hierarchy
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
"""Run by bash before the command, so that the command starts only when its end is certain.

The first process of the namespace sets its parent-death signal and then installs the seccomp filter. The loop
waits until that process has as many filters as bash, so the signal is set. Then `read` checks the pipe: if
the spawner has already died, bash exits. If it dies later, the signal ends the sandbox. Kernels before 5.9 do
not report `Seccomp_filters`; the loop then ends at once.
"""
_HIGHEST_OOM_SCORE = b"1000"
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP, _IFF_RUNNING = 0x1, 0x40
_SHARED_OBJECTS = {
    "max_inotify_instances": "fs/inotify/max_user_instances",
    "max_inotify_watches": "fs/inotify/max_user_watches",
}
"""Limits of a user namespace (`/proc/sys/user`, namespaces(7)), and the limits of a user that they divide."""
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DEFAULT = (*_IGNORED, signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that this process or Python ignores; a sandbox must get the default action."""


def become_subreaper() -> None:
    """Make this process the parent of its orphaned descendants instead of init (prctl(2)).

    Raises:
        OSError: the kernel refuses.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def pack_command(options: Sequence[str], command: Sequence[str]) -> bytes:
    """Return the content of the first descriptor of `spawn`: bwrap's options and the command."""
    packed_options, packed_command = (os.fsencode("\0".join(words)) for words in (options, command))
    return b"%d\0%b\0%b" % (len(packed_options) + 1, packed_options, packed_command)


def _unpack_command(content: bytes) -> tuple[bytes, list[bytes]]:
    """Return the options in the format of `--args`, and the words of the command."""
    length, _, packed = content.partition(SEPARATOR)
    return packed[: int(length)], packed[int(length) :].split(SEPARATOR)


class _OomScore:
    """Makes the OOM killer choose a sandbox before the spawner.

    A child inherits the score of its parent at fork. Writing the child's own file is not possible: it belongs
    to root until exec has finished.
    """

    def __init__(self) -> None:
        self._fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        self._own = os.read(self._fd, 16)

    @contextlib.contextmanager
    def raised(self) -> Generator[None]:
        """Give children started in the block the highest score. Resetting it needs no privilege."""
        os.pwrite(self._fd, _HIGHEST_OOM_SCORE, 0)
        try:
            yield
        finally:
            os.pwrite(self._fd, self._own, 0)


class _Spawner:
    """Starts and kills sandboxes, and reports each one when none of its processes is left."""

    def __init__(
        self,
        channel: socket.socket,
        bwrap: str,
        seccomp: bytes,
        oom_score: _OomScore,
        shares: Mapping[str, int],
    ) -> None:
        self._channel = channel
        self._oom_score = oom_score
        self._bwrap = bwrap
        self._seccomp = seccomp
        self._shares = shares
        self._null = _reserve_low_descriptors()
        self._gate = _memfd(_GATE)
        self._life, _ = os.pipe2(os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._connected = True
        self._children: dict[int, int] = {}
        """Process ids of all children, by pidfd."""
        self._calls: dict[int, int] = {}
        """Numbers of calls, by the process id of the outer bwrap. All other children are orphans."""
        self._awaited: dict[int, set[int]] = {}
        """For each call whose bwrap has ended: the orphans that may belong to it."""

    def serve(self) -> None:
        """Serve until the runner has ended and no child is left."""
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
                    self._kill(pid for pid, call in self._calls.items() if call == int(number))
                case _:
                    self._end_all()
        finally:
            for fd in descriptors:
                os.close(fd)

    def _end_all(self) -> None:
        """Kill everything after the runner has ended."""
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
            files[OPTIONS_FD] = _pipe_with(options, opened)
            files[SECCOMP_FD] = _pipe_with(self._seccomp, opened)
            arguments = [os.fsencode(self._bwrap), b"--args", b"%d" % OPTIONS_FD, b"--", *words]
            return _start_by_fork(arguments, files, special, self._shares)

    def _reap(self, pidfd: int) -> None:
        """Reap a child that has ended; report its call if no other process of it can be left."""
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

        Usually such a child is the first process of a namespace that is ending: bwrap does not wait for it.
        When that process dies, the kernel kills the namespace and lets it end last (pid_namespaces(7)). Once
        it is reaped, no process below it is left.
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
        # The kernel reuses the id of a child only after it is reaped, and only this thread reaps.
        for pid in children:
            os.kill(pid, signal.SIGKILL)


def _start_by_fork(
    arguments: list[bytes], files: Mapping[int, int], special: Mapping[bytes, int], shares: Mapping[str, int]
) -> int:
    """Fork and exec bwrap in a user namespace with limits of its own.

    Where `special` names them, bwrap is also in a cgroup, and in a network namespace with a loopback and the
    proxy's socket.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        # Joining the cgroup before exec leaves no moment in which bwrap runs outside of it.
        for name, fd in special.items():
            if name.startswith(b"cgroup"):
                os.write(fd, b"0")
        _enter_namespaces(_CLONE_NEWNET if b"proxy" in special else 0)
        _limit_shares(shares)
        if b"proxy" in special:
            _bring_loopback_up()
            _send_listener(special[b"proxy"])
        for number in _DEFAULT:
            signal.signal(number, signal.SIG_DFL)
        for number, fd in files.items():
            os.dup2(fd, number)
        # bwrap's --clearenv does not clear its own initial environment, which /proc/1/environ shows.
        os.execve(arguments[0], arguments, {})  # noqa: S606 - the words are the runner's
    except BaseException as error:
        # Standard error of the call becomes the message of `SandboxUnavailable`.
        os.write(files[2], f"cannot prepare the sandbox: {error}".encode())
    finally:
        os._exit(127)


def _send_listener(proxy: int) -> None:
    listener = socket.create_server(("127.0.0.1", PROXY_PORT), backlog=64)
    with listener, socket.socket(fileno=os.dup(proxy)) as runner:
        socket.send_fds(runner, [b"listener"], [listener.fileno()])


def _enter_namespaces(others: int) -> None:
    """Enter a new user namespace, which other new namespaces require, with the same user."""
    uid, gid = os.getuid(), os.getgid()
    # The /proc files of a process that is not dumpable belong to root (proc(5)).
    _prctl(_PR_SET_DUMPABLE, 1)
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUSER | others) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")
    for name, content in (
        ("setgroups", b"deny"),
        ("uid_map", b"%d %d 1" % (uid, uid)),
        ("gid_map", b"%d %d 1" % (gid, gid)),
    ):
        with open(f"/proc/self/{name}", "wb") as file:
            file.write(content)


def _limit_shares(shares: Mapping[str, int]) -> None:
    """Limit what the namespace takes of objects that the kernel counts by user: commands share one user."""
    for name, most in shares.items():
        with open(f"/proc/sys/user/{name}", "wb") as file:
            file.write(b"%d" % most)


def _shares(calls: int) -> dict[str, int]:
    """Return the share of one of `calls` concurrent calls in each such object of the kernel."""
    shares: dict[str, int] = {}
    for name, kernel_name in _SHARED_OBJECTS.items():
        with open(f"/proc/sys/{kernel_name}", "rb") as file:
            shares[name] = max(1, int(file.read()) // calls)
    return shares


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh22x", b"lo", _IFF_UP | _IFF_RUNNING)
        fcntl.ioctl(control, _SIOCSIFFLAGS, request)


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


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children", "rb") as listed:
        return [int(pid) for pid in listed.read().split()]


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


def _reserve_low_descriptors() -> int:
    """Occupy all descriptor numbers that sandboxes use, so that dup2 overwrites no descriptor in use.

    Returns a descriptor of `/dev/null`.
    """
    while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= LIFE_FD:
        pass
    return fd


def _become(uid: int, gid: int) -> None:
    # Groups first: after setresuid, the process may no longer change them.
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def main(channel_fd: int, bwrap: str, calls: int, user: Sequence[str]) -> None:
    """Serve the runner at the other end of `channel_fd`; the first packet is the seccomp filter.

    At most `calls` sandboxes run at a time. `user` is empty, or the user id and group id to switch to.
    """
    for number in _IGNORED:
        # On SIGTERM, a runner drains its calls. The signal may have been sent to the whole cgroup or group.
        signal.signal(number, signal.SIG_IGN)
    # Opened before dropping root: changing the user makes the process not dumpable, and the /proc files of
    # such a process belong to root (proc(5)).
    oom_score = _OomScore()
    if user:
        _become(*map(int, user))
    # No process with the same user id, such as a command, may trace it.
    _prctl(_PR_SET_DUMPABLE, 0)
    become_subreaper()
    with socket.socket(fileno=channel_fd) as channel:
        channel.set_inheritable(False)
        _Spawner(channel, bwrap, channel.recv(MAX_PACKET_BYTES), oom_score, _shares(calls)).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:])
