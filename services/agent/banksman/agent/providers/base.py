"""The interface of a provider, and its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import ConfigDict, Field, field_validator

from banksman.agent.protocols.base import ModelReply, ModelRequest
from banksman.agent.providers.facts import Facts
from banksman.agent.providers.profiles import read_profiles
from banksman.contracts.live_output import ModelPause
from banksman.runtime.model_servers import ModelServers

DeltaKind = Literal["message", "reasoning"]
"""
message    text of the reply, including calls as text; a `DeltaFilter` selects the text to publish
reasoning  the model's reasoning, if the vendor returns it
"""


class DeltaSink(Protocol):
    """Receives the pieces of a reply while the model writes it."""

    async def write(self, kind: DeltaKind, text: str) -> None:
        """Receive the next piece. Pieces of one kind are in order and never empty."""
        ...

    async def restart(self) -> None:
        """Discard all pieces: the request is sent again and the reply starts from its beginning."""
        ...

    async def waiting(self, pause: ModelPause) -> None:
        """Learn that the request is sent again after a pause; repeated every `NOTICE_S` seconds of it."""
        ...


class Provider(Protocol):
    """One model API. Safe for any number of concurrent requests."""

    name: str
    """The part of a model's name before the colon. Each reply records it, so that the state of the reply is
    sent only to the provider that wrote it."""

    async def complete(
        self, request: ModelRequest, *, deltas: DeltaSink, deadline_s: float, wait_s: float | None = None
    ) -> ModelReply:
        """Send one request to the model and return its complete reply.

        Transient faults (429 with its `Retry-After`, 5xx, broken connections) are retried within `deadline_s`
        seconds; while the vendor accepts no request, for at most `wait_s` seconds, by default
        `max_wait_s`. A request to a silent model is not retried. Cancelling the task closes the connection.

        Raises:
            ProviderFailed: The vendor refused the request, all retries failed, or the deadline passed.
        """
        ...

    def facts(self, model: str) -> Facts:
        """Return what the server told of a model so far; nothing for a vendor that is not asked."""
        ...

    def warm(self) -> None:
        """Import the library and create the client before the first request; this takes up to a second."""
        ...

    async def close(self) -> None:
        """Close the connections. Running requests fail."""
        ...


class ProviderSettings(ModelServers):
    """Addresses and keys of the model APIs, timeouts and retries."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    default: str | None = None
    """`provider:model` of conversations that name none. The command line derives `agent.default_model` and
    `gateway.default_model` from it."""
    profiles_file: Path | None = None
    """A TOML file with differences of vendors and models, which takes precedence over the built-in ones."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    """Seconds to open a connection; a slower attempt fails."""
    request_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds without a byte from the model, after which the request fails. Bytes that only keep the
    connection alive count as bytes. The request is not repeated, because the model may still write the reply,
    and the vendor may charge for it."""
    request_timeouts_s: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict[str, float])
    """`request_timeout_s` of single providers and models, by the start of `provider:model`; the longest match
    applies. All models of Backboard have the limit of `backboard`."""
    max_attempts: int = Field(default=5, ge=1, le=20)
    """Maximum requests for one reply, including the first, that fail while the vendor works on them: with a
    transient error, or because the connection breaks. Requests that the vendor does not accept do not count;
    `max_wait_s` limits them."""
    max_wait_s: float = Field(default=300.0, ge=0)
    """Seconds for which a request is repeated while its model is overloaded (503, 529), over its rate (429)
    or unreachable, within the run's own limit. A restart of the agent does not extend them. A model with
    fallback models gets at most 10. 0 fails at once."""
    first_delay_s: float = Field(default=0.5, ge=0)
    """Seconds before the second attempt if the vendor names no time. Later pauses double, up to 15 s."""

    @field_validator("profiles_file")
    @classmethod
    def _readable(cls, file: Path | None) -> Path | None:
        if file is not None:
            read_profiles(file)
        return file

    def silence_s(self, model: str) -> float:
        """Return the seconds for which `provider:model` may send nothing."""
        fitting = [start for start in self.request_timeouts_s if model.startswith(start)]
        return self.request_timeouts_s[max(fitting, key=len)] if fitting else self.request_timeout_s
