"""Update the golden requests and replies of `tests/agent/providers`.

    tools/renew_golden.py              report differences, and change nothing
    tools/renew_golden.py --overwrite  write the adapters' current output; read the diff before you commit it

A difference changes the requests to vendors or the parsing of their replies. It is either intended or a
defect.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = "tests/agent/providers"


def main(arguments: list[str]) -> int:
    """Compare or overwrite; return the exit code."""
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
