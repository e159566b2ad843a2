"""Whole outputs of commands share one store; no tenant fills it for the others."""

from __future__ import annotations

from nats.js.api import DiscardPolicy
from tests.support.fixtures import SecuredNats

from banksman.agent.router import store_router
from banksman.agent.runners.stores import RunnerStores
from banksman.bus.connection import Bus
from banksman.bus.control_plane.control import ControlPlane
from banksman.bus.names import OUTPUTS, object_chunks, object_meta, object_stream
from banksman.bus.secrets import SEAL_BYTES
from banksman.bus.storage.objects import CHUNK_BYTES, Objects, owned_name
from banksman.contracts.ids import new_id
from banksman.deployment.users import AGENT, TOOL_RUNNER
from banksman.tool_runner.outputs import Outputs
from banksman.tool_runner.workspaces.entry import objects_of

_WAIT_S = 30.0
_OUTPUT = bytes(1000)


async def _stored(objects: Objects, tenant: str) -> list[str]:
    return [info.name.rpartition("/")[2] async for info in objects.list(f"{tenant}/")]


async def test_oldest_outputs_of_a_tenant_are_removed_above_its_limit(runners_nats: SecuredNats) -> None:
    """As the user of a runner, with its permissions."""
    greedy, modest = new_id("t"), new_id("t")
    async with (
        await runners_nats.connect(TOOL_RUNNER) as bus,
        await runners_nats.connect(AGENT) as agent,
        ControlPlane(agent, store_router(RunnerStores(agent))),
    ):
        objects = objects_of(bus, OUTPUTS, "r1")
        outputs = Outputs(objects, "r1", max_tenant_bytes=8 * (len(_OUTPUT) + SEAL_BYTES))
        await outputs.put(modest, "c", "first", _OUTPUT, _WAIT_S)
        for number in range(20):
            stored = await outputs.put(greedy, "c", f"{number:02}", _OUTPUT, _WAIT_S)
            assert stored.name == f"r1:{greedy}/c/{number:02}"
        assert await _stored(objects, greedy) == [f"{number:02}" for number in range(12, 20)]
        assert await _stored(objects, modest) == ["first"]


async def test_limit_holds_after_a_runner_was_restarted(bus: Bus, tenant: str) -> None:
    objects = Objects(bus, OUTPUTS)
    for number in range(20):
        restarted = Outputs(objects, "r1", max_tenant_bytes=8 * (len(_OUTPUT) + SEAL_BYTES))
        await restarted.put(tenant, "c", f"{number:02}", _OUTPUT, _WAIT_S)
    assert len(await _stored(objects, tenant)) == 8


async def test_full_store_removes_outputs_of_the_tenant_that_has_most(bus: Bus, tenant: str) -> None:
    """The outputs of another runner leave this runner less space than its share."""
    objects = await _small_store(bus, tenant, 5 * CHUNK_BYTES)
    half = bytes(CHUNK_BYTES // 2)
    await objects.put(owned_name("r2", "other", "c", "first"), bytes(2 * CHUNK_BYTES))
    outputs = Outputs(objects, "r1", max_tenant_bytes=CHUNK_BYTES * 100)
    await outputs.put("modest", "c", "first", half, _WAIT_S)
    for number in range(10):
        await outputs.put("greedy", "c", str(number), half, _WAIT_S)
    await outputs.put("late", "c", "first", half, _WAIT_S)
    assert await _stored(objects, "modest") == await _stored(objects, "late") == ["first"]
    assert "9" in await _stored(objects, "greedy")
    assert await _stored(objects, "other") == ["first"]
    await bus.nc.jetstream().delete_stream(object_stream(f"small-{tenant}"))


async def test_outputs_of_a_runner_leave_a_quarter_of_the_store_for_others(bus: Bus, tenant: str) -> None:
    objects = await _small_store(bus, tenant, 10 * CHUNK_BYTES)
    outputs = Outputs(objects, "r1", max_tenant_bytes=CHUNK_BYTES * 100)
    most = 0
    for number in range(30):
        await outputs.put("t", "c", f"{number:02}", bytes(CHUNK_BYTES // 2), _WAIT_S)
        most = max(most, (await objects.storage_used())[0])
    assert 7 * CHUNK_BYTES < most <= 7.5 * CHUNK_BYTES + 30_000
    left = await _stored(objects, "t")
    assert left == [f"{number:02}" for number in range(30)][-len(left) :]
    await bus.nc.jetstream().delete_stream(object_stream(f"small-{tenant}"))


async def _small_store(bus: Bus, tenant: str, max_bytes: int) -> Objects:
    store = f"small-{tenant}"
    await bus.nc.jetstream().add_stream(
        name=object_stream(store),
        subjects=[object_chunks(store, ">"), object_meta(store, ">")],
        max_bytes=max_bytes,
        discard=DiscardPolicy.NEW,
        allow_direct=True,
        allow_rollup_hdrs=True,
    )
    return Objects(bus, store)
