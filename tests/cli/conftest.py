"""`banksman` in its own process with its own data directory."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from banksman.cli.machine import free_port
from tests.support.commands import run_command
from tests.support.timeouts import WAIT_TIMEOUT_S

SERVICES_LEFT_OUT = ("gateway", "agent", "workflows", "tool-runner")
"""Services that tests of the supervisor leave out; nats-server and the model server suffice."""


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment without Banksman settings and vendor keys."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("BANKSMAN_", "ANTHROPIC_", "OPENAI_"))
    }
    return {**kept, **variables}


def banksman(*arguments: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, without a terminal. Its standard input has the text `stdin`."""
    if arguments[0] not in ("up", "down"):
        return run_command(*arguments, environment=environment(**variables), stdin=stdin)
    return subprocess.run(
        [sys.executable, "-m", "banksman.cli", *arguments],
        capture_output=True,
        text=True,
        input=stdin,
        env=environment(**variables),
        timeout=WAIT_TIMEOUT_S * 4,
    )


class Up:
    """A running `banksman up --json` with its output so far."""

    def __init__(self, data_dir: Path, *arguments: str, variables: Mapping[str, str] | None = None) -> None:
        self.data_dir = data_dir
        self.port = free_port()
        self.events: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "banksman.cli", "up", "--json"),
                *("--data-dir", str(data_dir), "--port", str(self.port)),
                *(word for name in SERVICES_LEFT_OUT for word in ("--without", name)),
                *arguments,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(**(variables or {})),
            start_new_session=True,
        )
        self._arrived = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def instance(self) -> dict[str, Any]:
        """Content of the run file."""
        return dict(json.loads((self.data_dir / "run.json").read_text()))

    def pid_of(self, name: str) -> int:
        """Return the pid of a child process."""
        return int(self.instance["processes"][name]["pid"])

    def wait_for(self, event: str, count: int = 1, **fields: Any) -> dict[str, Any]:
        """Return the `count`-th event with these fields; wait for it if it has not been printed yet."""

        def found() -> list[dict[str, Any]]:
            return [
                printed
                for printed in self.events
                if printed.get("event") == event and all(printed.get(k) == v for k, v in fields.items())
            ]

        with self._arrived:
            assert self._arrived.wait_for(lambda: len(found()) >= count, WAIT_TIMEOUT_S), self.events
        return found()[count - 1]

    def interrupt(self) -> None:
        """Send SIGINT, as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)

    def ended(self) -> int:
        """Wait for the end and return the exit code."""
        code = self.process.wait(WAIT_TIMEOUT_S * 2)
        self._reader.join(WAIT_TIMEOUT_S)
        return code

    def close(self) -> None:
        """Kill it if it is still running."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(WAIT_TIMEOUT_S)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._arrived:
                self.events.append(json.loads(line) if line.startswith("{") else {"event": line.strip()})
                self._arrived.notify_all()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def reachable_dir() -> Generator[Path]:
    """A directory that the sandbox user can traverse, so that workspaces stay inside it."""
    with tempfile.TemporaryDirectory(prefix="banksman-") as name:
        directory = Path(name)
        directory.chmod(0o711)
        yield directory


Start = Callable[..., Up]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def start(data_dir: Path) -> Generator[Start]:
    """Start systems in the test's data directory and stop them after the test."""
    started: list[Up] = []

    def _start(*arguments: str, **variables: str) -> Up:
        started.append(Up(data_dir, *arguments, variables=variables))
        return started[-1]

    yield _start
    for system in started:
        system.close()


@pytest.fixture
def up(start: Start) -> Iterator[Up]:
    """Start a system and wait until it is ready."""
    system = start()
    system.wait_for("up")
    yield system
