"""What the adapters of the vendors' SDKs share: one client a process, made on first use, and the retries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Generic, Protocol, TypeVar

from banksman.agent.protocols.base import ModelReply, ModelRequest
from banksman.agent.providers.base import DeltaSink, ProviderSettings
from banksman.agent.providers.retry import with_retries


class Closable(Protocol):
    """An SDK's client."""

    async def close(self) -> None:
        """Close its connections."""
        ...


C = TypeVar("C", bound=Closable)


class SdkProvider(ABC, Generic[C]):
    """A `Provider` over a vendor's SDK; its SDK is imported by `make_client` and the attempts, not before."""

    def __init__(self, name: str, settings: ProviderSettings) -> None:
        self.name = name
        self.settings = settings

    async def complete(self, request: ModelRequest, *, deltas: DeltaSink, deadline_s: float) -> ModelReply:
        """See `Provider.complete`."""
        return await with_retries(
            self.attempts(request, deltas),
            provider=self.name,
            settings=self.settings,
            deltas=deltas,
            deadline_s=deadline_s,
        )

    def warm(self) -> None:
        """See `Provider.warm`."""
        _ = self.client

    async def close(self) -> None:
        """See `Provider.close`."""
        if "client" in self.__dict__:
            await self.client.close()

    @cached_property
    def client(self) -> C:
        """The process's one client."""
        return self.make_client()

    @abstractmethod
    def make_client(self) -> C:
        """Import the SDK and make its client, with the SDK's own retries off."""

    @abstractmethod
    def attempts(self, request: ModelRequest, deltas: DeltaSink) -> Callable[[], Awaitable[ModelReply]]:
        """What sends the request once, each time it is called.

        Raises:
            PassingFault: the next attempt may do better.
            ProviderFailed: it will not.
        """
