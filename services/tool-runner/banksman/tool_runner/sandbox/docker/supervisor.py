"""The supervisor: the first process of a workspace's container.

It runs one command after another and ends their leftovers. As the first process of its pid namespace, it
inherits every orphan, cannot be signalled from within, and reaches every other process with `kill(-1)`, also
a fork bomb at its limit (pid_namespaces(7)). When it has no child, no other process is left. `docker exec`
does not suffice: killing its client leaves the command running, with the environment of the container.

The container's Python receives this program as text, so it is one file and uses only the standard library of
Python 3.9. It communicates with the runner over standard input and output. If the runner ends, the input
ends, then this process, then the container.

Both sides send frames: one byte for the kind, four bytes for the length (big-endian), then the payload. The
runner sends `R` {"script", "environment", "cpu_s", "deadline_s", "has_input", "proxy"}, `I` with input of the
command, and `K` to end it. The supervisor sends `H` when it is ready, `1` and `2` with output, and, when no
process of the command is left, `X` {"exit_code", "killed_reason", "failure", "reusable"}.

`proxy` is null or {"port", "to"}: before the command starts, the supervisor listens on this port of the
loopback, and sends the socket to the local socket `to`.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Generator
from typing import NoReturn, cast

WORKSPACE = "/workspace"
HEADER = struct.Struct(">cI")
RUN, INPUT, KILL, HELLO, STDOUT, STDERR, EXIT = b"R", b"I", b"K", b"H", b"1", b"2", b"X"
MAX_FRAME_BYTES = 1024 * 1024

_READ_BYTES = 64 * 1024
_REAP_INTERVAL_S = 0.02
_CLEAN_S = 1
_INPUT_BYTES, _F_SETPIPE_SZ = 256 * 1024, 1031
_HIGHEST_OOM_SCORE = b"1000"
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 4, 22, 38
_SECCOMP_MODE_FILTER, _BPF_INSTRUCTION_BYTES = 2, 8
_BLOCK_BYTES = 512
_SHARED_MEMORY = b"/dev/zero (deleted)\n"
"""The path of anonymous shared memory, to which the limit of memory applies."""
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DEFAULT = (*_IGNORED, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD)
"""Signals that this process or Python handles; a command must get the default action."""
_OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
_LIBC = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, *values: object) -> None:
    if _LIBC.prctl(option, *values, *([0] * (4 - len(values)))) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


class _Rules:
    """The rules for every command of this container; see `ContainerRecipe`."""

    def __init__(self, text: str) -> None:
        rules = json.loads(text)
        self.limits: dict[str, int] = rules["limits"]
        """Resource limits by the last part of their name: `NOFILE`."""
        self.memory_bytes: int = rules["memory_bytes"]
        self.unlinked_bytes: int = rules["unlinked_bytes"]
        """Limit for deleted files that are still open, which a scan of the workspace does not see."""
        self.watch_s: float = rules["watch_s"]
        self.scratch: list[str] = rules["scratch"]
        """Directories that are emptied before each command."""
        self.seccomp = base64.b64decode(rules["seccomp"])


class _OomScore:
    """Makes the OOM killer choose a command before this process.

    A child inherits the score of its parent at fork. Writing the child's own file is not possible: it belongs
    to root until exec has finished.
    """

    def __init__(self) -> None:
        self._fd = os.open("/proc/self/oom_score_adj", os.O_RDWR)
        self._own = os.read(self._fd, 16)

    @contextlib.contextmanager
    def raised(self) -> Generator[None]:
        """Let processes that are forked in the block inherit the highest score."""
        os.pwrite(self._fd, _HIGHEST_OOM_SCORE, 0)
        try:
            yield
        finally:
            os.pwrite(self._fd, self._own, 0)


class _Command:
    def __init__(self, rules: _Rules, request: dict[str, object], oom_score: _OomScore) -> None:
        self._rules = rules
        self._cpu_s = int(str(request["cpu_s"]))
        self._script = str(request["script"])
        self._environment = cast("dict[str, str]", request["environment"])
        self._pid = 0
        self._stdin, self.input = os.open(os.devnull, os.O_RDONLY), -1
        """`input` is the write end of standard input; -1 if that is empty."""
        if request["has_input"]:
            os.close(self._stdin)
            self._stdin, self.input = os.pipe()
            fcntl.fcntl(self.input, _F_SETPIPE_SZ, _INPUT_BYTES)
            os.set_blocking(self.input, False)
        self.exit_code: int | None = None
        """As bash reports it: 128 + n for signal n; None while the command runs."""
        self.streams: dict[int, bytes] = {}
        """Kinds of frames, by the descriptor that is read."""
        self.failure = _send_listener(cast("dict[str, object] | None", request["proxy"]))
        """Why the command was not started; None if it was."""
        with contextlib.ExitStack() as theirs, oom_score.raised():
            theirs.callback(os.close, self._stdin)
            streams = self._pipe(theirs, STDOUT), self._pipe(theirs, STDERR)
            if self.failure is None:
                self.failure = self._start(*streams)

    def _pipe(self, theirs: contextlib.ExitStack, kind: bytes) -> int:
        read, write = os.pipe()
        theirs.callback(os.close, write)
        os.set_blocking(read, False)
        self.streams[read] = kind
        return write

    def _start(self, stdout: int, stderr: int) -> str | None:
        error_read, error_write = os.pipe()
        with open(error_read, "rb") as reader:
            try:
                self._pid = os.fork()
            except OSError as error:
                return f"fork: {error.strerror}"
            finally:
                if self._pid:
                    # The parent's write end must close, so that the pipe ends when the child execs.
                    os.close(error_write)
            if self._pid == 0:
                self._become(error_write, stdout, stderr)
            return reader.read().decode() or None

    def _become(self, error_write: int, stdout: int, stderr: int) -> NoReturn:
        try:
            # A new session has no controlling terminal, so TIOCSTI cannot inject input.
            os.setsid()
            os.umask(0o022)
            os.chdir(WORKSPACE)
            for number, fd in enumerate((self._stdin, stdout, stderr)):
                os.dup2(fd, number)
            for name, value in {**self._rules.limits, "CPU": self._cpu_s}.items():
                resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
            for number in _DEFAULT:
                signal.signal(number, signal.SIG_DFL)
            _filter_calls(self._rules.seccomp)
            words = ["bash", "--noprofile", "--norc", "-c", self._script]
            os.execvpe(words[0], words, self._environment)  # noqa: S606 - running commands is its purpose
        except BaseException as error:
            os.write(error_write, str(error).encode())
        finally:
            os._exit(127)

    def reap(self) -> bool:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._pid:
                code = os.waitstatus_to_exitcode(status)
                self.exit_code = code if code >= 0 else 128 - code


def _send_listener(proxy: dict[str, object] | None) -> str | None:
    """Let the runner listen on a port of this container; return why it cannot, or None."""
    if proxy is None:
        return None
    try:
        listener = socket.create_server(("127.0.0.1", int(str(proxy["port"]))), backlog=64)
        with listener, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as runner:
            runner.connect(str(proxy["to"]))
            socket.send_fds(runner, [b"listener"], [listener.fileno()])
    except OSError as error:
        return f"the proxy of the command cannot be reached from its container: {error}"
    return None


def _filter_calls(program: bytes) -> None:
    """Add a filter to the engine's; the kernel applies the stricter result of the two."""
    code = ctypes.create_string_buffer(program, len(program))
    # `struct sock_fprog`: the number of instructions, and their address.
    rules = struct.pack("HP", len(program) // _BPF_INSTRUCTION_BYTES, ctypes.addressof(code))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, rules)


class _Supervisor:
    def __init__(self, rules: _Rules, oom_score: _OomScore) -> None:
        self._rules = rules
        self._oom_score = oom_score
        self._received = b""
        self._reusable = True
        self._woken, wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(wake, False)
        # Wakes poll() when a child ends, also between a check and poll(). Python requires a handler for it.
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def serve(self) -> None:
        """Run commands until one leaves something that cannot be removed."""
        self._send(HELLO)
        while self._reusable:
            frame = self._complete_frame()
            if frame is None:
                self._receive()
            # A `K` that arrives here refers to a command that has just ended.
            elif frame[0] == RUN:
                self._run(json.loads(frame[1]))

    def _run(self, request: dict[str, object]) -> None:
        oom_kills = _oom_kills()
        command = _Command(self._rules, request, self._oom_score)
        reason = None
        try:
            if command.failure is None:
                reason = self._watch(command, float(str(request["deadline_s"])), oom_kills)
        finally:
            self._end(command)
        self._drain(command)
        if reason is None and _oom_kills() > oom_kills:
            reason = "memory_limit"
        self._reusable = self._clean()
        report = {
            "exit_code": None if reason else command.exit_code,
            "killed_reason": reason,
            "failure": command.failure,
            "reusable": self._reusable,
        }
        self._send(EXIT, json.dumps(report).encode())

    def _watch(self, command: _Command, deadline_s: float, oom_kills: int) -> str | None:
        """Forward output until the command has ended or must be ended; return why it must, or None."""
        deadline = time.monotonic() + deadline_s
        look = 0.0
        poll = select.poll()
        for fd in (0, self._woken, *command.streams):
            poll.register(fd, select.POLLIN)
        # Input may have arrived together with the request.
        if self._killed(command):
            return None
        while command.exit_code is None:
            now = time.monotonic()
            if now >= deadline:
                return "timeout"
            if now >= look:
                if (excess := self._excess(oom_kills)) is not None:
                    return excess
                look = time.monotonic() + self._rules.watch_s
            for fd, _ in poll.poll(max(0.0, min(look, deadline) - now) * 1000):
                if fd in command.streams:
                    if self._forward(command, fd) is False:
                        poll.unregister(fd)
                elif fd == self._woken:
                    os.read(self._woken, _READ_BYTES)
                    command.reap()
                else:
                    self._receive()
                    if self._killed(command):
                        return None
        return None

    def _excess(self, oom_kills: int) -> str | None:
        memory_bytes = sum(map(_process_bytes, _others()))
        if memory_bytes > self._rules.memory_bytes or _oom_kills() > oom_kills:
            return "memory_limit"
        unlinked_bytes = _unlinked_bytes(self._rules.limits["FSIZE"])
        return "workspace_limit" if unlinked_bytes > self._rules.unlinked_bytes else None

    def _forward(self, command: _Command, fd: int) -> bool | None:
        """Forward one chunk; return False if the stream has ended, None if it has no output now."""
        try:
            chunk = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return None
        if chunk:
            self._send(command.streams[fd], chunk)
        return bool(chunk)

    def _drain(self, command: _Command) -> None:
        for fd in command.streams:
            while self._forward(command, fd):
                pass
            os.close(fd)
        if command.input >= 0:
            os.close(command.input)

    def _end(self, command: _Command) -> None:
        """Kill all other processes, repeatedly: a fork that runs during one pass may escape it."""
        while command.reap():
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            if select.select([self._woken], [], [], _REAP_INTERVAL_S)[0]:
                os.read(self._woken, _READ_BYTES)

    def _clean(self) -> bool:
        """Empty the scratch space; return False if files or message queues are left."""
        if any(_entries(directory) for directory in self._rules.scratch):
            null = subprocess.DEVNULL
            words = ["find", *self._rules.scratch, "-xdev", "-mindepth", "1", "-delete"]
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(words, stdin=null, stdout=null, stderr=null, timeout=_CLEAN_S)  # noqa: S603
        return not any(map(_entries, (*self._rules.scratch, "/dev/mqueue")))

    def _killed(self, command: _Command) -> bool:
        """Pass input on; return whether the runner has ended the command."""
        killed = False
        while (frame := self._complete_frame()) is not None:
            killed = killed or frame[0] == KILL
            if frame[0] == INPUT and command.input >= 0:
                # The pipe holds a whole script; what a session does not read is lost, and its call times out.
                with contextlib.suppress(OSError):
                    os.write(command.input, frame[1])
        return killed

    def _receive(self) -> None:
        received = os.read(0, _READ_BYTES)
        if not received:
            raise EOFError
        self._received += received

    def _complete_frame(self) -> tuple[bytes, bytes] | None:
        if len(self._received) < HEADER.size:
            return None
        kind, length = HEADER.unpack_from(self._received)
        end = HEADER.size + length
        if len(self._received) < end:
            return None
        payload, self._received = self._received[HEADER.size : end], self._received[end:]
        return kind, payload

    @staticmethod
    def _send(kind: bytes, payload: bytes = b"") -> None:
        rest = memoryview(HEADER.pack(kind, len(payload)) + payload)
        while rest:
            rest = rest[os.write(1, rest) :]


def _entries(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _oom_kills() -> int:
    """Return the OOM kills in this container; 0 if the kernel does not report them."""
    for path in _OOM_COUNTERS:
        with contextlib.suppress(OSError), open(path, encoding="ascii") as counters:
            for line in counters:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def _others() -> list[str]:
    return [entry for entry in os.listdir("/proc") if entry.isdigit() and entry != "1"]


def _process_bytes(pid: str) -> int:
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/smaps_rollup", "rb") as rollup:
        for line in rollup:
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    # The rollup of a process that is not dumpable is not readable; its resident set size is.
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/statm", "rb") as pages:
        return int(pages.read().split()[1]) * resource.getpagesize()
    return 0


def _unlinked_bytes(max_file_bytes: int) -> int:
    held: dict[tuple[int, int], int] = {}
    for pid in _others():
        _note_open(pid, held)
        _note_mapped(pid, held, max_file_bytes)
    return sum(held.values())


def _note_open(pid: str, held: dict[tuple[int, int], int]) -> None:
    for number in _entries(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            status = os.stat(f"/proc/{pid}/fd/{number}")
            if status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
                held[status.st_dev, status.st_ino] = status.st_blocks * _BLOCK_BYTES


def _note_mapped(pid: str, held: dict[tuple[int, int], int], max_file_bytes: int) -> None:
    """Add deleted files that are mapped and not open as the largest possible files.

    The length of a mapping is not the size of its file, which only a privileged process may examine.
    """
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as mappings:
        for line in mappings:
            if line.endswith(b" (deleted)\n"):
                _, _, _, device, inode, path = line.split(None, 5)
                major, _, minor = device.partition(b":")
                file = os.makedev(int(major, 16), int(minor, 16)), int(inode)
                if path != _SHARED_MEMORY:
                    held.setdefault(file, max_file_bytes)


def main(rules: str) -> None:
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    oom_score = _OomScore()
    # Commands have the same user id. They must not trace this process or write its memory.
    _prctl(_PR_SET_DUMPABLE, 0)
    with contextlib.suppress(EOFError, BrokenPipeError):
        _Supervisor(_Rules(rules), oom_score).serve()


if __name__ == "__main__":
    main(sys.argv[1])
