"""Rules for schemas of parameters that vendors state in their references and error messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

GEMINI_FIELDS = frozenset(
    "anyOf default description enum example format items maxItems maxLength maxProperties maximum minItems "
    "minLength minProperties minimum nullable pattern properties propertyOrdering required title type".split()
)
"""The fields of the message `Schema` of Google's API: https://ai.google.dev/api/caching#Schema"""

GEMINI_FORMATS = {
    "string": {"enum", "date-time"},
    "number": {"float", "double"},
    "integer": {"int32", "int64"},
}


def subschemas(schema: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each schema inside a schema with its path, itself first."""
    yield path, schema
    if not isinstance(schema, dict):
        return
    for name in ("properties", "$defs", "definitions"):
        for key, inner in (schema.get(name) or {}).items():
            yield from subschemas(inner, (*path, name, key))
    for name in ("anyOf", "oneOf", "allOf"):
        for index, inner in enumerate(schema.get(name) or ()):
            yield from subschemas(inner, (*path, name, str(index)))
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield from subschemas(schema[name], (*path, name))


def openai_problem(schema: Any) -> str | None:
    """Return what OpenAI refuses in a schema that is not strict."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind != "object":
        return f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."
    for word in ("oneOf", "anyOf", "allOf", "enum", "not"):
        if word in schema:
            words = "'oneOf'/'anyOf'/'allOf'/'enum'/'not'"
            return f"schema must have type 'object' and not have {words} at the top level."
    if "properties" not in schema:
        return "In context=(), object schema missing properties."
    for path, inner in subschemas(schema):
        if isinstance(inner, dict) and inner.get("type") == "array" and "items" not in inner:
            return f"In context={path}, array schema missing items."
    return None


def openai_strict_problem(schema: Json) -> str | None:
    """Return what OpenAI refuses in a strict schema, beside what it always refuses."""
    if (found := openai_problem(schema)) is not None:
        return found
    for path, inner in subschemas(schema):
        if not isinstance(inner, dict) or inner.get("type") != "object":
            continue
        if inner.get("additionalProperties") is not False:
            return f"In context={path}, 'additionalProperties' is required to be supplied and to be false."
        if set(inner.get("properties") or ()) - set(inner.get("required") or ()):
            return (
                f"In context={path}, 'required' is required to be supplied and to be an array including "
                f"every "
                "key in properties."
            )
    return None


def gemini_problem(schema: Any, place: str) -> str | None:
    """Return what Google's API refuses in the field `parameters`, which is a message and no JSON Schema."""
    for path, inner in subschemas(schema):
        at = ".".join((place, *path))
        if not isinstance(inner, dict):
            return f'Invalid JSON payload received. Invalid value at "{at}": {inner!r}'
        for name in inner:
            if name not in GEMINI_FIELDS:
                return f"Invalid JSON payload received. Unknown name \"{name}\" at '{at}': Cannot find field."
        if isinstance(inner.get("type"), list):
            return (
                f"Invalid JSON payload received. Unknown name \"type\" at '{at}': "
                "Proto field is not repeating, cannot start list."
            )
        if (found := _gemini_value_problem(inner, at)) is not None:
            return found
    return None


def _gemini_value_problem(schema: Json, at: str) -> str | None:
    kind = str(schema.get("type", "")).lower()
    if not kind and "anyOf" not in schema:
        return f"{at}: missing field `type`."
    if kind == "object" and "properties" in schema and not schema["properties"]:
        return f"{at}.properties: should be non-empty for OBJECT type"
    for name in schema.get("required") or ():
        if name not in (schema.get("properties") or {}):
            return f"{at}.required[0]: property is not defined"
    if kind == "array" and "items" not in schema:
        return f"{at}.items: missing field."
    if "enum" in schema and (
        kind != "string" or not all(isinstance(one, str) and one for one in schema["enum"])
    ):
        return f"{at}.enum: only allowed for STRING type, and cannot be empty"
    if "format" in schema and schema["format"] not in GEMINI_FORMATS.get(kind, ()):
        return f"{at}.format: only 'enum' and 'date-time' are supported for STRING type"
    return None
