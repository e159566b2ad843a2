from __future__ import annotations

import re
from functools import lru_cache

import jsonschema_rs

from banksman.model_server.json_values import Json, dumps, loads_object

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Tool names that both vendors accept."""
DRAFT = "https://json-schema.org/draft/2020-12/schema"


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
        # The meta-schema is passed explicitly, because the library would fetch the one that a schema names.
        jsonschema_rs.meta.validate({**schema, "$schema": DRAFT})
    except jsonschema_rs.ValidationError as fault:
        path = ".".join(["$", *(str(part) for part in fault.instance_path)])
        return f"not valid JSON Schema draft 2020-12 at {path}: {fault.message}"
    return None
