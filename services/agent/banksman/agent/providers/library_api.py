"""Requests and replies in the terms of pydantic-ai-slim. Importing this module imports the library."""

from __future__ import annotations

import asyncio
import json
import os
import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from importlib import import_module
from typing import Any, assert_never, cast

import httpx
import httpx2
import pydantic_ai.messages as ai
from pydantic import ValidationError
from pydantic_ai.exceptions import AgentRunError, ModelConnectionError, ModelHTTPError, UserError
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from banksman.agent.protocols.base import ModelReply, ModelRequest
from banksman.agent.providers import exchanges as history
from banksman.agent.providers.base import DeltaSink, ProviderSettings
from banksman.agent.providers.collect import ReplyBuilder, as_object
from banksman.agent.providers.faults import TransientFault, status_fault
from banksman.agent.providers.openai_api import delay_of, error_in, text_of
from banksman.agent.providers.openai_request import EMPTY_MESSAGE
from banksman.agent.providers.profiles import Profile
from banksman.agent.providers.streams import IDENTITY, bounded, check_head, check_size, with_pieces
from banksman.contracts.errors import ProviderFailed
from banksman.contracts.events import FinishReason
from banksman.contracts.messages import Usage, UserMessage
from banksman.contracts.model_options import ModelOptions
from banksman.contracts.wire import JsonObject
from banksman.library_internals.httpcore_client import bound_responses
from banksman.runs.outcome import message_json
from banksman.runtime.model_servers import ProviderEntry
from banksman.runtime.tracing import outgoing

RESPONSE_FIELD = "response"
"""The field of a state with the whole reply in the form of the library, which has signatures and ids."""

_REGION = re.compile(r"bedrock-runtime(?:-fips)?\.([a-z0-9-]+)\.")
_FINISH_REASONS: Mapping[str | None, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
    "tool_call": "tool_calls",
}


