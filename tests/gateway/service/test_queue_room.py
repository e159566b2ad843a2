"""One tenant fills the queues while no process takes its messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from tests.gateway.conftest import Served

from banksman.bus.connection import Bus
from banksman.bus.jetstream import call, purge_subject
from banksman.bus.messages import Message
from banksman.bus.names import RUNS, WORKFLOWS, api
from banksman.contracts import subjects
from banksman.contracts.registry import CheckWorkflow, WorkflowChecked, WorkflowDefinition
from banksman.contracts.subjects import ANY
from banksman.quotas.places import LENT
from banksman.quotas.stored import LEAST, SIZE_CLASSES

LARGE = "x" * 100_000
FREE_BYTES = 4 * 1024**2
SMALL_BYTES = 512 * 1024
CROWDED_BYTES = 24 * 1024


@pytest.fixture
async def small_queue(bus: Bus, tenant: str) -> AsyncGenerator[None]:
    """A queue with 4 MiB of free space."""
    async with with_free_space(bus, RUNS, FREE_BYTES):
        yield
        await purge_subject(bus, RUNS, subjects.run_work(tenant, ANY))


@pytest.fixture
async def crowded_queue(bus: Bus, tenant: str) -> AsyncGenerator[None]:
    """A queue with room for few messages."""
    async with with_free_space(bus, RUNS, CROWDED_BYTES):
        yield
        await purge_subject(bus, RUNS, subjects.run_signal(tenant, ANY))


@pytest.fixture
async def crowded_workflows(bus: Bus, tenant: str) -> AsyncGenerator[None]:
    """A queue of workflows with room for few starts."""
    async with with_free_space(bus, WORKFLOWS, SMALL_BYTES):
        yield
        await purge_subject(bus, WORKFLOWS, subjects.workflow_run(ANY, tenant, ANY))


@asynccontextmanager
async def with_free_space(bus: Bus, stream: str, free_bytes: int) -> AsyncGenerator[None]:
    info = await call(bus, api("STREAM.INFO", stream))
    limited = {**info["config"], "max_bytes": info["state"]["bytes"] + free_bytes}
    await call(bus, api("STREAM.UPDATE", stream), limited)
    yield
    await call(bus, api("STREAM.UPDATE", stream), info["config"])


@pytest.mark.usefixtures("small_queue")
async def test_waiting_messages_of_a_tenant_leave_room_for_others(gateway: Served, bus: Bus) -> None:
    """Large messages fill the queue before they reach the limit of waiting runs."""
    async with gateway.http as http:
        made = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        runs, accepted = f"/context/conversations/{made}/runs", 0
        while (response := await http.post(runs, json={"content": LARGE})).status_code == 202:
            accepted += 1
    assert (response.status_code, response.json()["error"]["code"]) == (503, "busy")
    assert "storage_full: no room for further waiting messages" in response.json()["error"]["message"]
    info = await call(bus, api("STREAM.INFO", RUNS))
    assert LEAST <= accepted < FREE_BYTES // len(LARGE)
    assert info["config"]["max_bytes"] - info["state"]["bytes"] > len(LARGE)


@pytest.mark.usefixtures("crowded_queue")
async def test_waiting_signals_of_a_tenant_leave_room_for_others(gateway: Served, bus: Bus) -> None:
    """Signals of small conversations are refused as such, and the queue still stores those of others."""
    async with gateway.http as http:
        made = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        one, accepted = f"/context/conversations/{made}", 0
        while (response := await http.patch(one, json={"title": f"title {accepted}"})).is_success:
            accepted += 1
    assert (response.status_code, response.json()["error"]["code"]) == (503, "busy")
    assert "storage_full: no room for further waiting signals" in response.json()["error"]["message"]
    info = await call(bus, api("STREAM.INFO", RUNS))
    assert LEAST <= accepted < LENT * CROWDED_BYTES // SIZE_CLASSES[0]
    assert info["config"]["max_bytes"] - info["state"]["bytes"] > SIZE_CLASSES[0]


@pytest.mark.usefixtures("crowded_workflows")
async def test_waiting_workflows_of_a_tenant_leave_room_for_others(gateway: Served, bus: Bus) -> None:
    """Starts that no workflows service takes are refused, and the queue still stores those of others."""
    async with checking_every_start(bus), gateway.http as http:
        accepted = 0
        while (response := await http.post("/workflows/wait/runs", json={"parameters": {}})).is_success:
            accepted += 1
    assert (response.status_code, response.json()["error"]["code"]) == (503, "busy")
    assert "storage_full: no room for further waiting workflows" in response.json()["error"]["message"]
    info = await call(bus, api("STREAM.INFO", WORKFLOWS))
    # The starts contain the settings of agent runs, so they belong to the second size class.
    assert LEAST <= accepted < LENT * SMALL_BYTES // SIZE_CLASSES[1]
    assert info["config"]["max_bytes"] - info["state"]["bytes"] > SIZE_CLASSES[1]


@asynccontextmanager
async def checking_every_start(bus: Bus) -> AsyncGenerator[None]:
    """The part of the workflows service that checks a start, without the one that runs it."""

    async def check(message: Message) -> None:
        request = CheckWorkflow.model_validate_json(message.data)
        checked = WorkflowChecked(
            workflow=WorkflowDefinition(name=request.workflow), parameters=request.parameters
        )
        await bus.publish(message.reply, checked.model_dump_json().encode())

    subscription = await bus.subscribe(subjects.workflow_api("start"), check)
    yield
    await subscription.unsubscribe()
