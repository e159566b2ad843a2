"""Damage at random places, stops and kills: what is acknowledged after a start survives the next restart."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from tests.faults.broker.stores import blocks, stream_of
from tests.faults.broker.test_behind_damage import STREAMS, lost, stored
from tests.support.fixtures import provision_all
from tests.support.nats import NatsServer

pytestmark = [pytest.mark.timeout(1_800), pytest.mark.one_server]
ROUNDS = int(os.environ.get("BANKSMAN_DAMAGE_ROUNDS", "4"))
SEED = int(os.environ.get("BANKSMAN_DAMAGE_SEED", "1"))


def test_nothing_acknowledged_behind_random_damage_is_lost() -> None:
    subjects = {stream.name: stream.subjects[-1] for stream in STREAMS}
    chance = random.Random(SEED)
    with NatsServer(launched=True) as server:
        provision_all(server)
        for number in range(ROUNDS):
            asyncio.run(stored(server, subjects, 5, chance.randrange(1, 5_000)))
            server.kill() if chance.random() < 0.5 else server.stop()
            block = chance.choice(
                blocks(stream_of(server.directory / "store", chance.choice(list(subjects))))
            )
            content = bytearray(block.read_bytes())
            if content:
                content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
                block.write_bytes(content)
            server.start()
            work = asyncio.run(stored(server, subjects, 3, 1_000))
            server.kill() if chance.random() < 0.7 else server.stop()
            server.start()
            assert asyncio.run(lost(server, work)) == {}, f"seed {SEED}, round {number}, {block}"
