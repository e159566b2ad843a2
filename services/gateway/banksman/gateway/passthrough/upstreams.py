"""The model APIs that passthrough forwards to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast

import aiohttp

from banksman.contracts.errors import CallerMistake, Unavailable
from banksman.contracts.wire import JsonObject
from banksman.gateway.settings import Dialect, Upstream
from banksman.runtime.background import Background, BackgroundTask
from banksman.runtime.redaction import redacted

logger = logging.getLogger(__name__)

CONNECT_S = 5.0
MODELS_REFRESH_S = 300.0
MODELS_RETRY_S = 10.0
MODELS_TIMEOUT_S = 10.0
FIRST_LIST_S = 2.0
MAX_ERROR_BYTES = 256 * 1024
"""Bytes of an error's body that are forwarded, read before: a key may be spread over its pieces."""

FORWARDED_REQUEST_HEADERS = frozenset(
    {"accept", "accept-language", "content-type", "idempotency-key", "user-agent"}
)
FORWARDED_REQUEST_PREFIXES = ("anthropic-", "openai-beta", "x-stainless-")
FORWARDED_RESPONSE_HEADERS = frozenset(
    {"content-type", "retry-after", "retry-after-ms", "request-id", "x-request-id"}
)
FORWARDED_RESPONSE_PREFIXES = ("anthropic-", "openai-", "x-ratelimit-")


class UnsupportedEndpoint(CallerMistake):
    """No upstream serves a model in the dialect of an endpoint."""

    def __init__(self, model: str, dialect: Dialect) -> None:
        self.model = model
        self.dialect = dialect
        super().__init__(f"no upstream for model {model!r} supports the {dialect} API")


class UpstreamUnavailable(Unavailable):
    """An upstream cannot be reached, or does not respond."""

    def __init__(self, name: str, reason: str, *, timed_out: bool) -> None:
        self.timed_out = timed_out
        super().__init__(f"upstream {name}: {reason}")


@dataclass(frozen=True, slots=True)
class UpstreamResponse:
    """The status and headers of a response, and its body as it arrives."""

    status: int
    headers: Mapping[str, str]
    body: AsyncGenerator[bytes]
    """Closing it closes the connection, which cancels the upstream's request."""

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is server-sent events."""
        return self.headers.get("content-type", "").startswith("text/event-stream")


class Upstreams:
    """All upstreams, with one connection pool. As a context manager it also refreshes the list of models."""

    def __init__(self, upstreams: tuple[Upstream, ...], background: Background, *, timeout_s: float) -> None:
        self._upstreams = upstreams
        self._background = background
        self._timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=timeout_s)
        self._session: aiohttp.ClientSession
        self._models: dict[str, list[JsonObject]] = {}
        self._listing: BackgroundTask | None = None
        self._listed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            timeout=self._timeout,
            # Bodies are forwarded unchanged.
            auto_decompress=False,
            # An open stream occupies its connection: with a limit, requests would wait for other clients.
            connector=aiohttp.TCPConnector(limit=0),
        )
        self._listing = self._background.repeat("upstream-models", self._list_all, wait=self._wait_to_list)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listing is not None:
            await self._listing.stop()
        await self._session.close()

    def choose(self, model: str, dialect: Dialect) -> Upstream:
        """Return the first upstream that serves a model in a dialect.

        Raises:
            UnsupportedEndpoint: No upstream does.
        """
        for upstream in self._upstreams:
            if dialect in upstream.dialects and upstream.serves(model):
                return upstream
        raise UnsupportedEndpoint(model, dialect)

    async def open(
        self, upstream: Upstream, path: str, body: bytes, headers: Mapping[str, str], dialect: Dialect
    ) -> UpstreamResponse:
        """Forward a request and return the response with its headers. The caller reads or closes the body.

        Raises:
            UpstreamUnavailable: The upstream cannot be reached or does not respond.
        """
        url = f"{upstream.base_url.rstrip('/')}{path}"
        sent = _request_headers(headers) | _authorization(upstream, dialect)
        # No redirects: one would send the upstream's key and the body to another host.
        try:
            response = await self._session.post(url, data=body, headers=sent, allow_redirects=False)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _unavailable(upstream.name, error) from error
        pieces = _pieces(response, upstream.name)
        if response.status >= 400:
            pieces = _redacted(pieces)
        return UpstreamResponse(response.status, _response_headers(response.headers), pieces)

    async def listed(self) -> None:
        """Wait until the models of every upstream were requested once, at most two seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LIST_S):
                await self._listed.wait()

    def models(self) -> list[JsonObject]:
        """Return the models of all upstreams, as last listed; each id once."""
        found: dict[str, JsonObject] = {}
        for upstream in self._upstreams:
            for model in self._models.get(upstream.name, ()):
                found.setdefault(str(model["id"]), model)
        return list(found.values())

    async def _wait_to_list(self) -> None:
        if self._listed.is_set():
            complete = len(self._models) == len(self._upstreams)
            await asyncio.sleep(MODELS_REFRESH_S if complete else MODELS_RETRY_S)

    async def _list_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            for upstream in self._upstreams:
                group.create_task(self._list(upstream))
        self._listed.set()

    async def _list(self, upstream: Upstream) -> None:
        dialect: Dialect = "openai" if "openai" in upstream.dialects else upstream.dialects[0]
        headers = _authorization(upstream, dialect)
        if dialect == "anthropic":
            headers["anthropic-version"] = "2023-06-01"
        try:
            async with asyncio.timeout(MODELS_TIMEOUT_S):
                url = f"{upstream.base_url.rstrip('/')}/models"
                async with self._session.get(url, headers=headers) as response:
                    response.raise_for_status()
                    listed = json.loads(await response.read())
            self._models[upstream.name] = [_model(entry, upstream.name) for entry in listed["data"]]
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError) as error:
            logger.warning("the models of %s could not be listed: %s", upstream.name, _reason(error))


