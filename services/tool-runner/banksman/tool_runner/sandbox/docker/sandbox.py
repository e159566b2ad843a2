"""Commands in containers, one container per workspace."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import shutil
import socket
import time
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from banksman.contracts.ids import new_id
from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.sandbox.base import (
    WORKSPACE,
    OnListener,
    OnOutput,
    RunningOutput,
    Sandbox,
    SandboxCommand,
    SandboxOutcome,
    SandboxUnavailable,
    Stop,
    capturing,
    run_until,
)
from banksman.tool_runner.sandbox.docker.container import Container, directory_id
from banksman.tool_runner.sandbox.docker.engine import (
    INSTALLATION_LABEL,
    ContainerRecipe,
    Engine,
    checked_image,
    checked_runtime,
    find_host_directory,
    own_container,
    remove_orphans,
)
from banksman.tool_runner.sandbox.etc import write_etc
from banksman.tool_runner.settings import DEFAULT_IMAGE, DockerSettings, SandboxLimits

log = logging.getLogger(__name__)

_SWEEP_INTERVAL_S = 1.0
_CLOSE_WAIT_S = 5.0
_ENGINE_THREADS = 8


class DockerSandbox:
    """Runs commands in one container per workspace. The first command starts the container.

    The Docker SDK blocks, so requests to the engine run in threads. Output is read in the event loop.
    """

    def __init__(
        self,
        root: Path,
        identity: SandboxIdentity,
        limits: SandboxLimits,
        settings: DockerSettings,
        *,
        max_output_chars: int = 10_000,
    ) -> None:
        """Connect to the engine and remove containers of an earlier process for the workspaces below `root`.

        Blocks for at most a few times `settings.engine_timeout_s`. Raises `SandboxUnavailable` if the engine
        does not meet a requirement; the message names it.
        """
        self._limits = limits
        self._settings = settings
        self._max_output_chars = max_output_chars
        self._engine = Engine(settings.engine_timeout_s)
        own = own_container(self._engine)
        self._host_directory = find_host_directory(root, settings.host_dir, own)
        etc = root / ".etc"
        write_etc(etc, identity.uid, identity.gid)
        own_image = DEFAULT_IMAGE if own is None else str(own["Image"])
        self._recipe = ContainerRecipe(
            image=checked_image(self._engine, settings.image or own_image),
            runtime=checked_runtime(self._engine, settings.runtime),
            cpus=settings.cpus,
            identity=identity,
            limits=limits,
            installation=hashlib.sha256(os.fsencode(self._host_directory.host_path)).hexdigest()[:16],
            instance=new_id("i"),
            etc=self._host_directory.of(etc),
        )
        remove_orphans(self._engine, f"{INSTALLATION_LABEL}={self._recipe.installation}")
        self._threads = ThreadPoolExecutor(_ENGINE_THREADS, "docker")
        self._packets = root / ".proxies"
        shutil.rmtree(self._packets, ignore_errors=True)
        self._packets.mkdir(mode=0o700)
        self._in_use: set[_Place] = set()
        """Places with a running command."""
        self._starting: dict[_Place, asyncio.Task[Container]] = {}
        self._live: dict[_Place, Container] = {}
        self._lasting: dict[str, Container] = {}
        """Containers of commands that last, by their names."""
        self._condemned: dict[str, Path] = {}
        """Workspaces by the name of a container that must be removed. Until then, the workspace gets no other
        container: two containers could run commands in it at once."""

    def close(self) -> None:
        """Remove every container within seconds. Containers that remain end with this process."""
        for task in self._starting.values():
            task.cancel()
        for container in [*self._live.values(), *self._lasting.values()]:
            self._condemn(container)
        removals = [self._threads.submit(self._remove, name) for name in self._condemned]
        wait(removals, _CLOSE_WAIT_S)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._engine.close()

    async def run(
        self, command: SandboxCommand, *, on_output: OnOutput | None = None, stop: Stop | None = None
    ) -> SandboxOutcome:
        return await self.run_in(None, command, on_output, stop)

    @contextlib.asynccontextmanager
    async def shared(self, on_listener: OnListener | None = None) -> AsyncGenerator[Sandbox]:
        """See `Sandbox.shared`. A command that lasts has a container of its own, with all limits."""
        shared = SharedContainers(self, on_listener)
        try:
            yield shared
        finally:
            for container in shared.containers:
                self._condemn(container)

    async def run_in(
        self,
        shared: SharedContainers | None,
        command: SandboxCommand,
        on_output: OnOutput | None,
        stop: Stop | None,
    ) -> SandboxOutcome:
        """Run a command in a network namespace of its own, or in the shared one; see `Sandbox.run`."""
        if command.directory != WORKSPACE:
            raise SandboxUnavailable("programs of MCP servers run only in the sandbox bwrap")
        place = command.workspace, shared
        with (
            capturing(self._max_output_chars, self._limits, on_output, stop, lasts=command.lasts) as output,
            contextlib.nullcontext() if command.lasts else self._using(place),
        ):
            return await self._run(place, command, output)

    @contextlib.contextmanager
    def _using(self, place: _Place) -> Generator[None]:
        if place in self._in_use:
            # A container runs one command at a time; the caller serialises the calls of a workspace.
            raise SandboxUnavailable(f"another command runs in {place[0]}")
        self._in_use.add(place)
        try:
            yield
        finally:
            self._in_use.discard(place)

    async def _run(self, place: _Place, command: SandboxCommand, output: RunningOutput) -> SandboxOutcome:
        stop, (_, shared) = output.stop, place
        container = None if stop.reason is not None else await self._container(place, command, stop)
        if container is None:
            return SandboxOutcome(None, output.captured, stop.reason, 0)
        started = time.monotonic()
        call = container.begin(output)
        on_listener = command.on_listener if shared is None else shared.take_listener()
        try:
            await container.run(command, self._limits, stop, on_listener)
        finally:
            if not await container.end(self._limits.kill_wait_s) or command.lasts:
                await self._end(container)
        duration_ms = round((time.monotonic() - started) * 1000)
        return SandboxOutcome(call.exit_code(), output.captured, stop.reason, duration_ms)

    async def sweep(self) -> None:
        """Every second, remove idle containers and retry failed removals, until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL_S)
            for container in self._idle():
                if container.idle_s > self._settings.idle_s or not container.usable:
                    self._condemn(container)
            await self._remove_condemned(list(self._condemned))

    async def _container(self, place: _Place, command: SandboxCommand, stop: Stop) -> Container | None:
        """Return the container for a command, or None if `stop` comes first.

        A container that is still starting then serves the next command of the place.
        """
        image = command.toolchain.image or self._recipe.image
        if command.lasts:
            container = await self._start(place, image)
            self._lasting[container.name] = container
            return container
        container = self._live.get(place)
        if container is not None:
            if container.serves(image):
                return container
            self._condemn(container)
        container = await self._started(place, image, stop)
        if container is not None and container.image != image:
            self._condemn(container)
            container = await self._started(place, image, stop)
        return container

    async def _started(self, place: _Place, image: str, stop: Stop) -> Container | None:
        """Return the container that starts for a place.

        It has another image if an earlier command, which was stopped, has started it.
        """
        if place not in self._starting:
            self._starting[place] = asyncio.create_task(self._start_live(place, image))
            self._starting[place].add_done_callback(lambda _: self._starting.pop(place))
        try:
            async with asyncio.timeout(self._settings.start_timeout_s):
                return await run_until(_uncancelled(self._starting[place]), stop.wait())
        except TimeoutError:
            limit_s = self._settings.start_timeout_s
            raise SandboxUnavailable(
                f"the Docker engine started no container within {limit_s:g} s",
                remedy="Check the load of the engine, or raise tool_runner.docker.start_timeout_s.",
            ) from None

    async def _start_live(self, place: _Place, image: str) -> Container:
        workspace, _ = place
        self._free_container_slot()
        await self._remove_condemned([name for name, of in self._condemned.items() if of == workspace])
        if workspace in self._condemned.values():
            raise SandboxUnavailable(
                "the Docker engine has not removed the previous container of the workspace"
            )
        container = self._live[place] = await self._start(place, image)
        return container

    async def _start(self, place: _Place, image: str) -> Container:
        workspace, shared = place
        if shared is None:
            return await self._start_beside(None, workspace, image)
        # One after another, so that the second enters the network namespace of the first.
        async with shared.starting:
            container = await self._start_beside(shared.beside(), workspace, image)
            shared.containers.append(container)
            return container

    async def _start_beside(self, beside: str | None, workspace: Path, image: str) -> Container:
        mounted = directory_id(workspace)
        if mounted is None:
            raise SandboxUnavailable(f"{workspace} does not exist")
        name = f"banksman-{self._recipe.installation}-{new_id('w')}"
        container = Container(name, image, workspace, mounted, self._packets / name)
        try:
            container.connect(await self._opened(container, beside))
            async with asyncio.timeout(self._settings.start_timeout_s):
                await container.ready()
        except BaseException:
            self._condemn(container)
            raise
        return container

    async def _opened(self, container: Container, beside: str | None) -> socket.socket:
        opening = self._threads.submit(self._open, container, beside)
        try:
            return await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            # The thread continues, also while the event loop ends; nothing else has its connection.
            opening.add_done_callback(_close_result)
            raise

    def _open(self, container: Container, beside: str | None) -> socket.socket:
        """Create, attach and start a container, in this order: its supervisor sends the first frame."""
        source = self._host_directory.of(container.directory)
        workspace = source.relative_to(self._host_directory.host_path)
        if container.image != self._recipe.image:
            checked_image(self._engine, container.image)
        container.packets.mkdir()
        container.packets.chmod(0o755)
        packets = self._host_directory.of(container.packets)
        config = self._recipe.config(container.image, source, str(workspace), packets, beside)
        self._engine.create(container.name, config)
        connection = self._engine.attach(container.name)
        try:
            self._engine.start(container.name)
        except SandboxUnavailable:
            connection.close()
            raise
        return connection

    def _free_container_slot(self) -> None:
        excess = len(self._live) + len(self._starting) - self._settings.max_containers
        longest_first = sorted(self._idle(), key=lambda container: container.idle_s, reverse=True)
        for container in longest_first[: max(0, excess)]:
            self._condemn(container)

    def _idle(self) -> list[Container]:
        return [container for place, container in self._live.items() if place not in self._in_use]

    async def _end(self, container: Container) -> None:
        """Remove a container that does not end its command; `sweep` retries a failed removal."""
        self._condemn(container)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.kill_wait_s):
                await self._remove_condemned([container.name])
        if container.name in self._condemned:
            log.warning("%s was killed, but its end is not confirmed", container.name)

    def _condemn(self, container: Container) -> None:
        container.close()
        self._condemned[container.name] = container.directory
        self._lasting.pop(container.name, None)
        for place in [place for place, live in self._live.items() if live is container]:
            del self._live[place]

    async def _remove_condemned(self, names: list[str]) -> None:
        loop = asyncio.get_running_loop()
        for name in names:
            try:
                await loop.run_in_executor(self._threads, self._remove, name)
            except SandboxUnavailable as error:
                log.warning("%s cannot be removed: %s", name, error)
                return
            self._condemned.pop(name, None)

    def _remove(self, name: str) -> None:
        self._engine.remove(name)
        shutil.rmtree(self._packets / name, ignore_errors=True)


