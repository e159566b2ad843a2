"""Provisioning of streams and consumers, and the check that they are as strong as required."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.jetstream import call
from banksman.bus.names import api
from banksman.bus.publish import durable
from banksman.deployment import streams
from banksman.deployment.streams import provision, provision_consumer
from banksman.deployment.topology import (
    ConsumerConfig,
    StorageBudget,
    StreamConfig,
    Topology,
    app_topology,
    run_topology,
    workflow_consumer,
)
from tests.support.nats import NatsServer, plain_config

BUDGET = StorageBudget(1024**3)
WITHOUT_JETSTREAM = """
listen: "127.0.0.1:{port}"
http: "127.0.0.1:{http_port}"
"""
ACCOUNT_WITHOUT_JETSTREAM = (
    plain_config(sync_always=True)
    + """
accounts { OURS { users: [{ user: "us", password: "us" }] } }
no_auth_user: "us"
"""
)


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncGenerator[Bus]:
    """A connection whose check skips the server's settings."""
    async with await Bus(NatsSettings(url=nats_server.url), name="test").open() as connected:
        yield connected


async def verify(bus: Bus, topology: Topology) -> tuple[str, ...]:
    """Return the findings about streams and consumers, without those about the server."""
    findings = await streams.verify(bus, topology)
    return tuple(finding for finding in findings if not finding.startswith("server:"))


def small(name: str, **changes: Any) -> Topology:
    """Return a topology of one stream and one consumer."""
    stream = StreamConfig(name=name, subjects=(f"{name}.>",), max_bytes=10_000_000, write_once=True)
    consumer = ConsumerConfig(stream=name, durable="readers", filter=f"{name}.>")
    return Topology("TEST", (dataclasses.replace(stream, **changes),), (consumer,))


async def alter_stream(bus: Bus, name: str, **changes: Any) -> None:
    config = (await call(bus, api("STREAM.INFO", name)))["config"]
    await call(bus, api("STREAM.UPDATE", name), {**config, **changes})


async def test_repeated_provisioning_changes_nothing(bus: Bus, tenant: str) -> None:
    assert len(await provision(bus, small(tenant))) == 2
    assert await provision(bus, small(tenant)) == ()
    assert await verify(bus, small(tenant)) == ()


@pytest.mark.one_server
async def test_provisioned_topology_of_both_accounts_passes_the_check(bus: Bus) -> None:
    """The server accepted every setting; it silently omits unknown ones."""
    for topology in (app_topology(StorageBudget(10 * 1024**3)), run_topology(StorageBudget(10 * 1024**3))):
        assert await verify(bus, topology) == ()


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"discard_new_per_subject": False}, "discard_new_per_subject is None, expected True"),
        ({"max_bytes": 1000}, "max_bytes is 1000, expected 10000000"),
        ({"duplicate_window": 1_000_000_000}, "duplicate_window is 1000000000, expected 600000000000"),
        ({"max_age": 3_600_000_000_000}, "max_age is 3600000000000, expected 0"),
        ({"max_msgs": 5}, "max_msgs is 5, expected -1"),
    ],
)
async def test_weaker_stream_is_reported_and_updated(
    bus: Bus, tenant: str, changes: dict[str, Any], finding: str
) -> None:
    await provision(bus, small(tenant))
    await alter_stream(bus, tenant, **changes)
    found = await verify(bus, small(tenant))
    assert found[0] == f"stream {tenant}: {finding}"
    await provision(bus, small(tenant))
    assert await verify(bus, small(tenant)) == ()


async def test_discard_old_is_reported_because_it_loses_messages(bus: Bus, tenant: str) -> None:
    await provision(bus, small(tenant, discard="old", write_once=False))
    found = await verify(bus, small(tenant, write_once=False))
    assert f"stream {tenant}: discard is 'old', expected 'new'" in found


async def test_larger_limits_are_not_reported(bus: Bus, tenant: str) -> None:
    """Services of the version before an upgrade stay ready beside it."""
    await provision(bus, small(tenant, max_bytes=20_000_000, max_age_s=1200))
    assert await verify(bus, small(tenant, max_age_s=600)) == ()
    await provision(bus, small(tenant))
    assert await verify(bus, small(tenant, max_age_s=600)) == ()


