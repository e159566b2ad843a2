"""Parameter forms: a JSON Schema (2020-12) of an object, its defaults, and the check of values against it."""

from __future__ import annotations

import copy
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from typing import cast

from banksman.contracts.errors import BadInput
from banksman.contracts.registry import BUILTIN_SERVER, ParameterProblem, ParsedWorkflow, WorkflowDefinition
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject, JsonValue
from banksman.runs.schema_checks.checker import SchemaChecker, argument_problem, check_schema
from banksman.workflows.commands import missing_parameters, read_parameters

MAX_PROBLEM_CHARS = 600
"""Maximum characters of a value in an error message."""


HINT = "x-hint"
"""The keyword of a property that names its control: text, multiline, number, choice, several, file, secret or
date. Without the keyword, the type decides."""


def check_form(schema: JsonObject) -> None:
    """Raise `BadInput`, which names the place, if a form is not a JSON Schema of an object."""
    with naming_form():
        check_schema(schema)


@contextmanager
def naming_form(name: str = "parameters_schema") -> Generator[None]:
    """Rename the field in errors: the check was written for tools and calls every schema `input_schema`."""
    try:
        yield
    except BadInput as error:
        field = error.field.replace("input_schema", name, 1)
        raise BadInput(field, error.value, error.expected) from error


@dataclass(frozen=True, slots=True)
class Forms:
    """Checks parameters against forms. Forms of tenants' workflows are checked in a process with limits."""

    schemas: SchemaChecker

    async def filled(
        self, definition: WorkflowDefinition, tenant: str | None, parameters: JsonObject
    ) -> JsonObject:
        """Return the parameters with the form's defaults; raise `BadInput` for the first invalid one."""
        schema = definition.parameters_schema
        values = with_defaults(schema, parameters)
        check_dates(schema, values)
        if definition.server == BUILTIN_SERVER:
            problem = argument_problem(schema, values)
        else:
            form = ToolDefinition(name="form", description="", input_schema=schema)
            problem = await self.schemas.argument_problem(tenant or "", form, values)
        if problem is None:
            return values
        field = "parameters" if problem.parameter == "arguments" else problem.parameter
        raise BadInput(field, _short(problem.value), problem.expected[:MAX_PROBLEM_CHARS])

    async def parsed(
        self, definition: WorkflowDefinition, tenant: str | None, given: JsonObject, words: list[str]
    ) -> ParsedWorkflow:
        """Return the form filled with parameters and the words of a command, and the problems of both."""
        schema = definition.parameters_schema
        read, problems = read_parameters(schema, words)
        parameters = with_defaults(schema, {**given, **read})
        wrong = {problem.parameter for problem in problems}
        problems += [one for one in missing_parameters(schema, parameters) if one.parameter not in wrong]
        if not problems:
            try:
                await self.filled(definition, tenant, parameters)
            except BadInput as error:
                value = cast(JsonValue, error.value)
                problems.append(ParameterProblem(parameter=error.field, value=value, expected=error.expected))
        return ParsedWorkflow(workflow=definition, parameters=parameters, problems=tuple(problems))


def check_dates(schema: JsonObject, values: JsonObject) -> None:
    """Check the fields whose control is a date, which the JSON Schema does not check."""
    for name, form in _forms(schema).items():
        value = values.get(name)
        wanted = isinstance(form, dict) and form.get(HINT) == "date"
        if wanted and isinstance(value, str) and value and not _is_date(value):
            raise BadInput(name, _short(value), "a date such as 2027-02-03")


def with_defaults(schema: JsonObject, values: JsonObject) -> JsonObject:
    """Return the values completed with the defaults of missing properties, also in nested objects."""
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


def described(schema: JsonObject, values: JsonObject) -> list[str]:
    """Return one line for each value that is not empty: the title of its field, and the value in words."""
    forms = _forms(schema)
    return [
        f"{_title(forms.get(name), name)}: {'•••' if _is_secret(forms.get(name)) else _in_words(value)}"
        for name, value in values.items()
        if value not in (None, "", [], {})
    ]


def _is_date(text: str) -> bool:
    # Python accepts further forms of ISO 8601, which the workflows of tenants may not accept.
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _forms(schema: JsonObject) -> JsonObject:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _is_secret(form: JsonValue) -> bool:
    return isinstance(form, dict) and form.get(HINT) == "secret"


def _title(form: JsonValue, name: str) -> str:
    title = form.get("title") if isinstance(form, dict) else None
    return title if isinstance(title, str) else name.replace("_", " ").capitalize()


def _in_words(value: JsonValue) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case None:
            return "none"
        case list():
            return ", ".join(_in_words(item) for item in value)
        case dict():
            return "; ".join(f"{name} {_in_words(item)}" for name, item in value.items())
        case _:
            return str(value)


def _short(value: object) -> object:
    return f"{value[:120]}…" if isinstance(value, str) and len(value) > 120 else value
