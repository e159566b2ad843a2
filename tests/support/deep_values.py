"""Values that are nested many levels deep."""

from __future__ import annotations

from banksman.contracts.wire import JsonObject


def deep(levels: int) -> JsonObject:
    """Return an object within an object, and so on."""
    value: JsonObject = {}
    for _ in range(levels):
        value = {"x": value}
    return value
