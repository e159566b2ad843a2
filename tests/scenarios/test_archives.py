"""Old conversations move to the archive, and every interface reads and continues them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from banksman import sdk
from banksman.bus.connection import Bus
from banksman.bus.jetstream import count_below
from banksman.bus.names import EVENTS
from banksman.bus.settings import NatsSettings
from banksman.contracts import subjects
from tests.golden_stores.stores import SERVICES
from tests.golden_stores.stores import banksman as operate
from tests.scenarios.conftest import Play, model_requests, nats_url, operator_seed
from tests.scenarios.test_tenant_deletion import banksman
from tests.support.client import Client
from tests.support.polling import eventually
from tests.support.scripted_models import ScriptedReply
from tests.support.system import ScriptedModel, System
from tests.support.timeouts import WAIT_TIMEOUT_S

pytestmark = pytest.mark.timeout(300)
"""Seconds; the system is started several times, which is slow on a busy machine."""

AT_ONCE = {"BANKSMAN_GATEWAY__ARCHIVE_DAYS": "0.00001"}


@pytest.fixture
def own_system(model: ScriptedModel, tmp_path: Path) -> Generator[System]:
    """A system of which all processes may be restarted."""
    system = System(tmp_path / "data", model, {"BANKSMAN_LOCAL__AGENTS": "1"})
    try:
        system.start()
        yield system
    finally:
        system.close()


def restart(system: System, **environment: str) -> None:
    system.kill_everything()
    system.environment = {"BANKSMAN_LOCAL__AGENTS": "1", **environment}
    system.start()


async def events(system: System, conversation: str) -> list[Any]:
    """Return the events over HTTP, checked against those that the websocket replays."""
    async with httpx.AsyncClient(base_url=system.url, timeout=2 * WAIT_TIMEOUT_S) as http:
        page = (
            await http.get(f"/context/conversations/{conversation}/events", params={"detail": "full"})
        ).json()
    async with Client.connected(system.url, timeout_s=WAIT_TIMEOUT_S) as client:
        await client.request("subscribe", conversation_id=conversation, after_seq=0, detail="full")
        await client.wait_for(lambda frame: frame["type"] == "replay.done")
        replayed = [frame["seq"] for frame in client.frames if "seq" in frame and "data" in frame]
    found = page["items"]
    assert [one["seq"] for one in found] == replayed
    return found


async def is_archived(system: System, conversation: str) -> bool:
    """Return whether the log itself has only the name of its archive."""
    settings = NatsSettings(url=nats_url(system), nkey_seed_file=operator_seed(system))
    async with await Bus(settings, name="archives", inbox_prefix="_INBOX_operator").open() as bus:
        return await count_below(bus, EVENTS, subjects.conversation("local", conversation)) == 1


async def archived(system: System, model: str) -> tuple[str, list[Any]]:
    """Let a conversation with one run be archived; return its id and its events before."""
    async with Client.connected(system.url, timeout_s=WAIT_TIMEOUT_S) as client:
        conversation = await client.create(model)
        await client.run(conversation, "one")
    before = await events(system, conversation)
    restart(system, **AT_ONCE)
    await eventually(lambda: is_archived(system, conversation), WAIT_TIMEOUT_S)
    return conversation, before


async def test_an_archived_conversation_is_read_on_every_interface_and_continues(
    own_system: System, model: ScriptedModel, play: Play, tmp_path: Path
) -> None:
    name = play(ScriptedReply(text="The first."), ScriptedReply(text="The second."))
    conversation, before = await archived(own_system, name)
    assert await events(own_system, conversation) == before
    assert await banksman(own_system, "check") == (0, [])
    async with sdk.connect(nats_url(own_system), "local", nkey_seed_file=operator_seed(own_system)) as nats:
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            replayed = [await anext(aiter(nats.follow(conversation)))]
        assert replayed[0].seq == 1
    _, (written,) = await banksman(own_system, "tenants", "export", "local", str(tmp_path / "export"))
    assert written["missing"] == []
    (exported,) = (tmp_path / "export").glob(f"conversations/{conversation}*/events.jsonl")
    assert [json.loads(line)["seq"] for line in exported.read_text().splitlines()] == [
        e["seq"] for e in before
    ]

    async with Client.connected(own_system.url, timeout_s=WAIT_TIMEOUT_S) as client:
        await client.request("subscribe", conversation_id=conversation, after_seq=len(before))
        outcome = await client.run(conversation, "two")
    assert outcome["content"] == "The second."
    assert "The first." in json.dumps(model_requests(model, name)[-1])
    assert (await events(own_system, conversation))[: len(before)] == before


async def test_a_backup_contains_the_archive(own_system: System, play: Play, tmp_path: Path) -> None:
    """The restored system, whose logs have a new epoch, reads and continues the conversation."""
    name = play(ScriptedReply(text="The first."), ScriptedReply(text="The second."))
    conversation, before = await archived(own_system, name)
    assert (await banksman(own_system, "backup", str(tmp_path / "backup")))[0] == 0
    own_system.stop()
    data = ("--data-dir", str(own_system.data_dir))
    operate(own_system, "up", "--detach", *data, *(word for one in SERVICES for word in ("--without", one)))
    operate(own_system, "restore", str(tmp_path / "backup"), "--force", *data)
    operate(own_system, "down", *data)
    own_system.start()
    after = await events(own_system, conversation)
    assert [one["data"] for one in after] == [one["data"] for one in before]
    assert await banksman(own_system, "check") == (0, [])
    async with Client.connected(own_system.url, timeout_s=WAIT_TIMEOUT_S) as client:
        await client.request("subscribe", conversation_id=conversation, after_seq=len(before))
        outcome = await client.run(conversation, "two")
    assert outcome["content"] == "The second."
