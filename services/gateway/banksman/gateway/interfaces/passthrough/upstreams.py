"""The model APIs that passthrough forwards to: their headers, requests and lists of models."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import re
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from yarl import URL

from banksman.contracts.errors import CallerMistake, Unavailable
from banksman.contracts.wire import JsonObject
from banksman.gateway.settings import Dialect, Upstream
from banksman.library_internals.aiohttp_client import bound_interim_responses
from banksman.runtime.background import Background, BackgroundTask
from banksman.runtime.model_servers import MAX_LIST_BYTES, listed_models
from banksman.runtime.outgoing import proxy_for
from banksman.runtime.redaction import redacted
from banksman.runtime.scope import Scoped
from banksman.runtime.waits import set_within

logger = logging.getLogger(__name__)

CONNECT_S = 5.0
WHOLE_BODY_BYTES = 2**20
"""A larger body is sent as a file, in chunks: aiohttp writes bytes at once, which delays other requests."""
MAX_ERROR_BYTES = 256 * 1024
"""Bytes of an error's body that are forwarded. They are read first, because chunks may divide a key."""
ERROR_S = 5.0
"""Seconds for which the body of an error is read; the client gets what arrived."""
HEAD_BYTES = 4096
"""Bytes at the beginning of a successful body in which an error is looked for."""
MAX_READ_BYTES = 4 * 1024 * 1024
"""Bytes of an error with the status of a success that are read before they are forwarded."""
_ERROR = re.compile(rb'"error"\s*:\s*["{]|"(?:type|object)"\s*:\s*"error"')
"""Matches an error, which some servers and proxies send with status 200. In a text, quotes are escaped."""

REQUEST_HEADERS = frozenset(
    {
        "accept",
        "accept-language",
        "content-type",
        "idempotency-key",
        "originator",
        "session-id",
        "traceparent",
        "user-agent",
        "x-app",
        "x-client-request-id",
    }
)
REQUEST_PREFIXES = ("anthropic-", "openai-", "x-stainless-")
RESPONSE_HEADERS = frozenset(
    {"content-type", "retry-after", "retry-after-ms", "request-id", "x-request-id", "x-should-retry"}
)
RESPONSE_PREFIXES = ("anthropic-", "openai-", "x-ratelimit-")
# These headers select an account of the vendor, but the key, and so the account, is the gateway's.
_ACCOUNT_HEADERS = frozenset({"openai-organization", "openai-project"})

REFRESH_S = 300.0
RETRY_S = 10.0
TIMEOUT_S = 10.0
FIRST_LIST_S = 2.0
MAX_TIME = 2**33
"""Seconds since 1970; a later time of an upstream is treated as an error."""


class ModelRefused(CallerMistake):
    """No upstream serves a model; `status` and `reason` are the HTTP status and the code of the error."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status = status
        self.reason = reason
        super().__init__(message)


def unknown_model(model: str) -> ModelRefused:
    return ModelRefused(404, "model_not_found", f"The model {model[:200]!r} does not exist.")


class UpstreamUnavailable(Unavailable):
    """An upstream cannot be reached, does not respond, or breaks off."""

    def __init__(self, name: str, problem: str, *, status: int = 502) -> None:
        self.status = status
        """The HTTP status for the client, if its response has not begun."""
        super().__init__(f"The upstream {name} {problem}.")


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    path: str
    query: str
    body: bytes
    headers: Mapping[str, str]
    dialect: Dialect


class _Stopping(Exception):
    """The gateway stops and cannot wait any longer for an upstream."""


@dataclass(frozen=True, slots=True)
class UpstreamResponse:
    status: int
    headers: Mapping[str, str]
    body: AsyncGenerator[bytes]
    """Closing it closes the connection, which cancels the upstream's request."""
    upstream: Upstream

    @property
    def is_event_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")


