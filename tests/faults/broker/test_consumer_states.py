"""Damaged files of a stream or consumer beside its messages: it continues with all that are not done."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.names import AGENTS, CONVERSATIONS, RUNS, api, kv_stream
from banksman.bus.queues.kept import queue_kept_again
from banksman.bus.queues.work import Done, Outcome, WorkMessage, work
from banksman.cli.broker.store import is_consumer_state
from banksman.deployment.topology import app_topology, provisioned_queues
from banksman.deployment.users import AGENT, OPERATOR
from tests.faults.broker.stores import stream_of
from tests.support.fixtures import BUDGET, SecuredNats, connect, provision_all, secured_server
from tests.support.nats import NatsServer
from tests.support.polling import eventually

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_server]
STORED, DONE, HELD = 10, 4, 2
Queue = tuple[str, str]
"""A stream and a consumer."""


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


@pytest.mark.parametrize(
    ("file", "starts"),
    [
        ("meta.inf", 2),
        ("meta.sum", 1),
        ("meta.sum", 2),
        (f"obs/{AGENTS}/meta.inf", 1),
        (f"obs/{AGENTS}/meta.inf", 2),
    ],
)
def test_damaged_settings_of_a_stream_or_consumer_are_replaced(file: str, starts: int) -> None:
    """Without it the server is never ready: `JetStream stream could not be recovered`."""
    with NatsServer(launched=True) as server:
        provision_all(server)
        asyncio.run(_stored_and_partly_done(server))
        for _ in range(starts - 1):
            server.stop()
            server.start()
        server.stop()
        settings = stream_of(server.directory / "store", RUNS) / file
        content = bytearray(settings.read_bytes())
        content[3] ^= 1
        settings.write_bytes(content)
        server.start()
        provision_all(server)
        assert asyncio.run(_undelivered(server)) >= STORED - DONE - HELD
        assert "its settings were damaged" in server.log()


def test_a_stream_whose_directory_is_lost_is_named() -> None:
    """Provisioning creates it again without its messages, which would not be missed."""
    with NatsServer(launched=True) as server:
        provision_all(server)
        asyncio.run(_stored_and_partly_done(server))
        server.stop()
        server.start()
        server.stop()
        shutil.rmtree(stream_of(server.directory / "store", kv_stream(CONVERSATIONS)))
        server.start()
        server.stop()
        server.start()
        assert server.log().count("stream KV_conversations is missing, with all its messages") == 1


def test_an_intact_state_is_kept() -> None:
    """A rebuilt one would deliver the messages in work again at once, and end their attempts."""
    with NatsServer(launched=True) as server:
        provision_all(server)
        asyncio.run(_stored_and_partly_done(server))
        server.stop()
        server.start()
        assert asyncio.run(_undelivered(server)) == STORED - DONE - HELD


def test_a_message_whose_removal_was_lost_is_delivered_again_and_removed(tmp_path: Path) -> None:
    """P10: the server wrote that the messages are done, and lost what it wrote to the streams after that."""
    with secured_server(tmp_path / "keys") as secured:
        assert isinstance(secured.server, NatsServer)
        store = secured.server.directory / "store"
        queues = asyncio.run(_removing_queues(secured))
        places = {stream: stream_of(store, stream) / "msgs" for stream, _ in queues}
        asyncio.run(_in_each(secured, queues, _stored))
        secured.server.kill()
        for stream, messages in places.items():
            shutil.copytree(messages, tmp_path / stream)
        secured.server.start()
        asyncio.run(_in_each(secured, queues, _partly_done))
        # The states of consumers are written within a second, or when the server stops.
        secured.server.stop()
        for stream, messages in places.items():
            shutil.rmtree(messages)
            shutil.copytree(tmp_path / stream, messages)
        secured.server.start()
        asyncio.run(_worked_off(secured, queues))


async def _removing_queues(secured: SecuredNats) -> list[Queue]:
    """Return the provisioned consumers of the streams from which an acknowledgement removes a message."""
    topology = app_topology(BUDGET)
    async with await secured.connect(OPERATOR) as bus:
        infos = [await call(bus, api("STREAM.INFO", one.stream)) for one in topology.consumers]
    queues = zip(topology.consumers, infos, strict=True)
    return [
        (one.stream, one.durable)
        for one, info in queues
        if info["config"]["retention"] in ("workqueue", "interest")
    ]


async def _in_each(secured: SecuredNats, queues: list[Queue], do: Callable[..., Awaitable[None]]) -> None:
    async with await secured.connect(OPERATOR) as bus:
        for queue in queues:
            await do(bus, *queue)


async def _worked_off(secured: SecuredNats, queues: list[Queue]) -> None:
    handled = {queue: set[str]() for queue in queues}

    def handler(queue: Queue) -> Callable[[WorkMessage], Awaitable[Outcome]]:
        async def handle(message: WorkMessage) -> Outcome:
            handled[queue].add(message.subject)
            return Done()

        return handle

    async def left() -> int:
        return sum([await _messages(bus, stream) for stream in {stream for stream, _ in queues}])

    async def only_kept() -> bool:
        return await left() == DONE * len(queues)

    async def empty() -> bool:
        return await left() == 0

    async with (
        await secured.connect(OPERATOR) as bus,
        await secured.connect(AGENT) as agent,
        asyncio.TaskGroup() as group,
    ):
        assert await left() == STORED * len(queues)
        stop = asyncio.Event()
        for queue in queues:
            group.create_task(work(bus, *queue, handler(queue), slots=4, stop=stop))
        await eventually(only_kept)
        assert {len(found) for found in handled.values()} == {STORED - DONE}
        async with agent.background.running("kept", lambda: queue_kept_again(agent, provisioned_queues())):
            await eventually(empty)
        stop.set()
    assert {len(found) for found in handled.values()} == {STORED}


async def _messages(bus: Bus, stream: str) -> int:
    return int((await call(bus, api("STREAM.INFO", stream)))["state"]["messages"])


async def _stored_and_partly_done(server: NatsServer) -> None:
    async with await connect(server) as bus:
        await _stored(bus, RUNS, AGENTS)
        await _partly_done(bus, RUNS, AGENTS)


async def _stored(bus: Bus, stream: str, durable: str) -> None:
    info = await call(bus, api("CONSUMER.INFO", stream, durable))
    for number in range(STORED):
        subject = info["config"]["filter_subject"].replace("*", f"t{number}")
        await bus.nc.jetstream().publish(subject, b"x")


async def _partly_done(bus: Bus, stream: str, durable: str) -> None:
    inbox = bus.nc.new_inbox()
    received = await bus.nc.subscribe(inbox)
    pull = b'{"batch": %d}' % (DONE + HELD)
    await bus.nc.publish(api("CONSUMER.MSG.NEXT", stream, durable), pull, reply=inbox)
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
