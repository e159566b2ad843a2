"""No headers and no body of a message stop a reader of a stream, bucket or object store."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from functools import partial

import pytest
from pydantic import TypeAdapter

from banksman.bus import jetstream, names
from banksman.bus.connection import Bus
from banksman.bus.dead import dead_letters
from banksman.bus.errors import MessageTooLarge
from banksman.bus.messages import Message
from banksman.bus.names import api, kv_subject
from banksman.bus.publish import durable
from banksman.bus.queues.handling import Done, Outcome, WorkMessage, decoded
from banksman.bus.queues.work import work
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.log import EventLog
from banksman.bus.storage.objects import Objects
from banksman.bus.storage.slots import CallSlots
from banksman.bus.storage.tail import last_sequence, tail
from banksman.bus.storage.watch import BucketView
from banksman.contracts import subjects
from banksman.contracts.errors import Poison
from banksman.contracts.ids import new_id
from banksman.contracts.usage import CommitUsage
from banksman.contracts.wire import Stored
from banksman.deployment.streams import provision_consumer
from banksman.deployment.topology import app_topology, run_topology, workflow_consumer
from banksman.library_internals.nats_client import parse_headers
from banksman.log_integrity.check import check_logs
from tests.bus.builders import commit, finished, make_approval_request, started
from tests.support.fixtures import BUDGET, connect, provision_all
from tests.support.nats import Broker, broker
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S, deadline

HEADERS = (
    "Status: 500",
    "Status: 204\r\nNats-Num-Pending: 0",
    "Status: 404",
    "Status: 503",
    "Status: none",
    "Description: Idle Heartbeat\r\nStatus: 100",
    "Nats-TTL: never",
    "Nats-TTL: soon",
    "Nats-Rollup: sub",
    "Nats-Rollup: all",
    "Nats-Expected-Stream: OTHER",
    "Nats-Expected-Last-Sequence: 1",
    "Nats-Expected-Last-Msg-Id: other",
    "Nats-Expected-Last-Subject-Sequence: 0",
    "Nats-Expected-Last-Subject-Sequence: 0\r\nNats-Expected-Last-Subject-Sequence-Subject: >",
    "Nats-Msg-Id: other",
    "Nats-Schedule: @every 1s\r\nNats-Schedule-Target: conversation.x.y",
    "Nats-Schedule: sometime",
    "Nats-Schedule-TTL: 1s",
    "Nats-Batch-Id: b1\r\nNats-Batch-Sequence: 1",
    "Nats-Batch-Id: b2\r\nNats-Batch-Sequence: 1\r\nNats-Batch-Commit: 1",
    "Nats-Subject: conversation.x.y\r\nNats-Sequence: -1\r\nNats-Time-Stamp: never",
    "Nats-Sequence: none",
    "Nats-Num-Pending: 7",
    "Nats-Stream: OTHER",
    "KV-Operation: PURGE",
    "Nats-Marker-Reason: MaxAge",
    "reply_to: conversation.x.y",
    "content-type: application/x-unknown",
    "Banksman-Prev: none\r\nBanksman-First-Seq: x",
    "Banksman-CommitUsage: 1 2 3 nan",
    "Banksman-Dead-Stream-Seq: " + "9" * 5000,
    "Banksman-Dead-Headers: [",
)
BLOCKS = (
    *(f"NATS/1.0\r\n{lines}\r\n\r\n".encode() for lines in HEADERS),
    b"NATS/1.0 500 Server Error\r\n\r\n",
    b"NATS/1.0 404\r\n\r\n",
    b"NATS/1.0 \xff\xff\xff\r\n\r\n",
    b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\n\r\n",
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0",
    b"NATS/1.0\r\nno header\r\n\r\n",
    b"NATS/1.0\r\nX: \xff\xfe\r\nY\xff: 1\r\n\r\n",
    b"NATS/1.0\r\nA: b",
    b"GET / HTTP/1.1\r\n\r\n",
)
BODIES = (
    b"",
    b"{",
    b"null",
    b"[]",
    b'{"name": {}, "v": 1e999}',
    b'{"v": 99, "name": "newer"}' + b" " * 10,
    b"\xff\xfe",
    b"[" * 200_000,
    b'{"name": 1' + b"0" * 900_000 + b"}",
)

UNREADABLE = range(5)
"""The numbers of the bodies that are unreadable, and small enough for every stream."""

BUCKETS = [
    stream.name.removeprefix("KV_")
    for stream in app_topology(BUDGET).streams
    if stream.name.startswith("KV_")
]
STORES = (names.SNAPSHOTS, names.ARCHIVE, names.OUTPUTS, names.WORKSPACES)


def _key(bucket: str, token: str) -> str:
    return kv_subject(bucket, f"hostile.{token}")


def _description(store: str, token: str) -> str:
    return names.object_meta(store, base64.urlsafe_b64encode(token.encode()).decode())


SUBJECTS: dict[str, Callable[[str], str]] = {
    names.EVENTS: lambda token: subjects.conversation("hostile", token),
    names.RUNS: lambda token: subjects.run_work("hostile", token),
    names.APPROVALS: lambda token: subjects.approval_request("hostile", token),
    names.RESULTS: lambda token: subjects.tool_result("hostile", token),
    names.WORKFLOWS: lambda token: subjects.workflow_run("w1", "hostile", token),
    names.TIMERS: lambda token: subjects.timer_fired("approval", "hostile", token),
    names.DEAD: lambda token: subjects.dead("RUNS", token),
    names.WEBHOOK_QUEUE: lambda token: subjects.webhook_delivery("hostile", token),
    names.AUDIT: lambda token: subjects.audit("hostile", "key", token),
    names.ADVISORIES: lambda token: f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.RUNS.{token}",
    **{names.kv_stream(one): partial(_key, one) for one in BUCKETS},
    **{names.object_stream(one): partial(_description, one) for one in STORES},
}
"""A subject of each stream."""


class Note(Stored):
    """The values of the buckets in these tests."""

    name: str


async def publish(port: int, subject: str, block: bytes | None, body: bytes) -> None:
    """Publish as no client library would: the server receives the block of headers unchanged."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b'CONNECT {"verbose":false,"headers":true,"protocol":1}\r\n'
    if block is None:
        message = f"PUB {subject} {len(body)}\r\n".encode() + body
    else:
        total = len(block) + len(body)
        message = f"HPUB {subject} {len(block)} {total}\r\n".encode() + block + body
    async with deadline(f"the server did not handle a message on {subject}"):
        await reader.readline()
        writer.write(head + message + b"\r\nPING\r\n")
        while (line := await reader.readline()) and not line.startswith(b"PONG"):
            pass
    writer.close()


