"""The real tool-runner process, on a server with the accounts of a deployment."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from tests.support.fixtures import SecuredNats

from banksman.cli.ports import free_port
from banksman.deployment.users import TOOL_RUNNER
from banksman.tool_runner.sandbox.processes import children
from banksman.tool_runner.workspaces.quota import delete_tree

START_S = 60.0
WAIT_S = 20.0


class RunnerProcess:
    """A tool-runner, started as a deployment starts it, on a volume that outlives it."""

    def __init__(self, url: str, seed: Path, root: Path, **settings: str) -> None:
        self.root = root
        self.health_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._environment = {
            "PATH": os.environ["PATH"],
            "BANKSMAN_NATS__URL": url,
            # The tests' servers do not sync each write: that would cost time and prove nothing here.
            "BANKSMAN_ALLOW_WEAK_DURABILITY": "1",
            "BANKSMAN_NATS__NKEY_SEED_FILE": str(seed),
            "BANKSMAN_DATA_DIR": str(root),
            "BANKSMAN_TOOL_RUNNER__WORKSPACES_DIR": str(root),
            "BANKSMAN_TOOL_RUNNER__HEALTH_PORT": str(self.health_port),
            **settings,
        }

    @property
    def identity(self) -> dict[str, Any]:
        """What the volume says of the runner: its id and epoch."""
        return json.loads((self.root / ".runner.json").read_text())

    @property
    def id(self) -> str:
        return str(self.identity["runner"])

    @property
    def epoch(self) -> int:
        return int(self.identity["epoch"])

    def start(self, *, ready: bool = True) -> None:
        """Start the process; wait until it is ready, or only until it has said that it is not."""
        self.begin()
        self.wait_ready(ready=ready)

    def begin(self) -> None:
        """Start the process."""
        code = "import sys; from banksman.tool_runner.app import run; sys.exit(run())"
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code], env=self._environment, stdout=log, stderr=log
            )

    def wait_ready(self, *, ready: bool = True) -> None:
        """Wait until a process that was begun is ready, or only until it has said that it is not."""
        deadline = time.monotonic() + START_S
        while not self._has_started(ready):
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the tool-runner did not start:\n{self.log}")
            time.sleep(0.02)

    @property
    def log_file(self) -> Path:
        return self.root / ".log"

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def readiness(self) -> dict[str, Any] | None:
        """What `/readyz` says; None when nothing answers."""
        try:
            with urlopen(f"http://127.0.0.1:{self.health_port}/readyz", timeout=5) as answer:
                return json.loads(answer.read())
        except HTTPError as refused:
            return json.loads(refused.read())
        except OSError:
            return None

    @property
    def spawner(self) -> int:
        """The process between the runner and its sandboxes."""
        assert self._process is not None
        (pid,) = children(self._process.pid)
        return pid

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        """The exit code of a process that ends by itself."""
        assert self._process is not None
        code = self._process.wait(timeout=WAIT_S)
        self._process = None
        return code

    async def ended(self) -> int:
        """Like `wait`, beside the test's own loop."""
        return await asyncio.to_thread(self.wait)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _has_started(self, ready: bool) -> bool:
        said = self.readiness()
        return said is not None and (said["ready"] or (not ready and "process" not in said["problems"]))


class Runners:
    """Makes runners on one server and ends them."""

    def __init__(self, secured: SecuredNats) -> None:
        self.secured = secured
        self._made = ExitStack()

    def make(self, *, user: str = TOOL_RUNNER, root: Path | None = None, **settings: str) -> RunnerProcess:
        """A runner on a new volume, or on `root`, which another one made."""
        root = root or self.directory()
        seed = self.secured.seed_file(user)
        server = self.secured.server
        copies = {"BANKSMAN_NATS__REPLICAS": str(server.replicas)}
        runner = RunnerProcess(server.url, seed, root, **copies, **settings)
        self._made.callback(runner.close)
        return runner

    def directory(self) -> Path:
        """A new volume."""
        root = Path(tempfile.mkdtemp(prefix="banksman-test-", dir="/var/tmp"))
        root.chmod(0o711)
        self._made.callback(delete_tree, root)
        return root

    def start(self, *, user: str = TOOL_RUNNER, root: Path | None = None, **settings: str) -> RunnerProcess:
        """Make a runner and wait until it is ready."""
        runner = self.make(user=user, root=root, **settings)
        runner.start()
        return runner

    def close(self) -> None:
        self._made.close()


def running(word: str) -> bool:
    """Whether a process of this machine has `word` among its arguments."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if word.encode() in arguments:
            return True
    return False


async def until(holds: Callable[[], Awaitable[bool]], within_s: float) -> None:
    """Wait for something outside that tells nobody: a process, a key that ends."""
    async with asyncio.timeout(within_s):
        while not await holds():  # noqa: ASYNC110 - no event in this process says so
            await asyncio.sleep(0.02)


async def begins(word: str) -> None:
    """Wait until such a process is there."""

    async def is_there() -> bool:
        return running(word)

    await until(is_there, WAIT_S)


async def is_gone(word: str, within_s: float) -> None:
    """Wait until no such process is left."""

    async def is_not_there() -> bool:
        return not running(word)

    await until(is_not_there, within_s)
