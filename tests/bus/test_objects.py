"""Object stores: complete and checked objects, in the layout that other clients read."""

from __future__ import annotations

import hashlib
import json

import pytest
from nats.js.api import DiscardPolicy

from banksman.bus.connection import Bus
from banksman.bus.errors import MessageTooLarge
from banksman.bus.jetstream import call, delete_message
from banksman.bus.names import SNAPSHOTS, api, object_chunks, object_meta, object_stream
from banksman.bus.publish import durable
from banksman.bus.storage.objects import CHUNK_BYTES, MAX_OBJECT_BYTES, ObjectBroken, Objects, subject_tokens
from banksman.contracts.errors import NotFound, Overloaded
from banksman.contracts.ids import new_id


@pytest.fixture
def objects(bus: Bus) -> Objects:
    return Objects(bus, SNAPSHOTS)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, MAX_OBJECT_BYTES])
async def test_an_object_is_read_as_it_was_stored(objects: Objects, tenant: str, size: int) -> None:
    data = (hashlib.sha256(tenant.encode()).digest() * (size // 32 + 1))[:size]
    info = await objects.put(f"{tenant}/out put.txt", data)
    assert info.size == size
    assert await objects.get(f"{tenant}/out put.txt") == data


async def test_a_new_object_replaces_the_old_and_its_parts(objects: Objects, bus: Bus, tenant: str) -> None:
    await objects.put(tenant, b"x" * (CHUNK_BYTES * 3))
    before = await messages(bus)
    await objects.put(tenant, b"new")
    assert await objects.get(tenant) == b"new"
    assert await messages(bus) == before - 2


async def test_a_missing_object_is_not_found(objects: Objects, tenant: str) -> None:
    with pytest.raises(NotFound):
        await objects.get(tenant)
    assert not await objects.delete(tenant)


async def test_a_deleted_object_leaves_nothing(objects: Objects, bus: Bus, tenant: str) -> None:
    before = await messages(bus)
    await objects.put(tenant, b"x" * (CHUNK_BYTES * 2))
    assert await objects.delete(tenant)
    assert await messages(bus) == before
    with pytest.raises(NotFound):
        await objects.get(tenant)


async def test_objects_are_listed_by_prefix(objects: Objects, tenant: str) -> None:
    for name in ("a", "b"):
        await objects.put(f"{tenant}/{name}", b"12")
    found = [info async for info in objects.list(f"{tenant}/")]
    assert [(info.name, info.size) for info in found] == [(f"{tenant}/a", 2), (f"{tenant}/b", 2)]


async def test_an_object_that_does_not_fit_leaves_no_chunks(bus: Bus, tenant: str) -> None:
    """Failed writes must not fill a nearly full store further."""
    store = f"small-{tenant}"
    await bus.nc.jetstream().add_stream(
        name=object_stream(store),
        subjects=[object_chunks(store, ">"), object_meta(store, ">")],
        max_bytes=CHUNK_BYTES * 3,
        discard=DiscardPolicy.NEW,
        allow_direct=True,
        allow_rollup_hdrs=True,
    )
    small = Objects(bus, store)
    for _ in range(3):
        with pytest.raises(Overloaded):
            await small.put("too large", b"x" * (CHUNK_BYTES * 4))
        await small.put("fits", b"y" * (CHUNK_BYTES + 1))
        assert await small.get("fits") == b"y" * (CHUNK_BYTES + 1)
    assert await messages(bus, store) == 3
    await bus.nc.jetstream().delete_stream(object_stream(store))


@pytest.mark.parametrize("written", ["yesterday", "2026-01-01T00:00:00"])
async def test_a_malformed_description_hides_no_other_object(
    objects: Objects, bus: Bus, tenant: str, written: str
) -> None:
    """Every runner may write to the stores, including a compromised one."""
    await objects.put(f"{tenant}/good", b"12")
    for name, meta in (("dated", {"name": f"{tenant}/dated", "mtime": written}), ("broken", {})):
        common = {"bucket": SNAPSHOTS, "nuid": new_id("o"), "size": 0, "chunks": 0}
        subject = object_meta(SNAPSHOTS, subject_tokens(f"{tenant}/{name}"))
        await durable(bus, subject, json.dumps({**common, **meta}).encode(), msg_id=new_id("x"))
    found = {info.name: info async for info in objects.list(f"{tenant}/")}
    assert set(found) == {f"{tenant}/good", f"{tenant}/dated"}
    assert found[f"{tenant}/dated"].modified_at < found[f"{tenant}/good"].modified_at


async def test_an_object_above_16_mb_is_refused(objects: Objects, tenant: str) -> None:
    with pytest.raises(MessageTooLarge):
        await objects.put(tenant, b"x" * (MAX_OBJECT_BYTES + 1))


async def test_a_damaged_object_is_not_returned(objects: Objects, bus: Bus, tenant: str) -> None:
    await objects.put(tenant, b"x" * (CHUNK_BYTES * 2))
    last = (await call(bus, api("STREAM.INFO", object_stream(SNAPSHOTS))))["state"]["last_seq"]
    assert await delete_message(
        bus, object_stream(SNAPSHOTS), last - 1
    )  # the last chunk, stored before the description
    with pytest.raises(ObjectBroken):
        await objects.get(tenant)


async def test_larger_data_is_stored_in_parts(objects: Objects, tenant: str) -> None:
    data = b"".join(bytes([number]) * 1024 * 1024 for number in range(20))
    names = [f"{tenant}/{number}" for number in range(2)]
    for number, name in enumerate(names):
        await objects.put(name, data[number * MAX_OBJECT_BYTES : (number + 1) * MAX_OBJECT_BYTES])
    parts = [await objects.get(name) for name in names]
    assert [len(part) for part in parts] == [MAX_OBJECT_BYTES, 4 * 1024 * 1024]
    assert b"".join(parts)[:: 1024 * 1024] == bytes(range(20))
    for name in names:
        assert await objects.delete(name)
    assert [info async for info in objects.list(tenant)] == []


async def test_other_clients_read_our_objects_and_we_read_theirs(
    objects: Objects, bus: Bus, tenant: str
) -> None:
    theirs = await bus.nc.jetstream().object_store(SNAPSHOTS)
    await objects.put(f"{tenant}-ours", b"o" * 700_000)
    assert (await theirs.get(f"{tenant}-ours")).data == b"o" * 700_000
    await theirs.put(f"{tenant}-theirs", b"t" * 700_000)
    assert await objects.get(f"{tenant}-theirs") == b"t" * 700_000


async def messages(bus: Bus, store: str = SNAPSHOTS) -> int:
    return (await call(bus, api("STREAM.INFO", object_stream(store))))["state"]["messages"]