@dataclass(eq=False, slots=True)
class SharedContainers:
    """The containers of one conversation that share a network namespace, and with it one proxy."""

    backend: DockerSandbox
    on_listener: OnListener | None
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    containers: list[Container] = field(default_factory=list[Container])
    _listening: bool = False
    """Whether the network namespace has the port of the proxy already."""

    async def run(
        self, command: SandboxCommand, *, on_output: OnOutput | None = None, stop: Stop | None = None
    ) -> SandboxOutcome:
        placed = replace(command, on_listener=self.on_listener)
        return await self.backend.run_in(self, placed, on_output, stop)

    def shared(self, on_listener: OnListener | None = None) -> AbstractAsyncContextManager[Sandbox]:
        return self.backend.shared(on_listener)

    def beside(self) -> str | None:
        """Return a container that runs; None if the next one gets a new network namespace."""
        self.containers = [one for one in self.containers if one.usable]
        self._listening = self._listening and bool(self.containers)
        return self.containers[0].name if self.containers else None

    def take_listener(self) -> OnListener | None:
        """Return the receiver of the proxy's socket for the first command of a network namespace."""
        first, self._listening = not self._listening, True
        return self.on_listener if first else None


_Place = tuple[Path, SharedContainers | None]
"""A workspace and the network namespace of its containers; None: each has its own."""


def _close_result(opening: Future[socket.socket]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


async def _uncancelled(task: asyncio.Task[Container]) -> Container:
    """Wait for a task without cancelling it when the caller is cancelled."""
    await asyncio.wait([task])
    return task.result()
