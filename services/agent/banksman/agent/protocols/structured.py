"""Final replies that are one JSON object of a given schema."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from banksman.agent.protocols.base import Malformed, ModelRequest
from banksman.contracts.errors import BadInput
from banksman.contracts.wire import JsonObject, JsonValue, strict_json
from banksman.runs.steps import MAX_MALFORMED

MAX_OUTPUT_BYTES = 64 * 1024
"""Maximum bytes of an object as JSON. The outcome contains it as text and as an object."""

_INSTRUCTION = """\
## Form of the final reply

When you have finished, reply with one JSON object that fits this JSON Schema, and with nothing else: no text
around it, no code fence.

"""
_FENCED = re.compile(r"\s*```[\w-]*\n(.*)\n\s*```\s*", re.DOTALL)


def instructed(request: ModelRequest) -> ModelRequest:
    """Return a request that states its response schema in the prompt, for a model without such an option."""
    schema = request.options.response_schema
    if schema is None:
        return request
    text = _INSTRUCTION + json.dumps(schema, ensure_ascii=False)
    system = f"{request.system}\n\n{text}" if request.system else text
    options = request.options.model_copy(update={"response_schema": None})
    return replace(request, system=system, options=options)


def written_object(text: str) -> JsonObject:
    """Return the object of a final reply, which may be inside a code fence; raise `BadInput` for others."""
    if (size := len(text.encode())) > MAX_OUTPUT_BYTES:
        raise BadInput("reply", None, f"at most {MAX_OUTPUT_BYTES} bytes, not {size}")
    fenced = _FENCED.fullmatch(text)
    value = strict_json(fenced[1] if fenced else text, what="reply")
    if not isinstance(value, dict):
        raise BadInput("reply", None, "one JSON object and nothing else")
    return value


def not_fitting(rule: str, attempt: int) -> Malformed:
    """Return the reading of a final reply that is no object of the schema, with its correction."""
    last = " This is the last attempt." if attempt >= MAX_MALFORMED else ""
    correction = (
        f"Your last reply does not have the required form: {rule}.{last} Reply with one JSON object that "
        "fits the JSON Schema of the final reply, and with nothing else."
    )
    return Malformed(error=rule, position=0, correction=correction)


def is_closed(schema: JsonValue) -> bool:
    """Return whether each object of a schema lists all its properties as required and allows no others.

    Vendors enforce only such schemas. https://platform.openai.com/docs/guides/structured-outputs
    """
    if isinstance(schema, list):
        return all(map(is_closed, schema))
    if not isinstance(schema, dict):
        return True
    properties = schema.get("properties")
    if schema.get("type") == "object" or isinstance(properties, dict):
        names = set(properties) if isinstance(properties, dict) else set[str]()
        required = schema.get("required")
        listed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else None
        if schema.get("additionalProperties") is not False or listed != names:
            return False
    return all(map(is_closed, schema.values()))
