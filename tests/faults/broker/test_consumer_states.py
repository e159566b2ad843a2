"""A damaged state file of a consumer: the consumer continues with all messages that are not done."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.names import AGENTS, RUNS, api
from banksman.cli.broker.store import is_consumer_state
from banksman.contracts import subjects
from banksman.contracts.ids import new_id
from tests.faults.broker.stores import stream_of
from tests.support.fixtures import connect, provision_all
from tests.support.nats import NatsServer

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_server]
STORED, DONE, HELD = 10, 4, 2


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda content: content[:5], id="truncated"),
        pytest.param(lambda content: bytes([content[0] ^ 1]) + content[1:], id="another magic"),
        pytest.param(lambda content: content[:3] + bytes([content[3] ^ 0x80]) + content[4:], id="flipped"),
    ],
)
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_a_consumer_with_a_damaged_state_delivers_unacked_messages(
    damage: Callable[[bytes], bytes], killed: bool
) -> None:
    """Without the repair the consumer is missing, and provisioning cannot create it: `up` does not start."""
    with NatsServer(launched=True) as server:
        provision_all(server)
        asyncio.run(_stored_and_partly_done(server))
        server.kill() if killed else server.stop()
        state = stream_of(server.directory / "store", RUNS) / "obs" / AGENTS / "o.dat"
        intact = state.read_bytes()
        assert is_consumer_state(intact)
        state.write_bytes(damage(intact))
        server.start()
        provision_all(server)
        assert asyncio.run(_undelivered(server)) == STORED - DONE
        assert f"consumer {RUNS}/{AGENTS}: its damaged state is rebuilt" in server.log()


def test_an_intact_state_is_kept() -> None:
    """A rebuilt one would deliver the messages in work again at once, and end their attempts."""
    with NatsServer(launched=True) as server:
        provision_all(server)
        asyncio.run(_stored_and_partly_done(server))
        server.stop()
        server.start()
        assert asyncio.run(_undelivered(server)) == STORED - DONE - HELD


async def _stored_and_partly_done(server: NatsServer) -> None:
    async with await connect(server) as bus:
        for _ in range(STORED):
            await bus.nc.jetstream().publish(subjects.run_work("t", new_id("c")), b"x")
        inbox = bus.nc.new_inbox()
        received = await bus.nc.subscribe(inbox)
        pull = b'{"batch": %d}' % (DONE + HELD)
        await bus.nc.publish(api("CONSUMER.MSG.NEXT", RUNS, AGENTS), pull, reply=inbox)
        for number in range(DONE + HELD):
            message = await received.next_msg(timeout=10)
            if number < DONE:
                await bus.nc.request(message.reply, b"", timeout=10)


async def _undelivered(server: NatsServer) -> int:
    async with await connect(server) as bus:
        return await _pending(bus)


async def _pending(bus: Bus) -> int:
    return int((await call(bus, api("CONSUMER.INFO", RUNS, AGENTS)))["num_pending"])


def test_doctor_names_a_damaged_state_and_its_remedy(tmp_path: Path) -> None:
    state = tmp_path / "nats" / "streams" / "jetstream" / "APP" / "streams" / RUNS / "obs" / AGENTS / "o.dat"
    state.parent.mkdir(parents=True)
    state.write_bytes(b"\x16\x02\x04")
    command = [sys.executable, "-m", "banksman.cli", "doctor", "--data-dir", str(tmp_path)]
    report = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert f"the state of {RUNS}/{AGENTS} is damaged" in report.stdout
    assert "`banksman up` rebuilds it" in report.stdout
