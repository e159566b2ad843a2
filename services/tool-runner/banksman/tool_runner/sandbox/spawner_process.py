"""The spawner and its starters: the program whose processes are the parents of a runner's sandboxes.

The runner starts the spawner, the spawner forks starters, and a starter starts one bwrap after another. A
starter is already in a cgroup and in a user namespace with limits of its own, and bwrap inherits both: to
enter them for each command costs more CPU time than bash, and moving a process into a cgroup waits for all
processors. The runner reuses a starter only when no process is left of its last command.

All of them are small, have one thread, never run as root, and outlive their runner for a moment. They kill
the sandboxes that bwrap's parent-death signal does not reach: if the outer bwrap is killed while it starts,
the sandbox stays alive forever (https://github.com/containers/bubblewrap/issues/633 and /700). One thread,
because the kernel sends the parent-death signal when the *thread* that forked ends (prctl(2)).

The runner starts the spawner by path, without site-packages. After dropping root it may be unable to read
files, so it uses only the standard library, imported at the top, and is one file.

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

MAX_PACKET_BYTES = 4096
OPTIONS_FD, STATUS_FD, SECCOMP_FD = 3, 4, 5
"""Descriptor numbers that bwrap inherits."""
GATE_FD, LIFE_FD = 6, 7
"""Descriptor numbers that bash inherits: its start-up file, and a pipe that closes with the spawner."""
PROXY_PORT = 3128
"""Port of the proxy on the loopback of a sandbox that may connect."""
MAX_SPAWN_FDS = 8
"""Maximum number of descriptors of a `spawn`. The last ones have names, which the packet lists.

of a starter  its channel; `cgroup0`, `cgroup1` and `cgroup2` are `cgroup.procs` of its cgroup, of version 1
              in each hierarchy
of bwrap      the packed command, standard output, standard error and bwrap's report; `proxy` is a socket,
              over which the starter sends the listening socket of `PROXY_PORT`
"""
STARTER_NAME = "bm-starter"
"""Name of a starter in `/proc/{pid}/comm`."""
LIMITS = "LIMITS"
"""Variable of bash with the options of `ulimit` for the command; removed before the command starts."""
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
ulimit $LIMITS || exit 1
unset LIMITS
"""
"""Run by bash before the command, so that the command starts only when its end is certain, and with limits.

The first process of the namespace sets its parent-death signal and then installs the seccomp filter. The loop
waits until that process has as many filters as bash, so the signal is set. Then `read` checks the pipe: if
the spawner has already died, bash exits. If it dies later, the signal ends the sandbox. Kernels before 5.9 do
not report `Seccomp_filters`; the loop then ends at once.

The limits are set inside the sandbox because the kernel counts RLIMIT_NPROC per user namespace. Set outside,
it would count the processes of bwrap too.
"""
_HIGHEST_OOM_SCORE = b"1000"
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
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


def _prctl(option: int, value: int | bytes) -> None:
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


_Start = Callable[[Sequence[int], Mapping[bytes, int]], int]
"""Starts a child with the unnamed and the named descriptors of a packet; returns its process id."""


class _Parent:
    """Starts and kills children, and reports each one when none of its processes is left."""

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
                    self._kill(pid for pid, each in self._started.items() if each == int(number))
                case _:
                    self._end_all()
        finally:
            for fd in descriptors:
                os.close(fd)

    def _end_all(self) -> None:
        """Kill all processes after the runner has ended."""
        self._connected = False
        self._poll.unregister(self._channel)
        self._kill(self._started)

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
        for pid in _children():
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


class _Starters:
    """Forks starters; see `_Start`."""

    def __init__(self, bwrap: str, seccomp: bytes, shares: Mapping[str, int]) -> None:
        self._bwrap = bwrap
        self._seccomp = seccomp
        self._shares = shares

    def start(self, descriptors: Sequence[int], special: Mapping[bytes, int]) -> int:
        """Fork a starter that serves its channel."""
        (channel,) = descriptors
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            os.setsid()
            # bwrap inherits the cgroup, so it is in it from the start.
            for fd in special.values():
                os.write(fd, b"0")
            self._serve(channel, parent)
        finally:
            os._exit(0)

    def _serve(self, channel_fd: int, parent: int) -> None:
        with socket.socket(fileno=_only_descriptor(channel_fd)) as channel:
            start: _Start = _Sandboxes(self._bwrap, self._seccomp).start
            try:
                _confine(self._shares)
            except OSError as error:
                start = _refusing(error)
            # After the namespace was entered, because a change of the credentials resets the signal.
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == parent:
                _Parent(channel, start).serve()


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