class Upstreams(Scoped):
    """All upstreams, with one connection pool. As a context manager it also refreshes the lists of models."""

    def __init__(self, upstreams: tuple[Upstream, ...], background: Background, *, timeout_s: float) -> None:
        bound_interim_responses()
        self._upstreams = upstreams
        self._timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=timeout_s)
        self._session: aiohttp.ClientSession
        self._stopping = False
        self._opening: set[asyncio.Task[UpstreamResponse]] = set()
        self._reading: set[aiohttp.ClientResponse] = set()
        self.lists = ModelLists(upstreams, background)

    async def _enter(self, scope: AsyncExitStack) -> None:
        self._session = await scope.enter_async_context(
            aiohttp.ClientSession(
                timeout=self._timeout,
                # An open stream occupies its connection: with a limit, requests would wait for other clients.
                connector=aiohttp.TCPConnector(limit=0, ssl=ssl.create_default_context()),
            )
        )
        scope.push_async_callback(self.lists.start(self._session).stop)

    def candidates(
        self, model: str, dialect: Dialect, own: tuple[Upstream, ...] = ()
    ) -> tuple[Upstream, ...]:
        """Return the upstreams that may serve a model: first those that list it, each in configured order.

        `own` are those of the caller's tenant, in their order after the configured ones.
        """
        serving = [upstream for upstream in (*self._upstreams, *own) if upstream.serves(model)]
        found = [upstream for upstream in serving if dialect in upstream.dialects]
        if not serving:
            raise unknown_model(model)
        if not found:
            message = f"no upstream for model {model[:200]!r} supports the {dialect} API"
            raise ModelRefused(400, "unsupported_endpoint_for_model", message)
        return tuple(sorted(found, key=lambda one: not (self.lists.has(one, model) or model in one.models)))

    def open(
        self, candidates: tuple[Upstream, ...], request: ForwardedRequest
    ) -> asyncio.Task[UpstreamResponse]:
        """Start to forward a request; the task returns the response with its headers.

        After a 404 the next candidate is tried, because the upstream has done nothing. The caller reads or
        closes the body. The task raises `UpstreamUnavailable`.
        """
        task = asyncio.create_task(self._open(candidates, request))
        self._opening.add(task)
        task.add_done_callback(self._opened)
        return task

    def _opened(self, task: asyncio.Task[UpstreamResponse]) -> None:
        self._opening.discard(task)
        if not task.cancelled():
            # A client may disconnect before its response is read; asyncio would log the task's error.
            task.exception()

    async def _open(self, candidates: tuple[Upstream, ...], request: ForwardedRequest) -> UpstreamResponse:
        *earlier, last = candidates
        for upstream in earlier:
            response = await self._post(upstream, request)
            if response.status != 404:
                return self._response(response, upstream)
            response.close()
        return self._response(await self._post(last, request), last)

    async def _post(self, upstream: Upstream, request: ForwardedRequest) -> aiohttp.ClientResponse:
        url = URL(upstream.url(request.path, request.query), encoded=True)
        headers = request_headers(request.headers, upstream, request.dialect)
        body = request.body
        try:
            # No redirects: one would send the upstream's key and the body to another host.
            data = io.BytesIO(body) if len(body) > WHOLE_BODY_BYTES else body
            response = await self._session.post(
                url, data=data, headers=headers, proxy=proxy_for(str(url)), allow_redirects=False
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _unavailable(upstream, error) from error
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            raise _unavailable(upstream, _Stopping()) from None
        if 300 <= response.status < 400:
            response.close()
            logger.warning(
                "upstream %s redirects to %s", upstream.name, redacted(response.headers.get("location", ""))
            )
            raise UpstreamUnavailable(
                upstream.name, f"responded with a redirect ({response.status}), which is not followed"
            )
        return response

    def _response(self, response: aiohttp.ClientResponse, upstream: Upstream) -> UpstreamResponse:
        pieces = self._pieces(response, upstream)
        if response.status >= 400:
            pieces = _redacted(pieces)
        elif response.content_type.endswith("json") or response.content_type == "text/plain":
            pieces = _redacted_error(pieces)
        return UpstreamResponse(response.status, response_headers(response.headers), pieces, upstream)

    async def _pieces(self, response: aiohttp.ClientResponse, upstream: Upstream) -> AsyncGenerator[bytes]:
        self._reading.add(response)
        try:
            if self._stopping:
                raise _Stopping
            async for piece in response.content.iter_any():
                yield piece
        except (aiohttp.ClientError, TimeoutError, _Stopping) as error:
            raise _unavailable(upstream, error) from error
        finally:
            self._reading.discard(response)
            response.close()

    def end(self) -> None:
        """End every open request and response: the gateway stops. Streams then end with an error event."""
        self._stopping = True
        for task in self._opening:
            task.cancel()
        for response in self._reading:
            response.content.set_exception(_Stopping())


async def _redacted(pieces: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yield the body of an error without keys: upstreams echo the request's headers in it."""
    body = bytearray()
    async with contextlib.aclosing(pieces):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ERROR_S):
                async for piece in pieces:
                    body += piece
                    if len(body) > MAX_ERROR_BYTES:
                        break
    # Bytes that are not UTF-8 are forwarded unchanged.
    text = bytes(body[:MAX_ERROR_BYTES]).decode(errors="surrogateescape")
    yield redacted(text).encode(errors="surrogateescape")


async def _redacted_error(pieces: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yield a body as it is, unless it is an error with the status of a success."""
    async with contextlib.aclosing(pieces):
        head = bytearray()
        async for piece in pieces:
            if not head and not piece.strip():
                yield piece  # Servers send whitespace while a reply takes long.
                continue
            head += piece
            if len(head) >= HEAD_BYTES:
                break
        if _ERROR.search(head, 0, HEAD_BYTES):
            async for piece in pieces:
                head += piece
                if len(head) > MAX_READ_BYTES:
                    break
            head = redacted(head.decode(errors="surrogateescape")).encode(errors="surrogateescape")
        yield bytes(head)
        async for piece in pieces:
            yield piece


def _unavailable(upstream: Upstream, error: Exception) -> UpstreamUnavailable:
    """Return the error for the client, and log the library's, which may contain the upstream's address."""
    if isinstance(error, _Stopping):
        return UpstreamUnavailable(upstream.name, "was not awaited: the gateway is stopping", status=503)
    logger.warning("upstream %s: %s", upstream.name, redacted(str(error)) or type(error).__name__)
    match error:
        case TimeoutError():
            return UpstreamUnavailable(upstream.name, "did not respond in time", status=504)
        case aiohttp.ClientConnectorError():
            return UpstreamUnavailable(upstream.name, "cannot be reached")
        case _:
            return UpstreamUnavailable(upstream.name, "ended the connection before its response was complete")


def request_headers(given: Mapping[str, str], upstream: Upstream, dialect: Dialect) -> dict[str, str]:
    forwarded = {
        name: value
        for name, value in given.items()
        if name in REQUEST_HEADERS or (name.startswith(REQUEST_PREFIXES) and name not in _ACCOUNT_HEADERS)
    }
    # A compressed stream arrives in the blocks of its compression instead of event by event.
    return forwarded | {"accept-encoding": "identity"} | upstream.authorization(dialect)


def response_headers(given: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that the client receives, without keys."""
    lower = {name.lower(): value for name, value in given.items()}
    return {
        name: redacted(value)
        for name, value in lower.items()
        if name in RESPONSE_HEADERS or name.startswith(RESPONSE_PREFIXES)
    }


@dataclass(slots=True)
class ModelLists:
    upstreams: tuple[Upstream, ...]
    background: Background
    _models: dict[str, dict[str, JsonObject]] = field(default_factory=dict[str, dict[str, JsonObject]])
    """Listed models by upstream and id."""
    _listed: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self, session: aiohttp.ClientSession) -> BackgroundTask:
        async def list_all() -> None:
            async with asyncio.TaskGroup() as group:
                for upstream in self.upstreams:
                    group.create_task(self._list(session, upstream))
            self._listed.set()

        return self.background.repeat("upstream-models", list_all, wait=self._wait)

    def has(self, upstream: Upstream, model: str) -> bool:
        return model in self._models.get(upstream.name, ())

    async def models(self) -> list[JsonObject]:
        """Return each model of all upstreams once; wait up to two seconds for the first lists."""
        await set_within(self._listed, FIRST_LIST_S)
        found: dict[str, JsonObject] = {}
        for upstream in self.upstreams:
            for id, model in self._models.get(upstream.name, {}).items():
                found.setdefault(id, model)
        return list(found.values())

    async def names(self) -> list[tuple[str, str]]:
        """Return the upstream and the id of every listed model; waits as `models` does."""
        await self.models()
        return [(name, id) for name, models in self._models.items() for id in models]

    async def _wait(self) -> None:
        if self._listed.is_set():
            complete = len(self._models) == len(self.upstreams)
            await asyncio.sleep(REFRESH_S if complete else RETRY_S)

    async def _list(self, session: aiohttp.ClientSession, upstream: Upstream) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                # No redirects: one would send the upstream's key to another host.
                url = upstream.url("/models")
                headers = {**upstream.list_headers, "accept-encoding": "identity"}
                request = session.get(url, headers=headers, proxy=proxy_for(url), allow_redirects=False)
                async with request as response:
                    response.raise_for_status()
                    body = bytearray()
                    async for piece in response.content.iter_any():
                        body += piece
                        if len(body) > MAX_LIST_BYTES:
                            break
                listed = listed_models(bytes(body))
            models = [_model(entry, upstream.name) for entry in listed]
            self._models[upstream.name] = {str(model["id"]): model for model in models}
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            reason = redacted(str(error)) or type(error).__name__
            logger.warning("the models of %s could not be listed: %s", upstream.name, reason)


def _model(found: Mapping[str, Any], owner: str) -> JsonObject:
    created = found.get("created")
    return {
        "id": found["id"],
        "object": "model",
        "created": created if isinstance(created, int) and 0 <= created < MAX_TIME else 0,
        "owned_by": str(found.get("owned_by") or owner),
    }