async def test_consumer_with_max_deliver_or_backoff_is_reported_and_updated(bus: Bus, tenant: str) -> None:
    topology = small(tenant)
    await provision(bus, topology)
    config = {**topology.consumers[0].config(), "max_deliver": 3, "backoff": [1_000_000_000, 60_000_000_000]}
    body = {"stream_name": tenant, "config": config, "action": ""}
    await call(bus, api("CONSUMER.DURABLE.CREATE", tenant, "readers"), body)
    found = await verify(bus, topology)
    assert f"consumer {tenant}/readers: max_deliver is 3, expected -1" in found
    assert f"consumer {tenant}/readers: backoff overrides ack_wait" in found
    await provision(bus, topology)
    assert await verify(bus, topology) == ()


async def test_missing_streams_and_consumers_are_reported(bus: Bus, tenant: str) -> None:
    found = await verify(bus, small(tenant))
    assert found[:2] == (f"stream {tenant} is missing", f"consumer {tenant}/readers is missing")


@pytest.mark.parametrize("sync_always", [True, False])
@pytest.mark.one_server
async def test_a_single_server_must_sync_every_write(sync_always: bool) -> None:
    """Otherwise a power cut loses acknowledged messages."""
    with NatsServer(plain_config(sync_always=sync_always)) as server:
        settings = NatsSettings(url=server.url, monitoring_url=server.monitoring_url)
        async with await Bus(settings, name="test").open() as bus:
            await provision(bus, app_topology(BUDGET))
            findings = await streams.verify(bus, app_topology(BUDGET))
    lost = "server: sync_interval is not `always`, expected `always`: a power cut loses acknowledged messages"
    assert findings == (() if sync_always else (lost,))


@pytest.mark.one_server
async def test_single_server_without_monitoring_is_reported(bus: Bus) -> None:
    findings = await streams.verify(bus, app_topology(StorageBudget(10 * 1024**3)))
    assert [finding.partition(" is not set")[0] for finding in findings] == [
        "server: BANKSMAN_NATS__MONITORING_URL"
    ]


@pytest.mark.one_server
async def test_server_without_jetstream_is_reported() -> None:
    with NatsServer(WITHOUT_JETSTREAM) as server:
        settings = NatsSettings(url=server.url, monitoring_url=server.monitoring_url)
        async with await Bus(settings, name="test").open() as bus:
            found = await streams.verify(bus, app_topology(BUDGET))
    assert found == ("server: JetStream is off, expected on",)


@pytest.mark.one_server
async def test_account_without_jetstream_is_reported() -> None:
    with NatsServer(ACCOUNT_WITHOUT_JETSTREAM) as server:
        settings = NatsSettings(url=server.url, monitoring_url=server.monitoring_url)
        async with await Bus(settings, name="test").open() as bus:
            found = await streams.verify(bus, app_topology(BUDGET))
    assert found == ("account APP: JetStream is off, expected on",)


@pytest.mark.one_server
async def test_each_workflow_has_its_own_consumer(bus: Bus) -> None:
    consumer = workflow_consumer("nightly-report")
    assert await provision_consumer(bus, consumer) == ["consumer WORKFLOWS/workflow-nightly-report created"]
    assert await provision_consumer(bus, consumer) == []


def test_stream_limits_together_stay_below_the_budget() -> None:
    streams = (*app_topology(BUDGET).streams, *run_topology(BUDGET).streams)
    reserved = sum(stream.max_bytes or 0 for stream in streams)
    assert reserved <= BUDGET.total_bytes * 0.95
    for stream in (*app_topology(BUDGET).streams, *run_topology(BUDGET).streams):
        assert (stream.max_bytes is None) == (stream.name == "TIMERS")
        assert (stream.discard == "old") == (stream.name in ("TIMERS", "AUDIT"))


async def test_nearly_full_stream_is_reported(bus: Bus, tenant: str) -> None:
    topology = small(tenant)
    await provision(bus, topology)
    assert await streams.nearly_full(bus, topology) == ()
    for number in range(9):
        await durable(bus, f"{tenant}.{number}", b"x" * 1_000_000, msg_id="m")
    [warning] = await streams.nearly_full(bus, topology)
    assert warning.startswith(f"stream {tenant} is 90 % full")
