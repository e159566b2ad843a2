"""The measured system: `banksman up`, a model server and a tool server, each in its own processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import httpx
from benchmarks.harness.processes import Pids, cpu_s
from benchmarks.harness.scripts import model_name, scripts
from tests.support.polling import wait_until
from tests.support.system import ScriptedModel, System, wait_ready
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.cli.local.plan import LOCAL
from banksman.cli.machine import free_port
from banksman.cli.state import DataDir, Instance

LAUNCHER, TOOL_SERVER = "launcher", "tool server"


@dataclass(frozen=True, slots=True)
class Measured:
    """A running system."""

    url: str
    """The address of its gateway."""
    monitoring_url: str
    pids: Pids
    """Its processes by name."""
    model_pid: int
    """The model server's process, which does not belong to the system."""
    start_s: float
    """Seconds until the system was ready."""
    start_cpu_s: float
    """CPU seconds of all its processes until it was ready."""

    @property
    def own_pids(self) -> Pids:
        """The processes of `banksman up`, without the tool server."""
        return {name: pid for name, pid in self.pids.items() if name != TOOL_SERVER}


class Model(NamedTuple):
    """A running model server."""

    url: str
    pid: int


def end_on_sigterm() -> None:
    """Make SIGTERM raise an exception, so that this process ends its systems."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


@contextmanager
def model_server() -> Generator[Model]:
    """Run a model server that plays the benchmarks' scripts and records nothing."""
    port = free_port()
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({name: script.model_dump(mode="json") for name, script in scripts().items()}, file)
        file.flush()
        options = ("--port", str(port), "--scripts", file.name)
        command = [sys.executable, "-m", "tests.support.model_server", *options]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_ready(f"{url}/readyz", lambda: None if process.poll() is None else "the model server ended")
            yield Model(url, process.pid)
        finally:
            process.terminate()
            process.wait(timeout=WAIT_TIMEOUT_S)


@contextmanager
def running(model: Model, *, agents: int | None = None) -> Generator[Measured]:
    """Run a system with its own data and a tool server. `agents` is their number; None for the default."""
    with data_directory() as directory, started(model, directory, agents=agents) as (system, measured):
        with _tool_server(system) as server:
            _create_assistants(system.url)
            yield replace(measured, pids={**measured.pids, TOOL_SERVER: server})


@contextmanager
def started(
    model: Model, directory: Path, *, agents: int | None = None
) -> Generator[tuple[System, Measured]]:
    """Run a system with its data in a directory, which may contain the data of an earlier start."""
    environment = {
        "BANKSMAN_GATEWAY__MAX_SOCKETS_PER_USER": "100000",
        # An agent loads the library of its default model, and no row uses the built-in default model.
        "BANKSMAN_MODELS__DEFAULT": model_name("add"),
    }
    if agents is not None:
        environment["BANKSMAN_LOCAL__AGENTS"] = str(agents)
    system = System(directory / "data", ScriptedModel(model.url), environment)
    begun = time.perf_counter()
    try:
        system.start()
        instance = _ready(system)
        start_s, start_cpu_s = time.perf_counter() - begun, cpu_s(system.pid)
        pids = {LAUNCHER: system.pid, **{name: process.pid for name, process in instance.processes.items()}}
        yield system, Measured(system.url, instance.monitoring_url, pids, model.pid, start_s, start_cpu_s)
    finally:
        system.close()


@contextmanager
def data_directory() -> Generator[Path]:
    """Create a directory for the data of a system; remove it afterwards."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        directory = Path(name)
        # The user of the sandboxes needs access to the workspaces below it.
        directory.chmod(0o711)
        yield directory


def _ready(system: System) -> Instance:
    data = DataDir(system.data_dir)
    wait_until(
        lambda: (found := data.read()) is not None and found.ready, WAIT_TIMEOUT_S * 4, interval_s=0.02
    )
    instance = data.read()
    assert instance is not None
    return instance


@contextmanager
def _tool_server(system: System) -> Generator[int]:
    instance = _ready(system)
    seed = DataDir(system.data_dir).keys / f"{LOCAL.user}.nk"
    environment = {**os.environ, "NATS_URL": instance.nats_url, "NATS_SEED_FILE": str(seed)}
    command = [sys.executable, "-m", "benchmarks.harness.tool_server"]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError("the tool server ended")
        yield process.pid
    finally:
        process.terminate()
        process.wait(timeout=WAIT_TIMEOUT_S * 4)


def _create_assistants(url: str) -> None:
    """Create the assistants `add`, which has only the tool of the tool server, and `bash`."""
    with httpx.Client(base_url=url, trust_env=False, timeout=30) as http:
        for name in ("add", "bash"):
            assistant = {
                "id": name,
                "model": model_name(name),
                "tools": {"enabled": True, "allowed_tools": [name]},
                "approval_policy": [{"tool": "*", "action": "auto"}],
            }
            http.post("/context/assistants", json=assistant).raise_for_status()
