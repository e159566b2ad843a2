"""Snapshots of workspaces: taken when idle after a change, atomic, one per workspace."""

from __future__ import annotations

import asyncio
import hashlib
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.support.fixtures import SecuredNats
from tests.support.timeouts import deadline
from tests.tool_runner.service.processes import RunnerProcess, Runners, wait_for_start
from tests.tool_runner.workspaces.platform import Platform, platform, started, until

from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.jetstream import call, subjects_in
from banksman.bus.names import WORKSPACES, api, object_chunks, object_stream, runner_api
from banksman.bus.secrets import SEAL_BYTES, new_key, opened, sealed
from banksman.bus.storage.objects import MAX_OBJECT_BYTES, owned_name
from banksman.contracts.errors import Overloaded
from banksman.contracts.workspaces import SnapshotManifest
from banksman.deployment.users import OPERATOR_FILES, TOOL_RUNNER
from banksman.quotas.places import Shares
from banksman.tool_runner.identity import sandbox_identity
from banksman.tool_runner.settings import SnapshotSettings, WorkspaceLimits
from banksman.tool_runner.workspaces.entry import Reports, objects_of
from banksman.tool_runner.workspaces.registry import CallTurns, WorkspaceRegistry
from banksman.tool_runner.workspaces.scheduler import SnapshotScheduler
from banksman.tool_runner.workspaces.snapshots import SnapshotRoom, Snapshots
from banksman.tool_runner.workspaces.workspace import WorkspaceStore

GIT_SETTINGS = """\
[include]
\tpath = /etc/banksman/gitconfig
[user]
\tname = "agent"
\temail = c1@banksman.invalid
"""
HOME_BYTES = len(GIT_SETTINGS)
"""Size of the settings of git in the home directory of commands."""
ZSTD = bytes.fromhex("28b52ffd")
"""First bytes of an archive."""
pytestmark = pytest.mark.timeout(300)
"""Seconds. Processes are started and killed, which takes long on a busy machine."""


async def is_missing(path: Path) -> bool:
    return not await asyncio.to_thread(path.exists)


async def manifest(here: Platform, conversation: str) -> SnapshotManifest:
    """Return the manifest of the recorded snapshot."""
    snapshot = (await here.record(conversation)).snapshot
    assert snapshot is not None
    data = await here.store.get(await here.snapshot_name(conversation))
    assert hashlib.sha256(data).hexdigest() == snapshot.manifest_digest
    return SnapshotManifest.model_validate_json(data)


async def test_changed_workspace_is_snapshotted_when_idle(here: Platform) -> None:
    before = datetime.now(UTC)
    await here.bash("c1", "mkdir d; echo one > d/a; echo two > b")
    record = await here.clean("c1")
    assert record.snapshot is not None and before <= record.snapshot.created_at <= datetime.now(UTC)
    snapshot = await manifest(here, "c1")
    assert (snapshot.files, snapshot.size) == (6, 8 + HOME_BYTES)
    assert (snapshot.generation, snapshot.term) == (record.generation, 1)
    paths = [info.path for info in await here.stored("c1")]
    assert paths == [f"{here.tenant}/c1/{snapshot.id}", f"{here.tenant}/c1/{snapshot.id}/0"]


async def test_an_upload_and_a_deletion_count_as_changes(here: Platform) -> None:
    assert (await here.write("c1", "up.txt", b"up")).error is None
    first = await here.clean("c1")
    await here.write("c1", "up.txt", b"again")
    second = await here.recorded("c1", lambda record: record.generation > first.generation)
    assert second.generation == first.generation + 1
    third = await here.clean("c1")
    assert first.snapshot is not None and third.snapshot is not None
    assert third.snapshot.id != first.snapshot.id


async def test_reading_causes_no_snapshot(here: Platform) -> None:
    await here.bash("c1", "echo text > a")
    before = await here.clean("c1")
    await here.call("c1", "read_file", path="a")
    assert (await here.read("c1", "a")).text == "text\n"
    assert await here.paths("c1") == ["a"]
    assert await here.record("c1") == before


async def test_newer_snapshot_replaces_the_older_one(here: Platform) -> None:
    await here.bash("c1", "echo one > a")
    old = (await here.clean("c1")).snapshot
    await here.bash("c1", "echo two > a")
    new = (await here.clean("c1")).snapshot
    assert old is not None and new is not None

    async def only_new() -> bool:
        return all(new.id in info.name for info in await here.stored("c1"))

    await until(only_new)
    assert len(await here.stored("c1")) == 2


