"""What clients see of a model while it writes or waits; lossy, never stored."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationError

from banksman.contracts.wire import Stored, Token


class Delta(Stored):
    """`delta.{t}.{c}`: a piece of an unfinished message; lossy, replaced by `message.completed`."""

    conversation_id: Token
    run_id: Token
    message_id: Token
    kind: Literal["message", "reasoning"] = "message"
    offset: int
    """Number of characters of the message before this piece."""
    text: str
    repeated: bool = Field(default=False, exclude_if=lambda repeated: not repeated)
    """Whether it was published before, and again for a client that subscribed later."""


WaitReason = Literal["overloaded", "rate_limited", "unreachable", "failed"]
"""
overloaded    the vendor has no capacity (503, 529)
rate_limited  the vendor's limit of requests or tokens is reached (429)
unreachable   no connection
failed        another transient error, such as 500 or a stream that broke off
"""


class ModelPause(Stored):
    """A model request failed and is sent again after a pause. Any later frame of the run ends the wait."""

    model: str
    """`provider:model`."""
    reason: WaitReason
    error: str
    """What the vendor returned, without secrets."""
    attempt: int
    """Number of the failed attempt, from 1."""
    next_attempt_s: float
    """Seconds until the next attempt, from the time of this message."""


class ModelWaiting(Stored):
    """`delta.{t}.{c}`: the run waits for its model; lossy."""

    conversation_id: Token
    run_id: Token
    message_id: Token
    """The message that the request would write."""
    kind: Literal["waiting"] = "waiting"
    pause: ModelPause


def live_output(data: bytes) -> Delta | ModelWaiting:
    """Return a message of `delta.{t}.{c}`; raise `ValidationError` if it is neither."""
    try:
        return Delta.model_validate_json(data)
    except ValidationError:
        return ModelWaiting.model_validate_json(data)
