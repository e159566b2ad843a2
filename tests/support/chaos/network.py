"""Processes in their own networks, whose links a test can cut. Needs root, iproute2 and iptables."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Literal

from tests.support.chaos.fleet import Fleet, Member
from tests.support.supervised import cleaned_up_by
from tests.support.timeouts import deadline

Loss = Literal["all", "in", "out"]
"""
all  the link is cut
in   nothing reaches the process
out  nothing that the process sends arrives
"""
LOSSES: tuple[Loss, ...] = ("all", "in", "out")
PREFIX = "bktest"
"""Beginning of the names of namespaces and links."""
# The deletion of a namespace deletes its veth pair, but not the iptables rules for it.
_REMOVE = """
while iptables -w -D OUTPUT -o "$0" -j DROP; do :; done
while iptables -w -D INPUT -i "$0" -j DROP; do :; done
ip netns del "$0"
"""
_READY = (
    'exec 3<>/dev/tcp/127.0.0.1/$0; printf "GET /readyz HTTP/1.0\\r\\n\\r\\n" >&3; read -r -u 3 _ code _;'
    " echo $code"
)


def possible() -> bool:
    """Return whether this machine permits network namespaces."""
    if os.geteuid() != 0 or not all(shutil.which(name) for name in ("ip", "iptables")):
        return False
    name = f"bk-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    return made and subprocess.run(["ip", "netns", "del", name], capture_output=True).returncode == 0


@dataclass(frozen=True)
class Cable:
    """The link between a network namespace and the machine."""

    name: str
    """The name of the namespace, and of the link's end on the machine."""
    inside: str
    """The address of the process."""
    outside: str
    """The address of this machine from within the namespace."""

    async def lose(self, what: Loss) -> None:
        """Drop all traffic, or that of one direction."""
        if what == "all":
            await _run("ip", "link", "set", self.name, "down")
        else:
            await self._filter("-I", what)

    async def repair(self, what: Loss) -> None:
        """Pass all traffic again."""
        if what == "all":
            await _run("ip", "link", "set", self.name, "up")
        else:
            await self._filter("-D", what)

    async def _filter(self, action: str, what: Literal["in", "out"]) -> None:
        chain = ("OUTPUT", "-o") if what == "in" else ("INPUT", "-i")
        await _run("iptables", "-w", action, *chain, self.name, "-j", "DROP")


@asynccontextmanager
async def cable(number: int, index: int) -> AsyncGenerator[Cable]:
    """Create a namespace with a link to it during the block."""
    # The name of a link has at most 15 characters (IFNAMSIZ).
    name = f"{PREFIX}{number}-{index}"
    made = Cable(name, f"10.{number}.{index}.2", f"10.{number}.{index}.1")
    inner = f"{name}i"
    remove = ("sh", "-c", _REMOVE, name)
    with cleaned_up_by(remove):
        try:
            await _run("ip", "netns", "add", name)
            await _run("ip", "link", "add", name, "type", "veth", "peer", "name", inner, "netns", name)
            await _run("ip", "addr", "add", f"{made.outside}/24", "dev", name)
            await _run("ip", "link", "set", name, "up")
            for command in (
                ("link", "set", "lo", "up"),
                ("addr", "add", f"{made.inside}/24", "dev", inner),
                ("link", "set", inner, "up"),
                ("route", "add", "default", "via", made.outside),
            ):
                await _run("ip", "-n", name, *command)
            yield made
        finally:
            await _run(*remove)


@asynccontextmanager
async def host_address(number: int) -> AsyncGenerator[str]:
    """Create an address of this machine that every namespace reaches, during the block."""
    address = f"10.{number}.0.1"
    remove = ("ip", "addr", "del", f"{address}/32", "dev", "lo")
    with cleaned_up_by(remove):
        await _run("ip", "addr", "add", f"{address}/32", "dev", "lo")
        try:
            yield address
        finally:
            await _run(*remove)


@asynccontextmanager
async def isolate(fleet: Fleet, number: int, *names: str) -> AsyncGenerator[dict[str, Cable]]:
    """Assign each of these members of a fleet its own namespace. The fleet must not have started."""
    async with AsyncExitStack() as stack:
        cables: dict[str, Cable] = {}
        for index, name in enumerate(names, start=1):
            cables[name] = await stack.enter_async_context(cable(number, index))
            _move(fleet, fleet[name], cables[name])
        yield cables


async def is_ready(member: Member, cable: Cable) -> bool:
    """Return the readiness that a process reports, requested from within its own namespace."""
    port = member.spec.ready_url.rpartition(":")[2].partition("/")[0]
    process = await asyncio.create_subprocess_exec(
        "ip", "netns", "exec", cable.name, "bash", "-c", _READY, port,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    async with deadline(f"{member.name} did not respond within its namespace"):
        printed, _ = await process.communicate()
    return printed.strip() == b"200"


def _move(fleet: Fleet, member: Member, cable: Cable) -> None:
    member.prefix = ("ip", "netns", "exec", cable.name)
    own = {key: "0.0.0.0" for key in member.spec.environment if key.endswith("__HEALTH_HOST")}
    environment = {**member.spec.environment, **own}
    ready_url = member.spec.ready_url.replace(fleet.host, cable.inside)
    if "BANKSMAN_GATEWAY__HOST" in environment:
        environment["BANKSMAN_GATEWAY__HOST"] = "0.0.0.0"
        environment["BANKSMAN_GATEWAY__ALLOWED_HOSTS"] = f'["{cable.inside}"]'
        port = environment["BANKSMAN_GATEWAY__PORT"]
        fleet.urls[fleet.urls.index(f"http://{fleet.host}:{port}")] = f"http://{cable.inside}:{port}"
    member.spec = replace(member.spec, environment=environment, ready_url=ready_url)


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    if process.returncode != 0:
        raise OSError(f"{' '.join(command)}: {errors.decode(errors='replace').strip()}")
