"""Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from json import JSONDecodeError
from typing import TYPE_CHECKING, Any

import structlog

from banksman.agent.protocols.base import ModelReply, ModelRequest
from banksman.agent.providers.anthropic_reply import ReplyReader
from banksman.agent.providers.anthropic_request import body
from banksman.agent.providers.base import DeltaSink, ProviderSettings
from banksman.agent.providers.retry import TransientFault, status_fault
from banksman.agent.providers.sdk import SdkProvider
from banksman.contracts.errors import ProviderFailed

if TYPE_CHECKING:
    from anthropic import APIStatusError, AsyncAnthropic

# An error inside a stream has the status 200 of the stream, so its type decides.
# https://docs.anthropic.com/en/api/errors
_TRANSIENT_TYPES = frozenset({"overloaded_error", "api_error", "rate_limit_error", "timeout_error"})

_INVALID_THINKING = "`signature` in `thinking` block"

_log = structlog.get_logger(__name__)


class Anthropic(SdkProvider["AsyncAnthropic"]):
    """The `Provider` of Claude models."""

    def __init__(self, settings: ProviderSettings) -> None:
        super().__init__("anthropic", settings)

    def make_client(self) -> AsyncAnthropic:
        """See `SdkProvider.make_client`."""
        from anthropic import AsyncAnthropic, DefaultAioHttpClient, Timeout

        key = self.settings.anthropic_api_key
        timeout = Timeout(self.settings.request_timeout_s, connect=self.settings.connect_timeout_s)
        return AsyncAnthropic(
            # With None, the SDK searches the environment and the disk for credentials.
            api_key=key.get_secret_value() if key else "none",
            base_url=self.settings.anthropic_base_url,
            max_retries=0,
            timeout=timeout,
            http_client=DefaultAioHttpClient(timeout=timeout),
        )

    def attempts(self, request: ModelRequest, deltas: DeltaSink) -> Callable[[], Awaitable[ModelReply]]:
        """See `SdkProvider.attempts`."""
        return partial(self._attempt, request, deltas)

    async def _attempt(self, request: ModelRequest, deltas: DeltaSink) -> ModelReply:
        import httpx2
        from anthropic import APIConnectionError, APIStatusError

        try:
            return await self._with_thinking_if_accepted(request, deltas)
        except APIStatusError as error:
            raise self._refusal(error) from error
        except APIConnectionError as error:
            raise TransientFault(f"the connection failed: {error.__cause__ or error.message}") from error
        except (httpx2.HTTPError, OSError, JSONDecodeError, UnicodeDecodeError) as error:
            raise TransientFault(f"the stream broke off: {error}") from error

    async def _with_thinking_if_accepted(self, request: ModelRequest, deltas: DeltaSink) -> ModelReply:
        """Send the thinking of earlier replies back; if the API refuses it, repeat the request without.

        A thinking block is valid only after the exact prefix it was created with. Another prompt, other tools
        or a compaction make it invalid, and the conversation continues without it.
        https://platform.claude.com/docs/en/build-with-claude/preserved-thinking/prefix-checks
        """
        from anthropic import BadRequestError

        try:
            return await self._stream(body(request, self.name), deltas)
        except BadRequestError as error:
            if _INVALID_THINKING not in (error.api_message or error.message):
                raise
            _log.warning("thinking refused, repeating the request without it", error=error.api_message)
        return await self._stream(body(request, self.name, thinking=False), deltas)

    async def _stream(self, arguments: dict[str, Any], deltas: DeltaSink) -> ModelReply:
        reader = ReplyReader(deltas)
        async with await self.client.messages.create(**arguments, stream=True) as stream:
            async for event in stream:
                await reader.take(event)
                if reader.full:
                    break
        return reader.reply()

    def _refusal(self, error: APIStatusError) -> Exception:
        message = error.api_message or error.message
        if error.status_code >= 400:
            return status_fault(self.name, error.status_code, message, error.response.headers)
        if error.type in _TRANSIENT_TYPES:
            return TransientFault(message)
        return ProviderFailed(self.name, message)
