"""Validation with the types of an SDK, in which unknown fields are errors."""

from __future__ import annotations

import collections.abc
import os
import types
import typing
from functools import cache
from typing import Any, NotRequired, Required, Union

import typing_extensions
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict


@cache
def strict(sdk_type: Any) -> TypeAdapter[Any]:
    """Return a validator for a type of an SDK.

    Every typed dictionary in it refuses unknown fields. Every iterable is a list, because Pydantic validates
    iterables only while they are read.
    """
    return TypeAdapter(_closed(sdk_type))


_made: dict[Any, Any] = {}


def _closed(sdk_type: Any) -> Any:
    if typing_extensions.is_typeddict(sdk_type):
        return _closed_dict(sdk_type)
    if isinstance(sdk_type, typing_extensions.TypeAliasType):
        return _closed(sdk_type.__value__)
    origin, arguments = typing.get_origin(sdk_type), typing.get_args(sdk_type)
    if origin in (Union, types.UnionType):
        return Union[tuple(_closed(one) for one in arguments)]  # noqa: UP007
    if origin is typing.Annotated:
        return _closed(arguments[0])
    if origin in (typing.IO, os.PathLike):
        return str  # SDKs also take files, which they encode as text.
    if origin is list or (origin and isinstance(origin, type) and _is_sequence(origin)):
        return list[_closed(arguments[0])]
    if origin is dict:
        return dict[arguments[0], _closed(arguments[1])]
    return sdk_type


def _is_sequence(origin: type) -> bool:
    return (
        issubclass(origin, collections.abc.Iterable) and not issubclass(origin, dict)
    ) or "Sequence" in origin.__name__


def _closed_dict(sdk_type: Any) -> Any:
    if sdk_type not in _made:
        _made[sdk_type] = Any  # A type that contains itself is checked one level deep.
        hints = typing_extensions.get_type_hints(sdk_type, include_extras=True)
        fields = {
            name: (Required if name in sdk_type.__required_keys__ else NotRequired)[_closed(_bare(hint))]
            for name, hint in hints.items()
        }
        closed = TypedDict(sdk_type.__name__, fields)  # type: ignore[misc]
        _made[sdk_type] = with_config(ConfigDict(extra="forbid"))(closed)
    return _made[sdk_type]


def _bare(hint: Any) -> Any:
    wrapped = typing_extensions.get_origin(hint) in (Required, NotRequired)
    return typing_extensions.get_args(hint)[0] if wrapped else hint


def problem(sdk_type: Any, value: Any) -> tuple[str, str] | None:
    """Return the place and the text of the first problem of a value; None if there is none."""
    try:
        strict(sdk_type).validate_python(value)
    except ValidationError as error:
        return _deepest(error)
    return None


def _deepest(error: ValidationError) -> tuple[str, str]:
    """Return the problem of the union member that fits best: its literals fit, and its place is deepest."""
    found = error.errors(include_url=False)
    wrong = {one["loc"][:-1] for one in found if one["type"] in ("literal_error", "missing")}
    fitting = [one for one in found if not any(one["loc"][: len(place)] == place for place in wrong)]
    first = max(fitting or found, key=lambda one: (one["type"] == "extra_forbidden", len(one["loc"])))
    return ".".join(map(str, first["loc"])), first["msg"]


def unknown_field(model: type[BaseModel], value: Any) -> str | None:
    """Return the path of a field that a model drops; None if it keeps all.

    For models whose classes ignore unknown fields, although the vendor's API refuses them.
    """
    kept = model.model_validate(value).model_dump(by_alias=True, exclude_unset=True)
    return _dropped(value, kept, "")


def _dropped(value: Any, kept: Any, path: str) -> str | None:
    if isinstance(value, dict) and isinstance(kept, dict):
        for name, inner in value.items():
            place = f"{path}.{name}".removeprefix(".")
            found = place if name not in kept else _dropped(inner, kept[name], place)
            if found is not None:
                return found
    elif isinstance(value, list) and isinstance(kept, list):
        for index, (inner, inner_kept) in enumerate(zip(value, kept, strict=False)):
            found = _dropped(inner, inner_kept, f"{path}.{index}")
            if found is not None:
                return found
    return None
