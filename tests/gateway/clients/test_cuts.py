"""Clients whose connections are cut within frames: each event arrives once, each message starts one run."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from tests.gateway.clients.drivers import Observed, node_driver, sdk_driver
from tests.gateway.conftest import TOKENS, Agent, Served
from tests.support.cutting import CuttingProxy, cutting_proxy
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.names import RUNS, api
from banksman.contracts import subjects
from banksman.contracts.events import IterationStarted, MessageCompleted
from banksman.contracts.ids import new_id

CUTS = 20
EVENTS_PER_CUT = 4


class Driver(Protocol):
    """A program that uses a client."""

    async def send(self, text: str) -> None: ...

    async def ended(self) -> None: ...


Start = Callable[..., AbstractAsyncContextManager[Driver]]


async def received(observed: Observed, kind: str, count: int) -> None:
    """Wait until a client has delivered `count` items of a kind."""
    async with asyncio.timeout(WAIT_TIMEOUT_S), observed.changed:
        await observed.changed.wait_for(lambda: len(observed.of(kind)) >= count)


async def cut_or_idle(proxy: CuttingProxy, cuts: int, observed: Observed, events: int, sent: int) -> None:
    """Wait until the proxy has cut the connection, or cut it once nothing more is to be delivered."""

    def is_cut() -> bool:
        if proxy.cuts >= cuts:
            return True
        if len(observed.of("steps")) >= events and len(observed.of("sent")) >= sent:
            proxy.cut()
        return False

    await eventually(is_cut, WAIT_TIMEOUT_S)


async def stored_runs(bus: Bus, tenant: str, conversation_id: str) -> int:
    subject = subjects.run_work(tenant, conversation_id)
    info = await call(bus, api("STREAM.INFO", RUNS), {"subjects_filter": subject})
    return sum((info["state"].get("subjects") or {}).values())


async def interrupt(served: Served, agent: Agent, start: Start) -> None:
    """Cut a client off twenty times, at random bytes, and compare the delivered with the stored items."""
    chance = random.Random(7)
    async with served.socket("alice") as socket:
        followed, other = await socket.create(), await socket.create()
        await socket.request("chat.send", conversation_id=followed, content="hello")
    run = await agent.started(followed)
    await agent.begin(run)
    last = 2 + CUTS * EVENTS_PER_CUT
    observed = Observed()
    async with (
        cutting_proxy(served.running.port) as proxy,
        start(observed, proxy.url, TOKENS["alice"], followed, other, str(last)) as driver,
    ):
        await received(observed, "ready", 1)
        for number in range(CUTS):
            proxy.cut_after(chance.randrange(1, 3000))
            await driver.send(f"message {number}")
            for _ in range(EVENTS_PER_CUT // 2):
                reply = MessageCompleted(message_id=new_id("m"), role="assistant", content="x" * 300)
                await agent.commit(followed, run.run_id, IterationStarted(n=2, max=9), reply)
            await cut_or_idle(proxy, number + 1, observed, 2 + (number + 1) * EVENTS_PER_CUT, number + 1)
        await received(observed, "sent", CUTS)
        await driver.ended()

    assert proxy.cuts == CUTS
    assert [seq for seq, _ in observed.of("steps")] == [*range(1, last + 1)]
    replies = [event for event in observed.of("steps") if event[1] == "message.completed"]
    assert observed.of("final") == replies
    assert len(set(observed.of("sent"))) == CUTS
    assert await stored_runs(agent.bus, agent.tenant, other) == CUTS


async def test_a_javascript_client_that_is_cut_off_twenty_times_delivers_every_event_once(
    guarded: Served, agent: Agent, node_folder: Path
) -> None:
    await interrupt(guarded, agent, lambda observed, *given: node_driver(node_folder, observed, *given))


async def test_a_python_client_that_is_cut_off_twenty_times_delivers_every_event_once(
    guarded: Served, agent: Agent
) -> None:
    await interrupt(guarded, agent, sdk_driver)
