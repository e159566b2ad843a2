"""Checks every request, HTTP or websocket, and adds headers to responses.

The checks concern host, origin, rate, size and the number of connections; the headers include those of CORS.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import resource
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from banksman.contracts.errors import (
    BanksmanError,
    Forbidden,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from banksman.contracts.ids import digest, new_id
from banksman.contracts.urls import UrlRefused, parse_url
from banksman.gateway.identity.auth import Keys
from banksman.gateway.operation.caller import key_of
from banksman.gateway.operation.declaration import BodyLimit, RequestRule
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.operation.errors import error_response
from banksman.gateway.operation.intake import JsonIntake
from banksman.gateway.operation.parameters import CHECKED
from banksman.gateway.settings import GatewaySettings
from banksman.library_internals.uvicorn_connections import ADMITTED, AdmittedConnection, ListenerLimits
from banksman.quotas.rates import Rates, TooManyRequests
from banksman.runtime.tracing import HEADER, traced

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
UNLIMITED_PATHS = frozenset({"/healthz", "/readyz"})
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
READABLE_HEADERS = ("location", "request-id", "retry-after", "x-request-id")
"""Response headers that pages of allowed origins may read, in addition to CORS-safelisted headers."""
SMALL_BYTES = 1024 * 1024
PREFLIGHT_CACHE_S = 600
"""Seconds for which a browser caches the response to a preflight request."""


class BodyTooLarge(TooLarge):
    def __init__(self, limit: int) -> None:
        super().__init__(f"the body has more than {limit} bytes")


class Perimeter:
    def __init__(
        self,
        app: ASGIApp,
        settings: GatewaySettings,
        keys: Keys,
        intake: JsonIntake,
        dispatcher: Dispatcher,
        rules: Iterable[RequestRule],
    ) -> None:
        """Wrap an application. The bodies of requests without a rule are `SMALL`, and they start no work."""
        self._app = app
        self._settings = settings
        self._keys = keys
        self._hosts = LOOPBACK_NAMES | frozenset(settings.allowed_hosts)
        self._origins = settings.origins
        self._rates = Rates(settings.rate)
        self._intake = intake
        self._dispatcher = dispatcher
        self._rules = [(rule, compile_path(rule.path)[0]) for rule in rules]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        with traced(headers.get(HEADER)):
            await self._serve(scope, headers, receive, send)

    async def _serve(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        response = _Response(send, _request_id(headers))
        try:
            await self._keys.prepare(key_of(headers))
            self._check(scope, headers)
            if scope["type"] == "websocket":
                await self._app(scope, receive, send)
                return
            rule = self._rule(scope)
            limited = self._body(rule.body, scope, headers, receive)
            limited.check_length(headers)
            if rule.starts_work:
                await self._check_load(headers)
            await self._app(scope, limited.receive, response.send)
        except BanksmanError as error:
            # The request was refused: the application handles its own errors. Before an upgrade, Starlette
            # sends it by ASGI's "Websocket Denial Response" extension.
            await error_response(scope["path"], error)(scope, receive, response.send)
        except asyncio.CancelledError:
            # uvicorn cancels what is open at the end of a drain. It closes a connection whose response ends
            # early.
            if scope["type"] == "websocket":
                raise
            if not response.begun:
                await error_response(scope["path"], _cut(scope["method"]))(scope, receive, response.send)

    def _check(self, scope: Scope, headers: Headers) -> None:
        if self._keys.keyless and _hostname(headers.get("host", "")) not in self._hosts:
            # DNS rebinding: a page of another site that resolves its name to this machine sends that name.
            raise Forbidden("a gateway without keys accepts only the host names of this machine")
        cross = scope["type"] == "websocket" or scope["method"] not in SAFE_METHODS
        if cross and not self._same_origin(headers):
            raise Forbidden(f"the origin {headers.get('origin')!r} is not allowed")
        token = key_of(headers)
        known = token is not None and self._keys.known(token)
        # Unknown keys share the bucket of the client's address: otherwise each invented key would get a new
        # bucket.
        key = digest(token.encode()) if token and known else None
        if scope["path"] not in UNLIMITED_PATHS:
            self._rates.check(key or _address(scope))
        if key or self._keys.keyless:
            know_client(scope, key or KEYLESS)

    async def _check_load(self, headers: Headers) -> None:
        """Refuse a request with a known key if work could not start now.

        The refusal of a request that starts work costs less here than behind the application's layers.
        """
        with contextlib.suppress(Unauthorized):
            await self._dispatcher.check_load(self._keys.caller(key_of(headers)).tenant)

    def _same_origin(self, headers: Headers) -> bool:
        origin = headers.get("origin")
        if origin is None or origin.rstrip("/").lower() in self._origins:
            return True
        return urlsplit(origin).netloc.lower() == headers.get("host", "").lower()

    def _rule(self, scope: Scope) -> RequestRule:
        method, path = scope["method"], scope["path"]
        matching = (rule for rule, pattern in self._rules if rule.method == method and pattern.match(path))
        return next(matching, RequestRule(method, path, BodyLimit.SMALL))

    def _body(self, limit: BodyLimit, scope: Scope, headers: Headers, receive: Receive) -> _LimitedBody:
        own = self._settings
        match limit:
            case BodyLimit.SMALL | BodyLimit.LARGE:
                most = own.max_body_bytes
                most = min(SMALL_BYTES, most) if limit is BodyLimit.SMALL else most
                large = limit is BodyLimit.LARGE
                return _LimitedBody(receive, most, partial(self._admit, scope, headers, large))
            case BodyLimit.FORWARDED:
                return _LimitedBody(receive, own.max_body_bytes)
            case BodyLimit.FILE:
                return _LimitedBody(receive, own.max_upload_bytes)

    async def _admit(self, scope: Scope, headers: Headers, large: bool, body: bytes) -> bytes:
        scope[CHECKED] = await self._intake.admit(self._payer(scope, headers), body, large=large)
        return body

    def _payer(self, scope: Scope, headers: Headers) -> str:
        try:
            return self._keys.caller(key_of(headers)).tenant
        except BanksmanError:
            return _address(scope)


class _LimitedBody:
    """A request's body, of at most `limit` bytes."""

    def __init__(
        self, receive: Receive, limit: int, admit: Callable[[bytes], Awaitable[bytes]] | None = None
    ) -> None:
        """Pass the body on in pieces; in one piece, if `admit` must admit it."""
        self._receive = receive
        self._limit = limit
        self._admit = admit
        self._read = 0

    def check_length(self, headers: Headers) -> None:
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._limit:
            raise BodyTooLarge(self._limit)

    async def receive(self) -> Message:
        message = await self._piece()
        if self._admit is None or message["type"] != "http.request":
            return message
        pieces = [message.get("body", b"")]
        while message.get("more_body"):
            message = await self._piece()
            if message["type"] != "http.request":
                return message
            pieces.append(message.get("body", b""))
        admit, self._admit = self._admit, None
        return {"type": "http.request", "body": await admit(b"".join(pieces)), "more_body": False}

    async def _piece(self) -> Message:
        message = await self._receive()
        self._read += len(message.get("body", b""))
        if self._read > self._limit:
            raise BodyTooLarge(self._limit)
        return message


