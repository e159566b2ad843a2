"""What the replies of scripted models are made of."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

ScriptName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]

Seconds = Annotated[float, Field(ge=0)]

FinishReason = Literal["stop", "tool_calls", "length", "content_filter"]
"""Why a reply ends; the vendor's own value is sent.

- `stop`: the reply is complete (`end_turn`)
- `tool_calls`: the model waits for results (`tool_use`)
- `length`: the token limit cut the reply (`max_tokens`)
- `content_filter`: the reply is withheld (`refusal`)
"""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ScriptedCall(_Frozen):
    """A native tool call in a reply."""

    name: str
    arguments: dict[str, Any] | str = Field(default_factory=dict[str, Any])
    """The arguments; a string is sent unchanged and may be invalid JSON."""
    id: str | None = None
    """Id of the call; None: chosen by the script's `call_ids`."""


class ScriptedUsage(_Frozen):
    """Token counts that a reply reports instead of the estimate; they are not checked."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    """The part of `input_tokens` that came from a cache (Anthropic reports it separately)."""


class Gate(_Frozen):
    """Delays a reply until a test opens the gate of this name."""

    name: ScriptName
    after_events: int = Field(default=0, ge=0)
    """SSE events sent before the reply waits; 0 waits before the response's headers."""


class _Fault(_Frozen):
    times: int | None = Field(default=None, ge=1)
    """Number of requests of one conversation at this position that get the fault; None: all."""


class HttpError(_Fault):
    """The response is an error status."""

    kind: Literal["http_error"] = "http_error"
    status: int = Field(ge=400, le=599)
    message: str = "The scripted fault."
    error_type: str | None = None
    """The vendor's `type`; None: the type of the status."""
    code: str | None = None
    body: str | None = None
    """Body sent instead of the vendor's error object, as text/plain unless it is JSON."""
    retry_after_s: Seconds | None = None


class _StreamFault(_Fault):
    after_events: int = Field(default=0, ge=0)
    """SSE events sent before the fault. Without streaming: 0 is before the body, otherwise within it."""


class ConnectionCut(_StreamFault):
    """The connection closes within the response; with `after_events` 0, before its first byte."""

    kind: Literal["connection_cut"] = "connection_cut"


class StreamError(_StreamFault):
    """The stream ends with the vendor's error event; without streaming, status 500."""

    kind: Literal["stream_error"] = "stream_error"
    message: str = "The scripted fault."
    error_type: str | None = None


class HalfJson(_StreamFault):
    """The next event (without streaming, the body) is cut in half; the response ends normally."""

    kind: Literal["half_json"] = "half_json"


class EarlyEnd(_Fault):
    """The stream ends normally, but before its finish reason. Without streaming: no fault."""

    kind: Literal["early_end"] = "early_end"


class Silence(_StreamFault):
    """Nothing more is sent for `duration_s` seconds, then the connection closes."""

    kind: Literal["silence"] = "silence"
    duration_s: Seconds = 600.0


Fault: TypeAlias = Annotated[
    HttpError | ConnectionCut | StreamError | HalfJson | EarlyEnd | Silence, Field(discriminator="kind")
]


class ScriptedReply(_Frozen):
    """One reply of the model: any mixture of text, reasoning and tool calls, or a fault."""

    text: str = ""
    tool_calls: tuple[ScriptedCall, ...] = ()
    reasoning: str = ""
    finish_reason: FinishReason | str | None = None
    """None: `tool_calls` if there are any, otherwise `stop`. Other values are sent unchanged."""
    usage: ScriptedUsage | Literal["estimated", "missing"] = "estimated"
    first_delay_s: Seconds = 0.0
    """Pause before the response's headers."""
    chunk_delay_s: Seconds = 0.0
    """Pause before each SSE event; 0 sends all events in one write. Without streaming: no pause."""
    chunk_chars: int | None = Field(default=None, ge=1)
    """Characters of text per chunk; None: one word per chunk."""
    gate: Gate | None = None
    fault: Fault | None = None


class RawReply(_Frozen):
    """A literal response, for deviations that a `ScriptedReply` cannot express."""

    raw_chunks: tuple[str, ...]
    """Pieces of the body, each sent in one write."""
    status: int = Field(default=200, ge=200, le=599)
    content_type: str = "text/event-stream"
    headers: dict[str, str] = Field(default_factory=dict[str, str])
    chunk_delay_s: Seconds = 0.0
    gate: Gate | None = None
    """The `after_events` of the fault counts pieces."""


class Script(_Frozen):
    """The replies of one scripted model, `scripted/<name>`, to any number of conversations."""

    replies: tuple[ScriptedReply | RawReply, ...] = Field(min_length=1)
    by: Literal["position", "count"] = "position"
    """How the reply to a request is chosen.

    - `position`: by the number of assistant messages in the request, so that a repeated request gets the
      same reply
    - `count`: by the number of requests that played this script before
    """
    at_end: Literal["refuse", "repeat", "loop"] = "refuse"
    """The reply to a request after the last reply.

    - `refuse`: status 400, `script_exhausted`
    - `repeat`: the last reply again
    - `loop`: the first reply, and so on
    """
    call_ids: Literal["random", "derived"] = "random"
    """How ids of calls without an id are chosen.

    - `random`: unique, as with the vendors
    - `derived`: from script, conversation (its first user text), position and index, so a repeated
      request gets the same ids
    """
