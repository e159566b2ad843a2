"""Requests to a server of the OpenAI format over one connection pool, and the chunks of its replies.

Importing this module imports aiohttp.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

import aiohttp

from banksman.agent.providers import streams
from banksman.agent.providers.base import ProviderSettings
from banksman.agent.providers.faults import TransientFault, shown_reason, status_fault
from banksman.agent.providers.responses import ENDS, FAILED
from banksman.agent.providers.untyped import as_list, as_object, as_text
from banksman.contracts.errors import ProviderFailed
from banksman.contracts.wire import JsonObject, JsonValue
from banksman.library_internals.aiohttp_client import bound_interim_responses
from banksman.runtime.model_servers import ProviderEntry
from banksman.runtime.outgoing import proxy_for
from banksman.runtime.tracing import outgoing

_LASTING_TYPES = frozenset({"invalid_request_error", "authentication_error", "permission_error"})
_LASTING_CODES = frozenset({"context_length_exceeded", "content_filter"})

_KINDS = {
    503: ("overloaded", "unavailable", "capacity"),
    429: ("rate_limit", "too_many_requests", "throttl", "resource_exhausted"),
    402: ("insufficient_quota", "insufficient_balance"),
    401: ("invalid_api_key",),
}
"""What the code, status or type of an error in a stream means, as the status of such a refusal."""

_TRY_AGAIN = re.compile(
    r"(?:try again|retry|wait)(?: in| after| for)? (\d(?:[\d.hms]*[\dhms])?)", re.IGNORECASE
)
"""`Please try again in 7m12.3s.`, `Please retry after 20 seconds.`"""

_FETCH_S = 5.0
"""Seconds for a question about the server itself, which no request waits for."""
MAX_FETCHED_BYTES = 1024 * 1024

_END_S = 0.1
"""Seconds to wait for the end of a stream after the last event."""

_END = streams.END_FIELD.encode()
"""The data of the last event of a stream."""


class OpenAIApi:
    """The APIs of one address."""

    def __init__(self, provider: str, settings: ProviderSettings, entry: ProviderEntry) -> None:
        self._provider = provider
        self._connect_s = settings.connect_timeout_s
        self._url = entry.base_url.rstrip("/")
        # The proxy is looked up once: aiohttp would do so in a thread for each request.
        self._proxy = proxy_for(self._url)
        self._headers = {
            "Accept": "application/json",
            "Accept-Encoding": streams.IDENTITY,
            "Content-Type": "application/json",
            "User-Agent": "banksman",
        }
        if entry.key:
            self._headers["Authorization"] = f"Bearer {entry.key}"

    async def chunks(
        self, path: str, body: Mapping[str, Any], silence_s: float
    ) -> AsyncGenerator[dict[str, Any]]:
        """Request a streamed reply and yield its chunks; a chunk that is not an object becomes `{}`.

        Raises:
            TimeoutError: No byte arrived for `silence_s` seconds.
            TransientFault: Another attempt may succeed.
            ProviderFailed: The server refused the request.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_s, sock_read=silence_s)
        data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        try:
            async with self._session.post(
                f"{self._url}/{path}",
                data=data,
                headers=outgoing(),
                timeout=timeout,
                proxy=self._proxy,
                allow_redirects=False,
            ) as response:
                streams.check_head(self._provider, response.status, response.headers)
                if response.status != 200:
                    raise await self._refusal(response)
                async for data in streams.events_in(self._provider, response.content.iter_any()):
                    ends = data.startswith(_END)
                    chunk = {streams.END_FIELD: True} if ends else self._chunk(data)
                    yield chunk
                    if ends or chunk.get("type") in ENDS:
                        await _read_to_end(response.content)
                        return
        except aiohttp.SocketTimeoutError as error:
            raise TimeoutError from error
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise TransientFault(f"the connection failed: {error}", reason="unreachable") from error
        except (aiohttp.ClientError, OSError) as error:
            raise TransientFault(f"the stream broke off: {error}") from error

    async def fetch(self, url: str, body: JsonObject | None) -> JsonValue:
        """Return the JSON at a URL of this server; None for every error and for a large reply."""
        timeout = aiohttp.ClientTimeout(total=_FETCH_S)
        ask = partial(self._session.request, "POST" if body else "GET", url, json=body, proxy=self._proxy)
        try:
            async with ask(timeout=timeout, allow_redirects=False) as response:
                text = await _beginning(response.content, MAX_FETCHED_BYTES)
                return json.loads(text) if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, RecursionError):
            return None

    async def close(self) -> None:
        if "_session" in self.__dict__:
            await self._session.close()

    @cached_property
    def _session(self) -> aiohttp.ClientSession:
        # Not in `__init__`, which runs in a thread: a session belongs to the event loop.
        bound_interim_responses()
        return aiohttp.ClientSession(
            headers=self._headers,
            # An open stream occupies its connection: with a limit, requests would wait for others.
            connector=aiohttp.TCPConnector(limit=0, ssl=ssl.create_default_context()),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    def _chunk(self, data: bytes) -> dict[str, Any]:
        chunk = streams.json_event(data)
        failed = as_object(chunk.get("response")).get("error") if chunk.get("type") == FAILED else None
        is_error = "error" in (chunk.get("object"), chunk.get("type"))
        if error := chunk.get("error") or failed or (chunk if is_error else None):
            raise self._stream_fault(error)
        return chunk

    async def _refusal(self, response: aiohttp.ClientResponse) -> Exception:
        error = error_in(await _beginning(response.content))
        message = f"{response.status} {response.reason or ''}".rstrip()
        if text := text_of(error):
            message = f"{message}: {text}"
        if response.status in (404, 405) and "/" not in self._url.partition("://")[2]:
            message = f"{message} (most servers need /v1 in base_url)"
        if as_text(error.get("code")) in _LASTING_CODES:
            return ProviderFailed(self._provider, shown_reason(message), status=response.status)
        return status_fault(
            self._provider,
            response.status,
            message,
            {**delay_of(error), **{name.lower(): value for name, value in response.headers.items()}},
        )

    def _stream_fault(self, error: object) -> Exception:
        fields = {**as_object(error), "message": _message_in(error)}
        message = text_of(fields) or "an error in the stream"
        if status := _status_in(fields):
            return status_fault(self._provider, status, f"{status}: {message}", delay_of(fields))
        if as_text(fields.get("type")) in _LASTING_TYPES or as_text(fields.get("code")) in _LASTING_CODES:
            return ProviderFailed(self._provider, shown_reason(message))
        return TransientFault(message)


def _status_in(error: dict[str, Any]) -> int | None:
    """Return the HTTP status that an error in a stream states, or that its kind has otherwise."""
    values = [error.get(name) for name in ("code", "status_code", "http_status", "status", "type")]
    for value in values:
        status = int(value) if isinstance(value, str) and value.isdecimal() and len(value) == 3 else value
        if isinstance(status, int) and 400 <= status < 600:
            return status
    kinds = " ".join(map(as_text, values)).lower()
    return next((status for status, words in _KINDS.items() if any(word in kinds for word in words)), None)


def text_of(error: dict[str, Any]) -> str:
    """Return the message of an error with its code, and what OpenRouter states as the vendor's own error."""
    text = as_text(error.get("message"))
    code = as_text(error.get("code")) or as_text(error.get("type"))
    raw = as_text(as_object(error.get("metadata")).get("raw"))
    return " ".join(part for part in (text, raw, f"({code})" if code else "") if part)


def delay_of(error: dict[str, Any]) -> dict[str, str]:
    """Return the time to wait that the body of a refusal states, as headers: in details, or in its text."""
    details = map(as_object, as_list(error.get("details")))
    delays = [as_text(detail.get("retryDelay")) for detail in details]
    if told := _TRY_AGAIN.search(as_text(error.get("message"))):
        delays.append(told[1] + ("s" if told[1].isdecimal() else ""))
    delay = next(filter(None, delays), "")
    of_router = as_object(as_object(error.get("metadata")).get("headers"))
    headers = {name.lower(): value for name, value in of_router.items() if isinstance(value, str)}
    return {**headers, "retry-after": delay} if delay else headers


def error_in(body: bytes) -> dict[str, Any]:
    """Return the error object of a refusal; without one, an object with the whole text as its message."""
    text = body.decode("utf-8", "replace").strip()
    try:
        fields = streams.json_event(body)
    except TransientFault:
        return {"message": text}
    error = fields.get("error") or fields
    return {**as_object(error), "message": _message_in(error) or text}


def _message_in(error: object) -> str:
    """Return the sentence of an error, in whichever field a server writes it."""
    fields = as_object(error)
    named = (fields.get(name) for name in ("message", "detail", "msg", "error"))
    return as_text(error) or next((text for text in map(as_text, named) if text), "")


async def _beginning(content: aiohttp.StreamReader, most: int = streams.MAX_ERROR_BYTES) -> bytes:
    read = bytearray()
    with suppress(TimeoutError):
        async with asyncio.timeout(streams.REFUSAL_S):
            while len(read) < most and (piece := await content.read(most - len(read))):
                read += piece
    return bytes(read)


async def _read_to_end(content: aiohttp.StreamReader) -> None:
    """Read a finished stream to its end, after which its connection can serve the next request."""
    if content.at_eof():
        return
    # The reply is complete, so an error of the connection does not matter.
    with suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(_END_S):
            async for _ in content.iter_any():
                pass
