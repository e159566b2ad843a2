"""Describe pydantic's validation errors in plain English."""

from __future__ import annotations

import re
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from banksman.contracts.errors import NULL, BadInput
from banksman.contracts.ids import TOKEN_PATTERN, TOKEN_RULE
from banksman.contracts.secret_fields import is_secret

_UNION_MEMBER = re.compile(r"[\[-]")
"""Matches a part of an error's path that names a member of a union instead of a field."""
_PLAIN = (
    (re.compile(r"^\w+ should "), "must "),
    (re.compile("greater than or equal to"), "at least"),
    (re.compile("less than or equal to"), "at most"),
    (re.compile(" after validation, not "), ", not "),
)
_NUMBER, _LIST, _OBJECT = "must be a number", "must be a list", "must be an object"
_TIME = "must be a time with its UTC offset, as in '2026-01-31T09:00:00Z'"
_WRONG_TYPES = frozenset({"string_type", "list_type", "tuple_type", "dict_type", "model_type"})
"""Errors of a union member that has another type than the value; another member may have the value's type."""
_EXPECTED = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "datetime_from_date_parsing": _TIME,
    "datetime_object_invalid": _TIME,
    "datetime_parsing": _TIME,
    "datetime_type": _TIME,
    "dict_type": _OBJECT,
    "extra_forbidden": "is not a known field",
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "int_from_float": "must be an integer",
    "int_parsing": "must be an integer",
    "int_type": "must be an integer",
    "list_type": _LIST,
    "missing": "is required",
    "model_type": _OBJECT,
    "string_type": "must be a string",
    "timezone_aware": _TIME,
    "tuple_type": _LIST,
    "union_tag_not_found": "is required",
}
"""Texts by the type of pydantic's error, in place of texts about "inputs" and "dictionaries"."""


def bad_input(
    error: ValidationError, what: str = "body", whole: object = None, annotation: Any = None
) -> BadInput:
    """Return pydantic's first error: the path of the field, its value and the expected value.

    Args:
        error: The error that pydantic raised.
        what: Name of the whole value, for an error without a path.
        whole: The validated value. With it, the path has no tags of unions.
        annotation: The type of the whole. With it, no value of a secret field is shown.
    """
    first = _first_mistake(error)
    path = _fields(first, whole)
    value: object = NULL if first["input"] is None else first["input"]
    if is_secret(annotation, first["loc"], value):
        value = None
    match first["type"]:
        case "missing":
            # For a missing field, pydantic's input is the object that lacks it.
            value = None
        case "union_tag_not_found" | "union_tag_invalid":
            path.append(first.get("ctx", {})["discriminator"].strip("'"))
            value = first.get("ctx", {}).get("tag")
        case _:
            pass
    text = expected(first)
    # The text "at most 5 items, not 6" already describes the value.
    return BadInput(".".join(path) or what, None if ", not " in text else value, text)


def _first_mistake(error: ValidationError) -> ErrorDetails:
    """Return the first error. For a union, prefer an error inside the member that has the value's type."""
    first, *others = error.errors(include_url=False)
    if first["type"] in _WRONG_TYPES:
        field = _fields(first)
        inner = (
            one for one in others if len(_fields(one)) > len(field) and _fields(one)[: len(field)] == field
        )
        return next(inner, first)
    return first


def _fields(mistake: ErrorDetails, whole: object = None) -> list[str]:
    """Return the path of an error without members of unions; given the whole value, also without tags."""
    found: list[str] = []
    *parts, last = mistake["loc"] or ("",)
    inner = whole
    for part in parts:
        if _is_member(part, inner) or _is_tag(part, inner):
            continue
        found.append(str(part))
        inner = cast(Any, inner)[part] if isinstance(inner, dict | list) else None
    if last != "" and not _is_member(last, inner):
        found.append(str(last))
    return found


def _is_member(part: int | str, value: object) -> bool:
    """Return whether a part of a path is a member of a union, not a key of the value."""
    return _UNION_MEMBER.search(str(part)) is not None and not (isinstance(value, dict) and part in value)


def _is_tag(part: int | str, value: object) -> bool:
    """Return whether a part of a path is the tag of a union's member, not a field of the value."""
    if not isinstance(value, dict):
        return False
    fields = cast(dict[object, object], value)
    return part == fields.get("type") or part not in fields


def expected(mistake: ErrorDetails) -> str:
    """Return one of pydantic's errors in plain English, as a predicate about the value."""
    if known := _EXPECTED.get(mistake["type"]):
        return known
    message = mistake["msg"].removeprefix("Value error, ")
    if mistake["type"] == "union_tag_invalid":
        return f"must be one of {mistake.get('ctx', {})['expected_tags']}"
    if TOKEN_PATTERN in message:
        return TOKEN_RULE
    for pattern, replacement in _PLAIN:
        message = pattern.sub(replacement, message)
    return message
