"""Permissions of all users under the deployed server configuration."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncGenerator, Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from banksman.bus.connection import Bus
from banksman.bus.errors import NoResponders, WrongLastSequence
from banksman.bus.jetstream import ApiError, call, last_message
from banksman.bus.messages import Message
from banksman.bus.publish import durable
from banksman.bus.secrets import CallTickets
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.leases import RENEW_EVERY_S, renew_lease, take_lease
from banksman.bus.storage.log import EventLog
from banksman.bus.storage.objects import Objects, owned_name
from banksman.bus.storage.slots import CallSlots
from banksman.cli.broker.accounts import (
    MONITORING_VARIABLE,
    TENANT_CONNECTIONS,
    Tenant,
    Variable,
    generate_keys,
    key_variable,
    user_names,
)
from banksman.cli.broker.server import render_config
from banksman.contracts import subjects
from banksman.contracts.calls import CallFinished, CallStarted, RunnerLease
from banksman.contracts.errors import Forbidden, Unavailable
from banksman.contracts.ids import new_id
from banksman.contracts.tools import ToolResult
from banksman.deployment import users
from banksman.deployment.streams import verify
from banksman.deployment.topology import app_topology
from tests.support.fixtures import ACME, BUDGET, SecuredNats, settings_of
from tests.support.paths import ROOT
from tests.support.polling import eventually
from tests.support.relaying import tickets
from tests.support.timeouts import WAIT_TIMEOUT_S

Connect = Callable[[str], Coroutine[Any, Any, Bus]]

__all__ = ["tickets"]

RUNNER = "tool-runner-r1"


@pytest.fixture
async def connect(secured_nats: SecuredNats) -> AsyncGenerator[Connect]:
    opened: list[Bus] = []

    async def as_user(user: str) -> Bus:
        opened.append(await secured_nats.connect(user))
        return opened[-1]

    yield as_user
    for bus in opened:
        await bus.close()


def started(attempt: str, runner: str | None = "r1", ticket: str | None = None) -> CallStarted:
    return CallStarted(
        conversation_id="c1", attempt=attempt, runner=runner, runner_epoch=1, ts=now(), ticket=ticket
    )


def now() -> datetime:
    return datetime.now(UTC)


async def collect(bus: Bus, subject: str) -> asyncio.Queue[Message]:
    queue: asyncio.Queue[Message] = asyncio.Queue()

    async def put(message: Message) -> None:
        queue.put_nowait(message)

    await bus.subscribe(subject, put)
    await bus.ready()
    return queue


async def first(queue: asyncio.Queue[Message]) -> Message:
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        return await queue.get()


async def test_runner_receives_a_call_and_stores_start_and_result_in_app(
    connect: Connect, tickets: CallTickets, tenant: str
) -> None:
    agent, runner = await connect(users.AGENT), await connect(RUNNER)
    held = tickets.issue(tenant, "k-1", "r1")

    async def accept(message: Message) -> None:
        await runner.publish(message.reply, b"accepted")

    await runner.subscribe(subjects.tool_call("r1", subjects.ANY, subjects.ANY), accept)
    await runner.ready()
    assert await agent.request(subjects.tool_call("r1", tenant, "c1"), b"{}", 5) == b"accepted"

    writer = CallSlots(runner, may_read=False)
    assert (await writer.store_started(tenant, started("k-1", ticket=held))).fresh
    result = ToolResult(tool_call_id="k", content={"success": True}, runner="r1")
    finished = CallFinished(conversation_id="c1", attempt="k-1", result=result, ticket=held)
    assert (await writer.store_result(tenant, finished, runner_epoch=1)).fresh

    facts = await CallSlots(agent).read(tenant, "k-1")
    assert facts.started is not None and facts.started.runner == "r1"
    assert facts.finished == finished


async def test_runner_detects_a_second_start_without_read_permission(
    connect: Connect, tickets: CallTickets, tenant: str
) -> None:
    agent, runner = await connect(users.AGENT), await connect(RUNNER)
    void = CallStarted(conversation_id="c1", attempt="k-2", runner=None, void=True, ts=now())
    assert (await CallSlots(agent).store_started(tenant, void)).fresh
    start = started("k-2", ticket=tickets.issue(tenant, "k-2", "r1"))
    placed = await CallSlots(runner, may_read=False).store_started(tenant, start)
    assert not placed.fresh
    assert placed.stored is None


async def test_runner_can_renew_only_its_own_lease(connect: Connect) -> None:
    agent, runner = await connect(users.AGENT), await connect(RUNNER)
    mine = RunnerLease(runner="r1", runner_epoch=1)
    revision = await take_lease(runner, mine)
    later = await renew_lease(runner, mine, revision, budget_s=RENEW_EVERY_S)
    with pytest.raises(WrongLastSequence):
        await renew_lease(runner, mine, revision, budget_s=RENEW_EVERY_S)
    entry = await Bucket(agent, "runners", RunnerLease).get("r1")
    assert entry is not None and entry.revision == later
    with pytest.raises(Forbidden):
        await take_lease(runner, RunnerLease(runner="r2", runner_epoch=9))


async def test_request_to_a_dead_runner_fails_with_no_responders(connect: Connect, tenant: str) -> None:
    agent = await connect(users.AGENT)
    with pytest.raises(NoResponders):
        await agent.request(subjects.tool_call("r2", tenant, "c1"), b"{}", 5)


async def test_progress_of_a_runner_is_received_by_the_gateway(connect: Connect, tenant: str) -> None:
    gateway, runner = await connect(users.GATEWAY), await connect(RUNNER)
    received = await collect(gateway, subjects.tool_progress(tenant, subjects.ANY))
    await runner.publish(subjects.tool_progress(tenant, "c1"), b"line")
    assert (await first(received)).data == b"line"


@pytest.mark.parametrize(
    "subject",
    [
        subjects.approval_reply("t1", "a1"),
        subjects.approval_request("t1", "a1"),
        subjects.run_work("t1", "c1"),
        subjects.conversation("t1", "c1"),
        subjects.tool_call("r2", "t1", "c1"),
        subjects.stored(subjects.tool_result("t1", "k-1")),
        "$JS.API.STREAM.CREATE.X",
        "$JS.API.CONSUMER.MSG.NEXT.RUNS.agents",
        "$KV.owners.t1.c1",
        "$KV.runners.r2",
        "_INBOX_agent.x",
    ],
)
async def test_runner_cannot_publish_on_other_subjects(connect: Connect, subject: str) -> None:
    runner = await connect(RUNNER)
    with pytest.raises(Forbidden):
        await durable(runner, subject, b"forged", msg_id=f"forged:{subject}")
    assert runner.stats.forbidden == 1


@pytest.mark.parametrize(
    "subject",
    [
        subjects.live("*", "*"),
        subjects.tool_call("r2", "*", "*"),
        subjects.approval_reply("*", "*"),
        "stored.>",
        "_INBOX_agent.>",
        ">",
    ],
)
async def test_runner_cannot_subscribe_to_other_subjects(connect: Connect, subject: str) -> None:
    runner = await connect(RUNNER)
    await collect(runner, subject)
    assert runner.stats.forbidden == 1


async def test_forged_reply_subject_of_a_runner_stays_in_its_account(
    connect: Connect, tickets: CallTickets, tenant: str
) -> None:
    """The server does not check the reply subject of a permitted request, so it must not reach APP."""
    agent, runner = await connect(users.AGENT), await connect(RUNNER)
    inbox = f"{agent.inbox_prefix}.forged"
    heard_by_agent = await collect(agent, f"{inbox}.*")
    target = subjects.run_work(tenant, "c1")
    slot = subjects.tool_started(tenant, "k-3")
    for number, reply in enumerate((f"{inbox}.1", target)):
        await runner.nc.publish(slot, b"x", reply=reply, headers={"Nats-Msg-Id": f"{tenant}:{number}"})
    await runner.ready()
    # The slot is written, so the server has processed both requests.
    start = started("k-3", ticket=tickets.issue(tenant, "k-3", "r1"))
    assert await CallSlots(runner, may_read=False).store_started(tenant, start)
    await agent.ready()
    assert heard_by_agent.empty()
    operator = await connect(users.OPERATOR)
    assert await last_message(operator, "RUNS", target) is None


async def test_account_run_cannot_read_account_app(connect: Connect) -> None:
    """RUN has its own JetStream; the API subject reaches only that one."""
    files = await connect(users.OPERATOR_FILES)
    found = await verify(files, app_topology(BUDGET))
    assert "stream EVENTS is missing" in found


async def test_runner_writes_outputs_and_gateway_reads_them(connect: Connect, tenant: str) -> None:
    runner, gateway = await connect(RUNNER), await connect(users.GATEWAY_FILES)
    name = owned_name("r1", tenant, "c1", "k-1")
    await Objects(runner, "outputs").put(name, b"whole output")
    assert await Objects(gateway, "outputs").get(name) == b"whole output"
    with pytest.raises(Forbidden):
        await Objects(gateway, "outputs").put(owned_name("r1", tenant, "c1", "k-2"), b"forged")


@pytest.mark.parametrize("user", [users.GATEWAY, users.AGENT, users.WORKFLOWS])
@pytest.mark.one_server
async def test_each_service_has_permission_to_check_streams(connect: Connect, user: str) -> None:
    found = await verify(await connect(user), app_topology(BUDGET))
    # sync_interval is not a permission, and the server of the tests does not sync every write.
    assert [weakness for weakness in found if not weakness.startswith("server:")] == []


@pytest.mark.parametrize(
    "subject",
    [
        subjects.conversation("t1", "c1"),
        subjects.tool_call("r1", "t1", "c1"),
        subjects.tool_started("t1", "k-1"),
        subjects.tool_result("t1", "k-1"),
        "$JS.API.STREAM.PURGE.EVENTS",
        "$JS.API.STREAM.DELETE.EVENTS",
    ],
)
async def test_gateway_cannot_append_or_call_tools(connect: Connect, subject: str) -> None:
    gateway = await connect(users.GATEWAY)
    with pytest.raises(Forbidden):
        await durable(gateway, subject, b"forged", msg_id=f"forged:{subject}")


@pytest.mark.parametrize("user", [users.GATEWAY, users.WORKFLOWS])
async def test_only_the_agent_user_can_purge_a_log(connect: Connect, user: str) -> None:
    with pytest.raises(Forbidden):
        await EventLog(await connect(user)).purge("t1", "c1")
    assert await EventLog(await connect(users.AGENT)).purge("t1", "c1") == 0


async def test_no_service_can_subscribe_to_the_inbox_of_another_service(connect: Connect) -> None:
    gateway = await connect(users.GATEWAY)
    await collect(gateway, "_INBOX_agent.>")
    assert gateway.stats.forbidden == 1


async def test_tenant_receives_its_own_conversations_only(connect: Connect) -> None:
    acme, agent = await connect("tenant-acme"), await connect(users.AGENT)
    deltas, commits = await collect(acme, "delta.>"), await collect(acme, "live.>")
    for tenant in ("other", "acme"):
        await agent.publish(subjects.delta(tenant, "c1"), b"")
    await durable(agent, subjects.conversation("other", "c1"), b"", msg_id=new_id("k"))
    await durable(agent, subjects.conversation("acme", "c1"), b"", msg_id=new_id("k"))
    assert (await first(deltas)).subject == subjects.delta("acme", "c1")
    assert (await first(commits)).subject == subjects.live("acme", "c1")
    await agent.ready()
    await acme.ready()
    assert deltas.empty() and commits.empty()


async def test_connections_of_a_tenant_are_limited(secured_nats: SecuredNats, connect: Connect) -> None:
    for _ in range(TENANT_CONNECTIONS):
        await connect(ACME.user)
    settings = settings_of(secured_nats.server).model_copy(
        update={"nkey_seed_file": secured_nats.seed_file(ACME.user), "connect_timeout_s": 2.0}
    )
    with pytest.raises(Unavailable):
        await Bus(settings, name="one more", inbox_prefix=users.inbox_prefix(ACME.user)).open()
    assert (await connect(users.GATEWAY)).connected


async def test_tenant_can_use_its_api_and_no_jetstream_api(connect: Connect) -> None:
    acme, gateway = await connect("tenant-acme"), await connect(users.GATEWAY)

    async def serve(message: Message) -> None:
        await gateway.publish(message.reply, message.subject.encode())

    await gateway.subscribe("api.*.>", serve)
    await gateway.ready()
    send = subjects.api("acme", "chat", "send", "c1")
    assert await acme.request(send, b"{}", 5) == send.encode()
    with pytest.raises(NoResponders):
        await acme.request(subjects.api("other", "chat", "send", "c1"), b"{}", 5)
    with pytest.raises(ApiError, match="not enabled for account"):
        await call(acme, "$JS.API.STREAM.INFO.EVENTS")


@pytest.mark.usefixtures("tickets")
async def test_tenant_serves_its_tools_and_stores_results(connect: Connect) -> None:
    acme, agent = await connect("tenant-acme"), await connect(users.AGENT)

    async def accept(message: Message) -> None:
        await acme.publish(message.reply, b"accepted")

    await acme.subscribe(subjects.tool_call("weather", "acme", "*"), accept)
    await acme.ready()
    assert await agent.request(subjects.tool_call("weather", "acme", "c1"), b"{}", 5) == b"accepted"
    assert (await CallSlots(acme, may_read=False).store_started("acme", started("k-9", "weather"))).fresh


async def kept_reply_subjects(nats: SecuredNats) -> int:
    """Return for how many requests to the tenant's account the server waits to pass a reply."""
    url = f"{nats.server.monitoring_url}/accountz?acc={ACME.account}"
    with await asyncio.to_thread(urlopen, url, timeout=5) as response:
        return len(json.load(response)["account_detail"].get("responses") or ())