class _Response:
    """Adds headers to a response."""

    def __init__(self, send: Send, request_id: str) -> None:
        self.begun = False
        self._send = send
        self._headers = {**SECURITY_HEADERS, "x-request-id": request_id, "request-id": request_id}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            headers = MutableHeaders(scope=message)
            for name, value in self._headers.items():
                headers.setdefault(name, value)
        await self._send(message)


def _cut(method: str) -> Unavailable:
    """Return the error of a request that the gateway ends when it stops."""
    effect = "" if method in SAFE_METHODS else "; whether it took effect is not known"
    return Unavailable(f"the gateway stopped before the request ended{effect}")


def _address(scope: Scope) -> str:
    return str((scope.get("client") or ("",))[0])


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    return given if given.isascii() and 0 < len(given) <= 128 and given.isprintable() else new_id("req-")


def _hostname(host: str) -> str:
    try:
        return "" if {*"/?#"} & {*host} else parse_url(f"http://{host}").host
    except UrlRefused:
        return ""


def with_cors(app: ASGIApp, settings: GatewaySettings) -> ASGIApp:
    """Return an application that also answers the preflight requests of browsers.

    It wraps the checks of every request: a preflight request has no key and would fail them, and an allowed
    page must be able to read their errors. Pages of other origins cannot read any response.
    """
    if not settings.origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=tuple(settings.origins),
        allow_methods=METHODS,
        # Keys are headers that a page must set itself: there are no cookies that another page could misuse.
        allow_headers=("*",),
        expose_headers=READABLE_HEADERS,
        max_age=PREFLIGHT_CACHE_S,
    )


KEYLESS = ""
"""Owner of the connections to a gateway without keys, where all clients are one user."""
_MOST_CONNECTIONS = 20_000
_MOST_FILES = 65_536
_RETRY_AFTER_S = 1.0


def raise_file_limit() -> None:
    """Let this process open as many files as it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    # macOS limits it by a sysctl too.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(wanted, _soft_limit()), hard))


def connection_limits(settings: GatewaySettings) -> ListenerLimits:
    """Return the limits of the gateway's port. A quarter of all files is left for everything else."""
    total = settings.max_connections or min(_soft_limit() * 3 // 4, _MOST_CONNECTIONS)
    return ListenerLimits(
        total=total,
        unknown=min(settings.max_unknown_connections or total // 4, total),
        unknown_per_address=settings.max_unknown_connections_per_address,
        header_s=settings.header_timeout_s,
        body_s=settings.body_timeout_s,
        proxies=tuple(map(ipaddress.ip_network, settings.trusted_proxies)),
    )


def know_client(scope: Scope, owner: str) -> None:
    """Note that the client of a request sent an accepted key; raise `TooManyRequests` above its share."""
    admitted: AdmittedConnection | None = scope.get("state", {}).get(ADMITTED)
    if admitted is not None and not admitted.know(owner):
        raise TooManyRequests(_RETRY_AFTER_S)


def _soft_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_FILES if soft == resource.RLIM_INFINITY else soft
