"""Clients of the gateway that follow one conversation and send messages in another, in each language."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import privileged
from tests.support.node import packages_of
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.contracts.frames import Detail
from banksman.sdk import Client, connect

NODE = Path(__file__).parent / "node"
CLIENT = Path(__file__).parents[3] / "services/gateway/banksman/gateway/interfaces/page/static/client"


@dataclass
class Observed:
    """The items that a client delivered to its program."""

    lists: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    """`steps` and `final`: number and type of each event; `sent`: the id of the run of each message."""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def add(self, kind: str, value: Any) -> None:
        """Add a delivered item."""
        async with self.changed:
            self.lists.setdefault(kind, []).append(value)
            self.changed.notify_all()

    def of(self, kind: str) -> list[Any]:
        """Return the deliveries of a kind."""
        return self.lists.get(kind, [])


def install(folder: Path) -> Path:
    """Install the packed client and the packages of its tests below `folder`; return the folder."""
    packages = packages_of(NODE)
    shutil.copytree(NODE, folder, ignore=shutil.ignore_patterns("node_modules"))
    # A copy: the next command adds the packed client to it.
    shutil.copytree(packages, folder / "node_modules", symlinks=True)
    _npm(folder, "pack", str(CLIENT), "--pack-destination", str(folder))
    (tarball,) = folder.glob("*.tgz")
    _npm(folder, "install", "--no-save", "--prefer-offline", f"./{tarball.name}")
    return folder


def _npm(folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        ["npm", *arguments, "--ignore-scripts", "--no-audit", "--no-fund", "--silent"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=2 * WAIT_TIMEOUT_S,
    )
    privileged.require("npm packages", done.returncode == 0, f"npm {arguments[0]}: {done.stderr[-300:]}")


@dataclass
class NodeDriver:
    """`node/follow.mjs` as a process."""

    process: asyncio.subprocess.Process

    async def send(self, text: str) -> None:
        """Send a message."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n".encode())
        await self.process.stdin.drain()

    async def ended(self) -> None:
        """Wait for the end of the program."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            assert await self.process.wait() == 0


@asynccontextmanager
async def node_driver(folder: Path, observed: Observed, *arguments: str) -> AsyncGenerator[NodeDriver]:
    """Run the program during the block."""
    process = await asyncio.create_subprocess_exec(
        "node",
        "follow.mjs",
        *arguments,
        cwd=folder,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    reading = asyncio.create_task(_read(process, observed))
    try:
        yield NodeDriver(process)
        await reading
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        with suppress(asyncio.CancelledError):
            await reading


@dataclass
class SdkDriver:
    """The client of `banksman.sdk` over the websocket."""

    client: Client
    conversation_id: str
    observed: Observed
    last_seq: int
    tasks: asyncio.TaskGroup
    _following: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    def follow(self, conversation_id: str, after_seq: int, detail: Detail) -> None:
        """Follow a conversation until its last event."""
        following = self._follow(conversation_id, after_seq, detail)
        self._following.append(self.tasks.create_task(following))

    async def send(self, text: str) -> None:
        """Send a message."""
        self._following.append(self.tasks.create_task(self._send(text)))

    async def ended(self) -> None:
        """Wait for the last event and the last reply."""
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await asyncio.wait(self._following)

    async def _send(self, text: str) -> None:
        run = await self.client.send(self.conversation_id, text)
        await self.observed.add("sent", run.run_id)

    async def _follow(self, conversation_id: str, after_seq: int, detail: Detail) -> None:
        async with aclosing(self.client.follow(conversation_id, after_seq, detail=detail)) as events:
            async for event in events:
                await self.observed.add(detail, [event.seq, event.type])
                if event.seq >= self.last_seq:
                    return


@asynccontextmanager
async def sdk_driver(
    observed: Observed, url: str, token: str, followed: str, other: str, last_seq: str
) -> AsyncGenerator[SdkDriver]:
    """Run the client during the block."""
    async with connect(url, token=token, reconnect_s=(0.05, 0.5)) as client, asyncio.TaskGroup() as tasks:
        driver = SdkDriver(client, other, observed, int(last_seq), tasks)
        driver.follow(followed, 0, "steps")
        driver.follow(followed, 2, "final")
        await observed.add("ready", client.tenant)
        yield driver


async def _read(process: asyncio.subprocess.Process, observed: Observed) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        entry: dict[str, Any] = json.loads(line)
        await observed.add(entry["kind"], entry["value"])
