"""The whole system, started as by a new user, with a scripted model server instead of the vendors."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from banksman.cli.machine import free_port
from tests.support.nats import servers
from tests.support.polling import wait_until
from tests.support.scripted_models import RawReply, Script, ScriptedReply
from tests.support.timeouts import WAIT_TIMEOUT_S

TEMPLATE = "banksman.cli.template"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 2 * WAIT_TIMEOUT_S
"""Seconds; a system kills what does not stop within 30 s."""


@dataclass(frozen=True)
class ScriptedModel:
    """The control API of the model server: loads scripts, and reads the recorded requests."""

    url: str

    def play(self, name: str, replies: Iterable[ScriptedReply | RawReply], **options: Any) -> str:
        """Load a script; return the name of its model."""
        script = Script(replies=tuple(replies), **options)
        self._call("PUT", f"/scripts/{name}", script.model_dump_json().encode())
        return f"openai:scripted/{name}"

    def requests(self, name: str) -> list[dict[str, Any]]:
        """Return the requests to a script, oldest first."""
        return list(self._call("GET", f"/requests?script={name}"))

    def violations(self) -> list[Any]:
        """Return all violations of the vendors' rules so far."""
        return list(self._call("GET", "/violations"))

    def open_gate(self, name: str) -> None:
        """Release the replies that wait at a gate."""
        self._call("PUT", f"/gates/{name}")

    def _call(self, method: str, path: str, body: bytes | None = None) -> Any:
        headers = {"content-type": "application/json"}
        request = Request(f"{self.url}{path}", data=body, method=method, headers=headers)
        with urlopen(request, timeout=WAIT_TIMEOUT_S) as response:
            text = response.read()
        return json.loads(text) if text else None


class System:
    """A running `banksman up`, its data directory, and the model server of its agents.

    Its broker is one server or three, see `tests.support.nats.servers`.

    Without a scripted model no API key is set, and the demo model replies, as for a new user.
    """

    def __init__(
        self, data_dir: Path, model: ScriptedModel | None, environment: Mapping[str, str] | None = None
    ) -> None:
        self.data_dir = data_dir
        self.model = model
        self.port = free_port()
        self.environment = dict(environment or {})
        """Environment variables of its processes; they apply at the next start."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address of the gateway."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Return the supervisor's process id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start everything and wait until it is ready, as `banksman up` reports it.

        Raises:
            RuntimeError: It ended or took too long; the message contains its output.
        """
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with self._output.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._arguments],
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        wait_ready(f"{self.url}/readyz", self._ended)
        # The gateway may be ready before the services that serve its requests.
        wait_until(self._all_ready, START_TIMEOUT_S, failure=self.log)

    def stop(self) -> int:
        """Stop it as Ctrl-C does; return the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        code = self._process.wait(timeout=STOP_TIMEOUT_S)
        self._process = None
        return code

    def kill_everything(self) -> None:
        """`kill -9` the supervisor and all its descendants."""
        assert self._process is not None
        family = descendants(self._process.pid)
        for pid in (self._process.pid, *family):
            kill(pid)
        self._process.wait(timeout=WAIT_TIMEOUT_S)
        self._process = None

    def service_pids(self, name: str) -> list[int]:
        """Return the processes of a service, or of a command with this argument."""
        assert self._process is not None
        return [pid for pid in descendants(self._process.pid) if name in _arguments(pid)]

    def environments(self) -> dict[str, dict[str, str]]:
        """Return the environments of one more process of each service, with ports of their own."""
        variables = {**self.variables, "BANKSMAN_DATA_DIR": str(self.data_dir)}
        command = [sys.executable, "-m", "tests.support.planned"]
        return json.loads(subprocess.run(command, env=variables, check=True, capture_output=True).stdout)

    def log(self) -> str:
        """Return the printed output, and the end of each service's log."""
        logs = sorted(self.data_dir.glob("logs/*.log"))
        parts = [self._output.read_text(errors="replace")[-4000:]]
        parts += [f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in logs]
        return "\n".join(parts)

    def close(self) -> None:
        """Stop it, whatever its state."""
        if self._process is not None:
            self.stop()

    @property
    def _arguments(self) -> tuple[str, ...]:
        directory, port = str(self.data_dir), str(self.port)
        if servers() == 3:
            return ("tests.support.clustered", "up", directory, port)
        return ("banksman.cli", "up", "--data-dir", directory, "--port", port)

    @property
    def _output(self) -> Path:
        return self.data_dir / "up.out"

    @property
    def variables(self) -> dict[str, str]:
        """The environment of its processes."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("BANKSMAN_", "ANTHROPIC_", "OPENAI_"))
        }
        # Scripts count their requests, and the page would add one for the title of a conversation.
        without_titles = {"BANKSMAN_GATEWAY__TITLES": "false"}
        return {**kept, **without_titles, **self._vendors(), **self.environment}

    def _vendors(self) -> dict[str, str]:
        if self.model is None:
            return {}
        return {
            "OPENAI_API_KEY": "sk-test-canary-openai-0123456789",
            "OPENAI_BASE_URL": f"{self.model.url}/v1",
            "ANTHROPIC_API_KEY": "sk-ant-test-canary-anthropic-0123456789",
            "ANTHROPIC_BASE_URL": self.model.url,
        }

    def _all_ready(self) -> bool:
        running = json.loads((self.data_dir / "run.json").read_text())
        return running["ready"] and running["supervisor"]["pid"] == self.pid

    def _ended(self) -> str | None:
        if self._process is None or self._process.poll() is not None:
            return self.log()
        return None


@contextmanager
def scripted_model() -> Generator[ScriptedModel]:
    """A model server in its own process, which records its requests."""
    port = free_port()
    command = [sys.executable, "-m", "tests.support.model_server", "--port", str(port)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    model = ScriptedModel(f"http://127.0.0.1:{port}")
    try:
        wait_ready(
            f"{model.url}/readyz", lambda: None if process.poll() is None else "the model server ended"
        )
        yield model
    finally:
        process.terminate()
        process.wait(timeout=WAIT_TIMEOUT_S)


def wait_ready(url: str, ended: Any, timeout_s: float = START_TIMEOUT_S) -> None:
    """Wait until a URL responds with 200.

    Raises:
        RuntimeError: `ended` returned a reason, or the time limit passed.
    """

    def responds() -> bool:
        with contextlib.suppress(URLError, OSError), urlopen(url, timeout=2):
            return True
        if (reason := ended()) is not None:
            raise RuntimeError(f"{url} will not be ready:\n{reason}")
        return False

    try:
        wait_until(responds, timeout_s, interval_s=0.05)
    except TimeoutError:
        raise RuntimeError(f"{url} was not ready within {timeout_s:g} s") from None


def descendants(pid: int) -> list[int]:
    """Return all living descendants of a process."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(after_name[1]), []).append(int(entry.name))
    found: list[int] = []
    ahead = [pid]
    while ahead:
        children = parents.get(ahead.pop(), [])
        found += children
        ahead += children
    return found


def kill(pid: int) -> None:
    """`kill -9` a process that may have ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _arguments(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return []
    arguments = text.rstrip("\0 ").split("\0")
    # A forked service has set its command line as one text.
    words = arguments[0].split() if len(arguments) == 1 else arguments
    # The process that forks the services names all of them.
    return [] if TEMPLATE in words else words
