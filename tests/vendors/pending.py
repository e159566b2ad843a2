"""What does not work yet: each entry is an expected failure, and a test that passes all the same fails."""

from __future__ import annotations

from fnmatch import fnmatchcase

PENDING: dict[str, list[str]] = {}
"""Patterns of `test: vendor` and `test: vendor: parameter`, by the reason."""


def reason(test: str) -> str | None:
    """Return why a test fails; None if it is expected to pass."""
    return next((why for why, tests in PENDING.items() if any(fnmatchcase(test, one) for one in tests)), None)
