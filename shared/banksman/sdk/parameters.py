"""The parameters of a typed function: their JSON Schema, and how arguments become what it expects."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from banksman.contracts.wire import JsonObject, Timestamp, bad_input

_UNNAMED = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
)


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a call belongs to. A function gets it by a parameter of this type, which no model sees."""

    tenant: str
    conversation_id: str
    run_id: str
    tool_call_id: str
    deadline: Timestamp
    """When the call's time is over."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Of one function."""

    schema: JsonObject
    """An object with one property a parameter."""
    _model: type[BaseModel]
    _fields: Mapping[str, str]
    """Field of the model by the parameter's name."""
    _context: str | None
    """The parameter that gets the `ToolContext`."""

    @classmethod
    def of(cls, function: Callable[..., object], descriptions: Mapping[str, str]) -> Self:
        """Read a function's signature.

        Raises:
            TypeError: a parameter has no type, or cannot be given by its name.
        """
        types = get_type_hints(function, include_extras=True)
        context: str | None = None
        fields: dict[str, str] = {}
        declared: dict[str, Any] = {}
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind in _UNNAMED:
                raise TypeError(f"{_named(function)}: parameter {name!r} cannot be given by its name")
            if name not in types:
                raise TypeError(f"{_named(function)}: parameter {name!r} has no type")
            if types[name] is ToolContext:
                context = name
                continue
            # A model's field may not be called as one of its methods, a parameter may.
            fields[name] = f"parameter_{len(fields)}"
            declared[fields[name]] = (types[name], _field(parameter, descriptions.get(name)))
        model = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **declared)
        return cls(_untitled(model.model_json_schema()), model, fields, context)

    def bind(self, arguments: JsonObject, context: ToolContext) -> dict[str, Any]:
        """The keyword arguments of the function; nothing is coerced ("1" is no number).

        Raises:
            BadInput: naming the first parameter that does not fit, and why.
        """
        try:
            model = self._model.model_validate_json(json.dumps(arguments), strict=True)
        except ValidationError as error:
            raise bad_input(error, "arguments") from error
        bound = {name: getattr(model, field) for name, field in self._fields.items()}
        return bound if self._context is None else {**bound, self._context: context}


def _untitled(schema: dict[str, Any]) -> JsonObject:
    """Leave out the titles that only repeat names: models pay for each word."""
    schema.pop("title", None)
    for one in cast(dict[str, dict[str, Any]], schema["properties"]).values():
        one.pop("title", None)
    return schema


def _field(parameter: inspect.Parameter, description: str | None) -> Any:
    told: dict[str, Any] = {} if description is None else {"description": description}
    default = ... if parameter.default is inspect.Parameter.empty else parameter.default
    return Field(default, alias=parameter.name, **told)


def _named(function: Callable[..., object]) -> str:
    return getattr(function, "__name__", repr(function))
