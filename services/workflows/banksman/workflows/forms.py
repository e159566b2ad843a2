"""Parameter forms: a JSON Schema (2020-12) of an object, its defaults, and what is wrong with some values."""

from __future__ import annotations

import copy

from banksman.contracts.errors import BadInput
from banksman.contracts.wire import JsonObject
from banksman.runs.schemas import argument_problem, check_schema

MAX_PROBLEM_CHARS = 600
"""Of what a violation says: it repeats the value."""


def check_form(schema: JsonObject) -> None:
    """Check a form itself.

    Raises:
        BadInput: it is not a JSON Schema of an object; names the place.
    """
    try:
        check_schema(schema)
    except BadInput as error:
        field = error.field.replace("input_schema", "parameters_schema", 1)
        raise BadInput(field, error.value, error.expected) from error


def filled(schema: JsonObject, parameters: JsonObject) -> JsonObject:
    """The parameters with the form's defaults, checked.

    Raises:
        BadInput: they do not fit; names the parameter, its value and what was expected.
    """
    values = with_defaults(schema, parameters)
    problem = argument_problem(schema, values)
    if problem is None:
        return values
    field = "parameters" if problem.parameter == "arguments" else problem.parameter
    raise BadInput(field, _short(problem.value), problem.expected[:MAX_PROBLEM_CHARS])


def with_defaults(schema: JsonObject, values: JsonObject) -> JsonObject:
    """The values, and for each that is missing the default of its property; in nested objects too."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return values
    complete = dict(values)
    for name, form in properties.items():
        if not isinstance(form, dict):
            continue
        value = complete.get(name)
        if name not in complete and "default" in form:
            complete[name] = copy.deepcopy(form["default"])
        elif isinstance(value, dict):
            complete[name] = with_defaults(form, value)
    return complete


def _short(value: object) -> object:
    return f"{value[:120]}…" if isinstance(value, str) and len(value) > 120 else value
