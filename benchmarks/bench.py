"""Measure what a run costs, and write the results as JSON.

Run: python -m benchmarks.bench [--rows run bash] [--agents 2] [--in-flight 1 16 64] [--json FILE]

CPU times and memory are sums over all processes of `banksman up` and the tool server. The model server and
the client of the benchmark use the same cores; their CPU time is reported separately. Rows:

    run, bash    runs of three trivial calls: of a tool server, and of bash in the sandbox
    passthrough  time to the first bytes of a forwarded reply
    websockets   idle open websockets
    viewers      the delay of events for websockets that show one conversation
    start        the start of `banksman up`, and its cost while it is idle
    imports      the import of each service
    agents       runs with 1, 4 and 16 agents
    steady       runs without a pause for over a minute: the first and the last of eight periods
    floors       bare messages, model requests and sandboxes
    peer         the same runs in pydantic-ai behind FastAPI
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness.machine import machine
from benchmarks.harness.sizes import SHORT, Sizes
from benchmarks.harness.system import Measured, Model, end_on_sigterm, model_server, running
from benchmarks.rows import (
    agents,
    floors,
    imports,
    passthrough,
    peer,
    runs,
    starts,
    steady,
    viewers,
    websockets,
)

SYSTEM_ROWS: dict[str, Callable[[Measured, Model, Sizes], Any]] = {
    "run": lambda system, model, sizes: asyncio.run(runs.measure(system, "add", sizes)),
    "bash": lambda system, model, sizes: asyncio.run(runs.measure(system, "bash", sizes)),
    "passthrough": passthrough.measure,
    "websockets": lambda system, model, sizes: websockets.measure(system, sizes),
    "viewers": lambda system, model, sizes: viewers.measure(system, sizes),
}
"""Rows measured in one shared system, in this order."""
OTHER_ROWS: dict[str, Callable[[Model, Sizes], Any]] = {
    "start": starts.measure,
    "imports": lambda model, sizes: imports.measure(sizes),
    "agents": agents.measure,
    "steady": steady.measure,
    "floors": floors.measure,
    "peer": peer.measure,
}
"""Rows that start their own processes."""
ROWS = (*SYSTEM_ROWS, *OTHER_ROWS)
SHORT_ROWS = (*SYSTEM_ROWS, "floors")
"""Rows of `--short`, which starts one system."""


def main(rows: Collection[str], sizes: Sizes, number_of_agents: int | None, file: Path | None) -> None:
    """Measure rows, and update their results in a file."""
    store(file, "machine", machine())
    with model_server() as model:
        if any(row in SYSTEM_ROWS for row in rows):
            with running(model, agents=number_of_agents) as system:
                for row, measure in SYSTEM_ROWS.items():
                    if row in rows:
                        store(file, row, show(row, measure(system, model, sizes)))
        for row, measure in OTHER_ROWS.items():
            if row in rows:
                store(file, row, show(row, measure(model, sizes)))


def store(file: Path | None, row: str, result: Any) -> None:
    """Replace the result of a row in a file."""
    if file is not None:
        stored = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        file.write_text(json.dumps({**stored, row: result}, indent=1) + "\n", encoding="utf-8")


def show(row: str, result: Any) -> Any:
    """Print the result of a row as soon as it is measured; return it."""
    print(f"{row}: load average {os.getloadavg()[0]:.1f}\n{json.dumps(result, indent=1)}", flush=True)
    return result


def parse_arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, help="default: all")
    parser.add_argument("--agents", type=int, help="number of agents (default: that of `banksman up`)")
    parser.add_argument("--in-flight", nargs="+", type=int)
    parser.add_argument("--seconds", type=float, help="length of each period under load")
    parser.add_argument("--short", action="store_true", help="quick check that all rows work; no measurement")
    parser.add_argument("--json", type=Path, help="file for the results; keeps its other rows")
    return parser.parse_args()


if __name__ == "__main__":
    # Without bytecode files, every start compiles the modules that it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    end_on_sigterm()
    given = parse_arguments()
    chosen = SHORT if given.short else Sizes()
    if given.in_flight:
        chosen = replace(chosen, in_flight=tuple(given.in_flight))
    if given.seconds:
        chosen = replace(chosen, seconds=given.seconds)
    rows = given.rows or (
        SHORT_ROWS if given.short else [row for row in ROWS if row != "peer" or peer.installed()]
    )
    main(rows, chosen, given.agents, given.json)
