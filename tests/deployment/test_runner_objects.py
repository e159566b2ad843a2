"""With the key of a runner, no object of another runner can be removed, replaced, extended or forged."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime

import pytest

from banksman.agent.router import report_router, store_router
from banksman.agent.runners.room import MOST_SHARE, RunnerRoom
from banksman.agent.runners.stores import RunnerStores, WorkspaceReports
from banksman.bus.connection import Bus
from banksman.bus.control_plane.control import ControlPlane
from banksman.bus.errors import PublishRefused
from banksman.bus.jetstream import call, last_message, purge_subject
from banksman.bus.names import (
    OUTPUTS,
    OWNERS,
    ROLLUP,
    RUNNER_STORES,
    WORKSPACES,
    api,
    object_chunks,
    object_meta,
    object_stream,
)
from banksman.bus.publish import durable
from banksman.bus.secrets import SecretBox, TenantSecrets
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.objects import (
    CHUNK_BYTES,
    ObjectBroken,
    Objects,
    owned_name,
    subject_tokens,
    subjects_below,
)
from banksman.contracts.errors import Forbidden, NotFound, Unavailable
from banksman.contracts.ids import new_id
from banksman.contracts.workspaces import SnapshotRef, WorkspaceOwner, WorkspaceReport
from banksman.deployment.users import AGENT, OPERATOR_FILES
from banksman.tool_runner.workspaces.entry import Reports, objects_of
from tests.support.fixtures import SecuredNats

OWNER, THIEF = "tool-runner-r1", "tool-runner-r2"
DATA = b"files of r1"


@pytest.fixture
async def agent(secured_nats: SecuredNats) -> AsyncGenerator[Bus]:
    """An agent that serves the requests of runners about objects and workspaces."""
    async with (
        await secured_nats.connect(AGENT) as bus,
        ControlPlane(bus, store_router(RunnerStores(bus))),
        ControlPlane(bus, report_router(WorkspaceReports(bus, TenantSecrets(bus, SecretBox(b""))))),
    ):
        yield bus


@pytest.fixture
async def thief(secured_nats: SecuredNats) -> AsyncGenerator[Bus]:
    async with await secured_nats.connect(THIEF) as bus:
        yield bus


@pytest.fixture(params=RUNNER_STORES)
async def stored(
    request: pytest.FixtureRequest, secured_nats: SecuredNats, tenant: str
) -> AsyncGenerator[tuple[str, str]]:
    """An object of runner r1: its store and its name."""
    store, name = request.param, owned_name("r1", tenant, "c1", "s1")
    async with await secured_nats.connect(OWNER) as owner:
        await Objects(owner, store).put(name, DATA)
        yield store, name
        assert await Objects(owner, store).get(name) == DATA


async def test_no_purge_removes_an_object(thief: Bus, stored: tuple[str, str]) -> None:
    store, name = stored
    for subject in (">", *subjects_below(store, name)):
        with pytest.raises(Forbidden):
            await purge_subject(thief, object_stream(store), subject)
    with pytest.raises(Forbidden):
        await call(thief, api("STREAM.MSG.DELETE", object_stream(store)), {"seq": 1})


@pytest.mark.parametrize("rollup", ["all", "sub"])
async def test_no_rollup_removes_objects(thief: Bus, stored: tuple[str, str], rollup: str) -> None:
    store, name = stored
    own = object_meta(store, subject_tokens(name.replace("r1:", "r2:")))
    with pytest.raises(PublishRefused, match="rollup"):
        await durable(thief, own, b"{}", msg_id=new_id("m"), headers={ROLLUP: rollup})


async def test_no_message_replaces_or_extends_an_object(thief: Bus, stored: tuple[str, str]) -> None:
    store, name = stored
    place = subject_tokens(name)
    for subject in (
        object_meta(store, place),
        object_chunks(store, f"{place}.{new_id('o')}"),
        # As versions without owners stored them.
        object_meta(store, subject_tokens(name.partition(":")[2])),
        object_chunks(store, new_id("o")),
    ):
        with pytest.raises(Forbidden):
            await durable(thief, subject, b"forged", msg_id=new_id("m"))


async def test_own_description_that_names_another_object_is_not_listed(
    thief: Bus, stored: tuple[str, str], secured_nats: SecuredNats
) -> None:
    """An operator who removes what is listed would otherwise remove the other object."""
    store, name = stored
    async with await secured_nats.connect(OPERATOR_FILES) as operator:
        objects = Objects(operator, store)
        of_owner = await last_message(
            operator, object_stream(store), object_meta(store, subject_tokens(name))
        )
        assert of_owner is not None
        own = owned_name("r2", "t", "c", new_id("s"))
        await durable(thief, object_meta(store, subject_tokens(own)), of_owner.data, msg_id=new_id("m"))
        assert [info.name async for info in objects.list(owner="r2") if info.name == name] == []
        with pytest.raises(ObjectBroken):
            await objects.get(own)


@pytest.mark.usefixtures("agent")
async def test_request_for_a_removal_reaches_own_objects_only(
    thief: Bus, stored: tuple[str, str], tenant: str
) -> None:
    store, name = stored
    assert store in (OUTPUTS, WORKSPACES)
    as_thief, as_owner = objects_of(thief, store, "r2"), objects_of(thief, store, "r1")
    for theirs in (name, name.partition(":")[2]):
        with pytest.raises(Unavailable, match="not an object of r2"):
            await as_thief.remove(theirs)
    with pytest.raises(Forbidden):
        await as_owner.remove(name)
    own = owned_name("r2", tenant, "c1", "s1")
    await as_thief.put(own, b"own")
    await as_thief.put(f"{own}/0", b"own")
    await as_thief.remove(own)
    for removed in (own, f"{own}/0"):
        with pytest.raises(NotFound):
            await as_thief.get(removed)


async def test_key_of_a_snapshot_is_not_returned_to_another_runner(
    agent: Bus, thief: Bus, secured_nats: SecuredNats, tenant: str
) -> None:
    """Every runner can read the store: with the key it would read the files."""
    snapshot = SnapshotRef(
        id="s1", manifest_digest="ab" * 32, created_at=datetime.now(UTC), key="cd" * 32, stored_by="r1"
    )
    record = WorkspaceOwner(runner="r1", runner_epoch=1, snapshot=snapshot)
    await Bucket(agent, OWNERS, WorkspaceOwner).put(f"{tenant}.c1", record)
    query = WorkspaceReport(runner_epoch=1, term=1)
    verdict = await Reports(thief, "r2").send(tenant, "c1", query)
    assert not verdict.mine and verdict.snapshot is not None and verdict.snapshot.key is None
    async with await secured_nats.connect(OWNER) as owner:
        own = await Reports(owner, "r1").send(tenant, "c1", query)
    assert own.mine and own.snapshot == snapshot


SMALL_BYTES = 24 * CHUNK_BYTES
"""Bytes that a stolen key can store in the stores of these tests, beside the objects of other tests."""


@pytest.fixture
async def small(secured_nats: SecuredNats, stored: tuple[str, str]) -> AsyncGenerator[tuple[Objects, int]]:
    """The store of an object of r1, as an operator sees it, and its size, which is small."""
    store, _ = stored
    stream = object_stream(store)
    async with await secured_nats.connect(OPERATOR_FILES) as operator:
        before = (await call(operator, api("STREAM.INFO", stream)))["config"]
        objects = Objects(operator, store)
        held, _ = await objects.storage_used()
        config = {**before, "max_bytes": max(SMALL_BYTES, 16 * held)}
        await call(operator, api("STREAM.UPDATE", stream), config)
        yield objects, config["max_bytes"]
        await purge_subject(operator, stream, f"$O.{store}.*.r2.>")
        await call(operator, api("STREAM.UPDATE", stream), before)


@pytest.mark.parametrize("uploads", ["one", "many"])
async def test_key_of_a_runner_cannot_fill_a_store(
    agent: Bus, thief: Bus, stored: tuple[str, str], small: tuple[Objects, int], tenant: str, uploads: str
) -> None:
    """Three times the size of the store: chunks of one object that is never finished, or of many."""
    (store, _), (objects, max_bytes) = stored, small
    room = RunnerRoom(agent)
    place = subject_tokens(owned_name("r2", tenant, "c1", "s1"))
    most = 0
    for _ in range(3 * max_bytes // CHUNK_BYTES):
        upload = new_id("o") if uploads == "many" else "o1"
        subject = object_chunks(store, f"{place}.{upload}")
        await durable(thief, subject, b"x" * CHUNK_BYTES, msg_id=new_id("m"))
        await room.check()
        most = max(most, (await objects.storage_used())[0])
    assert MOST_SHARE * max_bytes - 2 * CHUNK_BYTES < most <= MOST_SHARE * max_bytes + CHUNK_BYTES


@pytest.mark.parametrize("stored", [WORKSPACES], indirect=True)
async def test_recorded_snapshot_of_a_runner_outlives_those_that_fill_the_store(
    agent: Bus, thief: Bus, small: tuple[Objects, int], secured_nats: SecuredNats, tenant: str
) -> None:
    """The key was stolen, and the runner itself still works with its workspaces."""
    _, max_bytes = small
    kept, other = owned_name("r2", tenant, "c1", "s1"), owned_name("r2", tenant, "c2", "s2")
    snapshot = SnapshotRef(id="s1", manifest_digest="ab" * 32, created_at=datetime.now(UTC), stored_by="r2")
    record = WorkspaceOwner(runner="r2", runner_epoch=1, snapshot=snapshot)
    await Bucket(agent, OWNERS, WorkspaceOwner).put(f"{tenant}.c1", record)
    runner = Objects(thief, WORKSPACES)
    await runner.put(kept, DATA)
    for number in range(max_bytes * 85 // 100 // CHUNK_BYTES):
        await runner.put(f"{other}/{number}", b"x" * CHUNK_BYTES)
    await RunnerRoom(agent).check()
    assert [info.name async for info in runner.list(owner="r2") if info.path.startswith(tenant)] == [kept]
    assert await runner.get(kept) == DATA
