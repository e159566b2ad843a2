"""Messages behind a damaged one are retained, in each stream, bucket and object store."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from banksman.deployment.streams import provision
from banksman.deployment.topology import Topology
from tests.faults.broker.stores import blocks, flip_in_message, stream_of
from tests.faults.broker.test_behind_damage import STREAMS as STREAMS_OF_THE_PRODUCT
from tests.faults.broker.test_behind_damage import lost, stored
from tests.support.fixtures import connect
from tests.support.nats import NatsServer

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_server]
STREAMS = [replace(stream, max_bytes=127_000) for stream in STREAMS_OF_THE_PRODUCT]
"""The server divides each into files of 32 KB, which few messages fill."""
MESSAGES, BYTES = 50, 2_000


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_only_the_damaged_messages_are_lost(killed: bool) -> None:
    """In a middle and the last file of each stream; the server alone cuts off all later messages."""
    subjects = {stream.name: stream.subjects[-1] for stream in STREAMS}
    with NatsServer(launched=True) as server:
        asyncio.run(_provisioned(server))
        before = asyncio.run(stored(server, subjects, MESSAGES, BYTES))
        server.kill() if killed else server.stop()
        damaged = {name: _damaged(server, name) for name in subjects}
        server.start()
        assert asyncio.run(lost(server, before)) == damaged
        after = asyncio.run(stored(server, subjects, 1, 100))
        server.restart()
        assert asyncio.run(lost(server, after)) == {}
        log = server.log()
        for name, seqs in damaged.items():
            for seq in seqs:
                assert f"stream {name}: message {seq} (" in log


async def _provisioned(server: NatsServer) -> None:
    async with await connect(server) as bus:
        await provision(bus, Topology("APP", tuple(STREAMS)))


def _damaged(server: NatsServer, name: str) -> set[int]:
    found = blocks(stream_of(server.directory / "store", name))
    assert len(found) > 2, name
    return {flip_in_message(found[len(found) // 2], 1), flip_in_message(found[-1], 0)}
