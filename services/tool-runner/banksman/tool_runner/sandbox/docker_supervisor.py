"""The supervisor: the first process of a workspace's container.

It runs the commands of the workspace one after another and ends their leftovers. As the first process of its
pid namespace, it inherits every orphan, cannot be signalled from within, and reaches every other process with
`kill(-1)`, also a fork bomb at its limit (pid_namespaces(7)). When it has no child, no other process is left.
A `docker exec` per command does not suffice: killing its client leaves the process running, and the process
inherits the container's environment.

The runner communicates over standard input and output. If the runner ends, the input ends, then this process,
then the container. The container's Python receives this program as text, so it is one file and uses only the
standard library of Python 3.9.

Both sides send frames: one byte for the kind, four bytes for the length (big-endian), then the payload. The
runner sends `R` {"script", "cpu_s", "deadline_s"}, and `K` to end the command. The supervisor sends `H` when
it is ready, `1` and `2` with output, and, when no process of the command is left, `X` {"exit_code",
"killed_reason", "failure", "reusable"}.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Generator
from typing import NoReturn

WORKSPACE = "/workspace"
HEADER = struct.Struct(">cI")
RUN, KILL, HELLO, STDOUT, STDERR, EXIT = b"R", b"K", b"H", b"1", b"2", b"X"
MAX_FRAME_BYTES = 1024 * 1024

_READ_BYTES = 64 * 1024
_REAP_INTERVAL_S = 0.02
_CLEAN_S = 1
_HIGHEST_OOM_SCORE = b"1000"
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 4, 22, 38
_SECCOMP_MODE_FILTER = 2
_BPF_INSTRUCTION_BYTES = 8
_BLOCK_BYTES = 512
_SHARED_MEMORY = b"/dev/zero (deleted)\n"
"""The path of anonymous shared memory, to which the limit of memory applies."""
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DEFAULT = (*_IGNORED, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD)
"""Signals that this process or Python handles; a command must get the default action."""
_OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
_LIBC = ctypes.CDLL(None, use_errno=True)


class _RunnerEnded(Exception):
    """Standard input has ended, because the runner has ended."""


class _Filter(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_void_p))


def _prctl(option: int, *values: object) -> None:
    if _LIBC.prctl(option, *values, *([0] * (4 - len(values)))) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


class _Rules:
    """The rules for every command of this container; see `ContainerRecipe`."""

    def __init__(self, text: str) -> None:
        rules = json.loads(text)
        self.environment: dict[str, str] = rules["environment"]
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
        """Give child processes the highest OOM score (`oom_score_adj`) while the block runs."""
        os.pwrite(self._fd, _HIGHEST_OOM_SCORE, 0)
        try:
            yield
        finally:
            os.pwrite(self._fd, self._own, 0)


class _Command:
    """A running command with all processes that it has started."""

    def __init__(self, rules: _Rules, request: dict[str, object], oom_score: _OomScore) -> None:
        self._rules = rules
        self._cpu_s = int(str(request["cpu_s"]))
        self._script = str(request["script"])
        self._pid = 0
        self.status: int | None = None
        """Wait status of `waitpid`; None while the command runs."""
        self.streams: dict[int, bytes] = {}
        """Kinds of frames, by the descriptor that is read."""
        with contextlib.ExitStack() as theirs, oom_score.raised():
            self.failure = self._start(self._pipe(theirs, STDOUT), self._pipe(theirs, STDERR))
        """Why the command was not started; None if it was."""

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
            for number, fd in enumerate((os.open(os.devnull, os.O_RDONLY), stdout, stderr)):
                os.dup2(fd, number)
            for name, value in {**self._rules.limits, "CPU": self._cpu_s}.items():
                resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
            for number in _DEFAULT:
                signal.signal(number, signal.SIG_DFL)
            _filter_calls(self._rules.seccomp)
            words = ["bash", "--noprofile", "--norc", "-c", self._script]
            os.execvpe(words[0], words, self._rules.environment)  # noqa: S606 - running commands is its purpose
        except BaseException as error:
            os.write(error_write, str(error).encode())
        finally:
            os._exit(127)

    def reap(self) -> bool:
        """Reap all ended children; return False if no child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._pid:
                self.status = status


