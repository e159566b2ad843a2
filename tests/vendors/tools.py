"""Tools whose schemas vendors refuse in different ways, although JSON Schema allows them."""

from __future__ import annotations

from typing import Any

from banksman.contracts.tools import ToolDefinition
from banksman.contracts.workspace_tools import WORKSPACE_TOOLS

SCHEMAS: dict[str, Any] = {
    "exclusive_limits": {
        "type": "object",
        "properties": {"seconds": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 60}},
        "additionalProperties": False,
    },
    "top_level_any_of": {
        "type": "object",
        "properties": {"id": {"type": "string"}, "name": {"type": "string"}},
        "anyOf": [{"required": ["id"]}, {"required": ["name"]}],
    },
    "top_level_one_of": {
        "oneOf": [
            {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
            {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        ]
    },
    "top_level_all_of": {
        "type": "object",
        "allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "integer"}}}],
    },
    "references": {
        "type": "object",
        "properties": {"place": {"$ref": "#/$defs/Place"}},
        "required": ["place"],
        "$defs": {
            "Place": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
        },
    },
    "a_tree": {
        "type": "object",
        "properties": {"root": {"$ref": "#/$defs/Node"}},
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
            }
        },
    },
    "a_lost_reference": {"type": "object", "properties": {"place": {"$ref": "#/$defs/Nowhere"}}},
    "formats": {
        "type": "object",
        "properties": {
            "at": {"type": "string", "format": "uri"},
            "mail": {"type": "string", "format": "email"},
            "count": {"type": "integer", "format": "uint32"},
        },
    },
    "constants": {
        "type": "object",
        "properties": {"kind": {"const": "file"}, "mode": {"type": "integer", "enum": [1, 2, None]}},
    },
    "nullable_types": {
        "type": "object",
        "properties": {
            "limit": {"type": ["integer", "null"]},
            "name": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
    },
    "no_types": {"properties": {"value": {"description": "Anything."}}},
    "an_array_without_items": {"type": "object", "properties": {"values": {"type": "array"}}},
    "tuples": {
        "type": "object",
        "properties": {"point": {"type": "array", "prefixItems": [{"type": "number"}, {"type": "number"}]}},
    },
    "boolean_schemas": {"type": "object", "properties": {"anything": True, "nothing": False}},
    "no_properties": {"type": "object"},
    "empty_properties": {"type": "object", "properties": {}, "additionalProperties": False},
    "nothing": {},
    "a_loose_pattern": {"type": "object", "properties": {"word": {"type": "string", "pattern": "[a-z]+"}}},
    "a_map": {
        "type": "object",
        "properties": {"labels": {"type": "object", "additionalProperties": {"type": "string"}}},
    },
    "unknown_keywords": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "https://example.org/tool",
        "type": "object",
        "properties": {"a": {"type": "string", "x-order": 1, "examples": ["b"], "contentEncoding": "base64"}},
        "required": ["a", "missing"],
    },
    "odd_property_names": {
        "type": "object",
        "properties": {"$filter": {"type": "string"}, "a b": {"type": "string"}, "ü": {"type": "string"}},
    },
    "conditions": {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "if": {"properties": {"a": {"const": "x"}}},
        "then": {"required": ["b"]},
        "not": {"required": ["c"]},
        "dependentRequired": {"a": ["b"]},
        "patternProperties": {"^s_": {"type": "string"}},
        "propertyNames": {"pattern": "^[a-z]+$"},
    },
}  # fmt: skip

NASTY_TOOLS = tuple(
    ToolDefinition(name=name, description=f"A tool with {name}.", input_schema=schema)
    for name, schema in SCHEMAS.items()
)

OWN_TOOLS = tuple(WORKSPACE_TOOLS)
