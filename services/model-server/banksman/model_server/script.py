from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

ScriptName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]

Seconds = Annotated[float, Field(ge=0)]

FinishReason = Literal["stop", "tool_calls", "length", "content_filter"]
"""Why a reply ends; each vendor's own word is sent.

- `stop`: the model has said all it wanted (`end_turn`)
- `tool_calls`: it waits for results (`tool_use`)
- `length`: the token limit cut it (`max_tokens`)
- `content_filter`: withheld (`refusal`)
"""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ToolCall(_Frozen):
    """A native tool call that a reply makes."""

    name: str
    arguments: dict[str, Any] | str = Field(default_factory=dict[str, Any])
    """The arguments; a string is sent as it stands, so that it can be broken JSON."""
    id: str | None = None
    """The id of the call; None lets the script's `call_ids` choose."""


class Usage(_Frozen):
    """Token counts that a reply reports instead of the estimate; nothing checks them."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    """The part of `input_tokens` that came from a cache (Anthropic reports it apart, not as a part)."""


class Gate(_Frozen):
    """Holds a reply until a test opens the gate of this name."""

    name: ScriptName
    after_events: int = Field(default=0, ge=0)
    """SSE events sent before the reply waits; 0 waits before the response's headers."""


class _Fault(_Frozen):
    times: int | None = Field(default=None, ge=1)
    """How many requests of one conversation at this position meet the fault; None: every one."""


class HttpError(_Fault):
    """The request is answered with an error status."""

    kind: Literal["http_error"] = "http_error"
    status: int = Field(ge=400, le=599)
    message: str = "The scripted fault."
    error_type: str | None = None
    """The vendor's `type`; None chooses the one that belongs to the status."""
    code: str | None = None
    body: str | None = None
    """Sent as it stands (as text/plain unless it is JSON) instead of the vendor's error object."""
    retry_after_s: Seconds | None = None


class _StreamFault(_Fault):
    after_events: int = Field(default=0, ge=0)
    """SSE events sent before the fault. Without streaming: 0 is before the body, more in its middle."""


class ConnectionCut(_StreamFault):
    """The connection closes in the middle; with `after_events` 0, before any byte of the response."""

    kind: Literal["connection_cut"] = "connection_cut"


class StreamError(_StreamFault):
    """The vendor's error event in the stream, which then closes; without streaming, status 500."""

    kind: Literal["stream_error"] = "stream_error"
    message: str = "The scripted fault."
    error_type: str | None = None


class HalfJson(_StreamFault):
    """The next event (the body, without streaming) stops in its middle; the response ends as if whole."""

    kind: Literal["half_json"] = "half_json"


class EarlyEnd(_Fault):
    """The stream ends in good order, but before its finish reason. Without streaming: no fault."""

    kind: Literal["early_end"] = "early_end"


class Silence(_StreamFault):
    """Nothing more is sent for `duration_s` seconds, then the connection closes."""

    kind: Literal["silence"] = "silence"
    duration_s: Seconds = 600.0


Fault: TypeAlias = Annotated[
    HttpError | ConnectionCut | StreamError | HalfJson | EarlyEnd | Silence, Field(discriminator="kind")
]


class Reply(_Frozen):
    """What the model says once: any mixture of text, reasoning and tool calls, or a fault."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    finish_reason: FinishReason | str | None = None
    """None: `tool_calls` when there are any, else `stop`. Unknown words are sent as they stand."""
    usage: Usage | Literal["estimated", "missing"] = "estimated"
    first_delay_s: Seconds = 0.0
    """Pause before the response's headers."""
    chunk_delay_s: Seconds = 0.0
    """Pause before each SSE event; with 0 all events leave in one write. Without streaming: no pause."""
    chunk_chars: int | None = Field(default=None, ge=1)
    """Characters of text in one chunk; None: one word a chunk."""
    gate: Gate | None = None
    fault: Fault | None = None


class RawReply(_Frozen):
    """A response written by hand, for deviations that no `Reply` can express."""

    raw_chunks: tuple[str, ...]
    """Pieces of the body, each sent by one write."""
    status: int = Field(default=200, ge=200, le=599)
    content_type: str = "text/event-stream"
    headers: dict[str, str] = Field(default_factory=dict[str, str])
    chunk_delay_s: Seconds = 0.0


class Script(_Frozen):
    """The replies of one scripted model, `scripted/<name>`, to any number of conversations."""

    replies: tuple[Reply | RawReply, ...] = Field(min_length=1)
    by: Literal["position", "count"] = "position"
    """How a request chooses its reply.

    - `position`: by the number of assistant messages in the request, so that a repeated request is
      answered alike
    - `count`: by the number of requests that played this script before
    """
    at_end: Literal["refuse", "repeat", "loop"] = "refuse"
    """What a request after the last reply gets.

    - `refuse`: status 400, `script_exhausted`
    - `repeat`: the last reply again
    - `loop`: the first reply, and so on
    """
    call_ids: Literal["random", "derived"] = "random"
    """How calls without an id get theirs.

    - `random`: never the same twice, as the vendors do
    - `derived`: from script, conversation (its first user text), position and index, so a repeated
      request gets the same ids
    """
