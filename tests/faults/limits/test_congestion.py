"""A broker slower than the clients: excess starts get 429 and a time before they cost anything (P13)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import aiohttp
import pytest
from prometheus_client import REGISTRY

from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.names import CONVERSATIONS, RUNS, api, kv_stream
from banksman.contracts.ids import new_id
from tests.gateway.conftest import TOKENS, Served, gateway_on, key_of
from tests.support.fixtures import settings_of
from tests.support.nats import NatsServer
from tests.support.slow_wire import slow_wire
from tests.support.timeouts import WAIT_TIMEOUT_S

pytestmark = pytest.mark.timeout(180)

FLOOD = 600
"""Concurrent starts, fewer than the 2,000 runs of a tenant that may wait, and more than are stored in 7 s."""
DELAY_S = 0.3
"""Seconds by which each reply of the broker is late: at sixteen in flight, it stores 50 messages a second."""


async def test_starts_beyond_what_the_broker_stores_get_a_time_to_retry(
    own_nats: NatsServer, own_bus: Bus, tenant: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each start is stored, or refused with 429 and a time of its own; another tenant's start is stored."""
    keys = (key_of("alice", tenant), key_of("bob", new_id("t")))
    caplog.set_level(logging.WARNING)
    refused_before = _refused()
    async with slow_wire(own_nats.port) as wire:
        nats = settings_of(own_nats).model_copy(update={"url": wire.url})
        async with (
            gateway_on(own_nats, own_bus, tenant, nats=nats, keys=keys, requests_per_s=0) as gateway,
            _client("alice") as alice,
            _client("bob") as bob,
        ):
            wire.delay_s = DELAY_S
            refused = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                flood = [group.create_task(_start(gateway, alice, refused)) for _ in range(FLOOD)]
                await refused.wait()
                quiet = await _start(gateway, bob, asyncio.Event())
            wire.delay_s = 0.0

    found = [task.result() for task in flood]
    statuses, times = Counter(status for status, _ in found), [int(after) for _, after in found if after]
    assert set(statuses) == {202, 429}
    assert quiet[0] == 202
    assert await _stored(own_bus, RUNS) == statuses[202] + 1
    # A refused start stores nothing: no conversation either.
    assert await _stored(own_bus, kv_stream(CONVERSATIONS)) == statuses[202] + 1
    assert len(times) == statuses[429]
    assert min(times) >= 1
    assert max(times) >= 10
    assert _refused() - refused_before == statuses[429]
    assert any("starts of work were refused" in record.getMessage() for record in caplog.records)


async def _stored(bus: Bus, stream: str) -> int:
    """Return the number of messages in a stream."""
    return int((await call(bus, api("STREAM.INFO", stream)))["state"]["messages"])


def _client(user: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        headers={"authorization": f"Bearer {TOKENS[user]}"},
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=8 * WAIT_TIMEOUT_S),
    )


async def _start(gateway: Served, http: aiohttp.ClientSession, refused: asyncio.Event) -> tuple[int, str]:
    """Start a run; return the status, and the seconds after which to retry."""
    async with http.post(f"{gateway.url}/v1/chat", json={"content": "go"}) as response:
        await response.read()
        if response.status == 429:
            refused.set()
        return response.status, response.headers.get("retry-after", "")


def _refused() -> float:
    return sum(
        sample.value
        for metric in REGISTRY.collect()
        if metric.name == "banksman_refused_starts"
        for sample in metric.samples
        if sample.name.endswith("_total")
    )
