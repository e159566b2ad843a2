"""OpenAI's Chat Completions API and compatible servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from json import JSONDecodeError
from typing import TYPE_CHECKING, Any

from banksman.agent.protocols.base import ModelReply, ModelRequest
from banksman.agent.providers.base import DeltaSink, ProviderSettings
from banksman.agent.providers.collect import ReplyBuilder
from banksman.agent.providers.loose_json import as_count, as_list, as_object, as_text
from banksman.agent.providers.openai_request import body
from banksman.agent.providers.sdk import SdkProvider, TransientFault, status_fault
from banksman.contracts.errors import ProviderFailed
from banksman.contracts.events import FinishReason
from banksman.contracts.messages import Usage
from banksman.contracts.wire import JsonObject

if TYPE_CHECKING:
    from openai import APIError, APIStatusError, AsyncOpenAI, Timeout


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
        from openai import AsyncOpenAI, DefaultAioHttpClient

        return AsyncOpenAI(
            # The SDK requires a key. Servers without keys ignore it.
            api_key=self._api_key or "none",
            base_url=self._base_url,
            max_retries=0,
            http_client=DefaultAioHttpClient(),
        )

    def timeout(self, model: str) -> Timeout:
        """Return the time limits of a request to a model."""
        from openai import Timeout

        silence_s = self.settings.silence_s(f"{self.name}:{model}")
        return Timeout(silence_s, connect=self.settings.connect_timeout_s)

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
            if isinstance(error.__cause__, httpx2.ReadTimeout):
                raise self.silent(request.model) from error
            raise TransientFault(f"the connection failed: {error.__cause__ or error.message}") from error
        except APIError as error:
            raise self._stream_fault(error) from error
        except httpx2.ReadTimeout as error:
            raise self.silent(request.model) from error
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
            options={"timeout": self.timeout(request.model)},
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


_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}

# vLLM, DeepSeek and others stream reasoning in the first of these fields, OpenRouter in the second.
_REASONING_FIELDS = ("reasoning_content", "reasoning")


class ReplyReader:
    """Reads the chunks of one streamed reply. Compatible servers omit any field or set it to null."""

    def __init__(self, deltas: DeltaSink) -> None:
        self._builder = ReplyBuilder(deltas)
        self._finish_reason = ""
        self._usage: dict[str, Any] = {}
        self._reasoning_field = ""

    @property
    def full(self) -> bool:
        """True if the reply reached its size limit and the rest of the stream is not needed."""
        return self._builder.full

    async def take(self, chunk: object) -> None:
        """Read the next chunk."""
        fields = as_object(chunk)
        self._usage = as_object(fields.get("usage")) or self._usage
        for choice in map(as_object, as_list(fields.get("choices"))):
            self._finish_reason = as_text(choice.get("finish_reason")) or self._finish_reason
            await self._take_delta(as_object(choice.get("delta")))

    def reply(self) -> ModelReply:
        """Return the complete reply.

        Raises:
            TransientFault: The stream ended without a finish reason. The SDK reports this as success, but the
                connection may have been closed early.
        """
        reason = self._finish_reason
        if not reason and not self.full:
            raise TransientFault("the stream ended without a finish reason")
        finish_reason = _FINISH_REASONS.get(reason, "unknown")
        state: JsonObject | None = (
            {self._reasoning_field: self._builder.reasoning} if self._reasoning_field else None
        )
        return self._builder.reply(finish_reason, reason, _usage(self._usage), state)

    async def _take_delta(self, delta: dict[str, Any]) -> None:
        await self._builder.add_text(as_text(delta.get("content")) or as_text(delta.get("refusal")))
        for call in map(as_object, as_list(delta.get("tool_calls"))):
            self._take_call(call)
        for field in _REASONING_FIELDS:
            piece = as_text(delta.get(field))
            if piece:
                self._reasoning_field = field
                await self._builder.add_reasoning(piece)
                return

    def _take_call(self, call: dict[str, Any]) -> None:
        function = as_object(call.get("function"))
        arguments = function.get("arguments")
        self._builder.add_call(
            self._index(call),
            id=as_text(call.get("id")),
            name=as_text(function.get("name")),
            arguments=as_object(arguments) or as_text(arguments),
        )

    def _index(self, call: dict[str, Any]) -> int:
        """Return the call's index.

        Without one, an id starts the next call; a fragment without id continues the last.
        """
        index = call.get("index")
        if isinstance(index, int):
            return index
        last = self._builder.last_call()
        if last is None:
            return 0
        return last + 1 if call.get("id") else last


def _usage(usage: dict[str, Any]) -> Usage:
    details = as_object(usage.get("prompt_tokens_details"))
    return Usage(
        input_tokens=as_count(usage.get("prompt_tokens")),
        output_tokens=as_count(usage.get("completion_tokens")),
        cached_tokens=as_count(details.get("cached_tokens")),
    )
