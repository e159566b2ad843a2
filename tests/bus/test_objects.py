"""Object stores: whole, checked, in the layout that other clients read."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import pytest

from banksman.bus.connection import Bus
from banksman.bus.errors import MessageTooLarge
from banksman.bus.jetstream import call, delete_message
from banksman.bus.names import api
from banksman.bus.objects import CHUNK_BYTES, MAX_OBJECT_BYTES, ObjectBroken, Objects
from banksman.contracts.errors import NotFound


@pytest.fixture
def outputs(bus: Bus) -> Objects:
    return Objects(bus, "outputs")


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, MAX_OBJECT_BYTES])
async def test_an_object_comes_back_as_it_was(outputs: Objects, tenant: str, size: int) -> None:
    data = (hashlib.sha256(tenant.encode()).digest() * (size // 32 + 1))[:size]
    info = await outputs.put(f"{tenant}/out put.txt", data)
    assert info.size == size
    assert await outputs.get(f"{tenant}/out put.txt") == data


async def test_a_new_object_replaces_the_old_and_its_parts(outputs: Objects, bus: Bus, tenant: str) -> None:
    await outputs.put(tenant, b"x" * (CHUNK_BYTES * 3))
    before = await messages(bus)
    await outputs.put(tenant, b"new")
    assert await outputs.get(tenant) == b"new"
    assert await messages(bus) == before - 2


async def test_what_is_not_there_is_not_found(outputs: Objects, tenant: str) -> None:
    with pytest.raises(NotFound):
        await outputs.get(tenant)
    assert not await outputs.delete(tenant)


async def test_a_deleted_object_leaves_nothing(outputs: Objects, bus: Bus, tenant: str) -> None:
    before = await messages(bus)
    await outputs.put(tenant, b"x" * (CHUNK_BYTES * 2))
    assert await outputs.delete(tenant)
    assert await messages(bus) == before
    with pytest.raises(NotFound):
        await outputs.get(tenant)


async def test_objects_are_listed_by_prefix(outputs: Objects, tenant: str) -> None:
    for name in ("a", "b"):
        await outputs.put(f"{tenant}/{name}", b"12")
    found = [info async for info in outputs.list(f"{tenant}/")]
    assert [(info.name, info.size) for info in found] == [(f"{tenant}/a", 2), (f"{tenant}/b", 2)]


async def test_an_object_above_16_mb_is_refused(outputs: Objects, tenant: str) -> None:
    with pytest.raises(MessageTooLarge):
        await outputs.put(tenant, b"x" * (MAX_OBJECT_BYTES + 1))


async def test_a_damaged_object_is_not_handed_out(outputs: Objects, bus: Bus, tenant: str) -> None:
    await outputs.put(tenant, b"x" * (CHUNK_BYTES * 2))
    last = (await call(bus, api("STREAM.INFO", "OBJ_outputs")))["state"]["last_seq"]
    assert await delete_message(bus, "OBJ_outputs", last - 1)  # the last chunk; then comes the description
    with pytest.raises(ObjectBroken):
        await outputs.get(tenant)


async def test_larger_data_goes_in_parts(outputs: Objects, tenant: str) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(20):
            yield bytes([number]) * 1024 * 1024

    assert await outputs.put_parts(tenant, pieces()) == 20 * 1024 * 1024
    parts = [part async for part in outputs.get_parts(tenant)]
    assert [len(part) for part in parts] == [MAX_OBJECT_BYTES, 4 * 1024 * 1024]
    assert b"".join(parts)[:: 1024 * 1024] == bytes(range(20))
    await outputs.delete_parts(tenant)
    assert [info async for info in outputs.list(tenant)] == []


async def test_other_clients_read_our_objects_and_we_read_theirs(
    outputs: Objects, bus: Bus, tenant: str
) -> None:
    theirs = await bus.js.object_store("outputs")
    await outputs.put(f"{tenant}-ours", b"o" * 700_000)
    assert (await theirs.get(f"{tenant}-ours")).data == b"o" * 700_000
    await theirs.put(f"{tenant}-theirs", b"t" * 700_000)
    assert await outputs.get(f"{tenant}-theirs") == b"t" * 700_000


async def messages(bus: Bus) -> int:
    return (await call(bus, api("STREAM.INFO", "OBJ_outputs")))["state"]["messages"]
