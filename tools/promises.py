"""Print the tests that prove the promises of docs/reliability.md, one per line, as arguments for pytest.

    tools/promises.py            for every promise
    tools/promises.py P1 P9      for some; P1 includes P1b

`make promises` runs them on one server or on three.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/reliability.md"
PROMISE = re.compile(r"^\| (P\d+[a-z]?) \|[^|]*\|([^|]*)\|", re.MULTILINE)
"""Matches a row: the promise's number, its text, and the tests that prove it."""
TEST = re.compile(r"`(tests/[\w/]+\.py(?:::\w+)?)`")


def tests_of(page: str) -> dict[str, list[str]]:
    """Return the tests of each promise, by its number."""
    return {number: TEST.findall(proof) for number, proof in PROMISE.findall(page)}


def chosen(tests: dict[str, list[str]], wanted: Iterable[str]) -> list[str]:
    """Return the tests of the named promises, each once; of all promises if none is named.

    Raises:
        SystemExit: A promise is not on the page.
    """
    wanted = list(wanted) or list(tests)
    if unknown := [number for number in wanted if number not in tests]:
        raise SystemExit(f"{PAGE.name} has no promise {', '.join(unknown)}; it has {', '.join(tests)}")
    rows = [row for row in tests if row in wanted or row.rstrip("abc") in wanted]
    named = dict.fromkeys(test for row in rows for test in tests[row])
    # A file that is named as a whole already includes its tests.
    return [test for test in named if "::" not in test or test.partition("::")[0] not in named]


if __name__ == "__main__":
    print("\n".join(chosen(tests_of(PAGE.read_text(encoding="utf-8")), sys.argv[1:])))
