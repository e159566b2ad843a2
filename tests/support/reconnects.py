"""Clients whose connections break repeatedly; each client must still receive 1..n, each event once."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.protocol import State

from tests.support.chaos.fleet import Fleet
from tests.support.polling import let_others_run, scripted_delay
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import ScriptedModel
from tests.support.timeouts import WAIT_TIMEOUT_S, deadline

Cut = Literal["close", "reset", "silent", "mid-frame"]
"""How a connection breaks.

close      regularly, as when a user leaves the page
reset      with RST, as when a proxy restarts
silent     neither side closes or reads, as when the network fails
mid-frame  in the middle of a frame that the client sends
"""
CUTS: tuple[Cut, ...] = ("close", "reset", "silent", "mid-frame")
AGAIN_S = 0.2
"""Seconds until a client that found no gateway retries."""
_LINGER = struct.pack("ii", 1, 0)
"""Closing a socket with this option sends RST."""

LOOK = ScriptedReply(tool_calls=(ScriptedCall(name="read_file", arguments={"path": "none"}),))
SCRIPT = (LOOK, LOOK, ScriptedReply(text="Nothing is there."))
"""A run of many small events."""


@dataclass
class Follower:
    """One client: the events it received, and the time from each disconnection to its next event."""

    urls: Sequence[str]
    conversation: str
    chance: random.Random
    seqs: list[int] = field(default_factory=list[int])
    resumed_s: list[float] = field(default_factory=list[float])
    cuts: int = 0
    cut_off: asyncio.Event = field(default_factory=asyncio.Event)
    """Set after its last disconnection."""
    _left: list[ClientConnection] = field(default_factory=list[ClientConnection])

    async def follow(self, cuts: int, complete: asyncio.Event, last: dict[str, int]) -> None:
        """Disconnect `cuts` times, at random gateways, and then read to the end.

        Args:
            cuts: The number of disconnections.
            complete: Set once no more events are stored.
            last: The number of each conversation's last event at that time.
        """
        while self.cuts < cuts:
            await self._session(until_s=self.chance.uniform(0.05, 0.4), stop_at=None)
            self.cuts += 1
        self.cut_off.set()
        await complete.wait()
        async with deadline(f"a client did not receive the last event of {self.conversation}"):
            while not self.seqs or self.seqs[-1] < last[self.conversation]:
                await self._session(until_s=60.0, stop_at=last[self.conversation])
        for connection in self._left:
            connection.transport.abort()

    async def _session(self, *, until_s: float, stop_at: int | None) -> None:
        begun = time.perf_counter()
        try:
            connection = await self._connected()
            try:
                async with asyncio.timeout(until_s + 20):
                    await self._read(connection, begun, until_s, stop_at)
            finally:
                await self._cut(connection)
        except (OSError, ConnectionClosed, InvalidHandshake, TimeoutError, EOFError):
            await scripted_delay(AGAIN_S)

    async def _connected(self) -> ClientConnection:
        url = self.chance.choice(self.urls).replace("http", "ws", 1) + "/ws"
        connection = await connect(url, max_size=None, compression=None, open_timeout=20, close_timeout=1)
        after = self.seqs[-1] if self.seqs else 0
        hello = {"type": "hello"}
        subscribe = {
            "type": "subscribe",
            "id": f"s{self.cuts}",
            "conversation_id": self.conversation,
            "after_seq": after,
            "detail": "full",
        }
        for frame in (hello, subscribe):
            await connection.send(json.dumps(frame))
        return connection

    async def _read(
        self, connection: ClientConnection, begun: float, until_s: float, stop_at: int | None
    ) -> None:
        """Receive events for `until_s` seconds from the live subscription on, or until event `stop_at`."""
        live_at: float | None = None
        while live_at is None or time.perf_counter() < live_at + until_s:
            left = None if live_at is None else max(0.001, live_at + until_s - time.perf_counter())
            try:
                async with asyncio.timeout(left):
                    frame: dict[str, Any] = json.loads(await connection.recv())
            except TimeoutError:
                return
            if "prev_seq" in frame:
                self.seqs.append(frame["seq"])
                if frame["seq"] == stop_at:
                    return
            if frame["type"] == "replay.done":
                live_at = time.perf_counter()
                self.resumed_s.append(live_at - begun)

    async def _cut(self, connection: ClientConnection) -> None:
        if connection.state is not State.OPEN:
            # The client's gateway was killed.
            connection.transport.abort()
            return
        match self.chance.choice(CUTS):
            case "close":
                await connection.close()
            case "silent":
                connection.transport.pause_reading()
                self._left.append(connection)
            case "reset":
                _reset(connection)
            case "mid-frame":
                # The header of a masked text frame of 100 bytes, and the first of these bytes.
                connection.transport.write(b"\x81\xe4\x00\x00\x00\x00half")
                await let_others_run()
                _reset(connection)


def _reset(connection: ClientConnection) -> None:
    raw = connection.transport.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
    connection.transport.abort()


async def talk(
    http: httpx.AsyncClient, conversations: Sequence[str], enough: asyncio.Event
) -> dict[str, int]:
    """Start runs until `stop` is set, one after another per conversation; return each last event number."""

    async def one(conversation: str) -> int:
        path = f"/context/conversations/{conversation}"
        while True:
            started = await _patiently(http, "POST", f"{path}/runs")
            await _patiently(http, "GET", f"/context/runs/{started['run_id']}?wait_s=30")
            if enough.is_set():
                break
        await _patiently(http, "GET", f"/context/runs/{started['run_id']}?wait_s=60")
        return int((await _patiently(http, "GET", f"{path}/events?after_seq=0&limit=1"))["head_seq"])

    async with asyncio.TaskGroup() as group:
        tasks = {conversation: group.create_task(one(conversation)) for conversation in conversations}
    return {conversation: task.result() for conversation, task in tasks.items()}


async def _patiently(http: httpx.AsyncClient, method: str, path: str) -> dict[str, Any]:
    """Send a request, and retry while the gateway is unavailable."""
    async with deadline(f"{method} {path} did not succeed", 2 * WAIT_TIMEOUT_S):
        while True:
            try:
                response = await http.request(
                    method, path, json={"content": "go"} if method == "POST" else None
                )
            except httpx.TransportError:
                await scripted_delay(AGAIN_S)
                continue
            if response.status_code < 300:
                return dict(response.json())
            await scripted_delay(AGAIN_S)


def problem(follower: Follower) -> str | None:
    """Return a deviation of a client's events from 1..n, each once; None without any."""
    for number, seq in enumerate(follower.seqs, 1):
        if seq != number:
            return (
                f"event {seq} came where {number} was due, after {follower.seqs[max(0, number - 4) : number]}"
            )
    return None


