"""The machine and the versions of a measurement."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.support.nats import executable
from tests.support.paths import ROOT

PACKAGES = ("nats-py", "pydantic", "faststream", "uvicorn", "fastapi", "aiohttp", "openai")


def machine() -> dict[str, Any]:
    """Return the properties of the machine and the software on which results depend."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": _output("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"),
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "system": f"{platform.system()} {platform.release()}",
        "load_average": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "nats-server": _output(executable(), "--version").rpartition(" ")[2],
        **{package: version(package) for package in PACKAGES},
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()
