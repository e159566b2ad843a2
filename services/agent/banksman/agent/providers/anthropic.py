"""Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from json import JSONDecodeError
from typing import TYPE_CHECKING, Any, cast

from banksman.agent.protocols.base import ModelReply, ModelRequest
from banksman.agent.providers import streams
from banksman.agent.providers.anthropic_request import THINKING_FIELD, body
from banksman.agent.providers.base import DeltaSink
from banksman.agent.providers.collect import ReplyBuilder, as_tokens
from banksman.agent.providers.faults import TransientFault, status_fault
from banksman.agent.providers.profiles import Profile
from banksman.agent.providers.retrying import RetryingProvider
from banksman.agent.providers.untyped import as_count, as_list, as_object, as_text, well_formed
from banksman.contracts.errors import ProviderFailed
from banksman.contracts.live_output import WaitReason
from banksman.contracts.messages import Usage
from banksman.contracts.wire import JsonObject, JsonValue
from banksman.library_internals.python_imports import defer
from banksman.runtime.tracing import outgoing

if TYPE_CHECKING:
    import httpx2
    from anthropic import APIStatusError, AsyncAnthropic, Timeout


# An error inside a stream has the status 200 of the stream, so its type decides.
# https://docs.anthropic.com/en/api/errors
_TRANSIENT_TYPES: Mapping[str, WaitReason] = {
    "overloaded_error": "overloaded",
    "rate_limit_error": "rate_limited",
    "api_error": "failed",
    "timeout_error": "failed",
}

# The adapter needs only the client, its stream and its errors. The package's `__init__` also imports the
# types of all requests and replies, which are 2,900 modules. See docs/decisions/0057.
defer("anthropic", "_client", "_streaming", "_exceptions", "_base_client")


class Anthropic(RetryingProvider["AsyncAnthropic"]):
    def make_client(self) -> AsyncAnthropic:
        import httpx2
        from anthropic import AsyncAnthropic, DefaultAioHttpClient

        from banksman.library_internals.aiohttp_client import bound_interim_responses

        bound_interim_responses()
        return AsyncAnthropic(
            # With None, the SDK searches the environment and the disk for credentials.
            api_key=self.entry.key or "none",
            # The SDK's paths begin with the version; `/v1` is what users write for the other APIs.
            base_url=self.entry.base_url.rstrip("/").removesuffix("/v1"),
            max_retries=0,
            # The slots bound the requests. For aiohttp 0 is no limit; that of the SDK is 1,000 connections.
            http_client=DefaultAioHttpClient(
                limits=httpx2.Limits(max_connections=0),
                follow_redirects=False,
                headers={"Accept-Encoding": streams.IDENTITY},
                event_hooks={"response": [self._check_head]},
            ),
        )

    def timeout(self, model: str) -> Timeout:
        from anthropic import Timeout

        return Timeout(self.silence_s(model), connect=self.settings.connect_timeout_s)

    def attempts(self, request: ModelRequest, deltas: DeltaSink) -> Callable[[], Awaitable[ModelReply]]:
        return partial(self._attempt, request, deltas)

    async def _attempt(self, request: ModelRequest, deltas: DeltaSink) -> ModelReply:
        import httpx2
        from anthropic import APIConnectionError, APIStatusError

        try:
            profile = self.profile(request.model)
            return await self._stream(
                body(request, self.name, profile), AnthropicReplyReader(deltas, profile)
            )
        except APIStatusError as error:
            raise self._refusal(error) from error
        except APIConnectionError as error:
            if isinstance(error.__cause__, ProviderFailed):
                raise error.__cause__ from None
            if isinstance(error.__cause__, httpx2.ReadTimeout):
                raise self.silent(request.model) from error
            unreachable = isinstance(error.__cause__, httpx2.ConnectError | httpx2.ConnectTimeout)
            raise TransientFault(
                f"the connection failed: {error.__cause__ or error.message}",
                reason="unreachable" if unreachable else "failed",
            ) from error
        except httpx2.ReadTimeout as error:
            raise self.silent(request.model) from error
        except (httpx2.HTTPError, OSError, JSONDecodeError, UnicodeDecodeError) as error:
            raise TransientFault(f"the stream broke off: {error}") from error

    async def _stream(self, arguments: dict[str, Any], reader: AnthropicReplyReader) -> ModelReply:
        from anthropic import AsyncStream

        # The SDK's API for untyped requests: the modules of its typed models take a second of CPU to import.
        async with await self.client.post(
            "/v1/messages",
            body={**arguments, "stream": True},
            options={"timeout": self.timeout(arguments["model"]), "headers": outgoing()},
            cast_to=object,
            stream=True,
            stream_cls=AsyncStream[object],
        ) as stream:
            # The SDK's own decoder holds an event of any size.
            async for data in streams.events_in(self.name, stream.response.aiter_raw()):
                event = streams.json_event(data)
                if error := as_object(event.get("error")):
                    raise self._stream_fault(error)
                await reader.take(event)
                if reader.full:
                    break
        return reader.reply()

    async def _check_head(self, response: httpx2.Response) -> None:
        from httpx2 import AsyncByteStream

        streams.check_head(self.name, response.status_code, response.headers)
        if response.is_error:
            # The SDK reads the body of a refusal to its end.
            pieces = streams.beginning(cast(AsyncByteStream, response.stream))
            response.stream = streams.with_pieces(response.stream, pieces, AsyncByteStream)

    def _stream_fault(self, error: dict[str, Any]) -> Exception:
        message = as_text(error.get("message")) or "an error in the stream"
        reason = _TRANSIENT_TYPES.get(as_text(error.get("type")))
        return TransientFault(message, reason=reason) if reason else ProviderFailed(self.name, message)

    def _refusal(self, error: APIStatusError) -> Exception:
        message = error.api_message or error.message
        return status_fault(self.name, error.status_code, message, error.response.headers)


_WRITTEN_1H = "ephemeral_1h_input_tokens"
_COUNTS = frozenset(
    {"input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens", _WRITTEN_1H}
)


@dataclass(slots=True)
class _Thinking:
    """A thinking block, which later requests return unchanged."""

    text: list[str] = field(default_factory=list[str])
    signature: list[str] = field(default_factory=list[str])
    redacted: str | None = None

    def param(self) -> JsonObject:
        if self.redacted is not None:
            return {"type": "redacted_thinking", "data": well_formed(self.redacted)}
        return {
            "type": "thinking",
            "thinking": well_formed("".join(self.text)),
            "signature": well_formed("".join(self.signature)),
        }


class AnthropicReplyReader:
    def __init__(self, deltas: DeltaSink, profile: Profile) -> None:
        self._builder = ReplyBuilder(deltas)
        self._profile = profile
        self._thinking: dict[int, _Thinking] = {}
        self._order: dict[int, JsonObject] = {}
        """The texts, by their number of characters, and the calls between which thinking may stand."""
        self._blocks = 0
        """The number of blocks that began."""
        self._places: dict[int, int] = {}
        """The newest block of each index that the server uses."""
        self._counts: dict[str, int] = {}
        self._stop_reason = ""
        self._complete = False

    @property
    def full(self) -> bool:
        return self._builder.full

    async def take(self, event: object) -> None:
        """Read the next event. Unknown types are ignored, as the API's versioning rules require."""
        fields = as_object(event)
        match fields.get("type"):
            case "message_start":
                self._count(as_object(as_object(fields.get("message")).get("usage")))
            case "content_block_start":
                await self._start(fields.get("index"), as_object(fields.get("content_block")))
            case "content_block_delta":
                at = self._places.get(as_count(fields.get("index")), self._blocks - 1)
                await self._continue(max(at, 0), as_object(fields.get("delta")))
            case "message":
                await self._take_whole(fields)
            case "message_delta":
                reason = as_text(as_object(fields.get("delta")).get("stop_reason"))
                self._stop_reason = reason or self._stop_reason
                self._count(as_object(fields.get("usage")))
            case "message_stop":
                self._complete = True
            case _:
                pass

    async def _start(self, index: object, block: dict[str, Any]) -> None:
        """Begin the next block. Some servers give several blocks the same index."""
        self._places[as_count(index)] = self._blocks
        await self._begin(self._blocks, block)
        self._blocks += 1

    async def _take_whole(self, message: dict[str, Any]) -> None:
        """Read a whole message, which a server sent instead of a stream."""
        for block in map(as_object, as_list(message.get("content"))):
            await self._start(None, block)
        self._stop_reason, self._complete = as_text(message.get("stop_reason")), True
        self._count(as_object(message.get("usage")))

    def reply(self) -> ModelReply:
        """Return the complete reply; raise `TransientFault` if the stream ended before its last event."""
        if not self._complete and not self.full:
            raise TransientFault("the stream ended before the message was complete")
        reason = self._stop_reason
        known = self._profile.finish_reasons.get(reason, "unknown")
        return self._builder.reply(known, reason, self._usage(), self._state())

    async def _begin(self, index: int, block: dict[str, Any]) -> None:
        match block.get("type"):
            case "text":
                await self._add_text(index, as_text(block.get("text")))
            case "tool_use":
                self._order[index] = {"type": "call"}
                # Anthropic sends the input in later fragments, some compatible servers here.
                self._builder.add_call(
                    index,
                    id=as_text(block.get("id")),
                    name=as_text(block.get("name")),
                    arguments=as_object(block.get("input")) or None,
                )
            case "thinking":
                text = as_text(block.get("thinking"))
                self._thinking[index] = _Thinking([text], [as_text(block.get("signature"))])
                await self._builder.add_reasoning(text)
            case "redacted_thinking":
                self._thinking[index] = _Thinking(redacted=as_text(block.get("data")))
            case _:
                pass

    async def _continue(self, index: int, delta: dict[str, Any]) -> None:
        match delta.get("type"):
            case "text_delta":
                await self._add_text(index, as_text(delta.get("text")))
            case "input_json_delta" if self._builder.has_call(index):
                self._builder.add_call(index, arguments=as_text(delta.get("partial_json")))
            case "thinking_delta":
                text = as_text(delta.get("thinking"))
                self._thinking.setdefault(index, _Thinking()).text.append(text)
                await self._builder.add_reasoning(text)
            case "signature_delta":
                signature = as_text(delta.get("signature"))
                self._thinking.setdefault(index, _Thinking()).signature.append(signature)
            case _:
                pass

    async def _add_text(self, index: int, text: str) -> None:
        before = as_count(self._order.get(index, {}).get("chars"))
        self._order[index] = {"type": "text", "chars": before + len(text)}
        await self._builder.add_text(text)

    def _count(self, usage: dict[str, Any]) -> None:
        """Store the highest value of each count. The last event repeats only some."""
        written = as_object(usage.get("cache_creation"))
        for name, value in {**usage, _WRITTEN_1H: written.get(_WRITTEN_1H)}.items():
            if name in _COUNTS and isinstance(value, int):
                # Servers with this format repeat counts as 0 in the first or the last event.
                self._counts[name] = max(as_tokens(value), self._counts.get(name, 0))

    def _usage(self) -> Usage:
        cached = self._counts.get("cache_read_input_tokens", 0)
        written = self._counts.get("cache_creation_input_tokens", 0)
        return Usage(
            # The vendor's `input_tokens` exclude cached tokens; ours include them.
            input_tokens=self._counts.get("input_tokens", 0) + cached + written,
            output_tokens=self._counts.get("output_tokens", 0),
            cached_tokens=cached,
            cache_written_tokens=written,
            cache_written_1h_tokens=min(written, self._counts.get(_WRITTEN_1H, 0)),
        )

    def _state(self) -> JsonObject | None:
        if not self._thinking:
            return None
        thinking = {index: block.param() for index, block in self._thinking.items()}
        before = {index: mark for index, mark in self._order.items() if index < max(thinking)}
        blocks: list[JsonValue] = [block for _, block in sorted((thinking | before).items())]
        return {THINKING_FIELD: blocks}
