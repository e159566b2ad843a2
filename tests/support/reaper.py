"""Ends every process that a test run started, once the run or the process that started it has ended.

`python -I -S reaper.py ENTRY_PID RUN_PID READY_FD NOTES_DIRECTORY` is started by `tests.support.supervised`.
It imports only the standard library and does not name pytest in its command line, so that
`pkill -9 -f pytest` does not end it.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
KILL_TIMEOUT_S = 30.0
"""Seconds until the reaper gives up on processes that do not die; it reports them on standard error."""
SCAN_INTERVAL_S = 0.05
COMMAND_TIMEOUT_S = 120.0


def main() -> int:
    """Wait for the run, then end its processes; return the exit code of the run."""
    entry, run, ready = (int(argument) for argument in sys.argv[1:4])
    notes = Path(sys.argv[4])
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    # The entry process may have ended before the kernel reports its end.
    alive = os.getppid() == entry
    os.write(ready, b".")
    os.close(ready)
    code = _wait(run) if alive else None
    survivors = end_descendants(spared=_lines(notes / "spared"))
    for pid in survivors:
        sys.stderr.write(f"process {pid} did not end: {_command_line(pid)}\n")
    run_notes(notes)
    shutil.rmtree(notes, ignore_errors=True)
    return 128 + signal.SIGTERM if code is None else code


def _wait(run: int) -> int | None:
    """Wait until the run ends, and return its exit code; None if the entry process ended first."""
    while True:
        match signal.sigwait(SIGNALS):
            case signal.SIGCHLD:
                for pid, status in _reaped():
                    if pid == run:
                        code = os.waitstatus_to_exitcode(status)
                        return code if code >= 0 else 128 - code
            case signal.SIGINT:
                # The entry process forwards a SIGINT that was sent to it alone.
                os.kill(run, signal.SIGINT)
            case _:
                return None


def end_descendants(spared: list[str]) -> list[int]:
    """Kill every process below this one, and return those that did not end.

    Args:
        spared: A process with one of these strings in its command line survives, with all its descendants.
    """
    deadline = time.monotonic() + KILL_TIMEOUT_S
    # A forking process may add a child behind the scan, so scans repeat until one finds nothing.
    while found := list(_descendants(os.getpid(), spared)):
        if time.monotonic() > deadline:
            return found
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        signal.sigtimedwait([signal.SIGCHLD], SCAN_INTERVAL_S)
        for _ in _reaped():
            pass
    return []


def run_notes(notes: Path) -> None:
    """Run the cleanup commands that the run registered, the last one first."""
    for note in sorted(notes.glob("*.json"), reverse=True):
        with suppress(OSError, ValueError, subprocess.SubprocessError):
            cleanup = json.loads(note.read_text(encoding="utf-8"))
            subprocess.run(
                cleanup["command"],
                cwd=cleanup["directory"],
                env=cleanup["environment"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )


def _reaped() -> Iterator[tuple[int, int]]:
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0] != 0:
            yield found


def _descendants(ancestor: int, spared: list[str]) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    ended: set[int] = set()
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with suppress(OSError):
                state, parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:2]
                children.setdefault(int(parent), []).append(int(entry))
                if state == "Z":
                    ended.add(int(entry))
    ahead = [ancestor]
    while ahead:
        for pid in children.get(ahead.pop(), []):
            if not any(word in _command_line(pid) for word in spared):
                # A process whose main thread has ended is a zombie that keeps its children until its other
                # threads have ended too.
                if pid not in ended:
                    yield pid
                ahead.append(pid)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []


def die_with_parent(parent: int) -> None:
    """Request the kernel to kill this process when `parent` ends; exit if `parent` has already ended."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def stop_adopting() -> None:
    """Leave the orphans of this process to the reaper, which waits for each of them.

    A sandbox in a test makes the test's process a subreaper. As long as it is one, it also adopts the orphans
    of every killed system and container, and never waits for them: a worker collected hundreds of zombies.
    """
    if sys.platform == "linux":
        _prctl(PR_SET_CHILD_SUBREAPER, 0)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


if __name__ == "__main__":
    sys.exit(main())