async def fill(server: Broker) -> None:
    """Publish every hostile message to every stream; one server of a cluster routes them."""
    port = int(server.url.rpartition(":")[2])
    for subject_of in SUBJECTS.values():
        for number, block in enumerate(BLOCKS):
            await publish(port, subject_of(f"h{number}"), block, b'{"name": "hostile"}')
        for number, body in enumerate(BODIES):
            await publish(port, subject_of(f"b{number}"), None, body)


@pytest.fixture(scope="module")
def hostile_nats() -> Generator[Broker]:
    """A server with hostile messages in every stream."""
    with broker() as server:
        provision_all(server)
        asyncio.run(fill(server))
        yield server


@pytest.fixture
async def bus(hostile_nats: Broker) -> AsyncGenerator[Bus]:
    async with await connect(hostile_nats) as connected:
        yield connected


def test_every_stream_is_attacked() -> None:
    streams = {one.name for one in (*app_topology(BUDGET).streams, *run_topology(BUDGET).streams)}
    assert streams == set(SUBJECTS)


@pytest.mark.parametrize("block", BLOCKS)
def test_every_block_of_headers_can_be_parsed(block: bytes) -> None:
    assert isinstance(parse_headers(block), dict)


@pytest.mark.parametrize("name", BUCKETS)
async def test_a_bad_entry_of_a_bucket_is_skipped_and_dead_lettered(bus: Bus, name: str) -> None:
    bucket = Bucket(bus, name, Note)
    await bucket.put("kind.good", Note(name="good"))
    async with asyncio.timeout(WAIT_TIMEOUT_S), BucketView(bucket, check_s=0.1) as view:
        stored = set(await bucket.keys())
        listed = {entry.key async for entry in bucket.entries()}
        assert "kind.good" in listed
        assert {entry.key for entry in view.entries()} == listed
        assert {"hostile.h0", "hostile.h1", "hostile.h2", "hostile.h3"} <= listed
        assert stored - listed >= {f"hostile.b{number}" for number in UNREADABLE}
        await eventually(partial(_are_dead, bus, names.kv_stream(name), stored - listed))


