"""Files that `make docs` writes from the sources, and that `make lint` compares with them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def write_or_check(texts: Mapping[Path, str], arguments: Sequence[str]) -> int:
    """Write the texts to their files; with the argument `--check`, report each file that differs instead.

    Return the exit code: 1 if a file differs.
    """
    if list(arguments) != ["--check"]:
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [
        path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        print(f"{path.relative_to(ROOT)} differs from its sources; run `make docs`", file=sys.stderr)
    return 1 if stale else 0
