"""Mistakes in requests: pydantic's errors in plain English, without secrets, and unknown fields.

A field is secret if its model declares it with `repr=False`. Models that are also stored ignore unknown
fields, because a newer version may have written them; in a request an unknown field is a mistake at every
level.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from banksman.contracts.errors import NULL, BadInput
from banksman.contracts.ids import TOKEN_PATTERN, TOKEN_RULE

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
    """Return pydantic's first error; `whole` removes the tags of unions, `annotation` hides secret fields."""
    first = _first_mistake(error, annotation)
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
        case "extra_forbidden":
            value = None
        case _:
            pass
    text = expected(first) + _advice(first, annotation)
    # The text "at most 5 items, not 6" already describes the value.
    return BadInput(".".join(path) or what, None if ", not " in text else value, text)


def _first_mistake(error: ValidationError, annotation: Any) -> ErrorDetails:
    """Return the first unknown field, else the first error.

    For a union, an error inside the member that has the value's type is preferred. Each member also reports
    the fields of the others as unknown.
    """
    first, *others = found = error.errors(include_url=False)
    unknown = (
        one
        for one in found[:_EXAMINED]
        if one["type"] == "extra_forbidden" and one["loc"][-1] not in _known(annotation, one["loc"])
    )
    if (mistake := next(unknown, None)) is not None:
        return mistake
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
    """Return one of pydantic's errors as a predicate about the value, in plain English."""
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


def is_secret(annotation: Any, path: Sequence[int | str], value: object) -> bool:
    """Return whether a value at a path in pydantic's format is secret, or may contain a secret."""
    inner = [annotation]
    for part in path:
        models = _models_in(*inner, in_objects=True)
        fields = [field for model in models for field in _named(model, str(part))]
        if any(not field.repr for field in fields):
            return True
        # A part that names no field is an index, a key, or the tag of a union's member.
        inner = [field.annotation for field in fields] or inner
    return isinstance(value, dict | list) and bool(cast(object, value)) and _contain_secrets(inner, [])


def _named(model: type[BaseModel], name: str) -> list[Any]:
    return [field for own, field in model.model_fields.items() if name in (own, field.alias)]


def _contain_secrets(annotations: Sequence[Any], seen: list[type[BaseModel]]) -> bool:
    for model in _models_in(*annotations, in_objects=True):
        if model in seen:
            continue
        seen.append(model)
        fields = model.model_fields.values()
        if any(not field.repr or _contain_secrets([field.annotation], seen) for field in fields):
            return True
    return False


_EXAMINED = 100
"""Maximum number of errors among which an unknown field is looked for: a client chooses their number."""
MAX_NAME_CHARS = 64
"""Maximum length of names that are compared; the time grows with its square."""


def _advice(mistake: ErrorDetails, annotation: Any) -> str:
    if mistake["type"] != "extra_forbidden":
        return ""
    near = _nearest(str(mistake["loc"][-1]), _known(annotation, mistake["loc"]))
    return f"; did you mean {near}?" if near else ""


def _nearest(name: str, known: Iterable[str]) -> str | None:
    # Imported here, because only a mistake needs difflib.
    from difflib import get_close_matches

    return None if len(name) > MAX_NAME_CHARS else next(iter(get_close_matches(name, known, n=1)), None)


def _known(annotation: Any, path: Sequence[int | str]) -> set[str]:
    """Return the fields of the models that the object may be which has the last part of a path."""
    models = list(_models_in(annotation))
    for part in path[:-1]:
        tagged = [model for model in models if _tag(model) == part] if len(models) > 1 else []
        fields = [field.annotation for model in models for field in _named(model, str(part))]
        # A part that is neither a tag nor a field is an index, a key, or another name of a union's member.
        models = tagged or (list(_models_in(*fields, in_objects=True)) if fields else models)
    return {field.alias or name for model in models for name, field in model.model_fields.items()}


def _models_in(*annotations: Any, in_objects: bool = False) -> Iterator[type[BaseModel]]:
    """Yield the models of types, including members of unions and lists, and of objects on request."""
    for annotation in annotations:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield annotation
        elif in_objects or get_origin(annotation) is not dict:
            yield from _models_in(*get_args(annotation), in_objects=in_objects)


def _tag(model: type[BaseModel]) -> object:
    field = model.model_fields.get("type")
    literal = None if field is None else field.annotation
    return get_args(literal)[0] if get_origin(literal) is Literal else None
