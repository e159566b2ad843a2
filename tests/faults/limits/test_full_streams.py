"""Each stream full, one at a time: accepted runs continue with space, and no reply is paid for twice."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.names import EVENTS, api
from banksman.deployment.declarations import StorageBudget
from banksman.deployment.topology import app_topology
from banksman.quotas.stored import RUN_STREAMS
from tests.scenarios.conftest import Play, logged, model_requests, until
from tests.support.client import Client
from tests.support.polling import eventually
from tests.support.scripted_models import Gate, ScriptedCall, ScriptedReply, ScriptedUsage
from tests.support.system import ScriptedModel, System
from tests.support.timeouts import WAIT_TIMEOUT_S, deadline

pytestmark = pytest.mark.timeout(180)

STREAMS = [
    stream.name for stream in app_topology(StorageBudget(1_000_000)).streams if stream.max_bytes is not None
]
LOOK = ScriptedCall(name="read_file", arguments={"path": "none.txt"})
PAID = ScriptedUsage(input_tokens=100, output_tokens=10)


@pytest.mark.parametrize("stream", STREAMS)
async def test_a_run_survives_a_full_stream_and_no_reply_is_paid_for_twice(
    operator: Bus,
    client: Client,
    http: httpx.AsyncClient,
    readiness: str,
    play: Play,
    model: ScriptedModel,
    stream: str,
) -> None:
    """A37: a start is accepted and completes, or it is refused with the time to retry after."""
    gate = f"full-{stream}"
    name = play(
        ScriptedReply(tool_calls=(LOOK,), usage=PAID, gate=Gate(name=gate)),
        ScriptedReply(text="Paid once.", usage=PAID),
    )
    open_one, other = await client.create(name), await client.create(name)
    run_id = await client.chat(open_one, "go")
    await until(lambda: model_requests(model, name) or None)

    async with full(operator, stream, http, readiness):
        started = await http.post(f"/context/conversations/{other}/runs", json={"content": "go"})
        model.open_gate(gate)
        if stream in RUN_STREAMS:
            warnings = (await http.get(readiness)).json()["warnings"]
            assert f"storage_full: stream {stream} holds" in warnings["storage"]
            assert (started.status_code, started.json()["error"]["code"]) == (503, "busy")
    accepted = [run_id, started.json()["run_id"]] if started.status_code == 202 else [run_id]
    outcomes = [await client.finished(accepted[0])]
    outcomes += [await finished(http, each) for each in accepted[1:]]

    assert started.status_code in (202, 503)
    assert [outcome["status"] for outcome in outcomes] == ["completed"] * len(outcomes)
    assert [outcome["usage"]["input_tokens"] for outcome in outcomes] == [200] * len(outcomes)
    assert len(model_requests(model, name)) == 2 * len(outcomes)


async def test_a_reply_that_a_full_log_refuses_is_retained_and_committed(
    system: System,
    operator: Bus,
    client: Client,
    http: httpx.AsyncClient,
    readiness: str,
    play: Play,
    model: ScriptedModel,
) -> None:
    """A37: the model is not called again for it, however long the log is full."""
    name = play(ScriptedReply(text="Paid once.", usage=PAID, gate=Gate(name="full-log")))
    conversation = await client.create(name)
    run_id = await client.chat(conversation, "go")
    await until(lambda: model_requests(model, name) or None)

    async with full(operator, EVENTS, http, readiness):
        model.open_gate("full-log")
        for attempt in (1, 2, 3):
            waits = f"{conversation}: the reply waits for the broker, attempt {attempt}: storage is full"
            await logged(system, "agent", waits)
    outcome = await client.finished(run_id)

    assert (outcome["status"], outcome["content"]) == ("completed", "Paid once.")
    assert outcome["usage"]["input_tokens"] == 100
    assert len(model_requests(model, name)) == 1


@pytest.fixture
def readiness(system: System) -> str:
    """Return the address where the gateway gives the reasons of its warnings."""
    return json.loads((system.data_dir / "run.json").read_text())["health"]["gateway"]


@asynccontextmanager
async def full(bus: Bus, stream: str, http: httpx.AsyncClient, readiness: str) -> AsyncGenerator[None]:
    """Limit a stream to its current size while the context is open. Gateways find this within a second."""
    info = await call(bus, api("STREAM.INFO", stream))
    # Not 0 for an empty stream, which would mean no limit.
    limited = {**info["config"], "max_bytes": max(1, info["state"]["bytes"])}
    await call(bus, api("STREAM.UPDATE", stream), limited)

    async def reported() -> bool:
        return "storage" in (await http.get(readiness)).json()["warnings"]

    async def no_longer_reported() -> bool:
        return not await reported()

    try:
        if stream in RUN_STREAMS:
            await eventually(reported, interval_s=0.1)
        yield
    finally:
        await call(bus, api("STREAM.UPDATE", stream), info["config"])
        await eventually(no_longer_reported, interval_s=0.1)


async def finished(http: httpx.AsyncClient, run_id: str) -> dict[str, Any]:
    """Wait for the end of a run; return its outcome."""
    async with deadline(f"run {run_id} did not end"):
        while True:
            run = (await http.get(f"/context/runs/{run_id}", params={"wait_s": WAIT_TIMEOUT_S})).json()
            if "usage" in run:
                return run
