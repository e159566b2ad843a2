"""One tenant sends large messages while no agent takes them."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from tests.gateway.conftest import Served

from banksman.bus.connection import Bus
from banksman.bus.jetstream import call, purge_subject
from banksman.bus.names import RUNS, api
from banksman.contracts import subjects
from banksman.contracts.subjects import ANY
from banksman.deployment.tenant_room import LEAST

LARGE = "x" * 100_000
FREE_BYTES = 4 * 1024**2


@pytest.fixture
async def small_queue(bus: Bus, tenant: str) -> AsyncGenerator[None]:
    """A queue with 4 MiB of free space."""
    info = await call(bus, api("STREAM.INFO", RUNS))
    limited = {**info["config"], "max_bytes": info["state"]["bytes"] + FREE_BYTES}
    await call(bus, api("STREAM.UPDATE", RUNS), limited)
    yield
    await purge_subject(bus, RUNS, subjects.run_work(tenant, ANY))
    await call(bus, api("STREAM.UPDATE", RUNS), info["config"])


@pytest.mark.usefixtures("small_queue")
async def test_waiting_messages_of_a_tenant_leave_room_to_others(gateway: Served, bus: Bus) -> None:
    """Fewer than the limit of waiting runs, which large messages do not reach."""
    async with gateway.http as http:
        made = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        runs, accepted = f"/context/conversations/{made}/runs", 0
        while (answer := await http.post(runs, json={"content": LARGE})).status_code == 202:
            accepted += 1
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "busy")
    assert "storage_full: no room for further waiting messages" in answer.json()["error"]["message"]
    info = await call(bus, api("STREAM.INFO", RUNS))
    assert LEAST <= accepted < FREE_BYTES // len(LARGE)
    assert info["config"]["max_bytes"] - info["state"]["bytes"] > len(LARGE)
