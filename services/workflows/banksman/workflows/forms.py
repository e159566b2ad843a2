"""Parameter forms: a JSON Schema (2020-12) of an object, its defaults, and the check of values against it.

A command such as `/create_project demo template=web` is parsed with the form of its workflow.
"""

from __future__ import annotations

import copy
import shlex
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from typing import cast

from banksman.contracts.errors import BadInput
from banksman.contracts.ids import check_token
from banksman.contracts.registry import BUILTIN_SERVER, ParameterProblem, ParsedWorkflow, WorkflowDefinition
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject, JsonValue, strict_json
from banksman.runs.schema_checks.checker import SchemaChecker, argument_problem, check_schema

MAX_PROBLEM_CHARS = 600

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
    for name, form in _properties(schema).items():
        value = values.get(name)
        if form.get(HINT) == "date" and isinstance(value, str) and value and not _is_date(value):
            raise BadInput(name, _short(value), "a date such as 2027-02-03")


def with_defaults(schema: JsonObject, values: JsonObject) -> JsonObject:
    """Return the values completed with the defaults of missing properties, also in nested objects."""
    complete = dict(values)
    for name, form in _properties(schema).items():
        value = complete.get(name)
        if name not in complete and "default" in form:
            complete[name] = copy.deepcopy(form["default"])
        elif isinstance(value, dict):
            complete[name] = with_defaults(form, value)
    return complete


def described(schema: JsonObject, values: JsonObject) -> list[str]:
    """Return one line for each value that is not empty: the title of its field, and the value in words."""
    forms = _properties(schema)
    return [
        _described(name, value, forms.get(name, {}))
        for name, value in values.items()
        if value not in (None, "", [], {})
    ]


def _described(name: str, value: JsonValue, form: JsonObject) -> str:
    title = form.get("title")
    shown = title if isinstance(title, str) else name.replace("_", " ").capitalize()
    return f"{shown}: {'•••' if form.get(HINT) == 'secret' else _in_words(value)}"


def _is_date(text: str) -> bool:
    # Python accepts further forms of ISO 8601, which the workflows of tenants may not accept.
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


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


POSITIONAL = "x-positional"
"""The keyword of a form that lists the positional parameters, which a command may give without their
names."""

_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_SEPARATOR = ","


class Unreadable(Exception):
    """A value does not have the type of its parameter. The message states the expected type."""


def split_command(text: str) -> tuple[str, list[str]]:
    """Return the workflow's name and the words after it. Quotes join; a backslash escapes a character."""
    text = text.strip()
    if not text.startswith("/"):
        raise BadInput("text", text[:80], "a command: /name parameter=value")
    try:
        name, *words = shlex.split(text[1:]) or [""]
    except ValueError as error:
        raise BadInput("text", text[:80], "closed quotes") from error
    return check_token(name, "text"), words


def read_parameters(schema: JsonObject, words: list[str]) -> tuple[JsonObject, list[ParameterProblem]]:
    """Return the parameters that the words of a command give, and the problems of invalid words.

    A word is `name=value`, or the value of the next positional parameter. A list is separated by commas or
    given by repeated names; an object is JSON.
    """
    properties = _properties(schema)
    positional = [name for name in _names(schema, POSITIONAL) if name in properties]
    given: dict[str, list[str]] = {}
    problems: list[ParameterProblem] = []
    for word in words:
        name, equals, value = word.partition("=")
        left = [one for one in positional if one not in given]
        if equals and name in properties:
            given.setdefault(name, []).append(value)
        elif left and (not equals or _accepts(properties[left[0]], word)):
            given[left[0]] = [word]
        else:
            known = ", ".join(properties) or "none"
            expected = f"a parameter of the workflow ({known})"
            problems.append(ParameterProblem(parameter=name, value=value or None, expected=expected))
    parameters: JsonObject = {}
    for name, values in given.items():
        try:
            parameters[name] = _read(properties[name], values)
        except Unreadable as error:
            shown = " ".join(values)[:120]
            problems.append(ParameterProblem(parameter=name, value=shown, expected=str(error)))
    return parameters, problems


def missing_parameters(schema: JsonObject, parameters: JsonObject) -> list[ParameterProblem]:
    return [
        ParameterProblem(parameter=name, expected="a value: it is required")
        for name in _names(schema, "required")
        if name not in parameters
    ]


def _read(form: JsonObject, values: list[str]) -> JsonValue:
    if _type(form) == "array":
        items = form.get("items")
        each = cast(JsonObject, items) if isinstance(items, dict) else {}
        parts = values if len(values) > 1 else [part for part in values[0].split(_SEPARATOR) if part]
        return [_read(each, [part.strip()]) for part in parts]
    if len(values) > 1:
        raise Unreadable("one value")
    return _single(form, values[0])


def _single(form: JsonObject, text: str) -> JsonValue:
    match _type(form):
        case "integer" | "number" as kind:
            number = _json(text)
            whole = isinstance(number, int) and not isinstance(number, bool)
            if not (whole or (kind == "number" and isinstance(number, float))):
                raise Unreadable("a whole number" if kind == "integer" else "a number")
            return number
        case "boolean":
            if text.lower() not in _BOOLEANS:
                raise Unreadable("yes or no")
            return _BOOLEANS[text.lower()]
        case "object":
            value = _json(text)
            if not isinstance(value, dict):
                raise Unreadable("a JSON object")
            return value
        case _:
            return text


def _accepts(form: JsonObject, word: str) -> bool:
    try:
        _read(form, [word])
    except Unreadable:
        return False
    return True


def _json(text: str) -> JsonValue:
    try:
        return strict_json(text, what="value")
    except (BadInput, ValueError):
        return None


def _type(form: JsonObject) -> object:
    """Return the type of a form; for an optional value, its first type other than null."""
    kind, alternatives = form.get("type"), form.get("anyOf")
    if kind is None and isinstance(alternatives, list):
        kind = [one.get("type") for one in alternatives if isinstance(one, dict)]
    return next((one for one in kind if one != "null"), None) if isinstance(kind, list) else kind


def _properties(schema: JsonObject) -> dict[str, JsonObject]:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: form for name, form in properties.items() if isinstance(form, dict)}


def _names(schema: JsonObject, keyword: str) -> list[str]:
    names = schema.get(keyword)
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
