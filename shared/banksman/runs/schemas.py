"""Checks tool arguments against the JSON Schema of the tool, and such schemas themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from jsonschema import Draft202012Validator, exceptions
from referencing.exceptions import Unresolvable

from banksman.contracts.errors import BadInput
from banksman.contracts.wire import JsonObject, JsonValue

_faults = cast(Any, exceptions)


@dataclass(frozen=True, slots=True)
class ArgumentProblem:
    """The first argument that does not fit the schema."""

    parameter: str
    """Dotted path of the argument; `arguments` for the object as a whole."""
    value: JsonValue
    expected: str

    def __str__(self) -> str:
        return f"{self.parameter}: {self.expected}"


def argument_problem(schema: JsonObject, arguments: JsonObject) -> ArgumentProblem | None:
    """Return why arguments do not fit a schema; None when they fit.

    No arguments fit a schema that cannot be applied. It came from another process, so it must not fail the
    run.
    """
    validator = cast(Any, _validator(json.dumps(schema, sort_keys=True)))
    try:
        error: Any = _faults.best_match(validator.iter_errors(arguments))
    except (Unresolvable, RecursionError, re.error) as fault:
        return ArgumentProblem("arguments", None, f"the tool's schema cannot be applied ({fault})")
    if error is None:
        return None
    path = ".".join(str(part) for part in cast(list[Any], error.absolute_path)) or "arguments"
    if error.validator == "required":
        required = cast(list[str], error.validator_value)
        missing = [name for name in required if name not in error.instance]
        path = missing[0] if path == "arguments" else f"{path}.{missing[0]}"
        return ArgumentProblem(path, None, "is required")
    return ArgumentProblem(path, error.instance, error.message)


def check_schema(schema: JsonObject) -> None:
    """Check the schema of a tool.

    Raises:
        BadInput: It is not a JSON Schema of an object, or refers to anything outside itself.
    """
    if schema.get("type", "object") != "object":
        raise BadInput("input_schema.type", schema.get("type"), "'object'")
    try:
        Draft202012Validator.check_schema(schema)
    except _faults.SchemaError as error:
        field = ".".join(["input_schema", *(str(part) for part in error.absolute_path)])
        raise BadInput(field, error.instance, error.message) from error
    for reference in _references(schema):
        # The validator would fetch it: a process that registers a tool must not make this one send requests.
        if not reference.startswith("#"):
            raise BadInput("input_schema.$ref", reference, "a reference within the schema: '#/$defs/...'")


def _references(value: JsonValue) -> Iterator[str]:
    ahead = [value]
    while ahead:
        node = ahead.pop()
        if isinstance(node, dict):
            found = (node.get(word) for word in ("$ref", "$dynamicRef"))
            yield from (one for one in found if isinstance(one, str))
            ahead += node.values()
        elif isinstance(node, list):
            ahead += node


@lru_cache(maxsize=256)
def _validator(schema: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema))
