"""Gateways find the conversations that agents archive: by age, and earlier while the logs are nearly full."""

from __future__ import annotations

import asyncio

from tests.bus.builders import commit
from tests.gateway.conftest import Served, gateway_on
from tests.gateway.service.test_retention import LATER_DAYS, LaterClock, create
from tests.support.nats import Broker
from tests.support.polling import eventually

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.names import EVENTS, RUNS, api
from banksman.bus.publish import RunQueue
from banksman.bus.storage.log import EventLog
from banksman.contracts import subjects
from banksman.contracts.events import Archive
from banksman.contracts.work import ArchiveConversation
from banksman.gateway.housekeeping.unused import Archiving
from banksman.gateway.settings import GatewaySettings
from banksman.quotas.stored import StorageRoom


def archiving(gateway: Served, **settings: float) -> Archiving:
    """The search of a gateway, as it acts in eight days."""
    chosen = GatewaySettings.model_validate({"archive_above_percent": 0, **settings})
    bus = gateway.bus
    return Archiving(EventLog(bus), RunQueue(bus), StorageRoom(bus), LaterClock(), chosen)


async def used(gateway: Served) -> str:
    """A conversation with a commit."""
    async with gateway.http as http:
        conversation_id = await create(http)
    assert await EventLog(gateway.bus).append(gateway.tenant, conversation_id, commit(1), after=0)
    return conversation_id


async def signals(gateway: Served, search: Archiving, *, archive: bool) -> list[str]:
    """Search; handle each signal as an agent would; return the conversations in order."""
    found: list[str] = []
    log = EventLog(gateway.bus)
    searching = asyncio.create_task(search.search())
    while True:
        message = None

        async def is_next() -> bool:
            nonlocal message
            every = subjects.run_signal(gateway.tenant, subjects.ANY)
            message = await jetstream.last_message(gateway.bus, RUNS, every)
            return message is not None or searching.done()

        await eventually(is_next)
        if message is None:
            await searching
            return found
        signal = ArchiveConversation.model_validate_json(message.data)
        found.append(signal.conversation_id)
        if archive:
            last = await log.last(gateway.tenant, signal.conversation_id)
            assert last is not None and last.commit.ts <= signal.unused_since
            marker = commit(2).model_copy(update={"events": (), "archive": Archive(parts=("p1",), commits=1)})
            await log.append(gateway.tenant, signal.conversation_id, marker, after=last.stream_seq)
        subject = subjects.run_signal(gateway.tenant, signal.conversation_id)
        await jetstream.purge_subject(gateway.bus, RUNS, subject)


async def test_unused_conversations_are_archived_once_oldest_first(own_nats: Broker, own_bus: Bus) -> None:
    async with gateway_on(own_nats, own_bus, "acme") as gateway:
        first, second = await used(gateway), await used(gateway)
        assert await signals(gateway, archiving(gateway, archive_days=LATER_DAYS + 1), archive=True) == []
        search = archiving(gateway, archive_days=LATER_DAYS - 1)
        assert await signals(gateway, search, archive=True) == [first, second]
        assert await signals(gateway, search, archive=True) == []
        assert search.done, "the next search begins after them"
        assert await signals(gateway, archiving(gateway, archive_days=1), archive=True) == []


async def test_a_conversation_that_no_agent_archived_is_found_again(own_nats: Broker, own_bus: Bus) -> None:
    """Its run was open, for example, or the agent could not store it."""
    async with gateway_on(own_nats, own_bus, "acme") as gateway:
        await used(gateway)
        search = archiving(gateway, archive_days=1)
        assert len(await signals(gateway, search, archive=False)) == 1
        assert search.done == 0


async def test_a_nearly_full_store_archives_what_was_not_used_for_a_day(
    own_nats: Broker, own_bus: Bus
) -> None:
    async with gateway_on(own_nats, own_bus, "acme") as gateway:
        conversation_id = await used(gateway)
        size = archiving(gateway, archive_above_percent=1)
        assert await signals(gateway, size, archive=True) == [], "the store is nearly empty"
        info = await jetstream.call(own_bus, api("STREAM.INFO", EVENTS))
        await jetstream.call(own_bus, api("STREAM.UPDATE", EVENTS), {**info["config"], "max_bytes": 4_096})
        size = archiving(gateway, archive_above_percent=1)
        assert await signals(gateway, size, archive=True) == [conversation_id]
