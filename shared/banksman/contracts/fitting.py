"""The size of stored values in bytes of UTF-8 JSON, the unit in which the broker limits a message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from pydantic_core import to_json

T = TypeVar("T")


def json_bytes(value: object) -> int:
    """Return the length of a value's JSON in bytes of UTF-8.

    Raises:
        ValueError: The value cannot be written as JSON.
    """
    return len(to_json(value))


def first_fitting(forms: Iterable[T], max_bytes: int) -> T:
    """Return the first form whose JSON takes at most `max_bytes` bytes, or the last one if none does.

    Args:
        forms: The complete value first, then shorter ones; a generator computes only those that are needed.
        max_bytes: The limit, in bytes of UTF-8.

    Raises:
        ValueError: `forms` is empty, or a form cannot be written as JSON.
    """
    found: T | None = None
    for form in forms:
        if json_bytes(form) <= max_bytes:
            return form
        found = form
    if found is None:
        raise ValueError("forms: at least one is expected")
    return found