async def test_broker_keeps_the_reply_subject_of_an_unanswered_call_for_seconds_only(
    secured_nats: SecuredNats, connect: Connect
) -> None:
    """A tool server whose start is stored does not reply: in two minutes of load, thousands would be kept."""
    acme, agent = await connect("tenant-acme"), await connect(users.AGENT)
    received = asyncio.Event()

    async def accept(_message: Message) -> None:
        received.set()

    await acme.subscribe(subjects.tool_call("weather", "acme", "*"), accept)
    await acme.ready()
    with agent.replies.expect("a call", lambda _: None, lambda _: None) as inbox:
        await agent.replies.send(subjects.tool_call("weather", "acme", "c1"), b"{}", inbox)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await received.wait()
        assert await kept_reply_subjects(secured_nats) == 1

        async def expired() -> bool:
            return await kept_reply_subjects(secured_nats) == 0

        await eventually(expired, timeout_s=WAIT_TIMEOUT_S)


async def test_registration_from_a_tenant_account_names_the_tenant(connect: Connect) -> None:
    acme, agent = await connect("tenant-acme"), await connect(users.AGENT)

    async def registry(message: Message) -> None:
        await agent.publish(message.reply, message.subject.encode())

    await agent.subscribe(subjects.tenant_registry("tool", "register", "*"), registry)
    await agent.ready()
    response = await acme.request(subjects.registry("tool", "register"), b"{}", 5)
    assert response.decode() == subjects.tenant_registry("tool", "register", "acme")


def test_seeds_are_created_once_and_readable_by_their_owner_only(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    made = generate_keys(keys, user_names(runners=("r1",)))
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in keys.iterdir()} == {0o600}
    assert generate_keys(keys, user_names(runners=("r1",))) == made
    assert len(set(made.values())) == len(made) == len(list(keys.iterdir()))


def test_deployed_configuration_equals_the_tested_one() -> None:
    """`deploy/nats/nats.conf` has the same permissions, with keys from the server's environment."""
    deployed = ROOT / "deploy" / "nats" / "nats.conf"
    offered: dict[str, Any] = {"tool_servers": (users.EXAMPLE_SERVER,)}
    variables = {user: Variable(key_variable(user)) for user in user_names(**offered)}
    assert "tenant-" not in "".join(variables) and Tenant("x").user == "tenant-x"
    rendered = render_config(
        variables,
        port=4222,
        host="0.0.0.0",
        http_port=8222,
        http_host="0.0.0.0",
        http_path=MONITORING_VARIABLE,
        store_dir="/data",
        budget=None,
        **offered,
    )
    assert deployed.read_text(encoding="utf-8").endswith(rendered)
