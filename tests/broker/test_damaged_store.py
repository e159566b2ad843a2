"""A store that was altered under the server: it starts without a word, and we notice what is gone."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from banksman.bus.connection import Bus
from banksman.bus.log import EventLog
from banksman.bus.log_check import Damage, check_logs
from banksman.contracts.events import ConversationUpdated
from banksman.testing.fixtures import connect
from banksman.testing.nats import NatsServer
from tests.gateway.conftest import Agent, Served, gateway_on

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_server]
BIG = 300_000
"""Characters of an event, so that a log reaches over several of the store's blocks of 8 MB."""
COMMITS = 60


def test_a_log_that_a_bit_flip_tore_is_refused_new_runs_and_others_go_on(
    own_nats: NatsServer, tenant: str
) -> None:
    hurt, whole = asyncio.run(_written(own_nats, tenant))
    own_nats.stop()
    first, *others = sorted(_blocks(own_nats), key=lambda block: int(block.stem))
    assert others, "the log is to reach over several blocks"
    _flip_a_bit(first)
    own_nats.start()
    asyncio.run(_is_noticed(own_nats, tenant, hurt, whole))
    checked = subprocess.run(
        [sys.executable, "-m", "banksman.cli", "check"],
        env=_environment(own_nats),
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 2
    assert f"{tenant}/{hurt}: events " in checked.stdout
    assert whole not in checked.stdout


def test_whole_logs_pass_the_check(own_nats: NatsServer, tenant: str) -> None:
    asyncio.run(_written(own_nats, tenant))
    assert asyncio.run(_damages(own_nats)) == []


async def test_an_event_that_does_not_belong_is_found(own_nats: NatsServer, tenant: str) -> None:
    """A second numbering in the same log: what two systems on one store would write."""
    async with await connect(own_nats) as bus:
        agent = Agent(bus, tenant)
        await agent.commit("c1", None, ConversationUpdated(title="ours"))
        stored = (await EventLog(bus).read(tenant, "c1", leader=True))[-1]
        foreign = Agent(bus, tenant)
        foreign._ends["c1"] = (stored.stream_seq, 1)  # it goes on from our end
        await foreign.commit("c1", None, ConversationUpdated(title="theirs"))
    [damage] = await _damages(own_nats)
    assert damage.conversation_id == "c1"
    assert "is of another log" in damage.problem


async def _written(server: NatsServer, tenant: str) -> tuple[str, str]:
    """A conversation with a log over several blocks, and one that lies in the last of them."""
    async with _gateway(server, tenant) as (bus, served):
        async with served.socket() as socket:
            hurt, whole = await socket.create(), await socket.create()
        agent = Agent(bus, tenant)
        for number in range(COMMITS):
            await agent.commit(hurt, None, ConversationUpdated(title=f"{number} " + "x" * BIG))
        await agent.commit(whole, None, ConversationUpdated(title="short"))
        return hurt, whole


async def _is_noticed(server: NatsServer, tenant: str, hurt: str, whole: str) -> None:
    [damage] = await _damages(server)
    assert (damage.tenant, damage.conversation_id) == (tenant, hurt)
    async with _gateway(server, tenant) as (_, served):
        async with served.socket() as socket:
            refused = await socket.ask("chat.send", conversation_id=hurt, content="on?")
            assert (refused["type"], refused["code"], refused["retryable"]) == ("error", "conflict", False)
            assert f"the log of {hurt} is damaged" in refused["message"]
            accepted = await socket.ask("chat.send", conversation_id=whole, content="on!")
            assert accepted["type"] == "ack"


async def _damages(server: NatsServer) -> list[Damage]:
    async with await connect(server) as bus:
        return [damage async for damage in check_logs(bus)]


@asynccontextmanager
async def _gateway(server: NatsServer, tenant: str) -> AsyncGenerator[tuple[Bus, Served]]:
    async with await connect(server) as bus, gateway_on(server, bus, tenant) as served:
        yield bus, served


def _blocks(server: NatsServer) -> list[Path]:
    return list((server.directory / "store").glob("jetstream/*/streams/EVENTS/msgs/*.blk"))


def _flip_a_bit(file: Path) -> None:
    with file.open("r+b") as store:
        store.seek(file.stat().st_size // 2)
        byte = store.read(1)[0]
        store.seek(-1, os.SEEK_CUR)
        store.write(bytes([byte ^ 1]))


def _environment(server: NatsServer) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BANKSMAN_")}
    return {
        **kept,
        "BANKSMAN_NATS__URL": server.url,
        "BANKSMAN_NATS__MONITORING_URL": server.monitoring_url,
    }
