"""Values that are read once and used until a process writes them."""

from __future__ import annotations

from pydantic import BaseModel
from tests.support.polling import eventually

from banksman.bus.connection import Bus
from banksman.bus.names import ASSISTANTS
from banksman.bus.storage.kv import Bucket
from banksman.gateway.assistants.tenant_store import MAX_CHARS, RecentValues


class Note(BaseModel):
    text: str


async def test_a_value_is_read_once_and_again_after_another_process_wrote_it(bus: Bus, tenant: str) -> None:
    bucket, key = Bucket(bus, ASSISTANTS, Note), f"{tenant}.a"
    first = await bucket.put(key, Note(text="first"))
    async with RecentValues(bucket) as values:
        await bus.ready()
        found = await values.get(key)
        assert found is not None and found.revision == first
        assert await values.get(key) is found
        second = await bucket.put(key, Note(text="second"))

        async def newer() -> bool:
            found = await values.get(key)
            return found is not None and found.revision == second

        await eventually(newer)
        await bucket.delete(key)
        values.forget(key)
        assert await values.get(key) is None


async def test_a_value_is_read_each_time_if_it_is_large_or_nothing_watches_writes(
    bus: Bus, tenant: str
) -> None:
    bucket, key = Bucket(bus, ASSISTANTS, Note), f"{tenant}.a"
    await bucket.put(key, Note(text="x" * MAX_CHARS))
    async with RecentValues(bucket) as values:
        assert await values.get(key) is not await values.get(key)
    await bucket.put(key, Note(text="small"))
    assert await values.get(key) is not await values.get(key)
