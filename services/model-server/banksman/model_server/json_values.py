from __future__ import annotations

import json
from typing import Any, TypeAlias, cast

Json: TypeAlias = dict[str, Any]
"""A decoded JSON object."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def dumps(value: object) -> str:
    """Encode compactly, non-ASCII characters as themselves, like the vendors do."""
    return _encode(value)


def as_object(value: object) -> Json | None:
    """The value as a JSON object, or None when it is something else."""
    return cast(Json, value) if isinstance(value, dict) else None


def as_list(value: object) -> list[Any] | None:
    """The value as a JSON array, or None when it is something else."""
    return cast(list[Any], value) if isinstance(value, list) else None


def loads_object(text: str | bytes) -> Json | None:
    """The JSON object that the text holds, or None when it holds anything else."""
    try:
        return as_object(json.loads(text))
    except ValueError:
        return None
