"""The base of the adapters of vendor SDKs: one client per process, created on first use, and the retries."""

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
    """A `Provider` that uses a vendor's SDK. Only `make_client` and the attempts import the SDK."""

    def __init__(self, name: str, settings: ProviderSettings) -> None:
        self.name = name
        self.settings = settings
        self._without_temperature: set[str] = set()
        """Models that refused a temperature."""

    async def complete(self, request: ModelRequest, *, deltas: DeltaSink, deadline_s: float) -> ModelReply:
        """See `Provider.complete`. A request that is refused for its temperature is retried without it.

        This process then omits the temperature for that model.
        """
        until = time.monotonic() + deadline_s
        if request.model in self._without_temperature:
            request = _without_temperature(request)
        try:
            return await self._complete(request, deltas, deadline_s)
        except ProviderFailed as refusal:
            if request.options.temperature is None or not _refuses_temperature(refusal):
                raise
            logger.warning("the model refused the temperature: %s", refusal, extra={"model": request.model})
        self._without_temperature.add(request.model)
        await deltas.restart()
        return await self._complete(_without_temperature(request), deltas, max(0.1, until - time.monotonic()))

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
        """The SDK's client, one per process."""
        return self.make_client()

    @abstractmethod
    def make_client(self) -> C:
        """Import the SDK and create its client with the SDK's own retries disabled."""

    @abstractmethod
    def attempts(self, request: ModelRequest, deltas: DeltaSink) -> Callable[[], Awaitable[ModelReply]]:
        """Return a function that sends the request once per call.

        Raises:
            TransientFault: The function failed, and another attempt may succeed.
            ProviderFailed: The vendor refused the request.
        """


def _refuses_temperature(refusal: ProviderFailed) -> bool:
    """Return True if the vendor refused the request because of its temperature, as its newest models do."""
    return refusal.status in (400, 422) and "temperature" in str(refusal).lower()


def _without_temperature(request: ModelRequest) -> ModelRequest:
    return replace(request, options=request.options.model_copy(update={"temperature": None}))
