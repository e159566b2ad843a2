"""The operations that a gateway serves only over HTTP, and the files of workspaces."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final, cast
from urllib.parse import quote, urlsplit

import httpx

from banksman.bus.errors import RemoteError
from banksman.contracts.errors import BanksmanError, ErrorCode, Unavailable
from banksman.contracts.frames import ErrorFrame
from banksman.contracts.ids import new_id
from banksman.contracts.runner_requests import FileEntry
from banksman.contracts.wire import JsonObject, Stored
from banksman.library_internals.httpcore_client import bound_responses
from banksman.runtime.backoff import Backoff, retry

TIMEOUT_S = 30.0
"""Seconds for which a request is retried with the same id."""
PAUSE_S = 0.2

ROUTES: Final[Mapping[str, tuple[str, str]]] = json.loads(
    files("banksman.sdk").joinpath("routes.json").read_text()
)
"""Method and path by operation, which `make docs` writes. A parameter of a path stands in braces."""
PARAMETER = re.compile(r"\{(\w+)\}")
"""A parameter in the path of a route."""

CODES = {
    400: ErrorCode.BAD_REQUEST,
    401: ErrorCode.UNAUTHORIZED,
    403: ErrorCode.FORBIDDEN,
    404: ErrorCode.NOT_FOUND,
    409: ErrorCode.CONFLICT,
    413: ErrorCode.TOO_LARGE,
    429: ErrorCode.RATE_LIMITED,
    503: ErrorCode.UNAVAILABLE,
    507: ErrorCode.STORAGE_FULL,
}
"""Error code by status, for responses without a known error code."""
RETRYABLE = frozenset({429, 502, 503, 504})


class _FileItems(Stored):
    items: tuple[FileEntry, ...]


class HttpApi:
    def __init__(self, url: str, token: str | None, *, retries: bool = True) -> None:
        """Create a client; without `retries` each request is sent once."""
        bound_responses("httpcore")
        self._retries = retries
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self.client = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=TIMEOUT_S, trust_env=not is_local(url)
        )

    async def call(
        self, operation: str, names: tuple[str, ...], body: JsonObject | None, request_id: str | None
    ) -> bytes:
        """Return the body of the response to an operation; `{}` if it has none.

        `names` are the parameters of the path, in order; the body has those that are missing, as over NATS.
        For a GET, the body becomes the query.
        """
        method, path = ROUTES[operation]
        values, fields = iter(names), dict(body or {})

        def value_of(parameter: re.Match[str]) -> str:
            value = next(values, None)
            return quote(str(fields.pop(parameter[1])) if value is None else value, safe="")

        address = PARAMETER.sub(value_of, path)
        content = {"params": fields} if method == "GET" else {"json": fields}
        headers = {"idempotency-key": request_id or new_id("q")}
        response = await self.request(method, address, headers=headers, **content)
        return response.content or b"{}"

    async def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Return a successful response. The request is repeated, so it must be safe to repeat."""
        if not self._retries:
            return await self._attempt(method, path, options)
        return await retry(
            lambda: self._attempt(method, path, options),
            again=lambda error: isinstance(error, BanksmanError) and error.retryable,
            backoff=Backoff(PAUSE_S, PAUSE_S),
            budget_s=TIMEOUT_S,
            failure=f"{method} {path}: no gateway responded",
        )

    async def _attempt(self, method: str, path: str, options: Mapping[str, Any]) -> httpx.Response:
        try:
            response = await self.client.request(method, path, **options)
        except httpx.HTTPError as error:
            raise Unavailable(str(error) or type(error).__name__) from error
        if response.is_success:
            return response
        raise _refused(response)


class HttpFiles:
    def __init__(self, http: HttpApi) -> None:
        self._http = http

    async def list(self, conversation_id: str, path: str) -> tuple[FileEntry, ...]:
        folder = f"/context/conversations/{quote(conversation_id, safe='')}/files"
        response = await self._http.request("GET", folder, params={"path": path})
        return _FileItems.model_validate_json(response.content).items

    async def read(self, conversation_id: str, path: str) -> bytes:
        return (await self._http.request("GET", _file(conversation_id, path))).content

    async def write(self, conversation_id: str, path: str, data: bytes) -> None:
        await self._http.request("PUT", _file(conversation_id, path), content=data)

    async def delete(self, conversation_id: str, path: str) -> None:
        await self._http.request("DELETE", _file(conversation_id, path))


def _file(conversation_id: str, path: str) -> str:
    return f"/context/conversations/{quote(conversation_id, safe='')}/files/{quote(path)}"


def _refused(response: httpx.Response) -> RemoteError:
    """Return the gateway's error, or an error from the text of a proxy's response."""
    try:
        detail = cast(Mapping[str, Any], response.json()["error"])
    except (ValueError, KeyError, TypeError):
        status, path = response.status_code, response.url.path
        detail = {"message": f"the gateway responded with status {status} at {path}"}
    frame: JsonObject = {
        "code": CODES.get(response.status_code, ErrorCode.INTERNAL),
        "message": str(detail.get("message")),
        "retryable": response.status_code in RETRYABLE,
        "retry_after_s": _seconds(response.headers.get("retry-after")),
    }
    if detail.get("code") in set(ErrorCode):
        frame["code"] = str(detail["code"])
    return RemoteError(ErrorFrame.model_validate(frame))


def _seconds(value: str | None) -> float | None:
    return float(value) if value is not None and value.isdecimal() else None


def is_local(url: str) -> bool:
    """Return whether the host of a URL is this machine, which is reached without a proxy."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def websocket_url(url: str) -> str:
    return f"ws{url.rstrip('/').removeprefix('http')}/ws"
