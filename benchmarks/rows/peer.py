"""The peer: pydantic-ai in FastAPI, which stores nothing, in its own environment."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from benchmarks.harness.load import Runs, client, under_load
from benchmarks.harness.processes import cpu_s, memory
from benchmarks.harness.sizes import Sizes
from benchmarks.harness.system import Model
from benchmarks.rows.runs import timing
from tests.support.paths import ROOT
from tests.support.system import wait_ready
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.cli.machine import free_port

ENVIRONMENT = ROOT / ".venv-bench"
"""Created by `make bench` from requirements/bench.txt."""
APPLICATION = Path(__file__).parents[1] / "peer"
PACKAGES = ("pydantic-ai-slim", "fastapi", "openai", "uvicorn")


def installed() -> bool:
    """Whether the environment of the peer exists."""
    return (ENVIRONMENT / "bin/python").exists()


def measure(model: Model, sizes: Sizes) -> dict[str, Any]:
    """Execute the same runs with the peer."""
    begun = time.perf_counter()
    with _peer(model) as (url, pid):
        start_s = time.perf_counter() - begun
        return {
            "versions": _versions(),
            "start_s": round(start_s, 1),
            "in_flight": {
                str(number): asyncio.run(_under(url, pid, number, sizes.seconds))
                for number in sizes.in_flight
            },
        }


async def _under(url: str, pid: int, in_flight: int, seconds: float) -> dict[str, Any]:
    cpu: list[float] = []

    def note() -> None:
        cpu.append(cpu_s(pid))

    async with client() as http:
        window = await under_load(Runs(http, url, "add"), in_flight, seconds, begins=note, ends=note)
    return {
        **timing(window),
        "cpu_ms_per_run": round((cpu[1] - cpu[0]) * 1000 / window.done, 1),
        "resident_mib": round(memory({"peer": pid}).resident),
    }


@contextmanager
def _peer(model: Model) -> Generator[tuple[str, int]]:
    port = free_port()
    command = [
        str(ENVIRONMENT / "bin/python"), "-m", "uvicorn", "app:app", "--app-dir", str(APPLICATION),
        "--port", str(port), "--log-level", "warning",
    ]  # fmt: skip
    environment = {**os.environ, "MODEL_URL": f"{model.url}/v1"}
    process = subprocess.Popen(command, env=environment)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_ready(f"{url}/readyz", lambda: None if process.poll() is None else "the peer ended")
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(timeout=WAIT_TIMEOUT_S)


def _versions() -> dict[str, str]:
    places = [str(place) for place in ENVIRONMENT.glob("lib/python*/site-packages")]
    found = {one.metadata["Name"].lower(): one.version for one in distributions(path=places)}
    return {name: found[name] for name in PACKAGES}
