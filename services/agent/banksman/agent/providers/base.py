"""What the loop asks of a provider."""

from __future__ import annotations

from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from banksman.agent.protocols.base import ModelReply, ModelRequest

DeltaKind = Literal["message", "reasoning"]
"""
message    text of the reply, calls as text included: a `DeltaFilter` decides what may be shown
reasoning  what the model thought, as far as the vendor shows it
"""


class DeltaSink(Protocol):
    """Takes the pieces of a reply while the model writes it."""

    async def write(self, kind: DeltaKind, text: str) -> None:
        """Take the next piece. Pieces of one kind are in order and never empty."""
        ...

    async def restart(self) -> None:
        """Forget every piece so far: the request is sent again and the reply begins anew."""
        ...


class Provider(Protocol):
    """One model API. Safe for any number of concurrent requests."""

    name: str
    """The part of a model's name before the colon; replies carry it so that their state returns only here."""

    async def complete(self, request: ModelRequest, *, deltas: DeltaSink, deadline_s: float) -> ModelReply:
        """Ask the model once and wait for its whole reply.

        Faults that pass (429 with its `Retry-After`, 5xx, dropped and silent streams) are retried within
        `deadline_s` seconds; cancelling the task closes the connection.

        Raises:
            ProviderFailed: the request is refused, the faults do not pass, or the deadline is over.
        """
        ...

    def warm(self) -> None:
        """Import the SDK and make its client, up to a second's work that the first request would do."""
        ...

    async def close(self) -> None:
        """Close the connections; requests that run fail."""
        ...


class ProviderSettings(BaseModel):
    """Where models are reached, and how long and how often to try."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    anthropic_api_key: SecretStr | None = None
    anthropic_base_url: str = "https://api.anthropic.com"
    openai_api_key: SecretStr | None = None
    """None is right for compatible servers without keys; OpenAI itself refuses then."""
    openai_base_url: str = "https://api.openai.com/v1"
    """Any server that speaks the OpenAI format, with its version prefix."""
    backboard_api_key: SecretStr | None = None
    backboard_base_url: str = "https://app.backboard.io/api"
    demo_base_url: str | None = None
    """The model server's OpenAI address; None when there is no model server."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    """Seconds to open a connection before the attempt counts as failed."""
    request_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds without a byte from the model before the attempt counts as failed."""
    max_attempts: int = Field(default=5, ge=1, le=20)
    """Requests sent at most for one reply, the first included."""
    first_delay_s: float = Field(default=0.5, ge=0)
    """Seconds before the second attempt, where the vendor names none; doubled from then on, up to 8 s."""
