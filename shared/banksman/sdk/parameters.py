"""The parameters of a typed function: their JSON Schema, and the conversion of arguments."""

from __future__ import annotations

import inspect
import json
import re
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
    """The context of a call, which a function receives in a parameter of this type outside the schema."""

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
        """Return a secret of the tenant; raise `KeyError` if the tool does not declare it."""
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
        """Read a signature without its `context`; raise `TypeError` for a parameter without type or name."""
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
        """Return the keyword arguments for the function of a tool; raise as `convert`."""
        bound = self.convert(arguments)
        return bound if self._context is None else {**bound, self._context: context}

    def convert(self, arguments: JsonObject) -> dict[str, Any]:
        """Return the arguments without coercion ("1" is no number); raise `BadInput` for an invalid one."""
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


_SECTION = re.compile(r":[ \t]*$|^[ \t]*:|^[ \t]*-{3,}", re.MULTILINE)
"""Matches the header of a section in any of the three styles; a text without one is only a description."""
_NOTE = re.compile(r"^(?:Notes?|Examples?):[ \t]*\n", re.MULTILINE)
"""Begins a part of a description that models do not get: each word of it costs tokens."""


@dataclass(frozen=True, slots=True)
class Docstring:
    """The parts of a docstring that describe a tool to a model."""

    description: str
    """Everything before the first section."""
    parameters: Mapping[str, str]
    """Descriptions by parameter name, each in one line."""

    @classmethod
    def of(cls, function: Callable[..., object], name: str, description: str | None) -> Self:
        """Parse a docstring; a given description replaces its own. Raise `TypeError` without either."""
        parsed = cls.parse(function.__doc__)
        if not (about := description or parsed.description):
            raise TypeError(f"{name}: a docstring or a description is required")
        return cls(about, parsed.parameters)

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Parse a docstring in Google, NumPy or Sphinx style; None means an empty one."""
        plain = inspect.cleandoc(text or "")
        if not _SECTION.search(plain):
            return cls(plain, {})
        # Not above: clients that serve no tools do not need it.
        from docstring_parser import ParseError, parse

        try:
            parsed = parse(plain)
        except (ParseError, IndexError):
            # The library fails for some lines that begin with a colon.
            return cls(plain, {})
        about = parsed.description or "" if parsed.meta else plain
        listed = {one.arg_name: " ".join((one.description or "").split()) for one in parsed.params}
        return cls(_NOTE.split(about)[0].strip(), listed)
