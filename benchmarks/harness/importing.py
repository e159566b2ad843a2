"""Import the modules that one process of a system imports at its start; print the cost as JSON.

Run: python -m benchmarks.harness.importing agent
"""

import time

_BEGUN = time.perf_counter()

# Imported after the first reading of the clock, because these imports are measured too.
import importlib  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402


def resident_mib() -> float:
    """Return the resident memory of this process in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def main(name: str) -> None:
    if name == "launcher":
        importlib.import_module("banksman.cli.local.command")
    else:
        importlib.import_module("banksman.cli.services").load_service(name)
    took_s = time.perf_counter() - _BEGUN
    found = {"s": round(took_s, 2), "cpu_s": round(time.process_time(), 2), "mib": round(resident_mib())}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
