"""Find the field that a client may have meant."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

MAX_NAME_CHARS = 64
"""Length of names that are compared: the time grows with the square of it."""


def nearest_field(annotation: Any, path: Sequence[str | int]) -> str | None:
    """Return the known field whose name is most like the last part of a path; None if none is.

    Args:
        annotation: The model, or the union of models, that was validated.
        path: The path of the unknown field, as pydantic reports it.
    """
    models = list(_models(annotation))
    for part in path[:-1]:
        below = [model.model_fields[part] for model in models if part in model.model_fields]
        if below:
            models = [found for field in below for found in _models(field.annotation)]
        else:
            # The part is a position in a list, or the tag of a union's member.
            models = [model for model in models if part == _tag(model)] or models
    if len(str(path[-1])) > MAX_NAME_CHARS:
        return None
    known = {name for model in models for name in model.model_fields}
    return next(iter(get_close_matches(str(path[-1]), known, n=1)), None)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models of a type: its own, those of a union, and those that a list or an object contains."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Annotated, Union, types.UnionType, tuple, list, dict):
        for member in get_args(annotation):
            yield from _models(member)


def _tag(model: type[BaseModel]) -> object:
    field = model.model_fields.get("type")
    literal = None if field is None else field.annotation
    return get_args(literal)[0] if get_origin(literal) is Literal else None
