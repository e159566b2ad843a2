"""Write the table and the plots of docs/performance.md from the stored results.

Run: python -m benchmarks.report [--check]

`benchmarks/results/latest.json` is the output of `make bench ARGS="--json FILE"`.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.svg import bars, lines
from tests.support.paths import ROOT

RESULTS = ROOT / "benchmarks/results"
PAGE = ROOT / "docs/performance.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
IN_FLIGHT = ("1", "16", "64")
VERSIONS = ("python", "nats-server", "nats-py", "pydantic", "uvicorn", "fastapi", "openai")

Results = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `value` and `floor` are paths into the results."""

    name: str
    unit: str
    value: str
    target: str
    floor: str = ""
    floor_name: str = ""


BARE, PEER, UVICORN = "bare messages and model requests", "pydantic-ai", "bare uvicorn"
TABLE = (
    Row("CPU per run, 16 in flight", "ms", "run.in_flight.16.cpu_ms_per_run", "≤ 25", "floor.16", BARE),
    Row("CPU per run, 64 in flight", "ms", "run.in_flight.64.cpu_ms_per_run", "≤ 20", "floor.64", BARE),
    Row("CPU per run compared with a peer, 16 in flight", "ms", "run.in_flight.16.cpu_ms_per_run",
        "≤ 0.4 of it", "peer.in_flight.16.cpu_ms_per_run", PEER),
    Row("runs/s, 1 in flight", "", "run.in_flight.1.runs_per_s", "≥ 20", "peer.in_flight.1.runs_per_s", PEER),
    Row("runs/s, 16 in flight", "", "run.in_flight.16.runs_per_s", "≥ 50, ≥ 3 of it",
        "peer.in_flight.16.runs_per_s", PEER),
    Row("runs/s, 64 in flight", "", "run.in_flight.64.runs_per_s", "≥ 80",
        "peer.in_flight.64.runs_per_s", PEER),
    Row("latency of a single run, p50", "ms", "run.in_flight.1.p50_ms", "≤ 40",
        "peer.in_flight.1.p50_ms", PEER),
    Row("bash: runs/s, 16 in flight", "", "bash.in_flight.16.runs_per_s", "≥ 20"),
    Row("bash: CPU per run, 16 in flight", "ms", "bash.in_flight.16.cpu_ms_per_run", "≤ 80"),
    Row("messages to the broker per run", "", "run.messages.to_broker", "≤ 32"),
    Row("JetStream API requests per run, no reads", "", "run.messages.api_requests", "≤ 2 reads"),
    Row("resident memory before the first run", "MiB", "start.idle.resident_mib", "≤ 240"),
    Row("resident memory after a few runs", "MiB", "run.idle_resident_mib", "≤ 240"),
    Row("resident memory, 64 runs in flight", "MiB", "run.in_flight.64.resident_mib", "≤ 300"),
    Row("memory before the first run, shared pages counted once", "MiB", "start.idle.proportional_mib", ""),
    Row("memory after a few runs, shared pages counted once", "MiB", "run.idle_proportional_mib", ""),
    Row("memory, 64 runs in flight, shared pages counted once", "MiB",
        "run.in_flight.64.proportional_mib", ""),
    Row("start with data, until ready", "s", "start.warm.s", "≤ 3.5"),
    Row("import of the slowest service", "s", "slowest_import.s", "≤ 0.6"),
    Row("memory of the largest service after its import", "MiB", "largest_import.mib", "≤ 45"),
    Row("at rest: CPU of a core", "%", "start.idle.cpu_percent_of_a_core", "≤ 1"),
    Row("at rest: messages to the broker", "/s", "start.idle.messages_per_s", "≤ 8"),
    Row("at rest: stored messages", "/s", "start.idle.writes_per_s", "≤ 0.5"),
    Row("CPU per run with 16 agents", "ms", "agents.16.cpu_ms_per_run", "1 of it",
        "agents.1.cpu_ms_per_run", "1 agent"),
    Row("CPU per run after a minute of runs, 64 in flight", "ms", "steady.last.cpu_ms_per_run", "≤ 1.3 of it",
        "steady.first.cpu_ms_per_run", "first seconds"),
    Row("latency meanwhile, largest p99 of a period", "ms", "steady.largest_p99_ms", ""),
    Row("passthrough: added to the first bytes, p50", "ms", "passthrough.added_p50_ms", "≤ 1.5"),
    Row("idle websocket, 5,000 open", "KiB", "websockets.gateway.kib_each", "≤ 35",
        "websockets.uvicorn.kib_each", UVICORN),
    Row("event to 100 viewers at 20 events/s, p99", "ms", "viewers.p99_ms", "≤ 250"),
    Row("idle websockets: CPU of a core", "%", "websockets.gateway.cpu_percent_of_a_core", "≤ 1",
        "websockets.uvicorn.cpu_percent_of_a_core", UVICORN),
)  # fmt: skip


