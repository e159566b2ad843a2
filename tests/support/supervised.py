"""No process of a test run outlives the run, whether the run finishes or is killed.

`supervise` splits the process that the shell started into three:

    entry     has the pid that the shell knows, waits, and returns the exit code of the run
    reaper    adopts every orphaned process of the run, and kills it at the end (reaper.py)
    run       returns from `supervise` and runs the tests

The reaper has its own session, so that neither a signal to the process group nor a closed terminal ends it.
It ends the run when the entry process has ended, also by SIGKILL.

If the reaper is killed too, the kernel ends the run. Mounts and network namespaces then remain until the next
run, which executes the cleanup commands of every run that no longer holds the lock of its directory.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from tests.support import reaper

NOTES_VARIABLE = "TEST_RUN_NOTES"
"""The variable with the directory for cleanup commands that the reaper runs; set by `supervise`."""
PREFIX = "banksman-test-run-"
"""Beginning of the name of each run's directory for cleanup commands, below the temporary directory."""
SI_USER = 0
"""`si_code` of a signal that a process sent; Python's `signal` has no name for it."""


def supervise() -> None:
    """Continue as the supervised run; the calling process becomes its entry process.

    Call it before any thread starts: a fork copies only the calling thread.

    Raises:
        RuntimeError: The reaper did not start.
    """
    if sys.platform != "linux":
        return
    notes, lock = _make_notes()
    ready, announce = os.pipe()
    entry = os.getpid()
    if (child := os.fork()) != 0:
        _stay_as_entry(child)
    _become_run_or_reaper(entry, ready, announce, notes, lock)
    os.environ[NOTES_VARIABLE] = notes
    clean_up_after_killed_runs()


def _make_notes() -> tuple[str, int]:
    """Create the directory for cleanup commands; return it and its lock, which the run holds."""
    starting = tempfile.mkdtemp(prefix="banksman-test-starting-")
    lock = os.open(f"{starting}/lock", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    notes = starting.replace("banksman-test-starting-", PREFIX)
    # Renamed with the lock held: another run takes an unlocked directory for that of a killed run.
    os.rename(starting, notes)
    return notes, lock


def clean_up_after_killed_runs() -> None:
    """Execute the cleanup commands of runs whose processes have all been killed, their reapers included."""
    for notes in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError), (notes / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            reaper.run_notes(notes)
            shutil.rmtree(notes, ignore_errors=True)


def _become_run_or_reaper(entry: int, ready: int, announce: int, notes: str, lock: int) -> None:
    parent = os.getpid()
    if (run := os.fork()) != 0:
        os.setsid()
        # Blocked before `exec`, so that no signal ends the reaper while it starts.
        signal.pthread_sigmask(signal.SIG_BLOCK, reaper.SIGNALS)
        os.set_inheritable(announce, True)
        # Held also while the reaper cleans up, so that no other run does the same at that time.
        os.set_inheritable(lock, True)
        arguments = (str(entry), str(run), str(announce), notes)
        os.execv(sys.executable, (sys.executable, "-I", "-S", reaper.__file__, *arguments))
    os.close(announce)
    reaper.die_with_parent(parent)
    if os.read(ready, 1) != b".":
        raise RuntimeError("the reaper of this test run did not start")
    os.close(ready)


def _stay_as_entry(child: int) -> NoReturn:
    """Wait for the reaper, and exit with its code. A signal that ends this process ends the run."""
    watched = (signal.SIGCHLD, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    while True:
        arrived = signal.sigwaitinfo(watched)
        # A terminal sends SIGINT to the whole process group, including the run; `kill` does not.
        if arrived.si_signo == signal.SIGINT and arrived.si_code == SI_USER:
            os.kill(child, signal.SIGINT)
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid == child:
            os._exit(max(os.waitstatus_to_exitcode(status), 1) if status else 0)


def _notes() -> Path | None:
    directory = os.environ.get(NOTES_VARIABLE)
    return Path(directory) if directory else None


def spare(word: str) -> None:
    """Let processes with `word` in their command line, and those that they start, outlive the run.

    For a process that several test runs share; the last run ends it.
    """
    if (notes := _notes()) is not None:
        with (notes / "spared").open("a", encoding="utf-8") as file:
            file.write(f"{word}\n")


@contextmanager
def cleaned_up_by(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Generator[None]:
    """Let the reaper run `command` if the run ends inside this block, for resources other than processes.

    A mount, a network namespace, or a container of an engine that other runs use outlives every process.
    """
    if (notes := _notes()) is None:
        yield
        return
    descriptor, name = tempfile.mkstemp(dir=notes, prefix=f"{len(list(notes.iterdir())):04}-", suffix=".json")
    note = {"command": [*command], "directory": os.getcwd(), "environment": dict(environment or os.environ)}
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(note, file)
    try:
        yield
    finally:
        Path(name).unlink(missing_ok=True)
