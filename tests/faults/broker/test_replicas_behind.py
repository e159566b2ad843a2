"""Reads from any replica, one of which has only the first messages: results that depend on them are correct.

The replica is a mirror that stores only those; it serves as many reads as the stream itself.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.names import APPROVALS, ASSISTANTS, EVENTS, OUTPUTS, api, kv_stream, object_stream
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.log import EventLog
from banksman.bus.storage.objects import Objects
from banksman.bus.storage.watch import BucketView
from banksman.contracts.assistants import Assistant
from banksman.contracts.ids import new_id
from banksman.deployment.streams import stream_info
from banksman.runs.conversation_log import ConversationLog
from tests.bus.builders import commit, make_approval_reply, make_approval_request

pytestmark = pytest.mark.timeout(180)
WAIT_TIMEOUT_S = 60.0
TIMES = 30
"""Reads of each kind. The stream itself serves all of them once in a thousand million times."""


async def falls_behind(bus: Bus, stream: str) -> None:
    """Let another replica respond for a stream; it has the messages stored so far and gets no more."""
    held, name = await _state(bus, stream), new_id("BEHIND-")
    body = {
        "name": name,
        "storage": "memory",
        "mirror": {"name": stream},
        "mirror_direct": True,
        "allow_direct": True,
        "discard": "new",
        "max_msgs": held["messages"],
    }
    await call(bus, api("STREAM.CREATE", name), body)
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while (await _state(bus, name))["messages"] < held["messages"]:
            pass


async def responds_to_reads(bus: Bus, stream: str) -> None:
    """Wait until the replica has responded to a read."""
    last = (await _state(bus, stream))["last_seq"]
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while last in [found.stream_seq async for found in jetstream.read(bus, stream, ">")]:
            pass


async def _state(bus: Bus, stream: str) -> dict[str, Any]:
    info = await stream_info(bus, stream)
    assert info is not None
    return dict(info["state"])


async def test_a_log_is_read_to_its_end_from_a_lagging_replica(own_bus: Bus, tenant: str) -> None:
    log, position = EventLog(own_bus), 0
    for number in range(1, 7):
        stored = await log.append(tenant, "c", commit(number), after=position)
        assert isinstance(stored, int)
        position = stored
        if number == 2:
            await falls_behind(own_bus, EVENTS)

    await responds_to_reads(own_bus, EVENTS)

    read = [await log.read(tenant, "c", leader=True) for _ in range(TIMES)]
    folded = [await ConversationLog(log.bus).read(tenant, "c") for _ in range(TIMES)]

    assert {len(commits) for commits in read} == {6}
    assert {state.stream_seq for state in folded} == {position}


async def test_an_object_is_read_completely_from_a_lagging_replica(own_bus: Bus, tenant: str) -> None:
    objects = Objects(own_bus, OUTPUTS)
    await objects.put(f"{tenant}-first", b"first")
    await falls_behind(own_bus, object_stream(OUTPUTS))
    await objects.put(tenant, b"x" * 700_000)
    await responds_to_reads(own_bus, object_stream(OUTPUTS))

    assert {len(await objects.get(tenant)) for _ in range(TIMES)} == {700_000}


async def test_a_view_begins_with_the_whole_bucket_from_a_lagging_replica(own_bus: Bus, tenant: str) -> None:
    bucket = Bucket(own_bus, ASSISTANTS, Assistant)
    await bucket.put(f"{tenant}.one", assistant("one"))
    await falls_behind(own_bus, kv_stream(ASSISTANTS))
    await bucket.put(f"{tenant}.two", assistant("two"))
    await bucket.delete(f"{tenant}.one")
    await responds_to_reads(own_bus, kv_stream(ASSISTANTS))

    found: list[set[str]] = []
    for _ in range(TIMES):
        async with BucketView(bucket) as view:
            found.append({entry.key for entry in view.entries()})
    listed = [{entry.key async for entry in bucket.entries(tenant)} for _ in range(TIMES)]

    assert found == [{f"{tenant}.two"}] * TIMES
    assert listed == [{f"{tenant}.two"}] * TIMES


async def test_a_decided_approval_request_is_not_pending(own_bus: Bus, tenant: str) -> None:
    slots = ApprovalSlots(own_bus)
    await slots.store_request(make_approval_request(tenant, "a1"))
    await falls_behind(own_bus, APPROVALS)
    await slots.store_request(make_approval_request(tenant, "a2"))
    await slots.store_reply(make_approval_reply(tenant, "a1", by="alice"))
    await responds_to_reads(own_bus, APPROVALS)

    pending = [await slots.pending(tenant) for _ in range(TIMES)]

    assert [[one.request.approval_id for one in found] for found in pending] == [["a2"]] * TIMES


def assistant(id: str) -> Assistant:
    return Assistant(id=id)
