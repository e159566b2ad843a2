"""Tools: what a model may call, its calls, and their results."""

from __future__ import annotations

import json
from typing import Annotated, Literal, cast

from pydantic import Field, StringConstraints, field_validator

from banksman.contracts.ids import digest
from banksman.contracts.network import NetworkPolicy
from banksman.contracts.wire import JsonObject, Stored, Timestamp, Token

ToolName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z][a-zA-Z0-9_-]{0,63}$")]
"""A letter, then up to 63 letters, digits, `_` or `-`: what both vendors accept."""

ErrorKind = Literal[
    "invalid_arguments",
    "unknown_tool",
    "denied",
    "rejected",
    "not_executed",
    "cancelled",
    "timeout",
    "tool_error",
    "output_limit",
    "unknown_outcome",
    "unavailable",
]
"""
invalid_arguments  the arguments fail the tool's schema, or were not JSON
unknown_tool       no tool of that name is registered or allowed
denied             the assistant's policy forbids it
rejected           a person said no
not_executed       it never started (an earlier call was rejected, the run was steered away)
cancelled          the run was cancelled
timeout            it ran longer than its time-out
tool_error         the tool itself failed
output_limit       it wrote more than may be written
unknown_outcome    it started, and nobody can say how it ended; it is not repeated
unavailable        no runner or tool server could take it
"""


class ToolDefinition(Stored):
    """What a model is told of a tool, and how the platform treats its calls."""

    name: ToolName
    description: str = Field(max_length=8_000)
    """Written for a model."""
    input_schema: JsonObject = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON Schema of the arguments, an object; empty or null for a tool without parameters."""
    requires_approval: bool = False
    category: str = Field(default="general", max_length=64)
    idempotent: bool = False
    """True when running it again does no harm: then no start is recorded and a lost call is repeated."""
    timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """Seconds from its start until it is ended; the result says so."""
    priority: int = Field(default=0, ge=-100, le=100)
    """Lower ones leave the prompt first when it must shrink."""
    server: Token | None = None
    """The tool server that answers its calls; None for the runner that owns the workspace."""

    @field_validator("input_schema", mode="before")
    @classmethod
    def _schema_of_an_object(cls, given: object) -> object:
        # Vendors refuse a tool whose schema does not say that its arguments are an object.
        match given:
            case None:
                return {"type": "object", "properties": {}}
            case dict():
                schema = cast(JsonObject, given)
                return schema if "type" in schema else {"type": "object", "properties": {}, **schema}
            case _:
                return given


class ToolCall(Stored):
    """One call as the log keeps it."""

    id: Token
    """Ours: unique in the tenant, part of a subject."""
    name: str = Field(max_length=256)
    """As the model wrote it, known or not."""
    arguments: JsonObject = Field(default_factory=dict)
    provider_call_id: str | None = None
    """The id that the model's API gave the call and expects back with the result."""
    terminate: bool = False
    """True when the result is the run's answer, without another model request."""
    requires_approval: bool = False
    idempotent: bool = False
    timeout_s: float = 60.0
    server: Token | None = None
    network: NetworkPolicy | None = Field(default=None, exclude_if=lambda policy: policy is None)
    """Where a call of a workspace tool may connect to, from the assistant's settings; None for what the
    runner's operator allows to `web_fetch`, and no network for commands."""

    @property
    def digest(self) -> str:
        """What an approval and the runner agree on; see `call_digest`."""
        return call_digest(self.name, self.arguments, self.network)


def call_digest(name: str, arguments: JsonObject, network: NetworkPolicy | None = None) -> str:
    """SHA-256 over `[name, arguments]` in canonical JSON (sorted keys, no white space, UTF-8).

    A call with a network policy has that as the third element.
    """
    words = [name, arguments, *([] if network is None else [network.model_dump(mode="json")])]
    canonical = json.dumps(words, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return digest(canonical.encode("utf-8"))


class ToolResult(Stored):
    """The one result of a call."""

    tool_call_id: Token
    content: JsonObject
    """An object with `success`, and what the tool reports; at most 10,000 characters of output in it."""
    is_error: bool = False
    error_kind: ErrorKind | None = None
    exit_code: int | None = None
    truncated: bool = False
    output_ref: str | None = None
    """Where the whole output is kept when `truncated`; None when nothing was cut."""
    duration_ms: int = 0
    """From the start of the execution to its end; 0 when it never started."""
    runner: Token | None = None
    """Who executed it; None when nobody did."""
    started_at: Timestamp | None = None
    changed: tuple[PathChange, ...] = ()
    """Files of the workspace that the call changed, as far as the tool knows."""


class PathChange(Stored):
    """One changed file of a workspace."""

    path: str
    change: Literal["created", "modified", "deleted"]


def failed(tool_call_id: str, kind: ErrorKind, error: str) -> ToolResult:
    """A result for a call that was not executed, or whose execution failed."""
    return ToolResult(
        tool_call_id=tool_call_id,
        content={"success": False, "error": error, "error_kind": kind},
        is_error=True,
        error_kind=kind,
    )


ToolResult.model_rebuild()