async def test_no_snapshot_is_taken_while_a_call_runs(here: Platform) -> None:
    """Another workspace is snapshotted meanwhile, which shows that the scheduler runs."""
    _, request = await here.begin("c1", "bash", command="echo half > a; sleep 7901.5 & wait")
    await wait_for_start("7901.5")
    await here.bash("c2", "echo whole > a")
    await here.clean("c2")
    record = await here.record("c1")
    assert record.dirty and record.snapshot is None and await here.stored("c1") == []
    await here.placements.cancel((await here.placed("c1")), here.tenant, request.attempt)
    assert (await here.result(request)).error_kind == "cancelled"
    await here.clean("c1")


async def test_record_is_dirty_before_the_first_change_begins(here: Platform) -> None:
    """This also holds for a call that is sent as idempotent, because the tool's own definition decides."""
    placement, first = await here.begin("c1", "bash", command="echo one > a")
    await here.result(first)
    before = await here.clean("c1")
    forged = here.request(
        placement, "c1", "bash", idempotent=True, command="echo two > a; until [ -e go ]; do sleep 0.02; done"
    )
    await here.send(placement, forged)
    during = await here.recorded("c1", lambda record: record.dirty)
    assert during.generation == before.generation + 1
    await here.write("c1", "go", b"")
    assert not (await here.result(forged)).is_error
    facts = await here.slots.read(here.tenant, forged.attempt)
    assert facts.started is not None


async def test_files_in_the_store_are_encrypted(here: Platform) -> None:
    """Every runner can read the store. The key is recorded for the runner that has the workspace."""
    await here.bash("c1", "echo secret of acme > secret-plan")
    record = await here.clean("c1")
    snapshot = await manifest(here, "c1")
    assert record.snapshot is not None and record.snapshot.key is not None and snapshot.sealed
    name = f"{await here.snapshot_name('c1')}/0"
    stored = await here.store.get(name)
    assert not stored.startswith(ZSTD)
    archive = opened(stored, record.snapshot.key, name)
    assert archive is not None and archive.startswith(ZSTD)
    assert record.snapshot.key not in repr(record)
    assert record.snapshot.key.encode() not in stored + snapshot.model_dump_json().encode()


def test_a_sealed_part_opens_only_with_its_key_and_under_its_name() -> None:
    key = new_key()
    part = sealed(b"files", key, "t/c/s/0")
    assert len(part) == len(b"files") + SEAL_BYTES
    assert opened(part, key, "t/c/s/0") == b"files"
    assert opened(part, key, "t/c/s/1") is None
    assert opened(part, new_key(), "t/c/s/0") is None
    assert opened(part[:-1] + b"x", key, "t/c/s/0") is None


async def test_snapshot_larger_than_one_object_is_stored_in_parts(here: Platform) -> None:
    await here.bash("c1", "head -c 40000000 /dev/urandom > big")
    await here.clean("c1")
    snapshot = await manifest(here, "c1")
    assert len(snapshot.parts) == 3 and snapshot.size == 40_000_000 + HOME_BYTES
    assert all(part.size <= MAX_OBJECT_BYTES for part in snapshot.parts)


async def test_workspace_above_its_limits_is_not_snapshotted(runners: Runners) -> None:
    """The hole of a sparse file does not count towards the quota, but towards the size of a snapshot."""
    limit = {"BANKSMAN_TOOL_RUNNER__LIMITS__WORKSPACE__MAX_BYTES": "1000000"}
    (runner,) = started(runners, 1, **limit)
    async with platform(runners.secured) as here:
        await here.sees(runner)
        await here.bash("c1", "truncate -s 2000000 sparse")
        await here.bash("c2", "echo small > a")
        await here.clean("c2")

        async def is_logged() -> bool:
            return "c1: cannot be snapshotted: its files have more than 1000000 bytes" in runner.log

        await until(is_logged)
        assert (await here.record("c1")).dirty and await here.stored("c1") == []


async def test_stopping_runner_leaves_a_snapshot_of_every_changed_workspace(runners: Runners) -> None:
    (runner,) = started(runners, 1, BANKSMAN_TOOL_RUNNER__SNAPSHOTS__IDLE_S="3600")
    async with platform(runners.secured) as here:
        await here.sees(runner)
        for conversation in ("c1", "c2", "c3"):
            await here.bash(conversation, "echo kept > a")
        runner.signal(signal.SIGTERM)
        assert await runner.ended() == 0
        for conversation in ("c1", "c2", "c3"):
            record = await here.record(conversation)
            assert not record.dirty and record.snapshot is not None


