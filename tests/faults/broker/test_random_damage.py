"""Damage at random places, stops and kills: one message is lost, and nothing that is acknowledged later."""

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


def test_random_damage_costs_one_message_and_nothing_behind_it() -> None:
    subjects = {stream.name: stream.subjects[-1] for stream in STREAMS}
    kept: dict[str, set[int]] = {name: set() for name in subjects}
    chance = random.Random(SEED)
    with NatsServer(launched=True) as server:
        provision_all(server)
        for number in range(ROUNDS):
            _add(kept, asyncio.run(stored(server, subjects, 5, chance.randrange(1, 3_500))))
            server.kill() if chance.random() < 0.5 else server.stop()
            damaged = chance.choice(list(subjects))
            block = chance.choice(blocks(stream_of(server.directory / "store", damaged)))
            content = bytearray(block.read_bytes())
            if content:
                content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
                block.write_bytes(content)
            server.start()
            missing = asyncio.run(lost(server, {damaged: kept[damaged]})).get(damaged, set())
            assert len(missing) <= 1, f"seed {SEED}, round {number}, {block}: {missing}"
            kept[damaged] -= missing
            work = asyncio.run(stored(server, subjects, 3, 1_000))
            _add(kept, work)
            server.kill() if chance.random() < 0.7 else server.stop()
            server.start()
            assert asyncio.run(lost(server, work)) == {}, f"seed {SEED}, round {number}, {block}"


def _add(kept: dict[str, set[int]], more: dict[str, set[int]]) -> None:
    for name, seqs in more.items():
        kept[name] |= seqs
