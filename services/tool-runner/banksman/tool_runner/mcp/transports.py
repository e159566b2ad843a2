"""The transports: a server at an address, under the rules of `web_fetch`; and a program in the sandbox.

The sandbox gives its commands no standard input. It can give them a loopback with one listening socket, which
belongs to the runner: the script connects to it, reads the environment from it, and starts the program with
the connection as its standard input and output. Thus no argument of a process contains a secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import posixpath
import re
import shlex
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import cast

import anyio
import httpcore
import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCMessage

from banksman.contracts.mcp import HttpServer, StdioServer
from banksman.contracts.urls import Url, UrlRefused, parse_url
from banksman.runtime.pinned_network import HttpErrors, connected_url
from banksman.runtime.redaction import Redaction
from banksman.runtime.tracing import outgoing
from banksman.tool_runner.egress.client import Egress, FetchFailed, HostRules, header
from banksman.tool_runner.mcp.connection import (
    MAX_MESSAGE_BYTES,
    MAX_SHOWN_CHARS,
    ConnectionState,
    ReceiptMeter,
    ServerFailed,
)
from banksman.tool_runner.mcp.messages import messages_of
from banksman.tool_runner.mcp.session import Streams
from banksman.tool_runner.sandbox.base import (
    EMPTY,
    WORKSPACE,
    Sandbox,
    SandboxCommand,
    SandboxOutcome,
    Stop,
    cancel,
)
from banksman.tool_runner.sandbox.bwrap.spawner_process import PROXY_PORT
from banksman.tool_runner.tools.toolbox import ToolRun

logger = logging.getLogger(__name__)

_UNAUTHORIZED, _SERVER_ERROR = 401, 500
_EVENT_DATA = re.compile(rb"[\r\n]data:")
_EVENT_DATA_BYTES = 6
EXIT_S = 0.2
"""Seconds for a program to end after its input has ended. Many programs do not end, and each call waits."""
NOT_STARTED = "the program could not be started in the sandbox"
_BUFFERED = 16
_MAX_LOGGED_LINES, _MAX_LOGGED_CHARS = 5, 200
_PROGRAMS = ("/usr/", "/bin/", "/sbin/")
_SAFE = {
    # A program that a server starts in the workspace does not import from there: Python finds neither
    # modules of its current directory nor of its home.
    "PYTHONSAFEPATH": "1",
    "PYTHONNOUSERSITE": "1",
    # Git refuses the repositories of the workspace as those of another user, unless the variables of the
    # server replace this one: their settings name programs, such as filters. It runs no hook even then.
    # https://git-scm.com/docs/git-config#Documentation/git-config.txt-safedirectory
    "GIT_TEST_ASSUME_DIFFERENT_OWNER": "true",
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "core.hooksPath",
    "GIT_CONFIG_VALUE_0": "/dev/null",
    "GIT_CONFIG_KEY_1": "core.fsmonitor",
    "GIT_CONFIG_VALUE_1": "false",
    "BANKSMAN_WORKSPACE": WORKSPACE,
}
"""Variables of all programs; those of a server replace them."""
_SCRIPT = f"""
unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY
exec 3<>/dev/tcp/127.0.0.1/{PROXY_PORT} || exit 125
while IFS= read -r -d '' -u 3 variable && [ -n "$variable" ]; do export "$variable"; done
exec {{command}} <&3 >&3 3<&-
"""


@contextlib.asynccontextmanager
async def opened(
    server: HttpServer, egress: Egress, rules: HostRules, state: ConnectionState, *, events: bool = False
) -> AsyncGenerator[Streams]:
    """Connect over streamable HTTP, or with `events` over the HTTP with events of revision 2024-11-05."""
    transport = CheckedTransport(egress, rules, state.meter, state)
    # Compression is refused, because a small compressed body may inflate to a large one.
    state.headers = {**outgoing(), **server.headers, "accept-encoding": "identity"}
    try:
        address = str(parse_url(server.url))
    except UrlRefused as refused:
        raise ServerFailed(str(refused)) from refused

    def client(*_: object, **__: object) -> httpx2.AsyncClient:
        # `trust_env=False` ignores credentials of the environment; `Egress` uses its proxies.
        return httpx2.AsyncClient(transport=transport, trust_env=False, timeout=None)

    async with contextlib.AsyncExitStack() as stack:
        if events:
            pair = await stack.enter_async_context(sse_client(address, httpx_client_factory=client))
        else:
            http = await stack.enter_async_context(client())
            connected = streamable_http_client(
                address, http_client=http, max_sse_event_size=MAX_MESSAGE_BYTES
            )
            pair = await stack.enter_async_context(connected)
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
        # A token may have been renewed since the session was opened.
        request.headers.update(self._state.headers)
        try:
            sent = httpcore.Request(
                method=request.method,
                url=connected_url(parse_url(str(request.url))),
                headers=request.headers.raw,
                content=cast(AsyncIterator[bytes], request.stream),
            )
            response = await self._pool.handle_async_request(sent)
        except UrlRefused as refused:
            self._state.refused = True
            raise self._failed(str(refused)) from refused
        except (FetchFailed, *HttpErrors) as error:
            raise self._failed(str(error) or type(error).__name__) from error
        if header(response, b"content-encoding").lower() not in ("", "identity"):
            await response.aclose()
            raise self._failed("the server compressed its response, which was not accepted")
        self._state.status = response.status
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
            reason = str(error) or type(error).__name__
            raise self.failed(f"the response broke off: {reason}") from error

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
        return await self.egress.connect(Url("https", host, port, "/"), within=self.rules)


@contextlib.asynccontextmanager
async def started(
    server: StdioServer, sandbox: Sandbox, run: ToolRun, secrets: Redaction, state: ConnectionState
) -> AsyncGenerator[Streams]:
    """Run the program in the sandbox during the block; yield the streams for the SDK's session.

    The sandbox must be of kind `bwrap`. The program is killed after `run.timeout_s` seconds, and at a stop of
    `run`. No error contains a text of `secrets`.
    """
    if "/" in server.command[0] and not posixpath.normpath(server.command[0]).startswith(_PROGRAMS):
        raise ServerFailed(f"the program {server.command[0][:100]!r} is not installed below /usr")
    listening: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
    script = _SCRIPT.format(command=shlex.join(server.command))
    command = SandboxCommand(script, run.workspace.directory, run.timeout_s, listening.set_result, EMPTY)
    connected = False
    program = _Program(
        asyncio.create_task(sandbox.run(command, stop=run.stop)),
        run.stop,
        secrets,
        posixpath.basename(server.command[0]),
    )
    try:
        reader, writer = await _accepted(listening, program)
        connected = True
        writer.write(_environment(server))
        streams, pumps = _pumped(reader, writer, state, program)
        try:
            yield streams
        finally:
            await cancel(*pumps)
            writer.close()
            await asyncio.wait((program.running,), timeout=EXIT_S)
    finally:
        reason = await program.end()
        if listening.done() and not listening.cancelled():
            listening.result().close()
        if connected:
            state.problem = state.problem or reason


@dataclass
class _Program:
    running: asyncio.Task[SandboxOutcome]
    stop: Stop
    secrets: Redaction
    name: str
    """Of the program, for logs."""
    _reason: str | None = None
    _closed: bool = False
    _skipped: int = 0

    def messages_of(self, line: bytes) -> tuple[JSONRPCMessage, ...]:
        """Return the messages of a line; log and skip other text, such as a banner."""
        try:
            return tuple(messages_of(line))
        except ValueError:
            self._skipped += bool(line.strip())
        if line.strip() and self._skipped <= _MAX_LOGGED_LINES:
            text = self.secrets.of(line.decode("utf-8", "replace").strip())[:_MAX_LOGGED_CHARS]
            logger.warning("%s: skipped a line that is not a message: %r", self.name, text)
        return ()

    async def end(self) -> str | None:
        """Kill the program. Return the limit that killed it earlier, or the end of its standard error."""
        self.stop.request("cancelled")
        await asyncio.wait((self.running,))
        if not self._closed and not self.running.cancelled():
            self._closed = True
            self._reason = _failure_reason(self.running.result(), self.secrets)
        return self._reason


async def _accepted(
    listening: asyncio.Future[socket.socket], program: _Program
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Wait for the connection of the program; later connections are refused."""
    await asyncio.wait((listening, program.running), return_when=asyncio.FIRST_COMPLETED)
    if not listening.done():
        raise ServerFailed(await program.end() or NOT_STARTED)
    listener = listening.result()
    listener.setblocking(False)
    accepting = asyncio.create_task(asyncio.get_running_loop().sock_accept(listener))
    try:
        await asyncio.wait((accepting, program.running), return_when=asyncio.FIRST_COMPLETED)
        if not accepting.done():
            raise ServerFailed(await program.end() or NOT_STARTED)
        connected, _ = accepting.result()
    finally:
        accepting.cancel()
        await asyncio.wait((accepting,))
        listener.close()
    return await asyncio.open_connection(sock=connected, limit=MAX_MESSAGE_BYTES)


