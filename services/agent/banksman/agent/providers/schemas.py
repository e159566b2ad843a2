"""Reduces the schemas of tools to what a model's API accepts.

A reduced schema only describes the arguments to the model: calls are still checked with the complete one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import inf
from operator import is_
from typing import Any

from pydantic_core import to_json

from banksman.agent.providers.profiles import Profile, SchemaRules
from banksman.agent.providers.untyped import as_list, as_object
from banksman.contracts.events import ModelNotice
from banksman.contracts.tools import ToolDefinition

MAX_SCHEMA_CHARS = 32 * 1024
"""Maximum characters of a tool's schema as JSON. A tool with a longer one is left out."""
MAX_WORK_CHARS = 1024 * 1024
"""Maximum characters of all subschemas together, each with what it contains and refers to. Subschemas beyond
it accept any value."""
MAX_DEPTH = 24
"""Maximum depth of a reduced schema; deeper subschemas accept any value."""

_TOO_LARGE = "its parameters are too large or too deep"

Schema = dict[str, Any]

_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_TYPES_OF_VALUES: Mapping[type[object], str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
}
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")
_LISTS = (*_ALTERNATIVES, "prefixItems")
_SINGLE = ("items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_NOT_AT_ROOT = (*_ALTERNATIVES, "enum", "const", "not", "if", "then", "else")
_DEFINITIONS = ("$defs", "definitions")
_OF_EVERY_TYPE = ("title", "description", "default", "nullable")
_OF_TYPE: Mapping[str, tuple[str, ...]] = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "minItems", "maxItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "multipleOf"),
    "integer": ("minimum", "maximum", "multipleOf"),
}
"""Keywords of one type. A missing type is found by them."""


class Inexpressible(Exception):
    """A tool cannot be described to an API. The text states why."""


def offered(
    tools: tuple[ToolDefinition, ...], profile: Profile
) -> tuple[tuple[ToolDefinition, ...], tuple[ModelNotice, ...]]:
    """Return the tools with schemas that an API accepts, and a notice for each tool that is left out."""
    fitting: list[ToolDefinition] = []
    notices: list[ModelNotice] = []
    for tool in tools:
        try:
            if not profile.tool_name.fullmatch(tool.name):
                raise Inexpressible("the model's API refuses its name")
            if len(fitting) >= profile.max_tools:
                raise Inexpressible(f"the model's API accepts at most {profile.max_tools} tools")
            fitting.append(_fitting(tool, profile))
        except Inexpressible as problem:
            text = f"The tool {tool.name} is not offered to the model: {problem}."
            notices.append(ModelNotice(kind="tool_left_out", text=text))
    unchanged = len(fitting) == len(tools) and all(map(is_, fitting, tools))
    return tools if unchanged else tuple(fitting), tuple(notices)


def reduced(schema: Mapping[str, Any], rules: SchemaRules) -> Schema:
    """Return a schema that an API accepts, the same for the same schema. The caller must not change it.

    Raises:
        Inexpressible: There is none.
    """
    try:
        # Faster than `json.dumps`, which would be half of the cost of a request's tools.
        return _reduced(to_json(schema), rules)
    except (ValueError, RecursionError):
        raise Inexpressible(_TOO_LARGE) from None


def _fitting(tool: ToolDefinition, profile: Profile) -> ToolDefinition:
    schema, most = reduced(tool.input_schema, profile.tool_schema), profile.max_description_chars
    if schema == tool.input_schema and len(tool.description) <= (most or inf):
        return tool
    return tool.model_copy(update={"input_schema": schema, "description": tool.description[:most]})


@lru_cache(maxsize=256)
def _reduced(written: bytes, rules: SchemaRules) -> Schema:
    """Return the reduced schema. Only small ones are cached, because an error is not."""
    if len(written) <= MAX_SCHEMA_CHARS:
        found = _Reduction(as_object(json.loads(written)), rules).root()
        if len(json.dumps(found)) <= 2 * MAX_SCHEMA_CHARS:
            return found
    raise Inexpressible(_TOO_LARGE)


