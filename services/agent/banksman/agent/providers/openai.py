"""OpenAI's Chat Completions API and compatible servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from json import JSONDecodeError
from typing import TYPE_CHECKING

from banksman.agent.protocols.base import ModelReply, ModelRequest
from banksman.agent.providers.base import DeltaSink, ProviderSettings
from banksman.agent.providers.openai_reply import ReplyReader
from banksman.agent.providers.openai_request import body
from banksman.agent.providers.retry import TransientFault, status_fault
from banksman.agent.providers.sdk import SdkProvider
from banksman.contracts.errors import ProviderFailed

if TYPE_CHECKING:
    from openai import APIError, APIStatusError, AsyncOpenAI

_OWN_ADDRESS = "https://api.openai.com"

_LASTING_FAULTS = frozenset({"invalid_request_error", "authentication_error", "permission_error"})
_LASTING_CODES = frozenset({"insufficient_quota", "context_length_exceeded", "content_filter"})


class OpenAI(SdkProvider["AsyncOpenAI"]):
    """The `Provider` of one address that serves the OpenAI format."""

    def __init__(self, name: str, settings: ProviderSettings, *, base_url: str, api_key: str | None) -> None:
        super().__init__(name, settings)
        self._base_url = base_url
        self._api_key = api_key

    def make_client(self) -> AsyncOpenAI:
        """See `SdkProvider.make_client`."""
        from openai import AsyncOpenAI, DefaultAioHttpClient, Timeout

        timeout = Timeout(self.settings.request_timeout_s, connect=self.settings.connect_timeout_s)
        return AsyncOpenAI(
            # The SDK requires a key. Servers without keys ignore it.
            api_key=self._api_key or "none",
            base_url=self._base_url,
            max_retries=0,
            timeout=timeout,
            http_client=DefaultAioHttpClient(timeout=timeout),
        )

    def attempts(self, request: ModelRequest, deltas: DeltaSink) -> Callable[[], Awaitable[ModelReply]]:
        """See `SdkProvider.attempts`."""
        return partial(self._attempt, request, deltas)

    async def _attempt(self, request: ModelRequest, deltas: DeltaSink) -> ModelReply:
        import httpx2
        from openai import APIConnectionError, APIError, APIStatusError

        try:
            return await self._stream(request, deltas)
        except APIStatusError as error:
            raise self._refusal(error) from error
        except APIConnectionError as error:
            raise TransientFault(f"the connection failed: {error.__cause__ or error.message}") from error
        except APIError as error:
            raise self._stream_fault(error) from error
        except (httpx2.HTTPError, OSError, JSONDecodeError, UnicodeDecodeError) as error:
            raise TransientFault(f"the stream broke off: {error}") from error

    async def _stream(self, request: ModelRequest, deltas: DeltaSink) -> ModelReply:
        from openai import AsyncStream

        reader = ReplyReader(deltas)
        # The SDK's API for untyped requests. Its typed models cost half the CPU of a short reply and fail on
        # fields that compatible servers omit.
        async with await self.client.post(
            "/chat/completions",
            body=body(request, self.name, own=self._base_url.startswith(_OWN_ADDRESS)),
            cast_to=object,
            stream=True,
            stream_cls=AsyncStream[object],
        ) as stream:
            async for chunk in stream:
                await reader.take(chunk)
                if reader.full:
                    break
        return reader.reply()

    def _refusal(self, error: APIStatusError) -> Exception:
        if error.code in _LASTING_CODES:
            no_quota = error.status_code == 429
            return ProviderFailed(self.name, error.message, status=error.status_code, unavailable=no_quota)
        return status_fault(self.name, error.status_code, error.message, error.response.headers)

    def _stream_fault(self, error: APIError) -> Exception:
        if error.type in _LASTING_FAULTS or error.code in _LASTING_CODES:
            return ProviderFailed(self.name, error.message)
        return TransientFault(error.message)
