"""The part of nats-server's configuration language that `accounts` needs.

https://docs.nats.io/running-a-nats-service/configuration#configuration-file-format
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

_INDENT = "  "


@dataclass(frozen=True, slots=True)
class Variable:
    """A value that the server reads from its environment."""

    name: str


def render(config: Mapping[str, Any]) -> str:
    """Return the text of a configuration file, with quoted strings and indented maps and lists."""
    return "".join(f"{key}: {_value(value, 0)}\n" for key, value in config.items())


def _value(value: object, depth: int) -> str:
    match value:
        case Variable(name=name):
            return f"${name}"
        case dict():
            items = cast(dict[str, Any], value).items()
            return _block("{", "}", [f"{key}: {_value(inner, depth + 1)}" for key, inner in items], depth)
        case list():
            return _list(cast(list[Any], value), depth)
        case _:
            return json.dumps(value)


def _list(values: list[Any], depth: int) -> str:
    flat = "[" + ", ".join(_line(value) for value in values) + "]"
    if len(flat) + len(_INDENT) * depth <= 100:
        return flat
    return _block("[", "]", [_value(value, depth + 1) for value in values], depth)


def _line(value: object) -> str:
    match value:
        case Variable(name=name):
            return f"${name}"
        case dict():
            items = cast(dict[str, Any], value).items()
            return "{" + ", ".join(f"{key}: {_line(inner)}" for key, inner in items) + "}"
        case list():
            return "[" + ", ".join(_line(inner) for inner in cast(list[Any], value)) + "]"
        case _:
            return json.dumps(value)


def _block(opening: str, closing: str, lines: list[str], depth: int) -> str:
    inner = _INDENT * (depth + 1)
    return opening + "\n" + "".join(f"{inner}{line}\n" for line in lines) + _INDENT * depth + closing