class _Reduction:
    def __init__(self, root: Schema, rules: SchemaRules) -> None:
        self._root = root
        self._rules = rules
        self._left = MAX_WORK_CHARS

    def root(self) -> Schema:
        """Return the top level as a plain object, which joins its alternatives: all vendors require it."""
        found = self._joined(self._root, _ALTERNATIVES, frozenset())
        if "object" not in (as_list(kind := found.get("type", "object")) or [kind]):
            raise Inexpressible("its parameters are not an object")
        plain = {name: value for name, value in found.items() if name not in _NOT_AT_ROOT}
        plain = {**plain, "type": "object", "properties": as_object(plain.get("properties"))}
        return self._schema(plain, 0, frozenset()) if plain["properties"] or self._rules.empty_objects else {}

    def _joined(self, schema: Schema, words: tuple[str, ...], seen: frozenset[str]) -> Schema:
        """Return a schema with its reference and its alternatives under `words` as one schema.

        It knows the properties of all alternatives, and requires what each possible choice requires.
        """
        found, seen = self._resolved(schema, seen)
        self._left -= len(str(found))
        for word in words if self._left > 0 else ():
            parts = [self._joined(as_object(one), words, seen) for one in as_list(found.pop(word, ()))]
            parts_need = [_required(part) for part in parts]
            if not parts:
                continue
            needed = set[str].union(*parts_need) if word == "allOf" else set[str].intersection(*parts_need)
            given: Schema = {"properties": {}, "required": sorted(needed | _required(found))}
            merged: Schema = {}
            for part in (*parts, found):
                given["properties"] |= as_object(part.get("properties"))
                merged |= part
            found = merged | {name: value for name, value in given.items() if value}
        return found

    def _resolved(self, schema: Schema, seen: frozenset[str]) -> tuple[Schema, frozenset[str]]:
        """Replace a reference by its target, unless the target contains the schema."""
        found = dict(schema)
        while isinstance(reference := found.pop("$ref", None), str) and reference not in seen:
            seen |= {reference}
            found = {**self._target(reference), **found}
        return found, seen

    def _target(self, reference: str) -> Schema:
        place: object = self._root if reference.startswith("#") else None
        for step in reference.split("/")[1:]:
            place = as_object(place).get(step.replace("~1", "/").replace("~0", "~"))
        return as_object(place)

    def _schema(self, given: object, depth: int, seen: frozenset[str]) -> Schema:
        """Return a subschema. `True` and `False` accept any value, which no request can state."""
        schema = as_object(given)
        self._left -= len(str(schema))
        if depth > MAX_DEPTH or self._left < 0:
            schema = {}
        if not (self._rules.references and self._target(str(schema.get("$ref")))):
            schema, seen = self._resolved(schema, seen)
        if "allOf" in schema and not self._accepts("allOf"):
            schema = self._joined(schema, ("allOf",), seen)
        schema: Schema = {name: value for name, value in self._renamed(schema) if self._accepts(name)}
        self._check_names(schema)
        for name, value in schema.items():
            if name in _MAPS:
                inner = as_object(value)
                schema[name] = {key: self._schema(one, depth + 1, seen) for key, one in inner.items()}
            elif name in _LISTS:
                schema[name] = [self._schema(one, depth + 1, seen) for one in as_list(value)]
            elif name == "items" or (name in _SINGLE and not isinstance(value, bool)):
                schema[name] = self._schema(value, depth + 1, seen)
        return self._with_one_type(schema) if self._rules.one_type else self._with_known_types(schema)

    def _accepts(self, name: str) -> bool:
        if name in _DEFINITIONS:
            return self._rules.references
        return name not in ("$schema", "$id", "$comment") and (
            self._rules.keywords is None or name in self._rules.keywords or name == "type"
        )

    def _renamed(self, schema: Schema) -> Iterator[tuple[str, Any]]:
        """Yield the keywords of a schema, with accepted ones in the place of others that mean the same."""
        for name, value in schema.items():
            match name:
                case "oneOf" if not self._accepts(name):
                    yield "anyOf", value
                case "const" if not self._accepts(name):
                    yield "enum", [value]
                case "prefixItems" if not self._accepts(name):
                    yield "items", {"anyOf": value}
                case "items" if isinstance(value, list):
                    # Before the draft of 2020-12, a list stated the items by their position.
                    yield "items", {"anyOf": value} if value else {}
                case "exclusiveMinimum" | "exclusiveMaximum":
                    yield from self._bound(name, value, whole=schema.get("type") == "integer")
                case "pattern" if self._rules.anchored_patterns and not _is_anchored(value):
                    pass
                case "format" if self._rules.formats is not None and value not in self._rules.formats:
                    pass
                case "required":
                    known = as_object(schema.get("properties"))
                    if names := [one for one in as_list(value) if isinstance(one, str) and one in known]:
                        yield name, names
                case _:
                    yield name, value

    def _bound(self, name: str, value: object, *, whole: bool) -> Iterator[tuple[str, Any]]:
        """Yield an exclusive bound, or else an inclusive one that is at least as wide."""
        # In draft 4 it is true or false, and only says how to read `minimum`.
        if isinstance(value, int | float) and not isinstance(value, bool):
            step = (1 if name == "exclusiveMinimum" else -1) if whole else 0
            inclusive = name.removeprefix("exclusive").lower()
            yield (name, value) if self._accepts(name) else (inclusive, value + step)

    def _check_names(self, schema: Schema) -> None:
        for name in as_object(schema.get("properties")):
            if not self._rules.property_name.fullmatch(name):
                raise Inexpressible(f"the model's API refuses the name of its parameter {name[:80]!r}")

    def _with_known_types(self, schema: Schema) -> Schema:
        given = schema.get("type")
        kinds = [one for one in as_list(given) or [given] if one in _TYPES]
        rest = {name: value for name, value in schema.items() if name != "type"}
        found = {"type": kinds if isinstance(given, list) else kinds[0], **rest} if kinds else rest
        if kinds and rest.get("anyOf") and not self._rules.type_beside_any_of:
            parts = map(as_object, rest["anyOf"])
            found = {
                **rest,
                "anyOf": [part if "anyOf" in part else {"type": found["type"], **part} for part in parts],
            }
        return {"items": {}, **found} if "array" in kinds else found

    def _with_one_type(self, schema: Schema) -> Schema:
        """Return a schema with one type, or with one alternative for each of its types."""
        given, enum = schema.pop("type", None), as_list(schema.pop("enum", None))
        kinds = [str(one) for one in as_list(given) or [given] if one in _TYPES]
        if "null" in kinds or None in enum:
            schema["nullable"] = True
        kinds = [one for one in kinds if one != "null"] or _types_by(schema, enum)
        if "anyOf" in schema:
            return schema
        if len(kinds) > 1:
            words = {kind: (*_OF_TYPE.get(kind, ()),) for kind in kinds}
            parts = [self._with_one_type({"type": kind, **_only(schema, words[kind])}) for kind in kinds]
            return {**_only(schema, _OF_EVERY_TYPE), "anyOf": parts}
        kind, texts = kinds[0], [one for one in enum if isinstance(one, str) and one]
        if kind == "object" and not schema.get("properties") and not self._rules.empty_objects:
            text = f"{schema.get('description', '')} (a JSON object, written as text)".strip()
            return {"type": "string", "description": text}
        if kind == "array":
            schema.setdefault("items", {"type": "string"})
        return {"type": kind, **schema, **({"enum": texts} if texts and kind == "string" else {})}


def _required(schema: Schema) -> set[str]:
    return {one for one in as_list(schema.get("required")) if isinstance(one, str)}


def _types_by(schema: Schema, enum: list[object]) -> list[str]:
    by_values = {_TYPES_OF_VALUES.get(type(one), "string") for one in enum if one is not None}
    by_keywords = [kind for kind, words in _OF_TYPE.items() if kind != "integer" and _only(schema, words)]
    return sorted(by_values) or by_keywords or ["string"]


def _only(schema: Schema, names: tuple[str, ...]) -> Schema:
    return {name: value for name, value in schema.items() if name in names}


def _is_anchored(pattern: object) -> bool:
    return isinstance(pattern, str) and pattern.startswith("^") and pattern.endswith("$")
