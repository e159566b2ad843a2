"""Variables in prompts: `{{name}}`, `{{nested.field}}`, `{{name|default}}` (R78)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from banksman.contracts.errors import BadInput
from banksman.contracts.wire import JsonObject, JsonValue

_PLACEHOLDER = re.compile(r"\{\{([^{}]*+)\}\}")
_PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*+(?:\.[A-Za-z0-9_-]++)*+")


def run_variables(*, service: str, user_message: str, variables: Mapping[str, JsonValue]) -> JsonObject:
    """Return `variables`, completed with the names that every run has."""
    return {"rag_context": "", "intent": "", "service": service, **variables, "user_message": user_message}


def render(template: str, variables: Mapping[str, JsonValue]) -> str:
    """Replace the variables of a template by their values.

    Strings are inserted unchanged, other values as JSON. `{{name|text}}` inserts `text` without surrounding
    white space if the variable is missing or null. Braces in values are not replaced, so a message cannot
    read a variable. White space around a name is ignored.

    Raises:
        BadInput: A variable is missing, or braces contain no name.
    """
    return _PLACEHOLDER.sub(lambda found: _value(found[1], variables), template)


def variables_of(template: str) -> tuple[str, ...]:
    """Return the distinct names in their order; raise `BadInput` if braces contain no name."""
    return tuple(dict.fromkeys(_split(found[1])[0] for found in _PLACEHOLDER.finditer(template)))


@dataclass(frozen=True, slots=True)
class Placeholder:
    path: str
    default: str | None
    """The text in place of a missing value; None requires a value."""


def parts_of(template: str) -> Iterator[str | Placeholder]:
    """Yield the texts and placeholders in their order; raise `BadInput` if braces contain no name."""
    end = 0
    for found in _PLACEHOLDER.finditer(template):
        if found.start() > end:
            yield template[end : found.start()]
        yield Placeholder(*_split(found[1]))
        end = found.end()
    if end < len(template):
        yield template[end:]


def look_up(path: str, variables: Mapping[str, JsonValue]) -> JsonValue:
    """Return the value at a dotted path; None if it is missing. Numbers are positions in lists."""
    node: JsonValue = cast(JsonValue, variables)
    for step in path.split("."):
        if isinstance(node, list) and step.isdecimal() and int(step) < len(node):
            node = node[int(step)]
        elif isinstance(node, Mapping):
            node = node.get(step)
        else:
            return None
    return node


def _value(written: str, variables: Mapping[str, JsonValue]) -> str:
    path, default = _split(written)
    value = look_up(path, variables)
    if value is not None:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if default is None:
        raise BadInput(f"variables.{path}", None, "a value, because the system prompt uses it")
    return default


def _split(written: str) -> tuple[str, str | None]:
    name, bar, default = written.partition("|")
    path = name.strip()
    if not _PATH.fullmatch(path):
        raise BadInput("system_prompt", "{{" + written + "}}", "a variable's name between the braces")
    return path, default.strip() if bar else None
