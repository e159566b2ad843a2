"""The rules for JSON Schemas of tools and forms, the check of values against them, and texts for violations.

Patterns run in linear time (the `regex` crate), and references are never fetched. The module imports
little of this project, so that `process` starts quickly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple, cast
from urllib.parse import unquote

import jsonschema_rs
from jsonschema_rs import ValidationError, ValidationErrorKind

MAX_SCHEMA_BYTES = 64 * 1024
"""Maximum size of a schema, in bytes of JSON."""
MAX_SCHEMA_DEPTH = 64
"""Maximum number of nested objects and lists in a schema."""
MAX_RULES = 1_000
"""Maximum number of subschemas that apply to one value, with every `$ref` replaced by its target."""

_MAX_ERRORS = 50
"""Maximum number of errors from which the reported one is chosen."""
_PATTERNS = jsonschema_rs.RegexOptions(size_limit=1024 * 1024, dfa_size_limit=1024 * 1024)
"""The linear-time engine, and the bytes that a compiled pattern and its cache may take."""
_VALIDATORS = 32
"""Number of compiled schemas that a process retains."""

_BY_NAME = ("dependentSchemas", "patternProperties", "properties", "$defs", "definitions", "dependencies")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = (
    "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames",
    "then", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_SAME_VALUE = ("allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies", "else", "if", "not", "then")
"""Keywords whose subschemas apply to the value itself, and not to a part of it."""
_REFUSED = ("$dynamicRef", "$recursiveRef", "$id")
"""Keywords that change the target of other references."""
_IGNORED_AT_TOP = ("$id", "$schema")
"""Schemas are read as draft 2020-12 without a base URI, whatever their `$schema` and `$id` state."""

Schema = dict[str, Any]


class UnusableSchema(Exception):
    """A schema cannot be applied. The message states why."""


def schema_fault(schema: Schema) -> SchemaFault | None:
    size = len(json.dumps(schema, ensure_ascii=False).encode())
    if size > MAX_SCHEMA_BYTES:
        return SchemaFault((), f"at most {MAX_SCHEMA_BYTES} bytes of JSON, not {size}")
    if not _within_depth(schema):
        return SchemaFault((), f"at most {MAX_SCHEMA_DEPTH} nested objects and lists")
    if schema.get("type", "object") != "object":
        return SchemaFault(("type",), "'object'")
    plain = _plain(schema)
    try:
        _compile(plain)
        rules = _Rules(plain).most()
    except ValidationError as error:
        return _compile_fault(error)
    except RecursionError:
        rules = MAX_RULES + 1
    for path, node in _subschemas(plain):
        for word in _REFUSED:
            if word in node:
                return SchemaFault((*path, word), "only '$ref' refers to other parts of a schema")
        reference = node.get("$ref", "#")
        # Anchors (`#name`) are refused too: `_Rules` follows only pointers.
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            return SchemaFault((*path, "$ref"), "a reference within the schema: '#/$defs/...'")
    if rules > MAX_RULES:
        return SchemaFault((), f"at most {MAX_RULES} subschemas for one value, with each $ref replaced")
    return None


def value_fault(schema: str, value: Any) -> SchemaFault | None:
    """Return why a value does not fit a schema, None if it fits; raise `UnusableSchema` as `_validator`."""
    validator = _validator(schema)
    if validator.is_valid(value):
        return None
    return fault_of(_clearest(islice(validator.iter_errors(value), _MAX_ERRORS)))


@lru_cache(maxsize=_VALIDATORS)
def _validator(schema: str) -> jsonschema_rs.Validator:
    try:
        parsed: Schema = json.loads(schema)
        if not _within_depth(parsed):
            raise UnusableSchema(f"it has more than {MAX_SCHEMA_DEPTH} nested objects and lists")
        return _compile(_plain(parsed))
    except ValidationError as error:
        fault = _compile_fault(error)
        place = ".".join(str(part) for part in fault.path)
        raise UnusableSchema(f"{place} {fault.expected}"[:MAX_TEXT_CHARS]) from error
    except (ValueError, RecursionError) as error:
        raise UnusableSchema(f"it cannot be read: {type(error).__name__}") from error


def _compile(schema: Schema) -> jsonschema_rs.Validator:
    return jsonschema_rs.Draft202012Validator(schema, pattern_options=_PATTERNS, offline=True)


def _compile_fault(error: ValidationError) -> SchemaFault:
    path = tuple(error.instance_path)
    if path and (path[-1] == "pattern" or "patternProperties" in path[-2:]):
        return SchemaFault(path, "a short pattern without look-around and back-references")
    return fault_of(error) if path else SchemaFault(("$ref",), fault_of(error).expected)


def _plain(schema: Schema) -> Schema:
    return {word: value for word, value in schema.items() if word not in _IGNORED_AT_TOP}


def _clearest(errors: Iterable[ValidationError]) -> ValidationError:
    """Return the error nearest to the top; for alternatives, the one error of the only close alternative."""
    found = min(errors, key=lambda error: (len(error.instance_path), error.kind.name in ("anyOf", "oneOf")))
    match found.kind:
        case ValidationErrorKind.AnyOf(context) | ValidationErrorKind.OneOfNotValid(context):
            # An alternative of another type was not intended. An optional parameter has two: its type, and
            # null.
            meant = [branch for branch in context if branch and not _is_other_type(branch, found)]
            return _clearest(meant[0][:_MAX_ERRORS]) if len(meant) == 1 else found
        case _:
            return found


def _is_other_type(branch: list[ValidationError], whole: ValidationError) -> bool:
    return any(error.kind.name == "type" and error.instance_path == whole.instance_path for error in branch)


def _within_depth(schema: Schema) -> bool:
    ahead: list[tuple[Any, int]] = [(schema, 1)]
    while ahead:
        node, depth = ahead.pop()
        if not isinstance(node, dict | list):
            continue
        if depth > MAX_SCHEMA_DEPTH:
            return False
        members = cast(Iterable[Any], node.values() if isinstance(node, dict) else node)
        ahead += ((member, depth + 1) for member in members)
    return True


def _subschemas(schema: Schema) -> Iterator[tuple[Path, Schema]]:
    ahead: list[tuple[Path, Schema]] = [((), schema)]
    while ahead:
        path, node = ahead.pop()
        yield path, node
        ahead += (((*path, *step), child) for step, child in _children(node, (*_BY_NAME, *_LISTS, *_SINGLE)))


def _children(node: Schema, words: Iterable[str]) -> Iterator[tuple[Path, Schema]]:
    """Yield the subschemas directly below some keywords, without boolean schemas."""
    for word in words:
        value = node.get(word)
        if word in _SINGLE and isinstance(value, dict):
            yield (word,), cast(Schema, value)
        elif word in _BY_NAME and isinstance(value, dict):
            named = cast(dict[str, Any], value).items()
            yield from (((word, name), child) for name, child in named if isinstance(child, dict))
        elif word in _LISTS and isinstance(value, list):
            listed = enumerate(cast(list[Any], value))
            yield from (((word, index), child) for index, child in listed if isinstance(child, dict))


class _Rules:
    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._counts: dict[int, int] = {}

    def most(self) -> int:
        """Return the highest count; raise `RecursionError` if a subschema applies itself to the value."""
        return max(self._count(node) for _, node in _subschemas(self._schema))

    def _count(self, node: Schema) -> int:
        known = self._counts.get(id(node))
        if known is not None:
            return known
        below = [child for _, child in _children(node, _SAME_VALUE)]
        target = self._target(node.get("$ref"))
        below += [] if target is None else [target]
        # A cycle of references ends in RecursionError.
        count = self._counts[id(node)] = 1 + sum(self._count(child) for child in below)
        return count

    def _target(self, reference: object) -> Schema | None:
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        node: Any = self._schema
        for part in reference[1:].split("/")[1:]:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(node, list):
                node = cast(list[Any], node)[int(name)] if name.isdecimal() else None
            elif isinstance(node, dict):
                node = cast(dict[str, Any], node).get(name)
        return cast(Schema, node) if isinstance(node, dict) else None


Path = tuple[str | int, ...]

MAX_TEXT_CHARS: Final = 2_000
"""Maximum characters of a text, which may repeat parts of the schema."""
_MAX_OPTIONS = 20
"""Maximum number of permitted values that a text lists."""
_TYPES: Final = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "a string",
}
_LIMITS: Final = {
    "exclusiveMaximum": "must be less than {}",
    "exclusiveMinimum": "must be greater than {}",
    "maxItems": "must have at most {} items",
    "maxLength": "must have at most {} characters",
    "maxProperties": "must have at most {} fields",
    "maximum": "must be at most {}",
    "minItems": "must have at least {} items",
    "minLength": "must have at least {} characters",
    "minProperties": "must have at least {} fields",
    "minimum": "must be at least {}",
}
_OTHER: Final = {
    "contains": "must contain as many items of the kind that the schema states in 'contains'",
    "format": "must have the format {}",
    "multipleOf": "must be a multiple of {}",
    "not": "must not fit the schema in 'not'",
    "pattern": "must match pattern {}",
    "propertyNames": "must have names that fit the schema in 'propertyNames'",
    "unevaluatedItems": "must have no further items",
    "uniqueItems": "must not repeat an item",
}
_NOTHING_MORE: Final = {"additionalProperties": "must have no fields", "items": "must have no further items"}
"""The texts by keyword."""


class SchemaFault(NamedTuple):
    path: Path
    expected: str


def fault_of(error: ValidationError) -> SchemaFault:
    path = tuple(error.instance_path)
    kind = cast(Any, error.kind)
    match error.kind.name:
        case "required":
            return SchemaFault((*path, kind.property), "is required")
        case "additionalProperties" | "unevaluatedProperties":
            return SchemaFault((*path, kind.unexpected[0]), "is not a known field")
        case _:
            return SchemaFault(path, _expected(error)[:MAX_TEXT_CHARS])


def _expected(error: ValidationError) -> str:
    match error.kind:
        case ValidationErrorKind.Type(types):
            names = sorted(types, key=lambda name: (name == "null", name))
            return f"must be {_either([_TYPES[name] for name in names])}"
        case ValidationErrorKind.Enum(options):
            return f"must be one of {_listed(options)}"
        case ValidationErrorKind.Constant(value):
            return f"must be {_shown(value)}"
        case ValidationErrorKind.AnyOf(context) | ValidationErrorKind.OneOfNotValid(context):
            return _of_alternatives(error, context)
        case ValidationErrorKind.OneOfMultipleValid():
            return "must fit exactly one of the alternatives in 'oneOf'"
        case ValidationErrorKind.Referencing():
            return "must refer to a part of the schema: '#/$defs/...'"
        case ValidationErrorKind.FalseSchema():
            return _NOTHING_MORE.get(str(error.schema_path[-1]), "is not allowed")
        case kind:
            return _of_keyword(kind.name, kind)


def _of_keyword(name: str, kind: Any) -> str:
    if name in _LIMITS:
        text = _LIMITS[name].format(kind.limit)
        return text.removesuffix("s") if kind.limit == 1 and text.endswith("s") else text
    text = _OTHER.get(name, f"must fit the schema in {name!r}")
    if "{}" not in text:
        return text
    # The only attribute of the error's kind is named after the keyword: `pattern`, `format`, `multiple_of`.
    attribute: str = cast(Any, type(kind)).__match_args__[0]
    return text.format(_shown(getattr(kind, attribute)))


def _of_alternatives(error: ValidationError, context: list[list[ValidationError]]) -> str:
    """Return the expected value if each alternative states one rule for the value itself."""
    at = error.instance_path
    rules = [_expected(branch[0]) for branch in context if len(branch) == 1 and branch[0].instance_path == at]
    plain = [rule.removeprefix("must ") for rule in rules if rule.startswith("must ")]
    if len(plain) < len(context):
        return "must fit one of the alternatives in the schema"
    return f"must {_either(plain).replace(' or be ', ' or ')}"


def _either(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def _listed(options: list[Any]) -> str:
    shown = [_shown(option) for option in options[:_MAX_OPTIONS]]
    left = len(options) - len(shown)
    return f"{', '.join(shown)} and {left} more" if left else _either(shown)


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, str) else json.dumps(value)