async def run_all(
    fleet: Fleet,
    model: ScriptedModel,
    *,
    clients: int,
    cuts: int,
    conversations: int,
    kill_every_s: float,
    seed: int,
) -> list[Follower]:
    """Run clients that follow conversations during disconnections and gateway kills; return the clients."""
    name = model.play("reconnects", SCRIPT, at_end="loop")
    enough, complete, last = asyncio.Event(), asyncio.Event(), dict[str, int]()
    async with httpx.AsyncClient(base_url=fleet.urls[0], timeout=90) as http:
        made = [(await _patiently_made(http, name))["conversation_id"] for _ in range(conversations)]
        followers = [
            Follower(fleet.urls, made[number % conversations], random.Random(seed + number))
            for number in range(clients)
        ]
        async with asyncio.TaskGroup() as group:
            killer = group.create_task(_kill_gateways(fleet, kill_every_s))
            talking = group.create_task(talk(http, made, enough))
            following = [group.create_task(one.follow(cuts, complete, last)) for one in followers]
            await asyncio.wait([group.create_task(one.cut_off.wait()) for one in followers])
            killer.cancel()
            enough.set()
            last.update(await talking)
            complete.set()
            await asyncio.wait(following)
    return followers


async def _patiently_made(http: httpx.AsyncClient, model: str) -> dict[str, Any]:
    response = await http.post("/context/conversations", json={"model": model})
    return dict(response.json())


async def _kill_gateways(fleet: Fleet, every_s: float) -> None:
    """Kill the second gateway periodically; it restarts immediately."""
    while True:
        await scripted_delay(every_s)
        fleet["gateway-2"].kill()
