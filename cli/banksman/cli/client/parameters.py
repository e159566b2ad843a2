"""NAME=VALUE arguments of workflows, and values that a user types."""

from __future__ import annotations

import json
from typing import Any

from banksman.contracts.errors import BadInput


def parse_parameters(given: list[str]) -> dict[str, Any]:
    """Parse NAME=VALUE arguments; a value that is valid JSON is read as JSON.

    Raises:
        BadInput: an argument has no `=` or no name.
    """
    found: dict[str, Any] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise BadInput("parameter", word, "NAME=VALUE")
        found[name] = parse_value(value)
    return found


def parse_value(text: str, schema: dict[str, Any] | None = None) -> Any:
    """Return a typed value: text where the schema wants text, otherwise JSON if it is valid."""
    if schema is not None and schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