def with_computed_values(results: Results) -> Results:
    """Return results with the computed values of the table: the floor of a run, and the slowest import."""
    floors, imports = (
        results["floors"],
        [one for name, one in results["imports"].items() if name != "launcher"],
    )
    requests = floors["model_requests"]["aiohttp"]["cpu_ms_per_run"]
    return {
        **results,
        "floor": {number: one["cpu_ms_per_run"] + requests for number, one in floors["chain"].items()},
        "slowest_import": max(imports, key=lambda one: one["s"]),
        "largest_import": max(imports, key=lambda one: one["mib"]),
    }


def table(latest: Results) -> str:
    """Return the machine and the table in Markdown."""
    head = "| | measured | floor or peer | measured ÷ floor | target |"
    lines = [_line(row, with_computed_values(latest)) for row in TABLE]
    return "\n".join([*_machine(latest), "", head, "|---" * 5 + "|", *lines])


def _line(row: Row, latest: Results) -> str:
    value = _found(row.value, latest)
    floor = _found(row.floor, latest) if row.floor else None
    beside = "" if floor is None else f"{_shown(floor, row.unit)} ({row.floor_name})"
    return " | ".join(
        (f"| {row.name}", _shown(value, row.unit), beside, _ratio(value, floor), f"{row.target} |")
    )


def _found(path: str, results: Results) -> float | None:
    """Return the value at a path; None if its row was not measured."""
    found: Any = results
    for name in path.split("."):
        found = found.get(name) if found is not None else None
    return found


def _shown(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:,.4g} {unit}".strip()


def _ratio(value: float | None, other: float | None) -> str:
    return f"{value / other:.2f}" if value is not None and other else ""


def _machine(latest: Results) -> tuple[str, ...]:
    machine = latest["machine"]
    system, memory = machine["system"].partition("-")[0], machine["memory_mib"] // 1024
    versions = ", ".join(f"{name} {machine[name]}" for name in VERSIONS)
    return (
        f"Measured on {machine['date']} at commit {machine['commit']}.",
        f"Machine: {machine['cores']} cores of {machine['cpu']}, {memory} GiB, {system}.",
        f"Versions: {versions}.",
    )


def plots(latest: Results) -> dict[str, str]:
    """Return the plots by file name."""
    services = {"Banksman, 16 in flight": latest["run"]["in_flight"]["16"]["cpu_ms_per_run_by_service"]}
    floors = latest["floors"]
    others = {
        "pydantic-ai in FastAPI": {"peer": latest["peer"]["in_flight"]["16"]["cpu_ms_per_run"]},
        "bare messages": {"floor": floors["chain"]["16"]["cpu_ms_per_run"]},
        "bare model requests": {"floor": floors["model_requests"]["aiohttp"]["cpu_ms_per_run"]},
    }
    throughput = {
        name: [latest[row]["in_flight"][number]["runs_per_s"] for number in IN_FLIGHT]
        for name, row in (("Banksman", "run"), ("pydantic-ai in FastAPI", "peer"))
    }
    return {
        "performance-cpu.svg": bars("CPU time of one run of three tool calls", services | others, "ms"),
        "performance-throughput.svg": lines(
            "Runs per second", throughput, [f"{number} in flight" for number in IN_FLIGHT], "/s"
        ),
    }


def main(check: bool) -> int:
    """Write the table and the plots; with `check`, only report outdated files."""
    latest = json.loads((RESULTS / "latest.json").read_text(encoding="utf-8"))
    page = PAGE.read_text(encoding="utf-8")
    start, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    files = {PAGE: f"{page[:start]}\n{table(latest)}\n{page[end:]}"}
    files |= {PAGE.parent / name: text for name, text in plots(latest).items()}
    stale = [
        path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        if not check:
            path.write_text(files[path], encoding="utf-8")
        print(f"{'out of date' if check else 'written'}: {path.relative_to(ROOT)}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a file is out of date")
    sys.exit(main(parser.parse_args().check))
