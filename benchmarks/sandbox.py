"""The cost of a sandboxed command, compared with a bare bwrap command.

Five ways to run `echo` are measured alternately, in blocks, so that other load affects all of them equally:

bare     the same bwrap options, filter and limits, started from a small process of the sandbox user,
         without reading the output: the lower bound for every runner
sandbox  `BwrapSandbox.run`
docker   `DockerSandbox.run`, in started containers; only if an engine is running or can be started
tool     the tool `bash`, with the quota of its workspace
runner   the tool `bash` of a complete tool-runner, over NATS: from the request to the stored result

Before that, 64 concurrent calls run in 64 new workspaces, with each sandbox and its default limits. Every
call must succeed, even if its container must start first.

Run: python -m benchmarks.sandbox
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import select
import socket
import ssl
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest
from tests.support.docker_engine import BASE_IMAGE, PACKAGES, ensure_image, running_engine
from tests.support.fixtures import secured_server
from tests.support.forks import ServiceForks
from tests.tool_runner.service.owner import Owner, owning
from tests.tool_runner.service.processes import Runners

from banksman.contracts.ids import new_id
from banksman.tool_runner.egress.client import Egress
from banksman.tool_runner.identity import SandboxIdentity, sandbox_identity
from banksman.tool_runner.lifecycle import workspace_tools
from banksman.tool_runner.sandbox.base import Sandbox, SandboxCommand
from banksman.tool_runner.sandbox.bwrap.recipe import LIMITS, bwrap_options, inner_command
from banksman.tool_runner.sandbox.bwrap.sandbox import BwrapSandbox, find_bwrap
from banksman.tool_runner.sandbox.bwrap.spawner_process import OPTIONS_FD, SECCOMP_FD, STATUS_FD
from banksman.tool_runner.sandbox.docker.sandbox import DockerSandbox
from banksman.tool_runner.sandbox.seccomp import command_filter
from banksman.tool_runner.settings import DockerSettings, RunnerLimits, SandboxLimits
from banksman.tool_runner.workspaces.quota import delete_tree
from banksman.tool_runner.workspaces.workspace import WorkspaceStore

SCRIPT = "echo hi"
MOST_IN_FLIGHT = 16
CROWD = 64
PLANS = ((1, 12, 20), (MOST_IN_FLIGHT, 48, 8))
"""Calls in flight, calls of a block, rounds."""
FIRST_FD = 20
"""A file descriptor above all that bwrap receives."""

Block = Callable[[int, int], Awaitable[list[float]]]
"""Runs a number of calls with a given concurrency; returns the seconds of each."""


class BareBwrap:
    """A small process of the sandbox's user that starts bwrap with minimum overhead."""

    def __init__(self, identity: SandboxIdentity, workspace: Path) -> None:
        limits, command = SandboxLimits(), SandboxCommand(f"ulimit ${LIMITS}; {SCRIPT}", workspace, 20)
        options = bwrap_options(command, limits, etc=None, seccomp_fd=SECCOMP_FD, status_fd=STATUS_FD)
        gate = options.index("BASH_ENV") - 1
        del options[gate : gate + 3]
        self._options = b"".join(os.fsencode(word) + b"\0" for word in options)
        self._command = inner_command(command)
        self._bwrap = find_bwrap()
        self._filter = command_filter()
        self._here, there = socket.socketpair()
        if os.fork() == 0:
            self._here.close()
            if identity.switches:
                os.setgroups([])
                os.setresgid(identity.gid, identity.gid, identity.gid)
                os.setresuid(identity.uid, identity.uid, identity.uid)
            self._serve(there)
        there.close()

    async def block(self, calls: int, in_flight: int) -> list[float]:
        """See `Block`."""
        self._here.send(json.dumps([calls, in_flight]).encode())
        return json.loads(await asyncio.to_thread(self._here.recv, 1 << 20))

    def close(self) -> None:
        self._here.close()
        os.wait()

    def _serve(self, there: socket.socket) -> None:
        while request := there.recv(4096):
            there.send(json.dumps(self._measure(*json.loads(request))).encode())
        os._exit(0)

    def _measure(self, calls: int, in_flight: int) -> list[float]:
        began: dict[int, float] = {}
        took: list[float] = []
        poll = select.poll()
        while len(took) < calls:
            while len(began) < min(in_flight, calls - len(took)):
                now = time.perf_counter()
                pidfd = os.pidfd_open(self._start())
                began[pidfd] = now
                poll.register(pidfd, select.POLLIN)
            for pidfd, _ in poll.poll():
                os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
                took.append(time.perf_counter() - began.pop(pidfd))
                poll.unregister(pidfd)
                os.close(pidfd)
        return took

    def _start(self) -> int:
        with ExitStack() as opened:
            null = high(os.open(os.devnull, os.O_RDWR), opened)
            options, seccomp = (holding(content, opened) for content in (self._options, self._filter))
            files = {0: null, 1: null, 2: null, OPTIONS_FD: options, STATUS_FD: null, SECCOMP_FD: seccomp}
            return os.posix_spawn(
                self._bwrap,
                [self._bwrap, "--args", str(OPTIONS_FD), "--", *self._command],
                {},
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in files.items()],
                setsid=True,
            )


