"""Floor: sequential executions of `true` in a bwrap sandbox. Prints the results as JSON.

Run: python -m benchmarks.floors.bwrap [--seconds 4]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import time

COMMAND = (
    "bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr",
    "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
    "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "bash", "-c", "true",
)  # fmt: skip


def main(seconds: float) -> dict[str, float]:
    """Execute commands and return their time and CPU time, each in milliseconds per call."""
    begun, calls = time.perf_counter(), 0
    while time.perf_counter() < begun + seconds:
        subprocess.run(COMMAND, check=True)
        calls += 1
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    took_s = time.perf_counter() - begun
    return {
        "ms_per_call": took_s * 1000 / calls,
        "cpu_ms_per_call": (used.ru_utime + used.ru_stime) * 1000 / calls,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    print(json.dumps(main(parser.parse_args().seconds)))
