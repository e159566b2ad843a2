"""The logs of one tenant fill most of their stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from tests.bus.builders import commit
from tests.gateway.conftest import Served

from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.names import EVENTS, USAGE, api
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.log import EventLog
from banksman.contracts.errors import Overloaded
from banksman.contracts.ids import new_id
from banksman.contracts.usage import UsageTotals, usage_key
from banksman.gateway.quotas.backlog import LogRoom
from banksman.quotas.stored import StorageRoom


@pytest.fixture
async def free_bytes(bus: Bus, tenant: str) -> AsyncGenerator[int]:
    """EVENTS with a fifth of its space free; returns its bytes."""
    await EventLog(bus).append(tenant, new_id("c"), commit(1, title="x" * 100_000), after=0)
    info = await call(bus, api("STREAM.INFO", EVENTS))
    held = int(info["state"]["bytes"])
    await call(bus, api("STREAM.UPDATE", EVENTS), {**info["config"], "max_bytes": held + held // 4})
    yield held // 4
    await call(bus, api("STREAM.UPDATE", EVENTS), info["config"])


async def stores(bus: Bus, tenant: str, stored_bytes: int) -> None:
    """Count bytes of a tenant, as agents do."""
    await Bucket(bus, USAGE, UsageTotals).put(usage_key(tenant), UsageTotals(stored_bytes=stored_bytes))


async def test_tenant_whose_logs_fill_its_share_starts_nothing_and_others_do(
    bus: Bus, tenant: str, free_bytes: int
) -> None:
    room = LogRoom(bus, StorageRoom(bus))
    await stores(bus, tenant, 3 * free_bytes)
    with pytest.raises(Overloaded, match="storage_full: the conversations of this tenant"):
        await room.check(tenant)
    await room.check(new_id("t"))
    await stores(bus, tenant, 3 * free_bytes - 1)
    await room.check(tenant)


async def test_tenant_at_its_bound_gets_503_and_busy(
    bus: Bus, tenant: str, free_bytes: int, gateway: Served
) -> None:
    """The gateway starts last: it may use the sizes of the streams for a second."""
    await stores(bus, tenant, 3 * free_bytes)
    async with gateway.http as http, gateway.socket() as socket:
        made = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        runs = f"/context/conversations/{made}/runs"
        refused = await http.post(runs, json={"content": "hi"})
        frame = await socket.request("chat.send", conversation_id=made, content="hi")
    assert refused.status_code == 503, refused.text
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], frame["code"]) == (503, "busy", "busy")
    # The two name the bytes of different moments.
    assert (
        "delete conversations first" in error["message"] and "delete conversations first" in frame["message"]
    )


async def test_below_three_quarters_nothing_is_counted(bus: Bus, tenant: str) -> None:
    """The counts of agents may be wrong, so they are used only when space is short."""
    await stores(bus, tenant, 10**15)
    await LogRoom(bus, StorageRoom(bus)).check(tenant)
