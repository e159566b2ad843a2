"""Measure what a run costs, and write the results as JSON.

Run: python -m benchmarks.bench [--rows run bash] [--agents 2] [--in-flight 1 16 64] [--json FILE]

CPU times and memory are those of all processes of `banksman up` and of the tool server. The model server and
the client of the benchmark use the same cores; their CPU time is stated beside.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from pathlib import Path
from typing import Any

from benchmarks.harness.machine import machine
from benchmarks.harness.system import model_server, running
from benchmarks.rows import runs

ROWS = {"run": "add", "bash": "bash"}


def main(rows: list[str], agents: list[int | None], in_flight: list[int], seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {"machine": machine()}
    with model_server() as model:
        for number in agents:
            variant = "default" if number is None else f"{number} agents"
            with running(model, agents=number) as system:
                results: dict[str, Any] = {
                    "start_s": round(system.start_s, 1),
                    "start_cpu_s": round(system.start_cpu_s, 1),
                }
                for row in rows:
                    results[row] = asyncio.run(runs.measure(system, ROWS[row], in_flight, seconds))
                    show(f"{variant}, {row}", results[row])
                found[variant] = results
    return found


def show(title: str, result: dict[str, Any]) -> None:
    """Print the results of a row while the others are measured."""
    print(f"{title}: load average {os.getloadavg()[0]:.1f}\n{json.dumps(result, indent=1)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--agents", nargs="+", type=int, default=[None, 2])
    parser.add_argument("--in-flight", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results = main(given.rows, given.agents, given.in_flight, given.seconds)
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