def holding(content: bytes, owner: ExitStack) -> int:
    read, write = os.pipe()
    os.write(write, content)
    os.close(write)
    return high(read, owner)


def high(fd: int, owner: ExitStack) -> int:
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_FD)
    os.close(fd)
    owner.callback(os.close, moved)
    return moved


def closed_loop(call: Callable[[int], Awaitable[object]]) -> Block:
    """Return a block of `call`, which receives the number of its worker."""

    async def block(calls: int, in_flight: int) -> list[float]:
        took: list[float] = []

        async def work(worker: int) -> None:
            for _ in range(calls // in_flight):
                began = time.perf_counter()
                await call(worker)
                took.append(time.perf_counter() - began)

        async with asyncio.TaskGroup() as workers:
            for worker in range(in_flight):
                workers.create_task(work(worker))
        return took

    return block


@contextlib.contextmanager
def temporary_root() -> Generator[Path]:
    """Create a directory that the sandbox's user can reach; remove it afterwards."""
    root = Path(tempfile.mkdtemp(prefix="banksman-benchmark-", dir="/var/tmp"))
    root.chmod(0o711)
    try:
        yield root
    finally:
        delete_tree(root)


@contextlib.asynccontextmanager
async def ways(
    bare: BareBwrap, root: Path, identity: SandboxIdentity, owner: Owner, docker: DockerSettings | None
) -> AsyncGenerator[dict[str, Block]]:
    limits = RunnerLimits(sandbox=SandboxLimits(max_concurrent_calls=MOST_IN_FLIGHT))
    store = WorkspaceStore(root, identity, limits.workspace)
    spaces = [store.get("benchmark", f"c{worker}") for worker in range(MOST_IN_FLIGHT)]
    conversations = [new_id("c") for _ in spaces]
    with ExitStack() as stack:
        sandbox = stack.enter_context(contextlib.closing(BwrapSandbox(identity, limits.sandbox)))
        box = workspace_tools(sandbox, Egress(limits.fetch, ssl_context=ssl.create_default_context()), limits)

        def inside(sandbox: Sandbox) -> Block:
            return closed_loop(lambda worker: echo(sandbox, spaces[worker].directory))

        async def by_tool(worker: int) -> None:
            outcome = await box.run("bash", spaces[worker], {"command": SCRIPT})
            assert outcome.exit_code == 0

        async def by_runner(worker: int) -> None:
            request = owner.request("bash", command=SCRIPT)
            request = request.model_copy(update={"conversation_id": conversations[worker]})
            assert (await owner.result(await owner.accepted(request))).exit_code == 0

        containers: dict[str, Block] = {}
        if docker is not None:
            made = DockerSandbox(root, identity, limits.sandbox, docker)
            containers["docker"] = inside(stack.enter_context(contextlib.closing(made)))
        yield {
            "bare": bare.block,
            "sandbox": inside(sandbox),
            **containers,
            "tool": closed_loop(by_tool),
            "runner": closed_loop(by_runner),
        }


async def echo(sandbox: Sandbox, workspace: Path) -> None:
    """Execute one call."""
    outcome = await sandbox.run(SandboxCommand(SCRIPT, workspace, 60))
    outcome.output.close()
    assert outcome.exit_code == 0, outcome


async def crowd(name: str, sandbox: Sandbox, store: WorkspaceStore) -> None:
    """Execute many calls at once, each in its own workspace; a failed call ends the benchmark."""
    spaces = [store.get(name, f"crowd{number}") for number in range(CROWD)]
    began = time.perf_counter()
    async with asyncio.TaskGroup() as calls:
        for space in spaces:
            calls.create_task(echo(sandbox, space.directory))
    print(f"{CROWD} at once, {name}: all succeeded after {time.perf_counter() - began:.1f} s")


async def crowds(root: Path, identity: SandboxIdentity, docker: DockerSettings | None) -> None:
    limits = RunnerLimits()
    store = WorkspaceStore(root, identity, limits.workspace)
    with contextlib.closing(BwrapSandbox(identity, limits.sandbox)) as sandbox:
        await crowd("bwrap", sandbox, store)
    if docker is not None:
        with contextlib.closing(DockerSandbox(root, identity, limits.sandbox, docker)) as sandbox:
            await crowd("docker", sandbox, store)


async def measure(blocks: dict[str, Block]) -> None:
    for block in blocks.values():
        await block(MOST_IN_FLIGHT, MOST_IN_FLIGHT)
    print(f"{'in flight':>9} {'way':8}{'p50':>9}{'p95':>9}{'mean':>9}{'p50 / bare':>12}{'calls/s':>9}")
    for in_flight, calls, rounds in PLANS:
        took: dict[str, list[float]] = {way: [] for way in blocks}
        for _ in range(rounds):
            for way, block in blocks.items():
                took[way] += await block(calls, in_flight)
        bare = statistics.median(took["bare"])
        for way, seconds in took.items():
            print(row(in_flight, way, seconds, bare))


def row(in_flight: int, way: str, seconds: list[float], bare: float) -> str:
    p50, p95 = statistics.median(seconds), statistics.quantiles(seconds, n=20)[-1]
    mean = statistics.fmean(seconds)
    times = "".join(f"{value * 1e3:>6.1f} ms" for value in (p50, p95, mean))
    return f"{in_flight:>9} {way:8}{times}{p50 / bare:>12.2f}{in_flight / mean:>9.0f}"


async def compare(
    bare: BareBwrap, root: Path, identity: SandboxIdentity, runners: Runners, docker: DockerSettings | None
) -> None:
    await crowds(root, identity, docker)
    runner = runners.start(BANKSMAN_TOOL_RUNNER__LIMITS__SANDBOX__MAX_CONCURRENT_CALLS=str(MOST_IN_FLIGHT))
    async with AsyncExitStack() as stack:
        owner = await stack.enter_async_context(owning(runners.secured, runner))
        await measure(await stack.enter_async_context(ways(bare, root, identity, owner, docker)))


def engine(stack: ExitStack) -> DockerSettings | None:
    """Return the settings of containers that exist while `stack` is open; None without an engine."""
    try:
        found = stack.enter_context(running_engine())
        os.environ["DOCKER_HOST"] = found.host
        return DockerSettings(image=ensure_image(found, BASE_IMAGE, PACKAGES))
    except pytest.skip.Exception as reason:
        print(f"docker: {reason}")
        return None


def main() -> None:
    identity = sandbox_identity()
    with ExitStack() as stack:
        root = stack.enter_context(temporary_root())
        own = WorkspaceStore(root, identity, RunnerLimits().workspace).get("benchmark", "bare")
        # Forks while this process has a single thread: after a fork with threads, the child may deadlock.
        bare = stack.enter_context(contextlib.closing(BareBwrap(identity, own.directory)))
        keys = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        secured = stack.enter_context(secured_server(keys))
        forks = stack.enter_context(ServiceForks("tool-runner"))
        runners = stack.enter_context(contextlib.closing(Runners(secured, forks)))
        asyncio.run(compare(bare, root, identity, runners, engine(stack)))


if __name__ == "__main__":
    main()
