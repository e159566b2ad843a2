"""Profile the processes of a system under load, by service.

Run: python -m benchmarks.profile [--row run] [--in-flight 16] [--seconds 10]

py-spy samples the Python processes from outside (as root, or with ptrace of other processes permitted), so
the services run unmodified. Only threads that hold the interpreter lock count, because a thread that waits in
the kernel would count as running. For each service:

- own time by package: the innermost function's package; C extensions count for their caller
- time by function of Banksman, including all functions that it calls
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness.load import Runs, client
from benchmarks.harness.processes import service_of
from benchmarks.harness.system import Measured, end_on_sigterm, model_server, running
from benchmarks.rows.peer import ENVIRONMENT
from benchmarks.rows.runs import under

SERVICES = ("agent", "gateway", "tool server", "tool-runner", "workflows")
RATE = 200
"""Samples per second."""
PACKAGES, FUNCTIONS = 12, 25
"""Lines of each table."""
LEAST_MS = 0.2
"""Share of a run below which functions are not listed."""
ENTRY_POINTS = ("cli.", "runtime.event_loop.", "runtime.service.")
"""Functions that are not listed because, with their callees, they take all the time of a service."""

Stack = tuple[str, ...]
"""Functions from the outermost to the innermost, each as `name (file:line)`."""


async def main(system: Measured, row: str, in_flight: int, seconds: float) -> None:
    """Profile a system and print one profile per service."""
    chosen = {name: pid for name, pid in system.pids.items() if service_of(name) in SERVICES}
    async with client() as http:
        runs = Runs(http, system.url, row)
        await under(system, runs, in_flight, 1.0)
        with tempfile.TemporaryDirectory() as place:
            files = {name: Path(place, name.replace(" ", "-")) for name in chosen}
            recorders = [_record(pid, files[name], seconds) for name, pid in chosen.items()]
            # The load lasts longer than the recording, which takes a moment to start.
            result = await under(system, runs, in_flight, seconds + 1)
            for recorder in recorders:
                recorder.wait(timeout=30)
            stacks: dict[str, Counter[Stack]] = {}
            for name, file in files.items():
                stacks.setdefault(service_of(name), Counter()).update(dict(_stacks(file)))
    for service, counted in stacks.items():
        show(service, counted, result)


def show(service: str, stacks: Counter[Stack], result: dict[str, Any]) -> None:
    """Print the profile of a service in milliseconds per run."""
    total, per_run = sum(stacks.values()), result["cpu_ms_per_run_by_service"][service]
    if not total or per_run < LEAST_MS:
        return
    print(f"\n{service}: {per_run:.1f} ms CPU per run ({total} samples, {result['runs_per_s']} runs/s)")
    own, inclusive = Counter[str](), Counter[str]()
    for stack, number in stacks.items():
        own[_package(stack[-1])] += number
        for function in {_function(frame) for frame in stack if "/banksman/" in frame}:
            inclusive[function] += number
    for title, counted, most in (("own time", own, PACKAGES), ("with callees", inclusive, FUNCTIONS)):
        print(f"  {title}:")
        for name, number in counted.most_common(most):
            share = number / total
            if share * per_run >= LEAST_MS and not name.startswith(ENTRY_POINTS):
                print(f"    {share * per_run:6.2f} ms {share:6.1%}  {name}")


def _record(pid: int, file: Path, seconds: float) -> subprocess.Popen[bytes]:
    command = (
        str(ENVIRONMENT / "bin/py-spy"), "record", "--pid", str(pid), "--duration", str(int(seconds)),
        "--rate", str(RATE), "--gil", "--format", "raw", "--full-filenames", "--output", str(file),
    )  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _stacks(file: Path) -> Iterator[tuple[Stack, int]]:
    for line in file.read_text().splitlines() if file.exists() else ():
        frames, _, number = line.rpartition(" ")
        yield tuple(frames.split(";")), int(number)


def _package(frame: str) -> str:
    """Return the package of a frame: the module of Banksman, or the name below `site-packages`."""
    path = frame.partition(" (")[2].rpartition(":")[0]
    if "/banksman/" in path:
        return _module(path)
    if "/site-packages/" in path:
        return path.partition("/site-packages/")[2].partition("/")[0]
    return Path(path).stem if path.endswith(".py") else "interpreter"


def _function(frame: str) -> str:
    name, _, place = frame.partition(" (")
    return f"{_module(place.rpartition(':')[0])}.{name}"


def _module(path: str) -> str:
    return path.rpartition("/banksman/")[2].removesuffix(".py").replace("/", ".")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--row", choices=("run", "bash"), default="run")
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    assistant = "add" if given.row == "run" else "bash"
    end_on_sigterm()
    with model_server() as server, running(server) as started:
        asyncio.run(main(started, assistant, given.in_flight, given.seconds))