class LibraryApi:
    """One vendor at one address."""

    def __init__(self, provider: str, settings: ProviderSettings, entry: ProviderEntry) -> None:
        bound_responses("httpcore")
        bound_responses("httpcore2")
        self._provider = provider
        self._settings = settings
        self._stack = AsyncExitStack()
        self._model = self._models(entry)

    async def close(self) -> None:
        await self._stack.aclose()

    async def complete(
        self, request: ModelRequest, profile: Profile, deltas: DeltaSink, silence_s: float
    ) -> ModelReply:
        """Request a reply once; raise `TimeoutError` after `silence_s` seconds of silence."""
        builder = ReplyBuilder(deltas)
        tools = [
            ToolDefinition(
                name=tool.name, description=tool.description, parameters_json_schema={**tool.input_schema}
            )
            for tool in request.tools
        ]
        parameters = ModelRequestParameters(function_tools=tools)
        clock = asyncio.get_running_loop().time
        try:
            async with (
                AsyncExitStack() as owned,
                asyncio.timeout(silence_s) as silence,
                self._model(request.model, owned).request_stream(
                    _messages(request, profile), _settings(request.options, profile), parameters
                ) as stream,
            ):
                async for event in stream:
                    silence.reschedule(clock() + silence_s)
                    await _take(builder, event)
                    if builder.full:
                        break
                return self._reply(builder, stream.get())
        except ModelHTTPError as error:
            body = error.body if isinstance(error.body, bytes) else json.dumps(error.body).encode()
            fields = error_in(body)
            text, headers = (
                f"{error.status_code}: {text_of(fields)}",
                {**delay_of(fields), **(error.headers or {})},
            )
            raise status_fault(self._provider, error.status_code, text, headers) from error
        except ModelConnectionError as error:
            raise TransientFault(f"the connection failed: {error}", reason="unreachable") from error
        except (UserError, NotImplementedError) as error:
            raise ProviderFailed(self._provider, f"the library refuses the request: {error}") from error
        except (
            AgentRunError,
            httpx.HTTPError,
            httpx2.HTTPError,
            OSError,
            ValueError,
            RecursionError,
        ) as error:
            if isinstance(error, TimeoutError):
                raise
            raise TransientFault(f"the stream broke off: {error}") from error

    def _reply(self, builder: ReplyBuilder, response: ai.ModelResponse) -> ModelReply:
        if response.finish_reason is None and not builder.full:
            raise TransientFault("the stream ended without a finish reason")
        opaque = any(
            isinstance(part, ai.ThinkingPart) or getattr(part, "provider_details", None)
            for part in response.parts
        )
        [written] = ai.ModelMessagesTypeAdapter.dump_python([response], mode="json")
        usage = Usage(
            input_tokens=response.usage.input_tokens,
            output_tokens=response.usage.output_tokens,
            cached_tokens=response.usage.cache_read_tokens,
            cache_written_tokens=response.usage.cache_write_tokens,
        )
        reason = response.finish_reason or ""
        state: JsonObject | None = {RESPONSE_FIELD: written} if opaque else None
        return builder.reply(_FINISH_REASONS.get(reason, "unknown"), reason, usage, state)

    def _models(self, entry: ProviderEntry) -> Callable[[str, AsyncExitStack], Model[Any]]:
        """Return the function that makes the model of a name. It imports only the vendor's own SDK.

        What a model has opened for one request is closed with the stack of the request.
        """
        key, url = entry.key, entry.base_url
        match entry.api:
            case "google":
                from pydantic_ai.models.google import GoogleModel
                from pydantic_ai.providers.google import GoogleProvider

                google = GoogleProvider(
                    api_key=key or "none", base_url=url, http_client=self._owned_http(httpx2)
                )
                return lambda name, _: GoogleModel(name, provider=google)
            case "mistral":
                from pydantic_ai.models.mistral import MistralModel
                from pydantic_ai.providers.mistral import MistralProvider

                mistral = MistralProvider(
                    api_key=key or "none", base_url=url, http_client=self._owned_http(httpx2)
                )
                return lambda name, _: MistralModel(name, provider=mistral)
            case "cohere":
                from cohere import AsyncClientV2
                from pydantic_ai.models.cohere import CohereModel
                from pydantic_ai.providers.cohere import CohereProvider

                sdk = AsyncClientV2(api_key=key or "none", base_url=url, httpx_client=self._owned_http(httpx))
                cohere = CohereProvider(cohere_client=sdk)
                return lambda name, _: CohereModel(name, provider=cohere)
            case "bedrock":
                from pydantic_ai.models.bedrock import BedrockConverseModel
                from pydantic_ai.providers.bedrock import BedrockProvider

                found = _REGION.search(url)
                region = found[1] if found else "us-east-1"
                if key:
                    bedrock = BedrockProvider(api_key=key, base_url=url, region_name=region)
                else:  # The SDK of AWS searches the environment and the disk for credentials.
                    bedrock = BedrockProvider(base_url=url, region_name=region)
                self._stack.callback(bedrock.client.close)
                self._bound_bodies(bedrock.client, url)
                return lambda name, _: BedrockConverseModel(name, provider=bedrock)
            case _:
                from huggingface_hub import set_async_client_factory
                from pydantic_ai.models.huggingface import HuggingFaceModel
                from pydantic_ai.providers.huggingface import HuggingFaceProvider

                # The SDK makes and closes a client for each of its own; it has one factory for all.
                set_async_client_factory(lambda: self._http(httpx))

                def hugging_face(name: str, owned: AsyncExitStack) -> HuggingFaceModel:
                    # The client of the SDK keeps each stream open until it is closed itself.
                    hub = HuggingFaceProvider(api_key=key or "none", base_url=url)
                    owned.push_async_callback(hub.client.close)
                    return HuggingFaceModel(name, provider=hub)

                return hugging_face

    def _bound_bodies(self, client: Any, url: str) -> None:
        """Let the SDK of AWS send with a session whose responses have at most `MAX_STREAM_BYTES`."""
        # Imported by name: the SDK has no types.
        httpsession: Any = import_module("botocore.httpsession")
        utils: Any = import_module("botocore.utils")
        config = client.meta.config
        session = httpsession.URLLib3Session(
            verify=os.environ.get("AWS_CA_BUNDLE") or True,
            proxies=utils.get_environ_proxies(url),
            timeout=(self._settings.connect_timeout_s, config.read_timeout),
            max_pool_connections=config.max_pool_connections,
        )
        self._stack.callback(session.close)

        def send(request: Any, **_: object) -> Any:
            response = session.send(request)
            response.raw = _Body(response.raw, self._provider)
            return response

        client.meta.events.register("before-send.bedrock-runtime", send)

    def _owned_http(self, library: Any) -> Any:
        client = self._http(library)
        self._stack.push_async_callback(client.aclose)
        return client

    def _http(self, library: Any) -> Any:
        """Return a client of httpx or httpx2 that bounds what a server sends, and follows no redirect."""

        async def bound(response: Any) -> None:
            check_head(self._provider, response.status_code, response.headers)
            pieces = bounded(self._provider, response.stream)
            response.stream = with_pieces(response.stream, pieces, library.AsyncByteStream)
            if response.status_code >= 400:
                await response.aread()  # The SDK of Hugging Face looks at the body without reading it.

        async def trace(request: Any) -> None:
            request.headers.update(outgoing())

        return library.AsyncClient(
            timeout=library.Timeout(None, connect=self._settings.connect_timeout_s),
            limits=library.Limits(max_connections=None),
            headers={"Accept-Encoding": IDENTITY},
            event_hooks={"request": [trace], "response": [bound]},
        )


