"""A damaged state file of a consumer: the consumer continues with all messages that are not done."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.names import AGENTS, RUNS, api
from banksman.bus.queues.kept import queue_kept_again
from banksman.bus.queues.work import Done, Outcome, WorkMessage, work
from banksman.cli.broker.store import is_consumer_state
from banksman.contracts import subjects
from banksman.contracts.ids import new_id
from tests.faults.broker.stores import stream_of
from tests.support.fixtures import connect, provision_all
from tests.support.nats import NatsServer
from tests.support.polling import eventually

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


def test_a_message_whose_removal_was_lost_is_delivered_again_and_removed(tmp_path: Path) -> None:
    """P10: the server wrote that the messages are done, and lost what it wrote to the stream after that."""
    with NatsServer(launched=True) as server:
        provision_all(server)
        messages = stream_of(server.directory / "store", RUNS) / "msgs"
        asyncio.run(_stored(server))
        server.kill()
        shutil.copytree(messages, tmp_path / "msgs")
        server.start()
        asyncio.run(_partly_done(server))
        # Its state is written within a second, or when it stops.
        server.stop()
        shutil.rmtree(messages)
        shutil.copytree(tmp_path / "msgs", messages)
        server.start()
        asyncio.run(_worked_off(server))


async def _worked_off(server: NatsServer) -> None:
    handled: set[str] = set()

    async def handle(message: WorkMessage) -> Outcome:
        handled.add(message.subject)
        return Done()

    async def messages() -> int:
        return int((await call(bus, api("STREAM.INFO", RUNS)))["state"]["messages"])

    async def only_kept() -> bool:
        return await messages() == DONE

    async def empty() -> bool:
        return await messages() == 0

    async with await connect(server) as bus, asyncio.TaskGroup() as group:
        assert await messages() == STORED
        stop = asyncio.Event()
        group.create_task(work(bus, RUNS, AGENTS, handle, slots=4, stop=stop))
        await eventually(only_kept)
        assert len(handled) == STORED - DONE
        async with bus.background.running("kept", lambda: queue_kept_again(bus, RUNS, (AGENTS,))):
            await eventually(empty)
        stop.set()
    assert len(handled) == STORED


async def _stored_and_partly_done(server: NatsServer) -> None:
    await _stored(server)
    await _partly_done(server)


async def _stored(server: NatsServer) -> None:
    async with await connect(server) as bus:
        for _ in range(STORED):
            await bus.nc.jetstream().publish(subjects.run_work("t", new_id("c")), b"x")


async def _partly_done(server: NatsServer) -> None:
    async with await connect(server) as bus:
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