def _environment(server: StdioServer) -> bytes:
    """Return the variables for the script: each ends with NUL, and an empty variable ends the list."""
    variables = {**_SAFE, **server.env}
    return b"".join(f"{name}={value}\0".encode() for name, value in variables.items()) + b"\0"


def _pumped(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, state: ConnectionState, program: _Program
) -> tuple[Streams, tuple[asyncio.Task[None], ...]]:
    received, inbox = anyio.create_memory_object_stream[SessionMessage | Exception](_BUFFERED)
    outbox, sent = anyio.create_memory_object_stream[SessionMessage](_BUFFERED)
    meter = state.meter

    async def receive() -> None:
        async with received:
            try:
                while line := await reader.readline():
                    meter.add(len(line))
                    meter.add_messages(1)
                    for message in program.messages_of(line):
                        await received.send(SessionMessage(message))
            except ServerFailed as failed:
                state.problem = str(failed)
            except ValueError:
                # `readline` reports a line above the limit as a ValueError.
                state.problem = f"the server sent a message of more than {MAX_MESSAGE_BYTES} bytes"
            except (OSError, anyio.BrokenResourceError):
                return

    async def send() -> None:
        async with sent:
            with contextlib.suppress(OSError):
                async for message in sent:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    writer.write(text.encode() + b"\n")
                    await writer.drain()

    return (inbox, outbox), (asyncio.create_task(receive()), asyncio.create_task(send()))


def _failure_reason(outcome: SandboxOutcome, secrets: Redaction) -> str | None:
    # Secrets are removed before the cut: the end of a secret would not be recognised without its beginning.
    text = secrets.of(outcome.output.shown().stderr.strip())[-MAX_SHOWN_CHARS:]
    outcome.output.close()
    if outcome.killed_reason not in (None, "cancelled", "timeout"):
        return f"the program was killed: {outcome.killed_reason}"
    return f"the program wrote to its standard error: {text}" if text else None
