"""Renew what `tests/agent/providers` compares requests and replies with.

    tools/renew_golden.py              say what differs, and change nothing
    tools/renew_golden.py --overwrite  write what the adapters do now; read the diff before you commit it

A difference is a change of what vendors are sent or how they are understood: it is meant, or a mistake.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = "tests/agent/providers"


def main(arguments: list[str]) -> int:
    """Compare or overwrite; returns the exit code."""
    if arguments not in ([], ["--overwrite"]):
        print(__doc__, file=sys.stderr)
        return 2
    environment = dict(os.environ)
    if arguments:
        environment["BANKSMAN_RENEW_GOLDEN"] = "overwrite"
    tests = [sys.executable, "-m", "pytest", "-q", TESTS]
    code = subprocess.run(tests, cwd=ROOT, env=environment, check=False).returncode
    if arguments:
        subprocess.run(["git", "diff", "--stat", "--", TESTS], cwd=ROOT, check=False)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
