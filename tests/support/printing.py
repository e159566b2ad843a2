"""Output of the programs below `tests`."""

from __future__ import annotations

import sys


def print_line(text: str) -> None:
    """Print a line at once: the programs run for minutes."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
