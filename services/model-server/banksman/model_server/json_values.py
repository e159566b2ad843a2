from __future__ import annotations

import json
from typing import Any, TypeAlias, cast

Json: TypeAlias = dict[str, Any]
"""A decoded JSON object."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def dumps(value: object) -> str:
    """Return compact JSON without escapes for non-ASCII characters, as the vendors send it."""
    return _encode(value)


def as_object(value: object) -> Json | None:
    """Return the value if it is a JSON object, otherwise None."""
    return cast(Json, value) if isinstance(value, dict) else None


def as_list(value: object) -> list[Any] | None:
    """Return the value if it is a JSON array, otherwise None."""
    return cast(list[Any], value) if isinstance(value, list) else None


def loads_object(text: str | bytes) -> Json | None:
    """Return the JSON object of a text, or None if the text is not a JSON object."""
    try:
        return as_object(json.loads(text))
    except ValueError:
        return None
