"""Nothing is stored behind damage: messages acknowledged after the damage survive every further restart."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from banksman.bus.connection import Bus
from banksman.bus.jetstream import ApiError, call
from banksman.bus.names import RUNNERS, api, kv_stream
from banksman.contracts.ids import new_id
from banksman.deployment.topology import app_topology, run_topology
from tests.faults.broker.stores import (
    Damage,
    cut_the_tail,
    flip_in_a_middle_block,
    flip_in_the_last_block,
    stream_of,
)
from tests.support.chaos.fleet import OPTIONAL, Fleet
from tests.support.client import Client
from tests.support.fixtures import BUDGET, connect, provision_all
from tests.support.nats import NatsServer
from tests.support.replies import bash
from tests.support.scripted_models import ScriptedReply
from tests.support.system import ScriptedModel
from tests.support.timeouts import WAIT_TIMEOUT_S

pytestmark = [pytest.mark.timeout(300), pytest.mark.one_server]
STREAMS = [
    stream
    for topology in (app_topology(BUDGET), run_topology(BUDGET))
    for stream in topology.streams
    # Leases expire within seconds and are written again.
    if stream.name != kv_stream(RUNNERS)
]
BLOCK = 8 << 20
"""Maximum bytes of a file of the store. The smallest streams have two."""
LARGE = 500_000
"""Bytes of a message, so that few fill a block."""
HEADERS = 500
"""Bytes of the headers of a message and of its subject at most."""


@pytest.fixture
def launched_nats() -> Generator[NatsServer]:
    """A server that starts as `banksman up` and `banksman nats` start it."""
    with NatsServer(launched=True) as server:
        provision_all(server)
        yield server


@pytest.mark.parametrize("damage", [flip_in_the_last_block, cut_the_tail])
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_messages_stored_after_damage_survive_the_next_kill(
    launched_nats: NatsServer, damage: Damage, killed: bool
) -> None:
    """In each stream, bucket and object store; after an orderly stop the index would hide the damage."""
    subjects = {stream.name: stream.subjects[-1] for stream in STREAMS}
    asyncio.run(stored(launched_nats, subjects, 20, 2_000))
    launched_nats.kill() if killed else launched_nats.stop()
    for name in subjects:
        damage(stream_of(launched_nats.directory / "store", name))
    launched_nats.start()
    before = asyncio.run(stored(launched_nats, subjects, 5, 2_000))
    launched_nats.restart()
    assert asyncio.run(lost(launched_nats, before)) == {}


def test_messages_stored_after_damage_to_a_middle_block_survive_the_next_kill(
    launched_nats: NatsServer,
) -> None:
    """In each stream, bucket and object store; of the messages stored before, only one is lost."""
    subjects = {stream.name: stream.subjects[-1] for stream in STREAMS}
    for stream in STREAMS:
        room = stream.max_bytes or 5 * BLOCK
        size = min(LARGE, room // 50, (stream.max_msg_size or LARGE) - HEADERS)
        count = min(5 * BLOCK // 2, room * 9 // 10) // (size + HEADERS)
        asyncio.run(stored(launched_nats, {stream.name: stream.subjects[-1]}, count, size))
    held = asyncio.run(messages(launched_nats))
    launched_nats.stop()
    for name in subjects:
        flip_in_a_middle_block(stream_of(launched_nats.directory / "store", name))
    launched_nats.start()
    before = asyncio.run(stored(launched_nats, subjects, 5, 2_000))
    launched_nats.restart()
    assert asyncio.run(lost(launched_nats, before)) == {}
    assert asyncio.run(messages(launched_nats)) == {name: count - 1 + 5 for name, count in held.items()}


async def test_runs_and_approvals_accepted_after_damage_survive_a_kill_of_the_broker(
    place: Path, model: ScriptedModel
) -> None:
    """P1, P5b: otherwise runs are lost without a trace, and decisions are acknowledged without effect."""
    fleet = Fleet(place, model.url, agents=1, gateways=1, runners=1, without=OPTIONAL)
    async with fleet, Client.connected(fleet.urls[0], timeout_s=WAIT_TIMEOUT_S) as client:
        for number in range(4):
            earlier = await client.create(model.play(f"earlier-{number}", [ScriptedReply(text="Well.")]))
            await client.run(earlier, "first")
        await fleet["nats"].stop(signal.SIGTERM)
        flip_in_the_last_block(stream_of(fleet.nats.data.store))
        await _up(fleet)
        done = [
            await client.create(model.play(f"later-{n}", [ScriptedReply(text="Done.")])) for n in range(3)
        ]
        for conversation in done:
            assert (await client.run(conversation, "go"))["status"] == "completed"
        asking = await client.create(
            model.play("asking", [bash("echo approved"), ScriptedReply(text="Done.")])
        )
        parked = await client.chat(asking, "ask")
        approval_request = await client.approval_request(parked)
        await fleet["nats"].stop()
        await _up(fleet)
        for conversation in done:
            head = await client.request("subscribe", conversation_id=conversation, after_seq=0, detail="full")
            assert head["type"] == "subscribed", head
        await client.request("approval.reply", approval_id=approval_request["approval_id"], all="approve")
        assert (await client.finished(parked))["status"] == "completed"


async def _up(fleet: Fleet) -> None:
    fleet["nats"].start()
    await fleet["nats"].ready()
    await fleet.ready()


async def stored(server: NatsServer, subjects: dict[str, str], count: int, size: int) -> dict[str, set[int]]:
    """Store messages in each stream; return their sequences."""
    async with await connect(server) as bus:
        return {name: await _store(bus, subject, count, size) for name, subject in subjects.items()}


async def _store(bus: Bus, subject: str, count: int, size: int) -> set[int]:
    jetstream = bus.nc.jetstream()
    tokens = subject.replace(">", "*.x").split(".")
    named = [".".join(new_id("x") if token == "*" else token for token in tokens) for _ in range(count)]
    return {(await jetstream.publish(name, b"x" * size)).seq for name in named}


async def messages(server: NatsServer) -> dict[str, int]:
    """Return the number of messages in each stream."""
    async with await connect(server) as bus:
        infos = [await call(bus, api("STREAM.INFO", stream.name)) for stream in STREAMS]
    return {info["config"]["name"]: info["state"]["messages"] for info in infos}


async def lost(server: NatsServer, stored: dict[str, set[int]]) -> dict[str, set[int]]:
    """Return the sequences that the server no longer has, by stream."""
    async with await connect(server) as bus:
        found = {name: await _missing(bus, name, seqs) for name, seqs in stored.items()}
    return {name: missing for name, missing in found.items() if missing}


async def _missing(bus: Bus, name: str, seqs: set[int]) -> set[int]:
    missing: set[int] = set()
    for seq in seqs:
        try:
            await call(bus, api("STREAM.MSG.GET", name), {"seq": seq})
        except ApiError:
            missing.add(seq)
    return missing
