"""Tool arguments against a tool's JSON Schema, with an answer that names the argument."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from jsonschema import Draft202012Validator, exceptions

from banksman.contracts.errors import BadInput
from banksman.contracts.wire import JsonObject, JsonValue

_faults = cast(Any, exceptions)


@dataclass(frozen=True, slots=True)
class ArgumentProblem:
    """The first thing that is wrong with some arguments."""

    parameter: str
    """Dotted path of the argument; `arguments` for the object as a whole."""
    value: JsonValue
    expected: str

    def __str__(self) -> str:
        return f"{self.parameter}: {self.expected}"


def argument_problem(schema: JsonObject, arguments: JsonObject) -> ArgumentProblem | None:
    """Check arguments; None when they fit."""
    validator = cast(Any, _validator(json.dumps(schema, sort_keys=True)))
    error: Any = _faults.best_match(validator.iter_errors(arguments))
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
    """Check a tool's own schema.

    Raises:
        BadInput: it is not a JSON Schema of an object.
    """
    if schema.get("type", "object") != "object":
        raise BadInput("input_schema.type", schema.get("type"), "'object'")
    try:
        Draft202012Validator.check_schema(schema)
    except _faults.SchemaError as error:
        field = ".".join(["input_schema", *(str(part) for part in error.absolute_path)])
        raise BadInput(field, error.instance, error.message) from error


@lru_cache(maxsize=256)
def _validator(schema: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema))
