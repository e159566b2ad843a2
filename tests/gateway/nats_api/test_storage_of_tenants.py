"""One tenant stores documents and dead letters without end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.support.fixtures import BUDGET
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.bus.connection import Bus
from banksman.bus.dead import NATS_API
from banksman.bus.jetstream import call, purge_subject
from banksman.bus.messages import Message
from banksman.bus.names import ASSISTANTS, DEAD, PROMPTS, api, kv_stream
from banksman.contracts import subjects
from banksman.contracts.assistants import Assistant
from banksman.contracts.errors import ErrorCode, Overloaded
from banksman.contracts.ids import new_id
from banksman.contracts.registry import SystemPrompt
from banksman.deployment.topology import app_topology
from banksman.gateway.assistants.tenant_store import AssistantStore, PromptStore
from banksman.gateway.interfaces.nats.endpoints import MAX_LETTERS
from banksman.quotas.stored import TENANT_SHARE

LARGE = "x" * 250_000


async def holds(count: Callable[[], Awaitable[int]], wanted: int) -> bool:
    return await count() == wanted


@pytest.mark.parametrize("kind", [ASSISTANTS, PROMPTS])
async def test_documents_of_a_tenant_leave_room_for_others(bus: Bus, tenant: str, kind: str) -> None:
    """85 documents of 250 KB would fill the bucket: only a part is stored, and deleting one makes room."""
    most = (app_topology(BUDGET).stream(kv_stream(kind)).max_bytes or 0) // TENANT_SHARE

    async def create(of_tenant: str, document: str) -> None:
        if kind == ASSISTANTS:
            await assistants.create(of_tenant, Assistant(id=document, system_prompt=LARGE))
        else:
            await prompts.create(of_tenant, SystemPrompt(id=document, content=LARGE))

    assistants, prompts = AssistantStore(bus), PromptStore(bus)
    stored = 0
    with pytest.raises(Overloaded, match="storage_full"):
        for number in range(85):
            await create(tenant, f"d{number}")
            stored += 1
    assert most - 2 * len(LARGE) < stored * len(LARGE) <= most
    await create(new_id("t"), "d")
    await (assistants if kind == ASSISTANTS else prompts).delete(tenant, "d0")
    await create(tenant, "again")


async def test_replacing_a_document_counts_its_growth(bus: Bus, tenant: str) -> None:
    store = PromptStore(bus)
    await store.create(tenant, SystemPrompt(id="small", content="x"))
    with pytest.raises(Overloaded, match="storage_full"):
        for number in range(85):
            await store.create(tenant, SystemPrompt(id=f"d{number}", content=LARGE))
    with pytest.raises(Overloaded, match="storage_full"):
        await store.replace(tenant, SystemPrompt(id="small", content=LARGE))
    assert (await store.replace(tenant, SystemPrompt(id="d1", content="y"))).content == "y"


@pytest.mark.usefixtures("gateway")
async def test_failed_requests_do_not_fill_the_dead_letters(bus: Bus, tenant: str) -> None:
    """The sender receives the error of each; the stored bytes are bounded."""
    below = subjects.all_of("dead", NATS_API)
    errors: list[Message] = []

    async def received(message: Message) -> None:
        errors.append(message)

    async def letters() -> int:
        info = await call(bus, api("STREAM.INFO", DEAD), {"subjects_filter": below})
        return sum((info["state"].get("subjects") or {}).values())

    await bus.subscribe(subjects.api(tenant, "error"), received)
    for number in range(MAX_LETTERS - await letters() - 1):
        await bus.publish(subjects.dead(NATS_API, "full"), b"{}", {"Nats-Msg-Id": f"{tenant}:{number}"})
    try:
        await eventually(lambda: holds(letters, MAX_LETTERS - 1))
        await bus.publish(subjects.api(tenant, "chat", "send", "c1"), b"no JSON")
        await eventually(lambda: holds(letters, MAX_LETTERS))
        for _ in range(2):
            await bus.publish(subjects.api(tenant, "chat", "send", "c1"), b"no JSON")
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while len(errors) < 3:
                await bus.ready()
        assert await bus.request(subjects.api(tenant, "usage"), b"{}", WAIT_TIMEOUT_S)
        assert await letters() == MAX_LETTERS
        assert ErrorCode.BAD_REQUEST.value.encode() in errors[0].data
    finally:
        await purge_subject(bus, DEAD, below)