class _Body:
    """The body of a response of botocore, which reads it in a thread of its own."""

    def __init__(self, raw: Any, provider: str) -> None:
        self._raw = raw
        self._provider = provider

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def stream(self) -> Iterator[bytes]:
        size = 0
        for piece in self._raw.stream():
            size += len(piece)
            check_size(self._provider, size)
            yield piece


def _settings(options: ModelOptions, profile: Profile) -> ModelSettings:
    # Marks for the cache of vendors that want them, as Bedrock does.
    settings = ModelSettings(cache=True)
    if options.max_tokens is not None:
        settings["max_tokens"] = options.max_tokens
    if options.temperature is not None:
        settings["temperature"] = options.temperature
    if options.parallel_tool_calls is not None:
        settings["parallel_tool_calls"] = options.parallel_tool_calls
    if options.reasoning_effort is not None:
        settings["thinking"] = False if options.reasoning_effort == "none" else options.reasoning_effort
    elif profile.reasoning_summary:
        settings["thinking"] = True  # As much as the model does by itself, and written into the reply.
    return settings


def _messages(request: ModelRequest, profile: Profile) -> list[ai.ModelMessage]:
    sent: list[ai.ModelMessage] = []
    parts: list[ai.ModelRequestPart] = [ai.SystemPromptPart(request.system)] if request.system else []
    for item in history.paired(request.messages, profile.call_id):
        match item:
            case UserMessage():
                content: list[ai.UserContent] = [
                    _part(part) for part in history.sent_parts(item.content) or [EMPTY_MESSAGE]
                ]
                parts.append(ai.UserPromptPart(content))
            case history.ModelExchange():
                if parts:
                    sent.append(ai.ModelRequest(parts=parts))
                response = _response(item)
                sent += [response] if response.parts else []
                parts = [
                    ai.ToolReturnPart(call.name, message_json(call.message), call.id) for call in item.calls
                ]
            case _:
                assert_never(item)
    return [*sent, ai.ModelRequest(parts=parts)] if parts else sent


def _part(part: history.SentPart) -> ai.UserContent:
    match part:
        case str():
            return part
        case history.InlineImage(media_type, base64):
            return ai.BinaryContent(b64decode(base64), media_type=media_type)
        case history.InlineDocument(base64):
            return ai.BinaryContent(b64decode(base64), media_type=history.PDF)
        case history.LinkedImage(url):
            # The library would fetch it in this process, whose network reaches more than the tenant's.
            return f"[The user attached an image at {url}, which this model cannot read.]"
        case _:
            assert_never(part)


def _response(exchange: history.ModelExchange) -> ai.ModelResponse:
    """Return a reply as the library wrote it, if it is its own; otherwise its text and its calls."""
    written = as_object((exchange.reply.provider_state or {}).get(RESPONSE_FIELD))
    try:
        [own] = ai.ModelMessagesTypeAdapter.validate_python([written]) if written else [None]
    except (ValidationError, ValueError):
        own = None
    ids = [call.id for call in exchange.calls]
    if isinstance(own, ai.ModelResponse) and [call.tool_call_id for call in own.tool_calls] == ids:
        return own
    text = exchange.reply.content or ""
    calls = [ai.ToolCallPart(call.name, {**call.arguments}, call.id) for call in exchange.calls]
    return ai.ModelResponse(parts=[*([ai.TextPart(text)] if text.strip() else []), *calls])


async def _take(builder: ReplyBuilder, event: ai.ModelResponseStreamEvent) -> None:
    match event:
        case ai.PartStartEvent(index=index, part=piece) | ai.PartDeltaEvent(index=index, delta=piece):
            pass
        case _:
            return
    match piece:
        case ai.TextPart(content=text) | ai.TextPartDelta(content_delta=text):
            await builder.add_text(text)
        case ai.ThinkingPart(content=text) | ai.ThinkingPartDelta(content_delta=str(text)):
            await builder.add_reasoning(text)
        case (
            ai.ToolCallPart(tool_name=name, args=arguments, tool_call_id=id)
            | ai.ToolCallPartDelta(tool_name_delta=name, args_delta=arguments, tool_call_id=id)
        ):
            builder.add_call(index, id=id, name=name, arguments=cast("str | JsonObject | None", arguments))
        case _:
            pass
