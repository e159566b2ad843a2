"""The memory of a nats-server by purpose, from its own report.

The server's configuration must have a `prof_port`. The profile samples one allocation per half MiB, which is
scaled here as Go's own tools do; the parts are accurate to a few MiB.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import httpx

from tests.support.parked import resident_bytes

SAMPLED_BYTES = 512 * 1024
_PARTS = (
    ("subjects", re.compile(r"/stree\.")),
    ("timers", re.compile(r"MsgScheduling|HashWheel")),
    ("message ids", re.compile(r"getMsgId|storeMsgId|rebuildDedupe")),
    ("open blocks of messages", re.compile(r"getMsgBlockBuf|\(\*msgBlock\)")),
    ("subjects and replies of messages that were delivered", re.compile(r"\(\*client\)\.deliverMsg")),
)
"""The purpose of an allocation, by a function in its call stack; the first match counts."""
OTHER = "other"
_RECORD = re.compile(r"^(\d+): (\d+) \[\d+: \d+\] @.*\n((?:#.*\n)*)", re.MULTILINE)
_FIGURE = re.compile(r"^# (\w+) = (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """Bytes of one server's memory."""

    resident: int
    """Resident memory of the process, as the kernel reports it."""
    live: int
    """In use, without garbage."""
    spare: int
    """Free or garbage, and not returned to the kernel."""
    parts: Mapping[str, int]
    """Parts of `live`, by purpose."""


async def server_memory(pid: int, prof_port: int) -> ServerMemory:
    """Let the server collect its garbage, and return its remaining memory."""
    url = f"http://127.0.0.1:{prof_port}/debug/pprof/heap?debug=1&gc=1"
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        text = (await http.get(url)).raise_for_status().text
    figures = {name: int(value) for name, value in _FIGURE.findall(text)}
    live = figures["HeapAlloc"]
    spare = figures["HeapSys"] - figures["HeapReleased"] - live
    return ServerMemory(resident_bytes(pid), live, spare, _parts(text, live))


def _parts(text: str, live: int) -> dict[str, int]:
    found = dict.fromkeys((name for name, _ in _PARTS), 0)
    for size, stack in _allocations(text):
        name = next((name for name, on_the_way in _PARTS if on_the_way.search(stack)), None)
        if name is not None:
            found[name] += size
    return {**found, OTHER: max(0, live - sum(found.values()))}


def _allocations(text: str) -> Iterator[tuple[int, str]]:
    """Yield each sampled allocation: the bytes in use, scaled, and the functions of its call stack."""
    for count, size, stack in _RECORD.findall(text):
        if int(count):
            # https://pkg.go.dev/runtime#MemProfileRate: the chance that an allocation of a size is sampled.
            chance = 1 - math.exp(-int(size) / int(count) / SAMPLED_BYTES)
            yield int(int(size) / chance), stack
