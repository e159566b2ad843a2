"""The base of every wire model and the one way in from bytes."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar, cast

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    JsonValue,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)

from banksman.contracts.errors import BadInput

WIRE_VERSION = 1
"""Version of the stored and transmitted forms. Readers accept it and refuse a higher one by name."""

MAX_DEPTH = 128
"""Levels of nesting accepted in JSON. The log wraps it a few levels deeper, and pydantic's parser, by which
it is read, stops at 200."""

JsonObject = dict[str, JsonValue]
"""A JSON object; what tool arguments and tool results are."""

Token = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
"""An id that may stand as one token of a subject: letters, digits, `-` and `_`, 1 to 64 of them."""

Timestamp = AwareDatetime
"""A moment with its offset, RFC 3339 on the wire."""

Text = Annotated[str, StringConstraints(max_length=256 * 1024)]
"""Text of at most 262,144 characters, the size of one frame."""


class Wire(BaseModel):
    """A frozen model that refuses unknown fields: what our own clients and services send."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_inf_nan="constants", use_attribute_docstrings=True
    )


class Stored(BaseModel):
    """A frozen model that ignores unknown fields, so that a newer writer can be read during an upgrade."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


M = TypeVar("M", bound=BaseModel)


def strict_json(data: bytes | str, *, what: str = "body") -> JsonValue:
    """Parse JSON, refusing what readers disagree about: duplicate keys, NaN, lone surrogates, deep nesting.

    Raises:
        BadInput: naming `what` and the first rule that was broken.
    """
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        text.encode("utf-8")
        value = cast(JsonValue, json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant))
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeError as error:
        raise BadInput(what, None, "valid UTF-8 without lone surrogates") from error
    except RecursionError as error:
        raise BadInput(what, None, f"JSON nested at most {MAX_DEPTH} deep") from error
    except ValueError as error:
        raise BadInput(what, None, f"valid JSON ({error})") from error
    if depth_of(value) > MAX_DEPTH:
        raise BadInput(what, None, f"JSON nested at most {MAX_DEPTH} deep")
    return value


def parse(model: type[M], data: bytes | str | JsonValue, *, what: str = "body") -> M:
    """Validate bytes, text or an already parsed value as `model`; nothing is coerced ("1" is no number).

    Raises:
        BadInput: naming the first field that is wrong, its value and what was expected.
    """
    return cast(M, parse_as(TypeAdapter(model), data, what=what))


def parse_as(adapter: TypeAdapter[Any], data: bytes | str | JsonValue, *, what: str = "body") -> Any:
    """Like `parse`, for a union or another type that is not one model."""
    if isinstance(data, bytes | str):
        strict_json(data, what=what)
        text = data
    else:
        text = json.dumps(data)
    try:
        return adapter.validate_json(text, strict=True)
    except ValidationError as error:
        raise bad_input(error, what) from error


def bad_input(error: ValidationError, what: str = "body") -> BadInput:
    """Say in our words what pydantic found first."""
    first = error.errors(include_url=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or what
    return BadInput(field, _excerpt(first.get("input")), first["msg"])


def _excerpt(value: object, limit: int = 120) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= limit else text[:limit] + "…"


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
    """Levels of nesting; 1 for a plain value."""
    deepest, stack = 0, [(value, 1)]
    while stack:
        node, level = stack.pop()
        deepest = max(deepest, level)
        children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        stack.extend((child, level + 1) for child in children)
    return deepest
