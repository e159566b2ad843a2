"""A server at an address, reached under the rules of `web_fetch`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import cast

import httpcore
import httpx
import httpx2
from mcp.client.streamable_http import streamable_http_client

from banksman.contracts.mcp import HttpServer
from banksman.runtime.tracing import outgoing
from banksman.tool_runner.egress.client import Egress, FetchFailed, header
from banksman.tool_runner.egress.network import FetchRefused, HostRules, HttpErrors
from banksman.tool_runner.mcp.connection import (
    MAX_MESSAGE_BYTES,
    ConnectionState,
    ReceiptMeter,
    ServerFailed,
)
from banksman.tool_runner.mcp.session import Streams

_UNAUTHORIZED, _SERVER_ERROR = 401, 500
_EVENT_DATA = re.compile(rb"[\r\n]data:")
_EVENT_DATA_BYTES = 6


@contextlib.asynccontextmanager
async def opened(
    server: HttpServer, egress: Egress, rules: HostRules, state: ConnectionState
) -> AsyncGenerator[Streams]:
    transport = CheckedTransport(egress, rules, ReceiptMeter(), state)
    # `trust_env=False` ignores proxies and credentials of the environment. Compression is refused, because a
    # small compressed body may inflate to a large one.
    headers = {**outgoing(), **server.headers, "accept-encoding": "identity"}
    async with (
        httpx2.AsyncClient(transport=transport, headers=headers, trust_env=False, timeout=None) as client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as pair,
    ):
        yield cast(Streams, pair)


class CheckedTransport(httpx2.AsyncBaseTransport):
    """Sends the SDK's requests over connections of `Egress`, which checks each host and address."""

    def __init__(self, egress: Egress, rules: HostRules, meter: ReceiptMeter, state: ConnectionState) -> None:
        self._state = state
        self._meter = meter
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=egress.ssl_context, network_backend=_CheckedNetwork(egress, rules)
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; if it fails, `state.problem` states why."""
        url = request.url
        sent = httpcore.Request(
            method=request.method,
            url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=cast(AsyncIterator[bytes], request.stream),
        )
        try:
            response = await self._pool.handle_async_request(sent)
        except FetchRefused as refused:
            self._state.refused = True
            raise self._failed(str(refused)) from refused
        except (FetchFailed, *HttpErrors) as error:
            raise self._failed(str(error) or type(error).__name__) from error
        if header(response, b"content-encoding").lower() not in ("", "identity"):
            await response.aclose()
            raise self._failed("the server compressed its response, which was not accepted")
        self._state.needs_sign_in = self._state.needs_sign_in or response.status == _UNAUTHORIZED
        if response.status >= _SERVER_ERROR:
            # The server may have failed before, during or after the execution of a call.
            self._state.problem = self._state.problem or f"the server responded with status {response.status}"
        return httpx2.Response(
            response.status, headers=response.headers, stream=_Measured(response, self._meter, self._failed)
        )

    async def aclose(self) -> None:
        await self._pool.aclose()

    def _failed(self, problem: str) -> httpx2.TransportError:
        # The SDK replaces this error by its own, which lacks the reason.
        self._state.problem = self._state.problem or problem
        return httpx2.ConnectError(problem)


@dataclass(frozen=True, slots=True)
class _Measured(httpx2.AsyncByteStream):
    response: httpcore.Response
    meter: ReceiptMeter
    failed: Callable[[str], Exception]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        begun = b"\n"
        try:
            async for chunk in self.response.aiter_stream():
                self.meter.add(len(chunk))
                # Each message of a stream of events begins a line, which two chunks may share.
                text = begun + chunk
                self.meter.add_messages(len(_EVENT_DATA.findall(text)))
                begun = text[1 - _EVENT_DATA_BYTES :]
                yield chunk
        except ServerFailed as failed:
            raise self.failed(str(failed)) from failed
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            raise self.failed(f"the response broke off: {type(error).__name__}") from error

    async def aclose(self) -> None:
        await self.response.aclose()


@dataclass(frozen=True, slots=True)
class _CheckedNetwork(httpcore.AsyncNetworkBackend):
    egress: Egress
    rules: HostRules

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature is httpcore's
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        # `Egress` checks only host and port; the pool adds TLS if the scheme requires it.
        return await self.egress.connect(httpx.URL(f"https://{_bracketed(host)}:{port}/"), within=self.rules)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
