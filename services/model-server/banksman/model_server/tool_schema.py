from __future__ import annotations

import re
from functools import lru_cache

import jsonschema

from banksman.model_server.json_values import Json, dumps, loads_object

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Tool names that both vendors accept."""


def schema_fault(schema: Json) -> str | None:
    """Return why a schema cannot describe a tool's arguments, or None if it can."""
    return _schema_fault(dumps(schema))


@lru_cache(maxsize=1024)
def _schema_fault(schema_text: str) -> str | None:
    schema = loads_object(schema_text)
    if schema is None or schema.get("type") != "object":
        stated = None if schema is None else schema.get("type")
        return f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{stated}\"'"
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as fault:
        return f"not valid JSON Schema draft 2020-12 at {fault.json_path}: {fault.message}"
    return None
