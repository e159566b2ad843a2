"""The procedure of docs/operating.md: traffic, backup, loss of everything, restore, continued work."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from banksman.bus import names
from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.names import DEAD, EVENTS, RUNNERS, api
from banksman.bus.publish import durable
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.log import EventLog
from banksman.deployment.streams import stream_info
from tests.bus.builders import commit
from tests.faults.broker.commands import Ended, banksman
from tests.support.chaos.fleet import OPTIONAL, Fleet
from tests.support.client import Client
from tests.support.paths import ROOT
from tests.support.polling import eventually
from tests.support.replies import bash
from tests.support.scripted_models import Gate, ScriptedReply
from tests.support.system import ScriptedModel
from tests.support.volumes import Volume, require_volumes

pytestmark = pytest.mark.timeout(300)
WAIT_TIMEOUT_S = 60.0


async def test_a_restored_system_continues_from_its_backup(place: Path, model: ScriptedModel) -> None:
    """Conversations are readable, approval requests can be decided, runs continue, clients get
    `resync_required`."""
    fleet = Fleet(place, model.url, agents=1, gateways=1, runners=1, without=OPTIONAL)
    copy = place / "copy"
    async with fleet:
        async with Client.connected(fleet.urls[0], timeout_s=WAIT_TIMEOUT_S) as client:
            finished = model.play("finished", [ScriptedReply(text="Once."), ScriptedReply(text="Twice.")])
            kept = await client.create(finished)
            await client.run(kept, "first")
            asking = await client.create(
                model.play("asking", [bash("echo signalled"), ScriptedReply(text="Done.")])
            )
            parked = await client.chat(asking, "lift")
            approval_request = await client.approval_request(parked)
            held = ScriptedReply(text="At last.", gate=Gate(name="hold"))
            working = await client.create(model.play("working", [held, held]))
            running = await client.chat(working, "wait")
            await client.event("iteration.started", run_id=running)

            saved = await banksman(fleet, "backup", str(copy))
            assert saved.code == 0, saved.err
            await client.run(kept, "after the backup")
            position = client.events(kept)[-1]

        refused = await banksman(fleet, "restore", str(copy))
        assert "still running: stop all services" in refused.err
        for member in fleet.members.values():
            await member.stop()
        shutil.rmtree(fleet.nats.data.nats / "streams")
        fleet["nats"].start()
        await fleet["nats"].ready()
        restored = await banksman(fleet, "restore", str(copy))
        assert (restored.code, restored.err) == (0, "")
        assert "3 conversations: 1 runs resume, 1 approval requests are open" in restored.out
        assert "holds" in (await banksman(fleet, "restore", str(copy))).err
        assert (await banksman(fleet, "check")).out == "all logs are intact\n"
        model.open_gate("hold")
        for member in fleet.members.values():
            member.start()
        await fleet.ready()

        async with Client.connected(fleet.urls[0], timeout_s=WAIT_TIMEOUT_S) as client:
            resumed = await client.request(
                "subscribe",
                conversation_id=kept,
                after_seq=position["seq"],
                log_epoch=position["log_epoch"],
            )
            assert resumed["type"] == "resync_required"
            head = await client.request("subscribe", conversation_id=kept, after_seq=0, detail="full")
            await client.event("replay.done", conversation_id=kept)
            events = client.events(kept)
            assert [event["seq"] for event in events] == list(range(1, head["head_seq"] + 1))
            assert {event["log_epoch"] for event in events} == {head["log_epoch"]} != {position["log_epoch"]}
            assert "after the backup" not in json.dumps(events)
            assert (await client.run(kept, "again"))["status"] == "completed"

            await client.request("subscribe", conversation_id=asking, after_seq=0, detail="full")
            await client.request("approval.reply", approval_id=approval_request["approval_id"], all="approve")
            assert (await client.finished(parked))["content"] == "Done."
            await client.request("subscribe", conversation_id=working, after_seq=0, detail="full")
            assert (await client.finished(running))["content"] == "At last."


async def test_a_damaged_backup_is_refused_without_any_change(place: Path, model: ScriptedModel) -> None:
    fleet = Fleet(place, model.url, agents=1, gateways=1, runners=1)
    copy = place / "copy"
    async with only_nats(fleet):
        assert (await banksman(fleet, "backup", str(copy))).code == 0
        assert "is not empty" in (await banksman(fleet, "backup", str(copy))).err
        file = next(copy.glob("APP-KV_conversations*"))
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        refused = await banksman(fleet, "restore", str(copy), "--force")
        assert refused.code == 2
        assert "SHA-256" in refused.err
        (copy / "manifest.json").unlink()
        assert "the manifest of a complete backup" in (await banksman(fleet, "restore", str(copy))).err
        assert (await banksman(fleet, "streams", "check")).code == 0


async def test_three_servers_are_restored_from_their_backup(place: Path, model: ScriptedModel) -> None:
    """The procedure on a cluster: all three lose their volumes; restored streams have three replicas
    again."""
    fleet = Fleet(place, model.url, agents=1, gateways=1, runners=1, servers=3)
    copy = place / "copy"
    async with only_nats(fleet):
        async with fleet.operator() as bus:
            await write(bus, "quiet", 10)
            await write(bus, "busy", 5)
            async with asyncio.TaskGroup() as traffic:
                saving = traffic.create_task(banksman(fleet, "backup", str(copy)))
                while not saving.done():
                    await write(bus, "busy", 1)
            assert saving.result().code == 0, saving.result().err
            written = await EventLog(bus).read("t1", "busy", leader=True)

        for server in fleet.servers:
            await server.stop()
            shutil.rmtree(fleet.nats.data.nats / f"streams-{server.name}")
        await start(fleet)
        restored = await banksman(fleet, "restore", str(copy))
        assert (restored.code, restored.err) == (0, "")
        assert "2 conversations: 0 runs resume, 0 approval requests are open" in restored.out
        assert (await banksman(fleet, "check")).out == "all logs are intact\n"
        assert (await banksman(fleet, "streams", "check")).out == "streams are as strong as required\n"

        async with fleet.operator() as bus:
            quiet = await EventLog(bus).read("t1", "quiet", leader=True)
            busy = await EventLog(bus).read("t1", "busy", leader=True)
            assert [stored.commit.last_seq for stored in quiet] == [*range(1, 11), 10]
            # The restored commits precede the commit of the restore and a snapshot, if one is due.
            kept = [s.commit.id for s in busy if s.commit.log_epoch == written[0].commit.log_epoch]
            assert kept == [stored.commit.id for stored in written[: len(kept)]]
            assert 5 <= len(kept) <= len(written)
            assert quiet[0].commit.log_epoch != quiet[-1].commit.log_epoch
            info = await call(bus, api("STREAM.INFO", EVENTS))
            assert len(info["cluster"]["replicas"]) == 2


SMALL = 2 * 1024**3
"""The storage of each server of a cluster that is smaller than the machine before it."""


STORAGE = {"BANKSMAN_OPERATOR__STORAGE_BYTES": str(SMALL)}


def with_storage(fleet: Fleet, size: int) -> None:
    """Give each server of a fleet less storage than its disk has, before it starts."""
    for server in fleet.broker.servers:
        text = server.config_file.read_text(encoding="utf-8")
        text = re.sub(r"max_file_store: [0-9]+", f"max_file_store: {size}", text)
        server.config_file.write_text(text, encoding="utf-8")


@asynccontextmanager
async def alone(place: Path, model: ScriptedModel) -> AsyncGenerator[Fleet]:
    """A single server with two conversations."""
    fleet = Fleet(place / "one", model.url, agents=1, gateways=1, runners=1, servers=1)
    async with only_nats(fleet):
        async with fleet.operator() as bus:
            await write(bus, "quiet", 10)
            await write(bus, "busy", 5)
        yield fleet


@asynccontextmanager
async def three(place: Path, model: ScriptedModel) -> AsyncGenerator[Fleet]:
    """Three servers without streams, which have less storage than the single server."""
    fleet = Fleet(place / "three", model.url, agents=1, gateways=1, runners=1, servers=3)
    with_storage(fleet, SMALL)
    try:
        await start(fleet)
        yield fleet
    finally:
        for server in fleet.servers:
            await server.close()


def commands_of(page: str) -> list[list[str]]:
    """Return the arguments of each command `banksman` on a page of the documents."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return [line.split() for line in re.findall(r"^banksman ([^#\n]+)", text, re.MULTILINE)]


async def test_one_machine_moves_to_three_servers_with_less_storage(
    place: Path, model: ScriptedModel
) -> None:
    """The commands of the page: limits are those of the target, and a second restore replaces the first."""
    backing, *moving = commands_of("one-to-three.md")
    copy = {"/backups/move": str(place / "copy")}
    async with alone(place, model) as old:
        saved = await banksman(old, *(copy.get(word, word) for word in backing))
    async with three(place, model) as new:
        ended = [
            await banksman(new, *(copy.get(word, word) for word in words), **STORAGE) for words in moving
        ]
        again = await banksman(new, "restore", str(place / "copy"), "--force", **STORAGE)
        async with new.operator() as bus:
            info = await call(bus, api("STREAM.INFO", EVENTS))
    assert [(one.code, one.err) for one in (saved, *ended, again)] == [(0, "")] * (len(moving) + 2)
    texts = [one.out for one in ended]
    assert "2 conversations: 0 runs resume, 0 approval requests are open" in texts[1]
    assert texts[2:] == ["all logs are intact\n", "streams are as strong as required\n"]
    assert info["config"]["max_bytes"] == SMALL * 348 // 1000
    assert len(info["cluster"]["replicas"]) == 2


async def test_a_restore_that_cannot_succeed_deletes_nothing(place: Path, model: ScriptedModel) -> None:
    """Too little room on the servers or in a stream, a later version, a missing server, a live runner."""
    copy, refused = place / "copy", dict[str, Ended]()
    async with alone(place, model) as old:
        assert (await banksman(old, "backup", str(copy))).code == 0
    async with three(place, model) as new:

        async def restore(reason: str, source: Path = copy, storage: int = SMALL, *flags: str) -> None:
            setting = {"BANKSMAN_OPERATOR__STORAGE_BYTES": str(storage)}
            refused[reason] = await banksman(new, "restore", str(source), *flags, **setting)

        assert (await banksman(new, "streams", "provision", **STORAGE)).code == 0
        async with new.operator() as bus:
            await write(bus, "mine", 3)
            await restore("held")
            await restore("room", copy, 10 * SMALL, "--force")
            await restore("limit", copy, 4_000, "--force")
            leases = Bucket(bus, RUNNERS, Leased)
            await leases.put("r1", Leased())
            await restore("runner", copy, SMALL, "--force")
            await leases.delete("r1")
            for name, change in (("banksman", newer_product), ("nats", newer_server)):
                await restore(name, changed(copy, place / name, change), SMALL, "--force")
            await new.servers[2].stop()
            await restore("down", copy, SMALL, "--force")
            kept = await EventLog(bus).read("t1", "mine", leader=True)
    assert {name: one.code for name, one in refused.items()} == dict.fromkeys(refused, 2), refused
    assert "the servers have no room for" in refused["room"].err
    assert "BANKSMAN_OPERATOR__STORAGE_BYTES" in refused["limit"].err
    assert "stream EVENTS holds 3 messages" in refused["held"].err
    assert "tool-runner still running" in refused["runner"].err
    assert "the backup needs 99.0.0 or later" in refused["banksman"].err
    assert "nats-server of" in refused["nats"].err
    assert len(kept) == 3


@pytest.mark.one_server
async def test_a_restore_to_a_full_disk_deletes_nothing(place: Path, model: ScriptedModel) -> None:
    """Limits of streams are of the whole volume, of which other files may have a part."""
    require_volumes()
    copy, storage = place / "copy", {"BANKSMAN_OPERATOR__STORAGE_BYTES": "150000000"}
    with Volume.made(place / "disk", place / "volume", megabytes=200) as volume:
        async with alone(volume.path, model) as fleet, fleet.operator() as bus:
            for number in range(3):
                await durable(bus, "dead.test", b"x" * 900_000, msg_id=str(number))
            assert (await banksman(fleet, "backup", str(copy))).code == 0
            await call(bus, api("STREAM.PURGE", DEAD))
            before = await EventLog(bus).read("t1", "quiet", leader=True)
            with volume.filled(leave=2 * 1024 * 1024):
                refused = await banksman(fleet, "restore", str(copy), "--force", **storage)
                kept = await EventLog(bus).read("t1", "quiet", leader=True)
            restored = await banksman(fleet, "restore", str(copy), "--force", **storage)
    assert (refused.code, restored.code) == (2, 0), (refused, restored)
    assert kept == before
    assert "the volume of NATS has no room" in refused.err


async def test_an_interrupted_restore_is_named_until_it_was_repeated(
    place: Path, model: ScriptedModel
) -> None:
    """By the check of all services, which would serve the restored part as if it were all."""
    fleet = Fleet(place, model.url, agents=1, gateways=1, runners=1, servers=1)
    copy = place / "copy"
    async with only_nats(fleet), fleet.operator() as bus:
        await write(bus, "quiet", 10)
        assert (await banksman(fleet, "backup", str(copy))).code == 0
        restoring = asyncio.create_task(banksman(fleet, "restore", str(copy), "--force"))
        await eventually(lambda: _is_missing(bus, names.kv_stream(names.HEADS)))
        restoring.cancel()
        with suppress(asyncio.CancelledError):
            await restoring
        assert (await banksman(fleet, "streams", "provision")).code == 0
        checked = await banksman(fleet, "streams", "check")
        again = await banksman(fleet, "restore", str(copy), "--force")
        done = await banksman(fleet, "streams", "check")
    assert "a restore runs or was interrupted" in checked.out + checked.err
    assert (checked.code, again.code, done.code) == (2, 0, 0), (checked, again, done)


async def _is_missing(bus: Bus, stream: str) -> bool:
    return await stream_info(bus, stream) is None


class Leased(BaseModel):
    """A lease of a runner, of which only the key matters."""


def changed(copy: Path, to: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Copy a backup and change its manifest."""
    shutil.copytree(copy, to)
    manifest = json.loads((to / "manifest.json").read_text())
    change(manifest)
    (to / "manifest.json").write_text(json.dumps(manifest))
    return to


def newer_product(manifest: dict[str, Any]) -> None:
    manifest["made_by"] = "99.0.0"


def newer_server(manifest: dict[str, Any]) -> None:
    manifest["streams"][0]["config"]["metadata"]["_nats.ver"] = "99.0.0"


async def write(bus: Bus, conversation: str, commits: int) -> None:
    """Append to a log."""
    log = EventLog(bus)
    last = await log.last("t1", conversation)
    after, seq = (last.stream_seq, last.commit.last_seq) if last else (0, 0)
    for number in range(seq + 1, seq + 1 + commits):
        appended = await log.append("t1", conversation, commit(number), after=after)
        assert isinstance(appended, int)
        after = appended


@asynccontextmanager
async def only_nats(fleet: Fleet) -> AsyncGenerator[None]:
    """The servers with their streams, without services."""
    try:
        await start(fleet)
        await fleet.broker.provision()
        yield
    finally:
        for server in fleet.servers:
            await server.close()


async def start(fleet: Fleet) -> None:
    """Start the servers, and wait until they are ready."""
    for server in fleet.servers:
        server.start()
    for server in fleet.servers:
        await server.ready()
