"""A runner with real sandboxes, a workspace root that the sandbox user can reach, and local web servers.

A test that uses `runner` or `make_sandbox` runs once with each backend, so that both behave the same. `only`
restricts a test to one backend and states the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from tests.support.docker_engine import DockerEngine
from tests.support.forks import ServiceForks

from banksman.contracts.wire import JsonObject
from banksman.quotas.places import Shares
from banksman.tool_runner.egress.client import Egress
from banksman.tool_runner.identity import SandboxIdentity, sandbox_identity
from banksman.tool_runner.lifecycle import workspace_tools
from banksman.tool_runner.sandbox.base import SandboxBackend, Stop
from banksman.tool_runner.sandbox.bwrap.sandbox import BwrapSandbox
from banksman.tool_runner.sandbox.docker.sandbox import DockerSandbox
from banksman.tool_runner.settings import DockerSettings, RunnerLimits, SandboxLimits, WorkspaceLimits
from banksman.tool_runner.tools.toolbox import ToolBox, ToolOutcome
from banksman.tool_runner.workspaces.quota import delete_tree
from banksman.tool_runner.workspaces.registry import CallTurns
from banksman.tool_runner.workspaces.workspace import Workspace, WorkspaceStore

TLS = ssl.create_default_context()
"""Shared, because reading the machine's certificates takes longer than most tests."""


@dataclass(frozen=True)
class Runner:
    """A runner without NATS."""

    box: ToolBox
    sandbox: SandboxBackend
    backend: str
    store: WorkspaceStore
    workspace: Workspace
    identity: SandboxIdentity
    limits: RunnerLimits
    turns: CallTurns

    async def call(self, tool: str, **arguments: object) -> ToolOutcome:
        async with self.turn(tool):
            return await self.box.run(tool, self.workspace, _json(arguments))

    async def bash(
        self, command: str, *, timeout_s: float = 20, stop: Stop | None = None, user: str = ""
    ) -> ToolOutcome:
        arguments: JsonObject = {"command": command, "timeout_s": timeout_s}
        async with self.turn("bash"):
            return await self.box.run("bash", self.workspace, arguments, stop=stop, user=user)

    def turn(self, tool: str) -> AbstractAsyncContextManager[object]:
        """Take the turn of a call, as the worker does for every call."""
        return self.turns.turn(tool, self.workspace.tenant, self.workspace.conversation)


def _json(arguments: dict[str, object]) -> JsonObject:
    return arguments  # pyright: ignore[reportReturnType] - wrong types are part of what is tested


@pytest.fixture
def root() -> Iterator[Path]:
    """A root for workspaces. The sandbox user cannot reach pytest's own directories."""
    directory = Path(tempfile.mkdtemp(prefix="banksman-test-", dir="/var/tmp"))
    directory.chmod(0o711)
    yield directory
    delete_tree(directory)


@pytest.fixture(scope="session")
def forks() -> Iterator[ServiceForks]:
    """Forks the runners of the tests that start one as a process."""
    with ServiceForks("tool-runner") as started:
        yield started


@pytest.fixture
def limits() -> RunnerLimits:
    """The default limits; a test class may override this fixture."""
    return RunnerLimits()


def only(backend: Literal["bwrap", "docker"], reason: str) -> pytest.MarkDecorator:
    """Restrict a test to one backend; the reason is part of the test's id."""
    return pytest.mark.parametrize(
        "backend", [pytest.param(backend, id=f"only {backend}: {reason}")], indirect=True
    )


@pytest.fixture(params=["bwrap", "docker"])
def backend(request: pytest.FixtureRequest) -> str:
    """The name of a backend."""
    return request.param


MakeSandbox = Callable[[Path, RunnerLimits], SandboxBackend]
"""Creates a sandbox for the workspaces below a root."""


@dataclass(frozen=True)
class DockerBackend:
    """The engine and the settings of the containers in these tests."""

    engine: DockerEngine
    settings: DockerSettings


@pytest.fixture
def docker(docker_engine: DockerEngine, base_image: str, monkeypatch: pytest.MonkeyPatch) -> DockerBackend:
    """The engine of these tests, named in `DOCKER_HOST`."""
    monkeypatch.setenv("DOCKER_HOST", docker_engine.host)
    return DockerBackend(docker_engine, DockerSettings(image=base_image))


@pytest.fixture
def make_sandbox(backend: str, request: pytest.FixtureRequest) -> Iterator[MakeSandbox]:
    """Creates sandboxes of one backend and closes them."""
    containers = request.getfixturevalue("docker") if backend == "docker" else None
    with contextlib.ExitStack() as made:

        def make(root: Path, limits: RunnerLimits) -> SandboxBackend:
            common = sandbox_identity(), limits.sandbox
            if containers is None:
                sandbox = BwrapSandbox(*common, max_output_chars=limits.max_output_chars, etc=root / ".etc")
            else:
                sandbox = DockerSandbox(
                    root, *common, containers.settings, max_output_chars=limits.max_output_chars
                )
            made.callback(sandbox.close)
            return sandbox

        yield make


@pytest.fixture
async def runner(root: Path, limits: RunnerLimits, backend: str, make_sandbox: MakeSandbox) -> Runner:
    identity = sandbox_identity()
    sandbox = make_sandbox(root, limits)
    store = WorkspaceStore(root, identity, limits.workspace)
    box = workspace_tools(sandbox, Egress(limits.fetch, ssl_context=TLS), limits)
    turns = CallTurns(commands=Shares(limits.sandbox.max_concurrent_calls), fetches=Shares(8))
    return Runner(box, sandbox, backend, store, store.get("acme", "c1"), identity, limits, turns)


@pytest.fixture
def small_workspace() -> RunnerLimits:
    """Limits with a small workspace quota."""
    return RunnerLimits(
        workspace=WorkspaceLimits(max_bytes=1024 * 1024, max_entries=200, max_depth=16, scan_share=1),
        sandbox=SandboxLimits(watchdog_interval_s=0.02),
    )


@pytest.fixture
def is_root() -> bool:
    return os.geteuid() == 0


def exists(path: str) -> bool:
    """Return whether the path exists on the host."""
    return os.path.lexists(path)


async def started(event: asyncio.Event) -> None:
    """Wait for an event that must occur."""
    async with asyncio.timeout(30):
        await event.wait()


@dataclass
class Server:
    """A local server that sends the same response on every connection."""

    host: str
    port: int
    requests: list[bytes]

    def url(self, path: str = "/", host: str = "site.example") -> str:
        return f"http://{host}:{self.port}{path}"


Responder = Callable[[asyncio.StreamWriter, str], Awaitable[None]]
"""Writes the response to one request with the given path."""


@contextlib.asynccontextmanager
async def serving(
    respond: Responder, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Server]:
    """Serve on a free port while the block runs."""
    requests: list[bytes] = []
    handlers: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Python 3.11 logs an error for each cancelled handler.
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            requests.append(await reader.readuntil(b"\r\n\r\n"))
            await respond(writer, requests[-1].split()[1].decode())
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.create_task(handle(reader, writer)))

    server = await asyncio.start_server(serve, host, 0, ssl=tls)
    async with server:
        try:
            yield Server(host, server.sockets[0].getsockname()[1], requests)
        finally:
            for handler in handlers:
                handler.cancel()
            if handlers:
                await asyncio.wait(handlers, timeout=5)


def replying(body: bytes, *headers: str, status: str = "200 OK") -> Responder:
    """Return a responder that sends a fixed response."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]

    async def respond(writer: asyncio.StreamWriter, _: str) -> None:
        writer.write("\r\n".join(lines).encode() + body)
        await writer.drain()

    return respond
