"""What the adapters of the vendors' SDKs share: one client a process, made on first use, and the retries."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cached_property
from typing import Generic, Protocol, TypeVar

from banksman.agent.protocols.base import ModelReply, ModelRequest
from banksman.agent.providers.base import DeltaSink, ProviderSettings
from banksman.agent.providers.retry import with_retries
from banksman.contracts.errors import ProviderFailed

logger = logging.getLogger(__name__)


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
        self._without_temperature: set[str] = set()
        """Models that refused one."""

    async def complete(self, request: ModelRequest, *, deltas: DeltaSink, deadline_s: float) -> ModelReply:
        """See `Provider.complete`; a model that takes no temperature is asked without one."""
        until = time.monotonic() + deadline_s
        if request.model in self._without_temperature:
            request = _cool(request)
        try:
            return await self._complete(request, deltas, deadline_s)
        except ProviderFailed as refusal:
            if request.options.temperature is None or not _refuses_temperature(refusal):
                raise
            logger.warning("the model takes no temperature: %s", refusal, extra={"model": request.model})
        self._without_temperature.add(request.model)
        await deltas.restart()
        return await self._complete(_cool(request), deltas, max(0.1, until - time.monotonic()))

    async def _complete(self, request: ModelRequest, deltas: DeltaSink, deadline_s: float) -> ModelReply:
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
            TransientFault: the next attempt may do better.
            ProviderFailed: it will not.
        """


def _refuses_temperature(refusal: ProviderFailed) -> bool:
    """Whether a vendor refused a request because of its temperature, which its newest models do not take."""
    return refusal.status in (400, 422) and "temperature" in str(refusal).lower()


def _cool(request: ModelRequest) -> ModelRequest:
    return replace(request, options=request.options.model_copy(update={"temperature": None}))
