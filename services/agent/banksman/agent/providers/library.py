"""Vendors with an API of their own, through the library pydantic-ai-slim (extra `library`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from banksman.agent.protocols.base import ModelReply, ModelRequest
from banksman.agent.protocols.structured import instructed
from banksman.agent.providers.base import DeltaSink
from banksman.agent.providers.retrying import RetryingProvider
from banksman.contracts.errors import ProviderFailed

if TYPE_CHECKING:
    from banksman.agent.providers.library_api import LibraryApi


class Library(RetryingProvider["LibraryApi"]):
    """The `Provider` of one vendor. The library is imported before its first request: 1.3 s of CPU."""

    own_api = True

    def make_client(self) -> LibraryApi:
        try:
            from banksman.agent.providers.library_api import LibraryApi

            return LibraryApi(self.name, self.settings, self.entry)
        except ImportError as error:
            text = f"{self.entry.api} needs the package's extra `library`, which is not installed"
            raise ProviderFailed(self.name, f"{text} ({error.name})") from error

    def attempts(self, request: ModelRequest, deltas: DeltaSink) -> Callable[[], Awaitable[ModelReply]]:
        return partial(self._attempt, request, deltas)

    async def _attempt(self, request: ModelRequest, deltas: DeltaSink) -> ModelReply:
        silence_s = self.silence_s(request.model)
        # In a thread: the import would stop all runs of this process for seconds.
        await asyncio.to_thread(self.warm)
        try:
            return await self.client.complete(
                instructed(request), self.profile(request.model), deltas, silence_s
            )
        except TimeoutError as error:
            raise self.silent(request.model) from error
