"""The base classes of wire models, the functions that parse bytes into them, and the size of their JSON."""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, TypeVar, cast

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    GetJsonSchemaHandler,
    JsonValue,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import CoreSchema, to_json

from banksman.contracts.errors import BadInput
from banksman.contracts.ids import TOKEN_PATTERN
from banksman.contracts.json_text import FINITE, LONE_SURROGATE, check_values, has_finite_numbers, parsed
from banksman.contracts.validation_errors import bad_input

WIRE_VERSION = 1
"""Version of the stored and transmitted messages. Readers refuse a higher version."""

JsonObject = dict[str, JsonValue]
"""A JSON object, such as the arguments or the result of a tool call."""


def _finite(value: JsonObject) -> JsonObject:
    if not has_finite_numbers(value):
        raise ValueError(FINITE)
    return value


FiniteObject = Annotated[JsonObject, AfterValidator(_finite)]
"""A JSON object that another process wrote, without numbers that are stored as null."""

Token = Annotated[str, StringConstraints(pattern=TOKEN_PATTERN)]
"""An id that is a valid token of a subject: 1 to 64 letters, digits, `-` or `_`."""

Timestamp = AwareDatetime
"""A time with its UTC offset, RFC 3339 on the wire."""

Text = Annotated[str, StringConstraints(max_length=256 * 1024)]
"""Text of at most 262,144 characters, the maximum size of one frame."""


class Described(BaseModel):
    """A model whose JSON Schema describes each field by the docstring below it.

    `use_attribute_docstrings` does the same, but parses the source of every model on import, which took a
    third of the import time of these modules. A validator is built at the first use of a model, because most
    processes use few of the models that they import.
    """

    model_config = ConfigDict(defer_build=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler, /
    ) -> dict[str, Any]:
        """Return the JSON Schema of the model, with descriptions."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, description in field_docstrings(cls).items():
            if name in properties:
                properties[name].setdefault("description", description)
        return schema


class Wire(Described):
    """A frozen model that refuses unknown fields: requests of clients."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Stored(Described):
    """A frozen model that ignores unknown fields, which newer writers may add during an upgrade."""

    model_config = ConfigDict(frozen=True, extra="ignore")


M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


def has_lone_surrogate(text: str) -> bool:
    """Return whether a text contains half of a character, which UTF-8 cannot represent."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def strict_json(data: bytes | str, *, what: str = "body") -> JsonValue:
    """Parse JSON; raise `BadInput` for a violated rule or limit of `json_text`."""
    try:
        text = data.encode() if isinstance(data, str) else data
    except UnicodeEncodeError as error:
        raise BadInput(what, None, LONE_SURROGATE) from error
    check_values(text, what=what)
    return cast(JsonValue, parsed(text, what=what))


def parse(model: type[M], data: bytes | str | JsonValue, *, what: str = "body") -> M:
    """Validate as `model`, without type coercion ("1" is not a number); a `Wire` must have no unknown field.

    Raises:
        BadInput: A field is invalid. The error names the first one, its value and the expected value.
    """
    return _validated(model.model_validate_json, data, what, model, strict_fields=issubclass(model, Wire))


def parse_as(
    adapter: TypeAdapter[Any], data: bytes | str | JsonValue, *, what: str = "body", request: Any = None
) -> Any:
    """Validate as `parse`, for any type. For a union of requests, `request` is that union."""
    return _validated(adapter.validate_json, data, what, request, strict_fields=request is not None)


def _validated(
    validate: Callable[..., Any],
    data: bytes | str | JsonValue,
    what: str,
    annotation: Any,
    *,
    strict_fields: bool,
) -> Any:
    if isinstance(data, bytes | str):
        value = strict_json(data, what=what)
    else:
        value, data = data, json.dumps(data)
    try:
        # In a request an unknown field is a mistake at every level.
        return validate(data, strict=True, extra="forbid" if strict_fields else None)
    except ValidationError as error:
        raise bad_input(error, what, value, annotation) from error


def json_bytes(value: object) -> int:
    """Return the length of a value's JSON in bytes of UTF-8; raise `ValueError` if it cannot be written."""
    return len(to_json(value))


def first_fitting(forms: Iterable[T], max_bytes: int) -> T:
    """Return the first form whose JSON takes at most `max_bytes` bytes, or the last one if none does."""
    found: T | None = None
    for form in forms:
        if json_bytes(form) <= max_bytes:
            return form
        found = form
    if found is None:
        raise ValueError("forms: at least one is expected")
    return found


def field_docstrings(model: type) -> dict[str, str]:
    """Return the docstrings below the fields of a class and its bases, by field name."""
    found: dict[str, str] = {}
    for one in reversed(model.__mro__):
        found.update(_of_module(one.__module__).get(one.__qualname__, {}))
    return found


@cache
def _of_module(name: str) -> dict[str, dict[str, str]]:
    """Return the docstrings of fields by class; none for a module without source, such as `builtins`."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (OSError, TypeError):
        return {}
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
    return {node.name: docstrings_below(node) for node in classes}


def docstrings_below(node: ast.ClassDef | ast.Module) -> dict[str, str]:
    """Return the docstrings below the annotated names of a class or a module."""
    return dict(_below(node.body))


def _below(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(body):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(docstring))),
            ):
                yield name, inspect.cleandoc(docstring)
            case _:
                pass
