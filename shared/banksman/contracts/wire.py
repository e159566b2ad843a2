"""The base classes of wire models, and the functions that parse bytes into them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, cast

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    GetJsonSchemaHandler,
    JsonValue,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import CoreSchema, ErrorDetails

from banksman.contracts.docstrings import field_docstrings
from banksman.contracts.errors import NULL, BadInput
from banksman.contracts.unknown_fields import check_fields

WIRE_VERSION = 1
"""Version of the stored and transmitted messages. Readers refuse a higher version."""

MAX_DEPTH = 128
"""Maximum nesting depth of accepted JSON. The log nests it a few levels deeper, and pydantic's parser, which
reads the log, fails at 200."""

JsonObject = dict[str, JsonValue]
"""A JSON object, such as the arguments or the result of a tool call."""

TOKEN_PATTERN = r"^[A-Za-z0-9_-]{1,64}$"
TOKEN_RULE = "1 to 64 letters, digits, '-' or '_'"
Token = Annotated[str, StringConstraints(pattern=TOKEN_PATTERN)]
"""An id that is a valid token of a subject: 1 to 64 letters, digits, `-` or `_`."""

Timestamp = AwareDatetime
"""A time with its UTC offset, RFC 3339 on the wire."""

Text = Annotated[str, StringConstraints(max_length=256 * 1024)]
"""Text of at most 262,144 characters, the maximum size of one frame."""


class Described(BaseModel):
    """A model whose JSON Schema describes each field by the docstring below it.

    `use_attribute_docstrings` does the same, but parses the source of every model when it is imported, which
    took a third of the import of these modules. A validator is built when a model is first used, because most
    processes use few of the models that they import.
    """

    model_config = ConfigDict(defer_build=True)

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
"""Mistakes that concern one member of a union, while another member may have the value's type."""
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


def strict_json(data: bytes | str, *, what: str = "body") -> JsonValue:
    """Parse JSON without the values that parsers handle differently.

    These are duplicate keys, NaN, lone surrogates and deep nesting.

    Raises:
        BadInput: The text breaks a rule. It names `what` and the first broken rule.
    """
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        text.encode("utf-8")
        value = cast(JsonValue, json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant))
        # The text is valid, so only an escape can hold half of a surrogate pair.
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeError as error:
        raise BadInput(what, None, "valid UTF-8 without lone surrogates") from error
    except RecursionError as error:
        raise BadInput(what, None, f"JSON nested at most {MAX_DEPTH} deep") from error
    except ValueError as error:
        raise BadInput(what, None, f"valid JSON; {json_fault(error)}") from error
    if depth_of(value) > MAX_DEPTH:
        raise BadInput(what, None, f"JSON nested at most {MAX_DEPTH} deep")
    return value


def parse(model: type[M], data: bytes | str | JsonValue, *, what: str = "body") -> M:
    """Validate bytes, text or a parsed value as `model`, without type coercion ("1" is not a number).

    A request (`Wire`) must not have an unknown field at any level.

    Raises:
        BadInput: A field is invalid. It names the first one, its value and what is expected.
    """
    return _validated(model.model_validate_json, data, what, model if issubclass(model, Wire) else None)


def parse_as(
    adapter: TypeAdapter[Any], data: bytes | str | JsonValue, *, what: str = "body", request: Any = None
) -> Any:
    """Like `parse`, for a type that is not one model. For a union of requests, `request` is that union."""
    return _validated(adapter.validate_json, data, what, request)


def _validated(validate: Callable[..., Any], data: bytes | str | JsonValue, what: str, request: Any) -> Any:
    if isinstance(data, bytes | str):
        value = strict_json(data, what=what)
    else:
        value, data = data, json.dumps(data)
    if request is not None:
        check_fields(request, value)
    try:
        return validate(data, strict=True)
    except ValidationError as error:
        raise bad_input(error, what, value) from error


def bad_input(error: ValidationError, what: str = "body", whole: object = None) -> BadInput:
    """Return the first mistake that pydantic found: the field's path, its value and what is expected.

    With the whole validated value, the path has no tags of unions.
    """
    first = _first_mistake(error)
    path = _fields(first, whole)
    value: object = NULL if first["input"] is None else first["input"]
    match first["type"]:
        case "missing":
            # The input of a missing field is the whole object around it.
            value = None
        case "union_tag_not_found" | "union_tag_invalid":
            path.append(first.get("ctx", {})["discriminator"].strip("'"))
            value = first.get("ctx", {}).get("tag")
        case _:
            pass
    text = expected(first)
    # "at most 5 items, not 6" says already what is wrong.
    return BadInput(".".join(path) or what, None if ", not " in text else value, text)


def _first_mistake(error: ValidationError) -> ErrorDetails:
    """Return the first mistake. Of a union it is one inside the member that has the value's type."""
    first, *others = error.errors(include_url=False)
    if first["type"] in _WRONG_TYPES:
        field = _fields(first)
        inner = (
            one for one in others if len(_fields(one)) > len(field) and _fields(one)[: len(field)] == field
        )
        return next(inner, first)
    return first


def _fields(mistake: ErrorDetails, whole: object = None) -> list[str]:
    """Return the path of a mistake, without the members of unions; with the whole value also without tags."""
    found: list[str] = []
    *parts, last = mistake["loc"] or ("",)
    inner = whole
    for part in parts:
        if _UNION_MEMBER.search(str(part)) or _is_tag(part, inner):
            continue
        found.append(str(part))
        inner = cast(Any, inner)[part] if isinstance(inner, dict | list) else None
    if last != "" and not _UNION_MEMBER.search(str(last)):
        found.append(str(last))
    return found


def _is_tag(part: int | str, value: object) -> bool:
    """Return whether a part of a path is the tag of a union's member, and no field of the value."""
    if not isinstance(value, dict):
        return False
    fields = cast(dict[object, object], value)
    return part == fields.get("type") or part not in fields


def expected(mistake: ErrorDetails) -> str:
    """Return in plain English what one of pydantic's errors says about a value."""
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


def json_fault(error: Exception) -> str:
    """Return what is wrong with a JSON text: the place, or the rule of ours that it breaks."""
    if isinstance(error, json.JSONDecodeError):
        return f"it is broken at line {error.lineno}, column {error.colno}"
    return str(error)


def _unique(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    found: JsonObject = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"duplicate key {key!r}")
        found[key] = value
    return found


def _no_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is not JSON")


def depth_of(value: JsonValue) -> int:
    """Return the nesting depth of a value; 1 for a scalar."""
    deepest, stack = 0, [(value, 1)]
    while stack:
        node, level = stack.pop()
        deepest = max(deepest, level)
        children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        stack.extend((child, level + 1) for child in children)
    return deepest
