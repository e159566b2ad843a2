"""Reads the fields of untyped JSON, of which servers may omit any or send another type."""

from __future__ import annotations

from typing import Any, cast


def well_formed(text: str) -> str:
    """Replace lone surrogates, which the JSON of a model can contain and UTF-8 cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def as_object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def as_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def as_count(value: object) -> int:
    """Return a whole number, also one that is written as a float; 0 for anything else."""
    return int(value) if isinstance(value, int) or (isinstance(value, float) and value.is_integer()) else 0
