"""Read fields of untyped JSON. A missing field or a field of another type reads as empty."""

from __future__ import annotations

from typing import Any, cast


def as_object(value: object) -> dict[str, Any]:
    """Return an object; empty if `value` is not one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[object]:
    """Return a list; empty if `value` is not one."""
    return cast("list[object]", value) if isinstance(value, list) else []


def as_text(value: object) -> str:
    """Return a string; empty if `value` is not one."""
    return value if isinstance(value, str) else ""


def as_count(value: object) -> int:
    """Return an integer; 0 if `value` is not one."""
    return value if isinstance(value, int) else 0