async def test_interrupted_snapshot_is_never_restored_and_its_parts_are_removed(runners: Runners) -> None:
    """The runner is killed at each step: a snapshot counts only when it is recorded."""
    (runner,) = started(runners, 1)
    async with platform(runners.secured, replies_to_snapshots=False) as before:
        await before.sees(runner)
        await before.bash("c1", "head -c 40000000 /dev/urandom > big")
        parts = await until(lambda: before.stored("c1"))
        runner.signal(signal.SIGKILL)
        await runner.ended()
    interrupted = parts[0].name.split("/")[2]
    async with platform(runners.secured) as here:
        here.tenant = before.tenant
        record = await here.record("c1")
        assert record.dirty and record.snapshot is None
        runner.start()
        record = await here.clean("c1")
        assert record.snapshot is not None and record.snapshot.id != interrupted
        assert not [info for info in await here.stored("c1") if interrupted in info.name]
        assert (await manifest(here, "c1")).size == 40_000_000 + HOME_BYTES


async def test_idle_workspace_is_evicted_and_restored_by_the_next_call(runners: Runners) -> None:
    (runner,) = started(runners, 1, BANKSMAN_TOOL_RUNNER__SNAPSHOTS__EVICT_AFTER_S="0.1")
    async with platform(runners.secured) as here:
        await here.sees(runner)
        await here.bash("c1", "echo kept > a")
        await here.clean("c1")
        await until(lambda: is_missing(runner.root / here.tenant / "c1"))
        assert await here.bash("c1", "cat a; echo more >> a") == "kept\n"
        record = await here.clean("c1")
        assert (record.term, record.loss) == (1, None)
        assert await here.bash("c1", "cat a") == "kept\nmore\n"


async def test_deleted_conversation_leaves_no_files_and_no_snapshots(
    here: Platform, quick_runner: RunnerProcess
) -> None:
    await here.bash("c1", "echo secret > a")
    await here.clean("c1")
    assert await here.stored("c1")
    await here.placements.forget(here.tenant, "c1")
    assert await here.stored("c1") == []
    assert not (quick_runner.root / here.tenant / "c1").exists()
    assert not list((quick_runner.root / ".records").glob(f"{here.tenant}.c1*"))


async def test_workspace_deleted_while_its_runner_is_away_is_removed_on_return(
    runners: Runners,
) -> None:
    away, helper = started(runners, 2)
    async with platform(runners.secured) as here:
        await here.sees(away, helper)
        conversation = "c0"
        async with deadline(f"no workspace was placed on {away.id}"):
            while (await here.placed(conversation)).runner != away.id:
                conversation = f"c{int(conversation[1:]) + 1}"
        await here.bash(conversation, "echo secret > a")
        await here.clean(conversation)
        away.signal(signal.SIGKILL)
        await away.ended()
        await here.sees(helper)
        await here.placements.forget(here.tenant, conversation)
        assert await here.stored(conversation) == []
        assert (away.root / here.tenant / conversation).exists()
        away.start()
        await until(lambda: is_missing(away.root / here.tenant / conversation))


async def test_unrecorded_snapshots_are_collected(runners: Runners) -> None:
    """A runner collects its own; recorded snapshots and those of unknown workspaces remain."""
    (runner,) = started(runners, 1)
    async with (
        platform(runners.secured) as here,
        await runners.secured.connect(TOOL_RUNNER) as bus,
    ):
        await here.sees(runner)
        await here.bash("c1", "echo kept > a")
        snapshot = await here.clean("c1") and await here.snapshot_name("c1")
        for name in ("c1/sold/0", "c1/sold/2", "unknown/sold", "unknown/sold/0"):
            path = f"{here.tenant}/{name}".split("/")
            await here.store.put(owned_name("r-other", *path), b"left by a process that was killed")
        await scheduler(bus, runners.directory()).collect(datetime.now(UTC))
        assert [info.name for info in await here.stored("c1")] == [snapshot, f"{snapshot}/0"]
        assert len(await here.stored("unknown")) == 2