def _request_headers(headers: Mapping[str, str]) -> dict[str, str]:
    forwarded = {
        name: value
        for name, value in headers.items()
        if name in FORWARDED_REQUEST_HEADERS or name.startswith(FORWARDED_REQUEST_PREFIXES)
    }
    # Compressed bytes cannot be split into events.
    return forwarded | {"accept-encoding": "identity"}


def _response_headers(headers: Mapping[str, str]) -> dict[str, str]:
    lower = {name.lower(): value for name, value in headers.items()}
    return {
        name: redacted(value)
        for name, value in lower.items()
        if name in FORWARDED_RESPONSE_HEADERS or name.startswith(FORWARDED_RESPONSE_PREFIXES)
    }


def _authorization(upstream: Upstream, dialect: Dialect) -> dict[str, str]:
    if upstream.api_key is None:
        return {}
    key = upstream.api_key.get_secret_value()
    return {"x-api-key": key} if dialect == "anthropic" else {"authorization": f"Bearer {key}"}


async def _pieces(response: aiohttp.ClientResponse, name: str) -> AsyncGenerator[bytes]:
    try:
        async for piece in response.content.iter_any():
            yield piece
    except (aiohttp.ClientError, TimeoutError) as error:
        raise _unavailable(name, error) from error
    finally:
        response.close()


async def _redacted(pieces: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yield the body of an error without keys: upstreams echo the request's headers in it."""
    body = bytearray()
    async with contextlib.aclosing(pieces):
        async for piece in pieces:
            body += piece
            if len(body) > MAX_ERROR_BYTES:
                break
    # Bytes that are not UTF-8 stay as they are.
    text = bytes(body[:MAX_ERROR_BYTES]).decode(errors="surrogateescape")
    yield redacted(text).encode(errors="surrogateescape")


def _unavailable(name: str, error: Exception) -> UpstreamUnavailable:
    return UpstreamUnavailable(name, _reason(error), timed_out=isinstance(error, TimeoutError))


def _reason(error: Exception) -> str:
    return redacted(str(error)) or type(error).__name__


def _model(entry: Any, owner: str) -> JsonObject:
    found = cast(dict[str, Any], entry)
    return {
        "id": str(found["id"]),
        "object": "model",
        "created": found["created"] if isinstance(found.get("created"), int) else 0,
        "owned_by": str(found.get("owned_by") or owner),
    }
