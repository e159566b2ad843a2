"""No process outlives a test run, however the run ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.polling import wait_until
from tests.support.system import descendants

ENDLESS = "tests/project/endless_run.py"
START_TIMEOUT_S = 150.0
"""Seconds until the inner run has started a broker, a system and a browser."""
END_TIMEOUT_S = 30.0

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_run_that_is_killed_leaves_no_process(workers: str, tmp_path: Path) -> None:
    with endless_run(tmp_path, "-n", workers) as run:
        started = processes_of(run)

        run.kill()

        assert_all_end(started, tmp_path)


def test_run_that_gets_sigterm_leaves_no_process(tmp_path: Path) -> None:
    with endless_run(tmp_path) as run:
        started = processes_of(run)

        run.send_signal(signal.SIGTERM)

        assert_all_end(started, tmp_path)


def test_run_whose_terminal_is_closed_leaves_no_process(tmp_path: Path) -> None:
    master, terminal = os.openpty()
    # `setsid --ctty` of util-linux makes standard input the controlling terminal of the run. An outer run
    # under nohup ignores SIGHUP, which its children would inherit.
    prefix = ("env", "--default-signal=HUP", "setsid", "--ctty")
    with endless_run(tmp_path, prefix=prefix, stdin=terminal) as run:
        os.close(terminal)
        started = processes_of(run)

        os.close(master)

        assert_all_end(started, tmp_path)


@contextmanager
def endless_run(
    directory: Path, *arguments: str, prefix: tuple[str, ...] = (), stdin: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    """A run of endless_run.py that has started everything."""
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *arguments]
    # The signals must reach this run and nothing of the outer one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    with (directory / "output").open("wb") as output:
        run = subprocess.Popen(
            [*prefix, *command, "--basetemp", str(directory / "inner"), ENDLESS],
            cwd=ROOT,
            env=environment,
            stdin=stdin,
            stdout=output,
            stderr=output,
            start_new_session=not prefix,
        )
    try:
        wait_until(
            lambda: has_started(directory) or run.poll() is not None,
            START_TIMEOUT_S,
        )
        assert run.poll() is None, (directory / "output").read_text()
        yield run
    finally:
        run.kill()
        run.wait()


def has_started(directory: Path) -> bool:
    """True when the endless test has left its marker, in the base directory or in that of its worker."""
    return any(any(directory.glob(marker)) for marker in ("inner/started", "inner/*/started"))


def processes_of(run: subprocess.Popen[bytes]) -> dict[int, str]:
    """Every process that the run has started, by pid, with a text that distinguishes it from a later one."""
    found = {pid: identity for pid in (run.pid, *descendants(run.pid)) if (identity := _identity(pid))}
    commands = " ".join(_command_line(pid) for pid in found)
    supervisor = "banksman.cli.local.supervisor"
    for word in ("nats-server", supervisor, "model-server", "model_server", "chromium", "sleep 900"):
        assert word in commands, word
    return found


def assert_all_end(started: dict[int, str], directory: Path) -> None:
    """Fail unless every process ends in time, those that were started meanwhile included."""

    def remaining() -> list[str]:
        known = [pid for pid, identity in started.items() if _identity(pid) == identity]
        later = [pid for pid in _pids() if str(directory) in _command_line(pid)]
        return [f"{pid} {_command_line(pid)}" for pid in {*known, *later}]

    wait_until(lambda: remaining() == [], END_TIMEOUT_S, failure=lambda: "\n".join(remaining()))


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _identity(pid: int) -> str:
    """The start time of a process; "" when it has ended, a zombie included."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    except OSError:
        return ""