async def test_agents_collect_snapshots_of_a_runner_that_does_not_return(runners: Runners) -> None:
    """Recorded snapshots, and those that may be in progress, remain."""
    (runner,) = started(runners, 1)
    async with platform(runners.secured) as here:
        await here.sees(runner)
        await here.bash("c1", "echo kept > a")
        snapshot = await here.clean("c1") and await here.snapshot_name("c1")
        await here.store.put("no tenant/of.ours/s/0", b"what any runner may write")
        await here.store.put(owned_name("r-away", here.tenant, "c1", "sold", "0"), b"x" * 1000)
        await here.runner_stores.collect()
        assert len(await here.stored("c1")) == 3
        await here.runner_stores.collect()
        assert [info.name for info in await here.stored("c1")] == [snapshot, f"{snapshot}/0"]
        chunks = [
            subject
            async for subject, _ in subjects_in(
                here.bus,
                object_stream(WORKSPACES),
                object_chunks(WORKSPACES, ">"),
                request=runner_api("STREAM.INFO", object_stream(WORKSPACES)),
            )
        ]
        assert len(chunks) == 3, "the chunks of the recorded snapshot, and of the object that is no snapshot"


async def test_snapshots_of_a_tenant_leave_room_for_others(runners: Runners) -> None:
    """A workspace without room for its snapshot stays as it is, and is snapshotted once there is space."""
    (runner,) = started(runners, 1)
    async with (
        platform(runners.secured) as here,
        await runners.secured.connect(OPERATOR_FILES) as operator,
        limited_store(operator, here, f"{here.tenant}/old/s") as room,
    ):
        await here.sees(runner)
        with pytest.raises(Overloaded, match="storage_full: the snapshots of this tenant"):
            await room.check(here.tenant)
        await room.check("other")
        await here.bash("c1", "echo kept > a")
        await until(lambda: has_logged(runner, "the snapshot failed: storage_full: the snapshots of this"))
        assert (await here.record("c1")).dirty
        await here.store.delete(f"{here.tenant}/old/s")
        assert (await here.clean("c1")).snapshot is not None


async def test_snapshots_of_a_runner_leave_a_quarter_of_the_store_for_others(
    secured_nats: SecuredNats, tenant: str
) -> None:
    """A runner stops at three quarters; agents remove only the snapshots above four fifths."""
    old = owned_name("r-full", tenant, "c1", "s1")
    async with (
        platform(secured_nats) as here,
        await secured_nats.connect(OPERATOR_FILES) as operator,
        limited_store(operator, here, old) as room,
    ):
        await room.check("another-tenant")
        full = SnapshotRoom(operator, here.store, "r-full")
        with pytest.raises(Overloaded, match=r"storage_full: the snapshots of runner r-full have .* 75%"):
            await full.check("another-tenant")
        await here.store.remove(old)


@asynccontextmanager
async def limited_store(operator: Bus, here: Platform, name: str) -> AsyncGenerator[SnapshotRoom]:
    """Fill the store to four fifths with an object of this name, and yield the room of another runner."""
    info = api("STREAM.INFO", object_stream(WORKSPACES))
    before = await call(operator, info)
    await here.store.put(name, b"x" * (1_000_000 + 4 * int(before["state"]["bytes"])))
    held = int((await call(operator, info))["state"]["bytes"])
    update = api("STREAM.UPDATE", object_stream(WORKSPACES))
    await call(operator, update, {**before["config"], "max_bytes": held + held // 4})
    try:
        yield SnapshotRoom(operator, here.store, "r-room")
    finally:
        await call(operator, update, before["config"])


async def has_logged(runner: RunnerProcess, text: str) -> bool:
    return text in await asyncio.to_thread(runner.log_file.read_text)


def scheduler(bus: Bus, root: Path) -> SnapshotScheduler:
    """The scheduler of another runner, which has no workspaces."""
    identity, limits = sandbox_identity(), WorkspaceLimits()
    objects = objects_of(bus, WORKSPACES, "r-other")
    room = SnapshotRoom(bus, objects, "r-other")
    now = BrokerClock(bus).now
    snapshots = Snapshots(objects, "r-other", root / ".copies", identity, limits, now, room)
    reports = Reports(bus, "r-other")
    store, turns = WorkspaceStore(root, identity, limits), CallTurns(commands=Shares(1), fetches=Shares(1))
    registry = WorkspaceRegistry(store, snapshots, reports, turns, runner_epoch=1)
    return SnapshotScheduler(registry, snapshots, reports, SnapshotSettings())
