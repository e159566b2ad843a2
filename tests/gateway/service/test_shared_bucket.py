"""One tenant creates conversations and requests without end."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.names import CONVERSATIONS, IDEMPOTENCY, api, kv_stream
from banksman.contracts.assistants import ConversationRecord, ConversationSettings
from banksman.contracts.errors import Overloaded
from banksman.contracts.ids import new_id
from banksman.contracts.registry import SystemPrompt
from banksman.gateway.runs.idempotency import RequestRecord, StoredRequests
from banksman.quotas.stored import SharedBucket

FREE_BYTES = 64 * 1024
MOST = 3 * FREE_BYTES // 1024
"""More records than one tenant may store: their bytes also reduce the free space."""


@pytest.fixture
async def nearly_full(bus: Bus) -> AsyncGenerator[None]:
    """The buckets with 64 KiB of free space."""
    before = [await call(bus, api("STREAM.INFO", kv_stream(name))) for name in (CONVERSATIONS, IDEMPOTENCY)]
    for info in before:
        limited = {**info["config"], "max_bytes": info["state"]["bytes"] + FREE_BYTES}
        await call(bus, api("STREAM.UPDATE", info["config"]["name"]), limited)
    yield
    for info in before:
        await call(bus, api("STREAM.UPDATE", info["config"]["name"]), info["config"])


@pytest.fixture
def conversations(bus: Bus) -> SharedBucket[ConversationRecord]:
    return SharedBucket(bus, CONVERSATIONS, ConversationRecord, "conversations")


@pytest.fixture
def requests(bus: Bus) -> StoredRequests:
    return StoredRequests(SharedBucket(bus, IDEMPOTENCY, RequestRecord, "accepted requests"))


def record(**settings: str) -> ConversationRecord:
    return ConversationRecord(
        conversation_id=new_id("c"),
        settings=ConversationSettings.model_validate(settings),
        created_at="2026-11-01T00:00:00Z",
        updated_at="2026-11-01T00:00:00Z",
    )


async def create(bucket: SharedBucket[ConversationRecord], tenant: str) -> ConversationRecord:
    one = record()
    assert await bucket.create(f"{tenant}.{one.conversation_id}", one) is not None
    return one


@pytest.mark.usefixtures("nearly_full")
async def test_conversations_of_a_tenant_leave_room_for_others(
    conversations: SharedBucket[ConversationRecord], tenant: str
) -> None:
    """The tenant can still use, rename and delete those that it has; the bucket is not full."""
    first = await create(conversations, tenant)
    with pytest.raises(Overloaded, match="storage_full: no room for further conversations"):
        for _ in range(MOST):
            await create(conversations, tenant)
    key = f"{tenant}.{first.conversation_id}"
    entry = await conversations.get(key)
    assert entry is not None
    assert await conversations.update(key, first.model_copy(update={"title": "new"}), entry.revision)
    for _ in range(3):
        await create(conversations, new_id("t"))


@pytest.mark.usefixtures("nearly_full")
async def test_large_records_are_refused_before_small_ones(
    conversations: SharedBucket[ConversationRecord], tenant: str
) -> None:
    large = record(system_prompt="x" * 40_000)
    for _ in range(16):
        await create(conversations, tenant)
    with pytest.raises(Overloaded, match="storage_full"):
        await conversations.create(f"{tenant}.{large.conversation_id}", large)
    await create(conversations, tenant)


@pytest.mark.usefixtures("nearly_full")
async def test_a_tenant_without_room_repeats_an_accepted_request(
    requests: StoredRequests, tenant: str
) -> None:
    body = SystemPrompt(id="p", content="")
    accepted = await requests.once(tenant, "first", body, {"run_id": "r1"})
    with pytest.raises(Overloaded, match="storage_full: no room for further accepted requests"):
        for number in range(MOST):
            await requests.once(tenant, f"request {number}", body, {"run_id": "r2"})
    assert await requests.once(tenant, "first", body, {"run_id": "r3"}) == accepted
    assert await requests.once(new_id("t"), "first", body, {"run_id": "r4"}) == {"run_id": "r4"}
