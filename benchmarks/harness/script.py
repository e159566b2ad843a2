"""Measurements in a process of their own, which print their results as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

LIMIT_S = 120


def measured(module: str, *arguments: str, python: str = sys.executable) -> dict[str, Any]:
    """Run a module and return what it printed."""
    done = subprocess.run(
        [python, "-m", module, *arguments], stdout=subprocess.PIPE, check=True, timeout=LIMIT_S
    )
    return json.loads(done.stdout)