def _refusing(error: OSError) -> _Start:
    def start(descriptors: Sequence[int], special: Mapping[bytes, int]) -> int:
        raise error

    return start


def _confine(shares: Mapping[str, int]) -> None:
    """Enter a user namespace with its own limits, and let the OOM killer choose this process first.

    Sandboxes inherit the score. Writing the file of a child is not possible: it belongs to root until exec
    has finished.
    """
    _prctl(_PR_SET_NAME, STARTER_NAME.encode())
    # The /proc files of a process that is not dumpable belong to root (proc(5)).
    _prctl(_PR_SET_DUMPABLE, 1)
    _write("/proc/self/oom_score_adj", _HIGHEST_OOM_SCORE)
    _enter_user_namespace()
    for name, most in shares.items():
        # The kernel counts these objects by user, and commands share one user.
        _write(f"/proc/sys/user/{name}", b"%d" % most)
    # No process with the same user id, such as a command, may trace it.
    _prctl(_PR_SET_DUMPABLE, 0)
    become_subreaper()


class _Sandboxes:
    """Starts bwrap; see `_Start`."""

    def __init__(self, bwrap: str, seccomp: bytes) -> None:
        self._bwrap = os.fsencode(bwrap)
        self._seccomp = seccomp
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self._gate = _memfd(_GATE)
        self._life, _ = os.pipe2(os.O_CLOEXEC)

    def start(self, descriptors: Sequence[int], special: Mapping[bytes, int]) -> int:
        """Start bwrap; with `proxy`, in a network namespace with a loopback and the proxy's socket."""
        command, stdout, stderr, status = descriptors
        options, words = _unpack_command(os.pread(command, os.fstat(command).st_size, 0))
        with contextlib.ExitStack() as opened:
            files = {0: self._null, 1: stdout, 2: stderr, STATUS_FD: status}
            files |= {GATE_FD: self._gate, LIFE_FD: self._life}
            files[OPTIONS_FD] = _pipe_with(options, opened)
            files[SECCOMP_FD] = _pipe_with(self._seccomp, opened)
            arguments = [self._bwrap, b"--args", b"%d" % OPTIONS_FD, b"--", *words]
            if b"proxy" in special:
                return _start_by_fork(arguments, files, special[b"proxy"])
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


def _start_by_fork(arguments: list[bytes], files: Mapping[int, int], proxy: int) -> int:
    """Fork and exec bwrap in a network namespace with a loopback and the proxy's socket."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        _unshare(_CLONE_NEWNET)
        _bring_loopback_up()
        _send_listener(proxy)
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


def _send_listener(proxy: int) -> None:
    listener = socket.create_server(("127.0.0.1", PROXY_PORT), backlog=64)
    with listener, socket.socket(fileno=os.dup(proxy)) as runner:
        socket.send_fds(runner, [b"listener"], [listener.fileno()])


def _enter_user_namespace() -> None:
    """Enter a new user namespace, which other new namespaces require, with the same user."""
    uid, gid = os.getuid(), os.getgid()
    _unshare(_CLONE_NEWUSER)
    _write("/proc/self/setgroups", b"deny")
    _write("/proc/self/uid_map", b"%d %d 1" % (uid, uid))
    _write("/proc/self/gid_map", b"%d %d 1" % (gid, gid))


def _unshare(namespaces: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(namespaces) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")


def _write(path: str, content: bytes) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(content)


def _shares(calls: int) -> dict[str, int]:
    """Return the share of one of `calls` concurrent calls in each limit of `_SHARED_OBJECTS`."""
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
    if user:
        _become(*map(int, user))
    # No process with the same user id, such as a command, may trace it.
    _prctl(_PR_SET_DUMPABLE, 0)
    become_subreaper()
    with socket.socket(fileno=channel_fd) as channel:
        channel.set_inheritable(False)
        starters = _Starters(bwrap, channel.recv(MAX_PACKET_BYTES), _shares(calls))
        _Parent(channel, starters.start).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:])
