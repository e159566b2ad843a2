"""Real tool-runner processes on a server with the accounts of a deployment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from tests.support.fixtures import SecuredNats
from tests.support.forks import ForkedService, ServiceForks
from tests.support.polling import eventually, wait_until

from banksman.cli.machine import free_port
from banksman.deployment.users import TOOL_RUNNER
from banksman.tool_runner.sandbox.bwrap.processes import children
from banksman.tool_runner.workspaces.quota import delete_tree

START_S = 60.0
WAIT_S = 60.0


class RunnerProcess:
    """A tool-runner process, started as by `banksman up`, on a volume that outlives it."""

    def __init__(self, forks: ServiceForks, url: str, seed: Path, root: Path, **settings: str) -> None:
        self.root = root
        self.health_port = free_port()
        self._forks = forks
        self._process: ForkedService | None = None
        environment = {
            "PATH": os.environ["PATH"],
            "BANKSMAN_NATS__URL": url,
            # The tests' servers do not sync each write: that takes time and is not tested here.
            "BANKSMAN_ALLOW_WEAK_DURABILITY": "1",
            "BANKSMAN_NATS__NKEY_SEED_FILE": str(seed),
            "BANKSMAN_DATA_DIR": str(root),
            "BANKSMAN_TOOL_RUNNER__WORKSPACES_DIR": str(root),
            "BANKSMAN_TOOL_RUNNER__HEALTH_PORT": str(self.health_port),
            **settings,
        }
        self._environment = {name: value for name, value in environment.items() if value}

    @property
    def identity(self) -> dict[str, Any]:
        """Read the runner's id and epoch from the volume."""
        return json.loads((self.root / ".runner.json").read_text())

    @property
    def id(self) -> str:
        return str(self.identity["runner"])

    @property
    def epoch(self) -> int:
        return int(self.identity["epoch"])

    def start(self, *, ready: bool = True) -> None:
        """Start the process; wait until it is ready, or with `ready=False` until it reports a problem."""
        self.begin()
        self.wait_ready(ready=ready)

    def begin(self) -> None:
        """Start the process."""
        with self.log_file.open("ab") as log:
            self._process = self._forks.fork("tool-runner", self._environment, log.fileno())

    def wait_ready(self, *, ready: bool = True) -> None:
        """Wait until a started process is ready, or with `ready=False` until it reports that it is not."""
        process = self._process
        assert process is not None
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: self._has_started(ready) or process.poll() is not None, START_S)
        if not self._has_started(ready):
            raise RuntimeError(f"the tool-runner did not start:\n{self.log}")

    @property
    def log_file(self) -> Path:
        return self.root / ".log"

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def readiness(self) -> dict[str, Any] | None:
        """Return the body of `/readyz`; None if there is no response."""
        try:
            with urlopen(f"http://127.0.0.1:{self.health_port}/readyz", timeout=5) as response:
                return json.loads(response.read())
        except HTTPError as refused:
            return json.loads(refused.read())
        except OSError:
            return None

    @property
    def spawner(self) -> int:
        """Return the process id of the runner's spawner."""
        assert self._process is not None
        (pid,) = children(self._process.pid)
        return pid

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait for a process that ends by itself; return its exit code."""
        assert self._process is not None
        code = self._process.wait(timeout=WAIT_S)
        self._process = None
        return code

    async def ended(self) -> int:
        """Call `wait` in a thread, so that the test's event loop continues."""
        return await asyncio.to_thread(self.wait)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _has_started(self, ready: bool) -> bool:
        readiness = self.readiness()
        return readiness is not None and (
            readiness["ready"] or (not ready and "process" not in readiness["problems"])
        )


class Runners:
    """Creates runners on one server and ends them."""

    def __init__(self, secured: SecuredNats, forks: ServiceForks) -> None:
        self.secured = secured
        self._forks = forks
        self._made = ExitStack()

    def make(self, *, user: str = TOOL_RUNNER, root: Path | None = None, **settings: str) -> RunnerProcess:
        """Create a runner on a new volume, or on the existing volume `root`."""
        root = root or self.directory()
        seed = self.secured.seed_file(user)
        server = self.secured.server
        replicas = {"BANKSMAN_NATS__REPLICAS": str(server.replicas)}
        runner = RunnerProcess(self._forks, server.url, seed, root, **replicas, **settings)
        self._made.callback(runner.close)
        return runner

    def directory(self) -> Path:
        """Create a new volume."""
        root = Path(tempfile.mkdtemp(prefix="banksman-test-", dir="/var/tmp"))
        root.chmod(0o711)
        self._made.callback(delete_tree, root)
        return root

    def start(self, *, user: str = TOOL_RUNNER, root: Path | None = None, **settings: str) -> RunnerProcess:
        """Create a runner and wait until it is ready."""
        runner = self.make(user=user, root=root, **settings)
        runner.start()
        return runner

    def close(self) -> None:
        self._made.close()


def running(word: str) -> bool:
    """Return whether any process has `word` among its arguments."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if word.encode() in arguments:
            return True
    return False


async def until(condition: Callable[[], Awaitable[bool]], within_s: float) -> None:
    """Wait for an external state that sends no notification, such as the end of a process or of a key."""
    await eventually(condition, within_s)


async def wait_for_start(word: str) -> None:
    """Wait until a matching process exists."""

    async def exists() -> bool:
        return running(word)

    await until(exists, WAIT_S)


async def wait_for_end(word: str, within_s: float) -> None:
    """Wait until no matching process is left."""

    async def has_ended() -> bool:
        return not running(word)

    await until(has_ended, within_s)
