"""The parameters of a typed function: their JSON Schema, and the conversion of arguments."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from banksman.contracts.validation_errors import bad_input
from banksman.contracts.wire import JsonObject, Timestamp

_UNNAMED = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
)


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The context of a call.

    A function receives it in a parameter of this type, which is not in the schema.
    """

    tenant: str
    conversation_id: str
    run_id: str
    tool_call_id: str
    deadline: Timestamp
    """The time at which the call times out."""
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """The tenant's secrets that the tool declares, by name."""
    traceparent: str | None = None
    """The W3C trace context that its run continues, for requests to other systems; None without one."""

    def secret(self, name: str) -> str:
        """Return a secret of the tenant.

        Raises:
            KeyError: The tool does not declare it, or the tool's server serves all tenants.
        """
        if name not in self.secrets:
            raise KeyError(f"no secret {name!r}: declare it with @tool(secrets=...) on a tenant's own server")
        return self.secrets[name]


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of one function."""

    schema: JsonObject
    """The schema of an object with one property per parameter."""
    _model: type[BaseModel]
    _fields: Mapping[str, str]
    """Names of the model's fields by parameter name."""
    _context: str | None
    """Name of the parameter for the context; None if there is none."""

    @classmethod
    def of(
        cls,
        function: Callable[..., object],
        descriptions: Mapping[str, str],
        *,
        context: type = ToolContext,
    ) -> Self:
        """Read a function's signature. The parameter of type `context` is not in the schema.

        Raises:
            TypeError: A parameter has no type, or cannot be passed by name.
        """
        types = get_type_hints(function, include_extras=True)
        given: str | None = None
        fields: dict[str, str] = {}
        declared: dict[str, Any] = {}
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind in _UNNAMED:
                raise TypeError(f"{_named(function)}: parameter {name!r} cannot be passed by name")
            if name not in types:
                raise TypeError(f"{_named(function)}: parameter {name!r} has no type")
            if types[name] is context:
                given = name
                continue
            # Unlike a parameter, a field of a pydantic model must not have the name of one of the model's
            # methods.
            fields[name] = f"parameter_{len(fields)}"
            declared[fields[name]] = (types[name], _field(parameter, descriptions.get(name)))
        model = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **declared)
        return cls(_untitled(model.model_json_schema()), model, fields, given)

    def bind(self, arguments: JsonObject, context: ToolContext) -> dict[str, Any]:
        """Return the keyword arguments for the function of a tool.

        Raises:
            BadInput: As `convert`.
        """
        bound = self.convert(arguments)
        return bound if self._context is None else {**bound, self._context: context}

    def convert(self, arguments: JsonObject) -> dict[str, Any]:
        """Return the arguments as the types of the signature, without coercion ("1" is not a number).

        Raises:
            BadInput: An argument is invalid. The error names the first one and the reason.
        """
        try:
            model = self._model.model_validate_json(json.dumps(arguments), strict=True)
        except ValidationError as error:
            raise bad_input(error, "arguments", annotation=self._model) from error
        return {name: getattr(model, field) for name, field in self._fields.items()}


def _untitled(schema: dict[str, Any]) -> JsonObject:
    """Remove titles, which only repeat names and cost tokens."""
    schema.pop("title", None)
    for one in cast(dict[str, dict[str, Any]], schema["properties"]).values():
        one.pop("title", None)
    return schema


def _field(parameter: inspect.Parameter, description: str | None) -> Any:
    extra: dict[str, Any] = {} if description is None else {"description": description}
    default = ... if parameter.default is inspect.Parameter.empty else parameter.default
    return Field(default, alias=parameter.name, **extra)


def _named(function: Callable[..., object]) -> str:
    return getattr(function, "__name__", repr(function))