@pytest.mark.parametrize("name", BUCKETS)
async def test_a_view_reports_skipped_entries(bus: Bus, name: str) -> None:
    key = f"late.{new_id('k')}"
    async with asyncio.timeout(WAIT_TIMEOUT_S), BucketView(Bucket(bus, name, Note)):
        await durable(bus, kv_subject(name, key), b"[]", msg_id=new_id("x"))
        await eventually(partial(_are_dead, bus, names.kv_stream(name), {key}))


@pytest.mark.parametrize("name", BUCKETS)
async def test_no_header_removes_the_entries_of_a_bucket(hostile_nats: Broker, bus: Bus, name: str) -> None:
    bucket = Bucket(bus, name, Note)
    await bucket.put("kind.kept", Note(name="kept"))
    port = int(hostile_nats.url.rpartition(":")[2])
    for block in BLOCKS:
        await publish(port, kv_subject(name, "hostile.again"), block, b'{"name": "hostile"}')
    assert await bucket.get("kind.kept") is not None


async def test_an_entry_without_expiry_on_the_server_expires_in_a_view(
    hostile_nats: Broker, bus: Bus
) -> None:
    bucket = Bucket(bus, names.RUNNERS, Note)
    port = int(hostile_nats.url.rpartition(":")[2])
    await publish(
        port,
        kv_subject(names.RUNNERS, "hostile.ever"),
        b"NATS/1.0\r\nNats-TTL: never\r\n\r\n",
        b'{"name": "n"}',
    )
    async with asyncio.timeout(WAIT_TIMEOUT_S), BucketView(bucket, check_s=0.1, ttl_s=0.5) as view:
        assert view.get("hostile.ever") is not None
        await view.wait_for(lambda it: it.get("hostile.ever") is None)
        assert await bucket.get("hostile.ever") is not None
        await bucket.put("hostile.ever", Note(name="again"))
        await view.wait_for(lambda it: it.get("hostile.ever") is not None)


async def test_a_lease_has_a_limited_size(bus: Bus) -> None:
    key, most = kv_subject(names.RUNNERS, "hostile.large"), 4 * 1024
    with pytest.raises(MessageTooLarge):
        await durable(bus, key, b" " * (most + 1), msg_id=new_id("x"))


async def test_a_log_is_read_beside_hostile_logs(bus: Bus) -> None:
    log, token = EventLog(bus), new_id("c")
    await log.append("t1", token, commit(1), after=0)
    assert len(await log.read("t1", token, leader=True)) == 1
    assert {log.partition(".")[2] async for log, _ in check_logs(bus)} >= {"h0", "b0"}
    end = await last_sequence(bus, names.EVENTS)
    async with asyncio.timeout(WAIT_TIMEOUT_S), aclosing(tail(bus, names.EVENTS, after=0)) as messages:
        async for message in messages:
            CommitUsage.from_header(message.headers.get(names.CONSUMED, ""))
            if message.stream_seq == end:
                break


