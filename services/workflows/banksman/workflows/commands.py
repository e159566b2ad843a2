"""Parses commands such as `/create_project demo template=web` with the form of their workflow. Pure."""

from __future__ import annotations

import shlex
from typing import cast

from banksman.contracts.errors import BadInput
from banksman.contracts.ids import check_token
from banksman.contracts.registry import ParameterProblem
from banksman.contracts.wire import JsonObject, JsonValue, strict_json

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
    """Return whether a form accepts a word as its value: `colour=red` is a valid text, but not a number."""
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
    kind = form.get("type")
    alternatives = form.get("anyOf")
    if kind is None and isinstance(alternatives, list):
        kinds = [one.get("type") for one in alternatives if isinstance(one, dict)]
        return next((one for one in kinds if one != "null"), None)
    if isinstance(kind, list):
        return next((one for one in kind if one != "null"), None)
    return kind


def _properties(schema: JsonObject) -> dict[str, JsonObject]:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: form for name, form in properties.items() if isinstance(form, dict)}


def _names(schema: JsonObject, keyword: str) -> list[str]:
    names = schema.get(keyword)
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
