"""Detect whether an invalid value is a secret, which no error may show.

A field of a model is secret if it is declared with `repr=False`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, get_args

from pydantic import BaseModel


def is_secret(annotation: Any, path: Sequence[int | str], value: object) -> bool:
    """Return whether a value belongs to a secret field, or is an object or list that may contain one.

    Args:
        annotation: The type of the whole validated value.
        path: The path of the value in pydantic's format, with the tags of unions.
        value: The invalid value.
    """
    inner = [annotation]
    for part in path:
        fields = [field for model in _models(inner) for field in _named(model, str(part))]
        if any(not field.repr for field in fields):
            return True
        # A part that names no field is an index, a key, or the tag of a union's member.
        inner = [field.annotation for field in fields] or inner
    return isinstance(value, dict | list) and bool(cast(object, value)) and _contain_secrets(inner, [])


def _named(model: type[BaseModel], name: str) -> list[Any]:
    return [field for own, field in model.model_fields.items() if name in (own, field.alias)]


def _models(annotations: Sequence[Any]) -> list[type[BaseModel]]:
    """Return the models in types, including the members of unions, lists and objects."""
    found: list[type[BaseModel]] = []
    for annotation in annotations:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            found.append(annotation)
        else:
            found.extend(_models(get_args(annotation)))
    return found


def _contain_secrets(annotations: Sequence[Any], seen: list[type[BaseModel]]) -> bool:
    for model in _models(annotations):
        if model in seen:
            continue
        seen.append(model)
        fields = model.model_fields.values()
        if any(not field.repr or _contain_secrets([field.annotation], seen) for field in fields):
            return True
    return False