@pytest.mark.parametrize("stream", [names.RUNS, names.WORKFLOWS, names.TIMERS])
async def test_a_work_queue_with_hostile_messages_is_handled_to_its_end(bus: Bus, stream: str) -> None:
    if stream == names.WORKFLOWS:
        await provision_consumer(bus, workflow_consumer("w1", replicas=bus.settings.replicas))
    consumer = {names.RUNS: names.AGENTS, names.WORKFLOWS: "workflow-w1", names.TIMERS: names.FIRED_TIMERS}
    adapter, handled, stop = TypeAdapter(Note), list[str](), asyncio.Event()
    good = SUBJECTS[stream]("good")
    await durable(bus, good, b'{"name": "good"}', msg_id=new_id("x"))

    async def handler(message: WorkMessage) -> Outcome:
        handled.append(decoded(adapter, message).name)
        if message.subject == good:
            stop.set()
        return Done()

    async with asyncio.timeout(WAIT_TIMEOUT_S):
        await work(bus, stream, consumer[stream], handler, slots=1, stop=stop)
    dead = await _dead(bus, stream)
    assert dead >= {SUBJECTS[stream](f"b{number}") for number in UNREADABLE} - _refused(stream)
    assert "good" in handled


async def test_pending_approvals_are_listed_beside_hostile_messages(bus: Bus) -> None:
    slots, approval = ApprovalSlots(bus), new_id("a")
    await slots.store_request(make_approval_request("t1", approval))
    assert [one.request.approval_id for one in await slots.pending()] == [approval]
    assert await _dead(bus, names.APPROVALS) >= {SUBJECTS[names.APPROVALS]("h0")}


async def test_the_slots_of_a_call_are_read_beside_hostile_messages(bus: Bus) -> None:
    slots, attempt = CallSlots(bus), new_id("k")
    await slots.store_started("t1", started(attempt))
    await slots.store_result("t1", finished(attempt), runner_epoch=1)
    assert (await slots.read("t1", attempt)).finished == finished(attempt)
    for token in ("h0", "b0"):
        with pytest.raises(Poison):
            await slots.read("hostile", token)
    assert await _dead(bus, names.RESULTS) >= {SUBJECTS[names.RESULTS]("h0")}


async def test_every_dead_letter_is_listed(bus: Bus) -> None:
    found = [letter async for letter in dead_letters(bus, stream="RUNS")]
    assert len(found) > len(BODIES)


@pytest.mark.parametrize("store", STORES)
async def test_objects_are_read_beside_hostile_descriptions(bus: Bus, store: str) -> None:
    objects, name = Objects(bus, store), new_id("o")
    await objects.put(name, b"data")
    assert name in {info.name async for info in objects.list()}
    assert await objects.get(name) == b"data"


@pytest.mark.parametrize("stream", SUBJECTS)
async def test_a_read_returns_every_hostile_message(bus: Bus, stream: str) -> None:
    info = await jetstream.call(bus, api("STREAM.INFO", stream))
    if not info["config"].get("allow_direct"):
        return
    everything = [message async for message in jetstream.read(bus, stream, ">", current=True)]
    assert len(everything) == info["state"]["messages"]
    found = {one.subject for one in everything if await jetstream.last_message(bus, stream, one.subject)}
    # Messages of some streams expire, on a busy machine also between the reads.
    remaining = {message.subject async for message in jetstream.read(bus, stream, ">", current=True)}
    assert remaining <= found


async def test_a_client_survives_every_block_of_headers(hostile_nats: Broker, bus: Bus) -> None:
    subject, arrived = f"live.{new_id('t')}.c", asyncio.Queue[Message]()

    async def received(message: Message) -> None:
        arrived.put_nowait(message)

    await bus.subscribe(subject, received)
    await bus.ready()
    port = int(hostile_nats.url.rpartition(":")[2])
    for block in BLOCKS:
        await publish(port, subject, block, b"data")
    await bus.publish(subject, b"last")
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while (await arrived.get()).data != b"last":
            pass
    assert bus.stats.reconnects == 0


def _refused(stream: str) -> set[str]:
    """Return the subjects that a stream of work did not store, because the message was too large."""
    return {SUBJECTS[stream]("b8")} if stream in (names.RUNS, names.WORKFLOWS) else set()


async def _are_dead(bus: Bus, stream: str, keys: set[str]) -> bool:
    return keys <= await _dead(bus, stream)


async def _dead(bus: Bus, stream: str) -> set[str]:
    """Return the subjects of dead letters of a stream; for a bucket their keys."""
    head = kv_subject(stream.removeprefix("KV_"), "")
    return {one.letter.subject.removeprefix(head) async for one in dead_letters(bus, stream=stream)}