def _filter_calls(program: bytes) -> None:
    """Install the filter in addition to the engine's; the kernel applies the stricter result of the two."""
    code = ctypes.create_string_buffer(program, len(program))
    rules = _Filter(len(program) // _BPF_INSTRUCTION_BYTES, ctypes.cast(code, ctypes.c_void_p))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(rules))


class _Supervisor:
    """Serves one runner until it ends."""

    def __init__(self, rules: _Rules, oom_score: _OomScore) -> None:
        self._rules = rules
        self._oom_score = oom_score
        self._received = b""
        self._reusable = True
        self._woken, wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(wake, False)
        # Wakes poll() when a child ends; a signal between the check and poll() is not lost.
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _wake)

    def serve(self) -> None:
        """Run one command after another, until a command leaves something that cannot be removed."""
        self._send(HELLO)
        while self._reusable:
            kind, payload = self._next_frame()
            # A `K` that arrives here refers to a command that has just ended.
            if kind == RUN:
                self._run(json.loads(payload))

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
        for fd in command.streams:
            os.close(fd)
        if reason is None and _oom_kills() > oom_kills:
            reason = "memory_limit"
        code = None if command.status is None or reason else _exit_code(command.status)
        self._reusable = self._clean()
        report = {
            "exit_code": code,
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
        while command.status is None:
            now = time.monotonic()
            if now >= deadline:
                return "timeout"
            if now >= look:
                if (excess := self._excess(oom_kills)) is not None:
                    return excess
                look = time.monotonic() + self._rules.watch_s
            for fd, _ in poll.poll(max(0.0, min(look, deadline) - now) * 1000):
                if fd in command.streams:
                    if not self._forward(command, fd):
                        poll.unregister(fd)
                elif fd == self._woken:
                    os.read(self._woken, _READ_BYTES)
                    command.reap()
                elif self._killed():
                    return None
        return None

    def _excess(self, oom_kills: int) -> str | None:
        if _memory_bytes() > self._rules.memory_bytes or _oom_kills() > oom_kills:
            return "memory_limit"
        unlinked_bytes = _unlinked_bytes(self._rules.limits["FSIZE"])
        return "workspace_limit" if unlinked_bytes > self._rules.unlinked_bytes else None

    def _forward(self, command: _Command, fd: int) -> bool:
        """Forward one chunk; return False if the stream has ended."""
        try:
            chunk = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return True
        if chunk:
            self._send(command.streams[fd], chunk)
        return bool(chunk)

    def _drain(self, command: _Command) -> None:
        """Forward the remaining output of the pipes, which have no writer left."""
        for fd in command.streams:
            while True:
                try:
                    chunk = os.read(fd, _READ_BYTES)
                except BlockingIOError:
                    break
                if not chunk:
                    break
                self._send(command.streams[fd], chunk)

    def _end(self, command: _Command) -> None:
        """Kill all other processes; return when none is left.

        The loop repeats the kill, because a fork that runs during one pass may escape it.
        """
        while command.reap():
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            poll = select.poll()
            poll.register(self._woken, select.POLLIN)
            if poll.poll(_REAP_INTERVAL_S * 1000):
                os.read(self._woken, _READ_BYTES)

    def _clean(self) -> bool:
        """Empty the scratch space; return False if files or message queues are left."""
        if any(_entries(directory) for directory in self._rules.scratch):
            null = subprocess.DEVNULL
            words = ["find", *self._rules.scratch, "-xdev", "-mindepth", "1", "-delete"]
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(  # noqa: S603 - fixed arguments
                    words, stdin=null, stdout=null, stderr=null, timeout=_CLEAN_S
                )
        return not any(map(_entries, (*self._rules.scratch, "/dev/mqueue")))

    def _killed(self) -> bool:
        """Receive frames of the runner; return True if it ends the command."""
        self._receive()
        killed = False
        while (frame := self._complete_frame()) is not None:
            killed = killed or frame[0] == KILL
        return killed

    def _next_frame(self) -> tuple[bytes, bytes]:
        while (frame := self._complete_frame()) is None:
            self._receive()
        return frame

    def _receive(self) -> None:
        received = os.read(0, _READ_BYTES)
        if not received:
            raise _RunnerEnded
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


def _wake(_number: int, _frame: object) -> None:
    """Do nothing: a Python handler is required for `set_wakeup_fd` to write."""


def _exit_code(status: int) -> int:
    """Return the exit code as bash reports it: 128 + n for signal n."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _entries(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _oom_kills() -> int:
    """Return the number of OOM kills in this container; 0 if the kernel does not report it."""
    for path in _OOM_COUNTERS:
        with contextlib.suppress(OSError), open(path, encoding="ascii") as counters:
            for line in counters:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def _memory_bytes() -> int:
    """Return the proportional set size of all other processes."""
    return sum(map(_process_bytes, _others()))


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
    """Return the bytes of deleted files that processes have open or mapped."""
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
    """Add mappings of deleted files that are no longer open, each as the largest possible file.

    The length of a mapping says nothing about the size of its file, and the file cannot be examined without
    privileges.
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
    """Serve the runner at the other end of standard input; `rules` is the JSON of `_Rules`."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    oom_score = _OomScore()
    # Commands have the same user id. They must not trace this process or write its memory.
    _prctl(_PR_SET_DUMPABLE, 0)
    with contextlib.suppress(_RunnerEnded, BrokenPipeError):
        _Supervisor(_Rules(rules), oom_score).serve()


if __name__ == "__main__":
    main(sys.argv[1])
