"""Options of model requests."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from banksman.contracts.wire import JsonObject, Stored, json_bytes

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high"]
MAX_RESPONSE_SCHEMA_BYTES = 32 * 1024
"""Maximum bytes of a response schema as JSON: each start of a run contains it."""


def _response_schema(schema: JsonObject) -> JsonObject:
    if schema.get("type") != "object":
        raise ValueError('a JSON Schema with `"type": "object"`')
    if (size := json_bytes(schema)) > MAX_RESPONSE_SCHEMA_BYTES:
        raise ValueError(f"at most {MAX_RESPONSE_SCHEMA_BYTES} bytes of JSON, not {size}")
    return schema


ResponseSchema = Annotated[JsonObject, AfterValidator(_response_schema)]


class ModelOptions(Stored):
    """Options of each model request."""

    max_tokens: int | None = Field(default=None, gt=0)
    """Maximum output tokens of one reply; None applies the default of the provider's adapter."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    reasoning_effort: ReasoningEffort | None = Field(default=None, exclude_if=lambda effort: effort is None)
    """How much the model reasons before it replies; None applies the vendor's default."""
    response_schema: ResponseSchema | None = Field(default=None, exclude_if=lambda schema: schema is None)
    """JSON Schema of the final reply, an object, which the outcome contains as `structured_output`. The model
    corrects a reply that does not fit, twice at most. None lets the model reply with any text."""
    parallel_tool_calls: bool | None = Field(default=None, exclude_if=lambda parallel: parallel is None)
    """False lets the model request at most one call per reply, if the vendor supports it; None applies the
    vendor's default."""
