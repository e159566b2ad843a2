"""In-process checks against schemas that have only types, properties and bounds.

Most tools have such a schema, and most calls fit it. This module only confirms a fit, in a limited number of
steps, so that no schema and no value of a tenant takes longer than a millisecond. All other cases are left to
`SchemaChecker`, which also finds the fault of a value that does not fit.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from banksman.contracts.wire import JsonObject, JsonValue

MAX_STEPS = 5_000
"""Maximum number of values, names and alternatives that one check examines."""

_ANNOTATIONS = frozenset({"$comment", "$schema", "default", "deprecated", "description", "examples", "title"})
_TYPES: dict[str, Callable[[JsonValue], bool]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    # 1.0 is an integer as well: it is left to the library.
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}
_NUMBERS = (int, float)
_BOUNDS: dict[str, tuple[tuple[type, ...], Callable[[Any], Any], Callable[[Any, Any], bool]]] = {
    "exclusiveMaximum": (_NUMBERS, operator.pos, operator.lt),
    "exclusiveMinimum": (_NUMBERS, operator.pos, operator.gt),
    "maxItems": ((list,), len, operator.le),
    "maxLength": ((str,), len, operator.le),
    "maximum": (_NUMBERS, operator.pos, operator.le),
    "minItems": ((list,), len, operator.ge),
    "minLength": ((str,), len, operator.ge),
    "minimum": (_NUMBERS, operator.pos, operator.ge),
}
"""By keyword: the types that it applies to, the measured property, and the comparison with the bound."""


def certainly_fits(schema: JsonObject, value: JsonValue) -> bool:
    """Return True if a value fits a schema; False if it does not fit, or only the full check can decide."""
    try:
        return _Check().fits(schema, value)
    except RecursionError:
        return False


class _Check:
    def __init__(self) -> None:
        self._steps = MAX_STEPS

    def fits(self, schema: JsonValue, value: JsonValue) -> bool:
        if not isinstance(schema, dict) or not self._may_take(1):
            return False
        return all(self._holds(word, schema, value) for word in schema if word not in _ANNOTATIONS)

    def _holds(self, word: str, schema: JsonObject, value: JsonValue) -> bool:
        rule = schema[word]
        match word, rule:
            case "type", str():
                return rule in _TYPES and _TYPES[rule](value)
            case "type", list():
                return self._may_take(len(rule)) and any(
                    isinstance(name, str) and name in _TYPES and _TYPES[name](value) for name in rule
                )
            case "anyOf", list():
                return any(self.fits(alternative, value) for alternative in rule)
            case "enum", list():
                # Compares only strings, because 1, 1.0 and True are equal in Python.
                return self._may_take(len(rule)) and isinstance(value, str) and value in rule
            case "required", list():
                return self._may_take(len(rule)) and isinstance(value, dict) and all(n in value for n in rule)
            case "properties", dict():
                return isinstance(value, dict) and all(
                    self.fits(rule[name], part) for name, part in value.items() if name in rule
                )
            case "additionalProperties", bool():
                known = schema.get("properties")
                names = known if isinstance(known, dict) else {}
                return rule or (isinstance(value, dict) and all(self._is_in(names, name) for name in value))
            case "items", dict():
                return isinstance(value, list) and all(self.fits(rule, part) for part in value)
            case _, int() | float() if word in _BOUNDS and not isinstance(rule, bool):
                types, measure, compare = _BOUNDS[word]
                return (
                    isinstance(value, types) and not isinstance(value, bool) and compare(measure(value), rule)
                )
            case _:
                return False

    def _is_in(self, names: JsonObject, name: str) -> bool:
        return self._may_take(1) and name in names

    def _may_take(self, steps: int) -> bool:
        self._steps -= steps
        return self._steps >= 0
