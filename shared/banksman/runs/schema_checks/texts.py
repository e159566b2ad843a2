"""Plain English texts for the JSON Schema rules that a value violates.

The texts complete "`field` …, got `value`", like all other errors. The module imports nothing of this
project, so that `process` starts quickly.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple, cast

from jsonschema_rs import ValidationError, ValidationErrorKind

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
_REFUSED: Final = {"additionalProperties": "must have no fields", "items": "must have no further items"}
"""The texts by keyword."""


class SchemaFault(NamedTuple):
    """The first path in a value that violates a rule."""

    path: Path
    expected: str


def fault_of(error: ValidationError) -> SchemaFault:
    """Return the path of an error and the expected value."""
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
            return f"must be {_either([_TYPES[name] for name in sorted(types, key=_null_last)])}"
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
            return _REFUSED.get(str(error.schema_path[-1]), "is not allowed")
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


def _null_last(name: str) -> tuple[bool, str]:
    return name == "null", name


def _listed(options: list[Any]) -> str:
    shown = [_shown(option) for option in options[:_MAX_OPTIONS]]
    left = len(options) - len(shown)
    return f"{', '.join(shown)} and {left} more" if left else _either(shown)


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, str) else json.dumps(value)
