"""What the checks of all wire formats share."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, cast

import jsonschema_rs

from banksman.model_server.chat import Json, dumps, loads_object


def as_list(value: object) -> list[Any] | None:
    """Return a list unchanged; None for any other value."""
    return cast(list[Any], value) if isinstance(value, list) else None


TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
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
