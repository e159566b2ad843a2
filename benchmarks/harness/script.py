"""Measurements in their own processes, which print their results as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

LIMIT_S = 120


def run_module(module: str, *arguments: str, python: str = sys.executable) -> dict[str, Any]:
    """Run a module and return the JSON that it printed."""
    done = subprocess.run(
        [python, "-m", module, *arguments], stdout=subprocess.PIPE, check=True, timeout=LIMIT_S
    )
    return json.loads(done.stdout)
