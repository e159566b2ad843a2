"""Recovery: the times after `kill -9` of all processes and a new start until interrupted runs have ended.

Run: python -m benchmarks.recovery [--rounds 5]

Four runs are open at the kill: one waits for the model between two calls, one executes a command, and one
each waits for a call of a tool server, which may run twice or not. The tool server is killed too and starts
with the system. Times begin when `banksman up` reports that it is ready. The exit code is 1 if a run ended
otherwise than expected, or later than 3 s after that.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.support.polling import eventually
from tests.support.scripted_models import Gate, ScriptedCall, ScriptedReply
from tests.support.system import ScriptedModel, System, scripted_model

MAX_S = 3.0
"""Seconds after readiness until a run has ended."""
SLOW, GATE = "slow", "after-the-kill"
EXPECTED = {"between": None, "command": "unknown_outcome", "once": "unknown_outcome", "again": None}
"""The runs, and the errors of their calls."""


def script(model: ScriptedModel, name: str, marker: str) -> str:
    """Load the script of a run; return its model."""
    calls = {
        "between": ScriptedCall(name="bash", arguments={"command": "true"}),
        "command": ScriptedCall(name="bash", arguments={"command": f"touch ran-{name}-{marker}; sleep 60"}),
        "once": ScriptedCall(name="once", arguments={"marker": f"ran-once-{marker}"}),
        "again": ScriptedCall(name="again", arguments={"marker": f"ran-again-{marker}"}),
    }
    gate = Gate(name=f"{GATE}-{marker}") if name == "between" else None
    replies = [ScriptedReply(tool_calls=(calls[name],)), ScriptedReply(text="Done.", gate=gate)]
    return model.play(f"{name}-{marker}", replies)


@contextmanager
def tool_server(system: System) -> Generator[subprocess.Popen[bytes]]:
    """Run the tool server; end it with the block."""
    environment = {
        **os.environ,
        "BANKSMAN_DATA_DIR": str(system.data_dir),
        "MARKERS": str(system.data_dir),
    }
    command = [sys.executable, "-m", "benchmarks.harness.slow_tools"]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def until_offered(http: httpx.AsyncClient) -> None:
    """Wait until the tool server's tools are offered."""

    async def offered() -> bool:
        listed = (await http.get("/context/tools")).text
        return '"once"' in listed and '"again"' in listed

    await eventually(offered, 30)


async def start(http: httpx.AsyncClient, model: ScriptedModel, data: Path, name: str, marker: str) -> str:
    """Start a run; return its id when it is in the state of its name. Markers are below `data`."""
    body = {"model": script(model, name, marker), "assistant": SLOW}
    made = (await http.post("/context/conversations", json=body)).raise_for_status().json()
    url = f"/context/conversations/{made['conversation_id']}/runs"
    run = (await http.post(url, json={"content": "go"})).raise_for_status().json()["run_id"]

    def is_open() -> bool:
        if name == "between":
            return len(model.requests(f"{name}-{marker}")) == 2
        return any(data.rglob(f"ran-{name}-{marker}"))

    await eventually(is_open, 30)
    return str(run)


async def ended(http: httpx.AsyncClient, run: str, ready: float) -> tuple[float, dict[str, Any]]:
    """Wait for the end of a run; return the seconds since `ready`, and the run."""
    response = await http.get(f"/context/runs/{run}", params={"wait_s": 60})
    return time.monotonic() - ready, response.raise_for_status().json()


def client(system: System) -> httpx.AsyncClient:
    """Return a client of a system."""
    return httpx.AsyncClient(base_url=system.url, timeout=120, trust_env=False)


async def measure(system: System, model: ScriptedModel, marker: str) -> bool:
    """Kill and start a system once; print the times, and return whether they are within the limit."""
    with ExitStack() as stack:
        server = stack.enter_context(tool_server(system))
        async with client(system) as http:
            await until_offered(http)
            runs = {name: await start(http, model, system.data_dir, name, marker) for name in EXPECTED}
        server.kill()
        system.kill_everything()
        model.open_gate(f"{GATE}-{marker}")
        stack.enter_context(tool_server(system))
        begun = time.monotonic()
        system.start()
        ready = time.monotonic()
        async with client(system) as http:
            waits = [asyncio.create_task(ended(http, run, ready)) for run in runs.values()]
            found = dict(zip(runs, [await wait for wait in waits], strict=True))
    texts, good = list[str](), True
    for name, (took_s, run) in found.items():
        # A run that has not ended after the wait has no calls.
        errors = [call["result"].get("error_kind") for call in run.get("tool_calls", ())]
        good = good and took_s <= MAX_S and run["status"] == "completed" and errors == [EXPECTED[name]]
        texts.append(f"{name} {took_s:.2f} s ({run['status']}, {errors})")
    print(f"ready {ready - begun:.2f} s after the start; then {', '.join(texts)}", flush=True)
    return good


def main(rounds: int) -> int:
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}", flush=True)
    with scripted_model() as model, tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o711)
        system = System(Path(place) / "data", model)
        try:
            system.start()
            assistant = {
                "id": SLOW,
                "tools": {"enabled": True},
                "approval_policy": [{"tool": "*", "action": "auto"}],
            }
            httpx.post(f"{system.url}/context/assistants", json=assistant).raise_for_status()
            results = [asyncio.run(measure(system, model, f"m{number}")) for number in range(rounds)]
        finally:
            system.close()
    return 0 if all(results) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    sys.exit(main(parser.parse_args().rounds))
