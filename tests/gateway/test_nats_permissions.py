from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, NamedTuple

import pytest
from httpx import AsyncClient
from tests.gateway.conftest import Agent, Served, gateway_on
from tests.support.fixtures import SecuredNats
from tests.support.polling import eventually

from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.control_plane.service_states import reported_state
from banksman.bus.dead import dead_letter
from banksman.bus.jetstream import last_message
from banksman.bus.names import OUTPUTS, OWNERS, RESULTS, RUNNERS, RUNS, USAGE, kv_stream, kv_subject
from banksman.bus.publish import RunQueue, durable
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.objects import Objects
from banksman.contracts import subjects
from banksman.contracts.calls import RunnerLease
from banksman.contracts.events import ToolCallCompleted
from banksman.contracts.ids import new_id
from banksman.contracts.messages import Usage
from banksman.contracts.registry import StartWorkflow, ToolPolicy
from banksman.contracts.tools import ToolResult
from banksman.contracts.usage import CommitUsage, UsageTotals, passthrough_key, usage_key
from banksman.contracts.work import CancelRun
from banksman.contracts.workspaces import WorkspaceOwner
from banksman.deployment.streams import provision_consumer
from banksman.deployment.topology import workflow_consumer
from banksman.deployment.users import AGENT, GATEWAY, GATEWAY_FILES, OPERATOR, OPERATOR_FILES, WORKFLOWS
from banksman.gateway.usage.passthrough import PassthroughUsage
from banksman.runtime.health import Check, Health
from banksman.runtime.tenants import TenantSettings


class Deployment(NamedTuple):
    """A gateway with the permissions of a deployment. The operator's connection replaces the other
    services."""

    gateway: Served
    operator: Bus
    files: Bus


@pytest.fixture
async def deployment(secured_nats: SecuredNats, tenant: str) -> AsyncGenerator[Deployment]:
    def as_user(user: str) -> NatsSettings:
        server = secured_nats.server
        return NatsSettings(
            url=server.url, nkey_seed_file=secured_nats.seed_file(user), monitoring_url=server.monitoring_url
        )

    async with (
        await secured_nats.connect(OPERATOR) as operator,
        await secured_nats.connect(OPERATOR_FILES) as files,
        gateway_on(
            secured_nats.server, operator, tenant, nats=as_user(GATEWAY), outputs=as_user(GATEWAY_FILES)
        ) as gateway,
    ):
        yield Deployment(gateway, operator, files)


Refused = Callable[[], list[str]]


@pytest.fixture
def violations(secured_nats: SecuredNats) -> Refused:
    """The violations since the test began; other tests of the session attack the same server."""
    begun = len(secured_nats.server.log())
    return lambda: [line for line in secured_nats.server.log()[begun:].splitlines() if "Violation" in line]


async def test_the_nats_permissions_of_the_gateway_suffice_for_all_requests(
    deployment: Deployment, violations: Refused, tenant: str
) -> None:
    gateway, operator, files = deployment
    agent = Agent(operator, tenant)
    async with gateway.http as http, gateway.socket() as socket:
        await http.post("/v1/system-prompts", json={"id": "mine", "content": "x"})
        conversation = await socket.create(system_prompt_id="mine", detail="full")
        sent = await socket.request("chat.send", conversation_id=conversation, content="hi")
        queued = (await http.get(f"/context/runs/{sent['run_id']}")).json()
        start = await agent.started(conversation)
        await agent.begin(start)
        request = await agent.request_approval(start)
        await socket.until_type("approval.requested")
        decided = await socket.request("approval.reply", approval_id=request.approval_id, all="approve")
        call = request.items[0].tool_call_id
        await Objects(files, OUTPUTS).put("whole", b"all of it")
        result = ToolResult(tool_call_id=call, content={"success": True}, truncated=True, output_ref="whole")
        await agent.commit(conversation, start.run_id, ToolCallCompleted(result=result))
        output = await http.get(f"/context/runs/{start.run_id}/tool-calls/{call}/output")
        listed = (await http.get("/context/conversations")).json()["items"]
        ticket = await http.post("/v1/ws-ticket")
        cancelled = await socket.request("run.cancel", run_id=start.run_id)
        renamed = await http.patch(f"/context/conversations/{conversation}", json={"title": "t"})
        deleted = await http.delete(f"/context/conversations/{conversation}")
    assert (queued["status"], decided["outcome"], output.content) == ("queued", "approved", b"all of it")
    assert [item["status"] for item in listed] == ["awaiting_approval"]
    assert (ticket.status_code, cancelled["type"]) == (201, "ack")
    assert (renamed.status_code, deleted.status_code) == (200, 204)
    assert violations() == []


async def test_the_nats_permissions_of_the_gateway_suffice_to_deliver_webhooks(
    deployment: Deployment, violations: Refused, tenant: str
) -> None:
    """No connection to the address is possible: only the attempt counts."""
    gateway, operator, _ = deployment
    agent = Agent(operator, tenant)
    async with gateway.http as http:
        body = {"url": "https://receiver.invalid/hook", "events": ["run.finished"]}
        webhook = (await http.post("/context/webhooks", json=body)).json()["id"]
        run = await http.post("/v1/chat", json={"content": "hi"})
        start = await agent.started(run.json()["conversation_id"])
        await agent.begin(start)
        await agent.finish(start)

        async def attempted() -> list[str]:
            found = (await http.get(f"/context/webhooks/{webhook}/deliveries")).json()["items"]
            return [one["type"] for one in found if one["attempts"]]

        assert await eventually(attempted) == ["run.finished"]
    assert violations() == []


async def test_an_operator_sees_the_state_and_replays_a_dead_letter(
    deployment: Deployment, violations: Refused, tenant: str
) -> None:
    """R34: with the permissions of a deployment: a gateway may not publish what only a runner may."""
    gateway, operator, _ = deployment
    await Bucket(operator, RUNNERS, RunnerLease).put("r1", RunnerLease(runner="r1", runner_epoch=1, load=3))
    work = subjects.run_work(tenant, new_id("c"))
    run = await dead_letter(
        operator, subject=work, stream=RUNS, stream_seq=901, reason="unreadable", payload=b"{}"
    )
    call = await dead_letter(
        operator,
        subject=subjects.tool_result(tenant, new_id("a")),
        stream=RESULTS,
        stream_seq=902,
        reason="unreadable",
        payload=b"{}",
    )
    async with gateway.http as http:
        overview = (await http.get("/operator/overview")).json()
        tenants = await http.get("/operator/tenants")
        page = (await http.get("/operator/dead-letters", params={"after": run - 1})).json()
        replayed = await http.post(f"/operator/dead-letters/{run}/replay")
        refused = await http.post(f"/operator/dead-letters/{call}/replay")
        again = await http.post(f"/operator/dead-letters/{run}/replay")
        left = (await http.get("/operator/dead-letters", params={"after": run - 1})).json()["items"]
    stored = await last_message(operator, RUNS, work)
    assert {one["name"] for one in overview["streams"]} >= {"EVENTS", "RUNS", "DEAD"}
    assert [one["name"] for one in overview["queues"]][:2] == ["agents", "signals"]
    assert ("r1", 3) in [(one["name"], one["load"]) for one in overview["runners"]]
    assert tenants.status_code == 200
    assert [(one["id"], one["can_replay"]) for one in page["items"]] == [(run, True), (call, False)]
    assert (replayed.status_code, refused.status_code, again.status_code) == (204, 409, 404)
    assert f"banksman dead replay {call}" in refused.json()["error"]["message"]
    assert [one["id"] for one in left] == [call]
    assert stored is not None and stored.data == b"{}"
    assert violations() == []


async def test_an_operator_sees_open_runs_of_all_tenants_and_cancels_one_with_a_reason(
    deployment: Deployment, violations: Refused, tenant: str
) -> None:
    """R34: with the permissions of a deployment. The reason is in the audit trail of the run's tenant."""
    gateway, operator, _ = deployment
    other = new_id("t")
    agent = Agent(operator, tenant)
    async with gateway.http as http:
        queued = (await http.post("/v1/chat", json={"content": "hi"})).json()
        parked = (await http.post("/v1/chat", json={"content": "hi"})).json()
        start = await agent.started(parked["conversation_id"])
        await agent.begin(start)
        await agent.request_approval(start)
        overview = (await http.get("/operator/overview")).json()
        runs = [run async for run in open_runs(http, "queued")]
        waiting = [run async for run in open_runs(http, "awaiting_approval")]
        path = f"/operator/runs/{tenant}/{queued['run_id']}/cancel"
        without = await http.post(path, json={})
        elsewhere = await http.post(path.replace(tenant, other), json={"reason": "stuck"})
        cancelled = await http.post(path, json={"reason": "stuck"})
        trail = (await http.get("/v1/audit", params={"action": "run"})).json()["items"]
    signal = await last_message(operator, RUNS, subjects.run_signal(tenant, queued["conversation_id"]))
    states = {one["tenant"]: one["runs"] for one in overview["waiting"]}
    assert states[tenant] == 2
    assert overview["queues"][0]["oldest_at"] is not None
    assert (queued["run_id"] in runs, parked["run_id"] in waiting) == (True, True)
    assert (without.status_code, elsewhere.status_code, cancelled.status_code) == (400, 404, 202)
    assert signal is not None
    told = CancelRun.model_validate_json(signal.data)
    assert (told.run_id, told.reason, told.by.split()[0]) == (queued["run_id"], "stuck", "operator")
    assert [(one["action"], one["target"], one["details"]) for one in trail] == [
        ("run.cancelled", queued["run_id"], {"reason": "stuck"})
    ]
    assert violations() == []


async def test_an_operator_cancels_a_workflow_that_no_service_has_taken(
    deployment: Deployment, violations: Refused, tenant: str
) -> None:
    """R34: with the permissions of a deployment; the runs of one tenant are listed page by page."""
    gateway, operator, _ = deployment
    await provision_consumer(operator, workflow_consumer(subjects.SERVED))
    async with gateway.http as http:
        starts = [await workflow_start(http, operator, tenant) for _ in range(3)]
        listed = [run async for run in open_runs(http, "queued_workflow", tenant=tenant, limit=2)]
        others = [run async for run in open_runs(http, "queued_workflow", tenant=new_id("t"))]
        queues = (await http.get("/operator/overview")).json()["queues"]
        path = f"/operator/runs/{tenant}/{starts[1].run_id}/cancel"
        cancelled = await http.post(path, json={"reason": "stuck"})
    signal = await last_message(operator, RUNS, subjects.run_signal(tenant, starts[1].conversation_id))
    assert (listed, others) == ([start.run_id for start in starts], [])
    waiting = {one["name"]: one for one in queues}["workflow-served"]
    assert waiting["waiting"] >= 3 and waiting["oldest_at"] is not None
    assert cancelled.status_code == 202
    assert signal is not None
    assert CancelRun.model_validate_json(signal.data).run_id == starts[1].run_id
    assert violations() == []


async def workflow_start(http: AsyncClient, operator: Bus, tenant: str) -> StartWorkflow:
    """Store the start of a workflow, which no service takes."""
    conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
    start = StartWorkflow(
        tenant=tenant,
        workflow="announce",
        conversation_id=conversation,
        run_id=f"{conversation}-000000000001",
        message_id=new_id("m"),
        parameters={},
        user="ann",
        tools=ToolPolicy(),
    )
    await RunQueue(operator).start_workflow(start)
    return start


async def open_runs(http: AsyncClient, state: str, **more: str | int) -> AsyncIterator[str]:
    """Yield the ids of all runs in a state; other tests of the session left some."""
    after = 0
    while after is not None:
        page = (await http.get("/operator/runs", params={"state": state, "after": after, **more})).json()
        for run in page["items"]:
            yield run["run_id"]
        after = page["next"]


async def test_an_operator_reads_and_discards_a_dead_letter(
    deployment: Deployment, violations: Refused, tenant: str
) -> None:
    """R34: its payload is shown as text, whatever it is."""
    gateway, operator, _ = deployment
    work = subjects.run_work(tenant, new_id("c"))
    letter = await dead_letter(
        operator,
        subject=work,
        stream=RUNS,
        stream_seq=903,
        reason="unreadable",
        payload=b"\xff" + b"x" * 20_000,
    )
    path = f"/operator/dead-letters/{letter}"
    async with gateway.http as http:
        shown = (await http.get(path)).json()
        discarded = await http.delete(path)
        again = await http.get(path)
        trail = (await http.get("/v1/audit", params={"action": "dead_letter"})).json()["items"]
    assert (shown["subject"], shown["payload_bytes"]) == (work, 20_001)
    assert shown["payload"].startswith("\ufffdx") and len(shown["payload"]) == 16 * 1024
    assert (discarded.status_code, again.status_code) == (204, 404)
    assert [(one["action"], one["target"]) for one in trail] == [("dead_letter.discarded", str(letter))]
    assert violations() == []


async def test_an_operator_sees_which_processes_are_ready_and_which_no_longer_report(
    deployment: Deployment, secured_nats: SecuredNats, violations: Refused
) -> None:
    """R34: with the permissions of a deployment. The test reports the states of other processes."""
    gateway, _, _ = deployment
    working = Health("agent", started=True, places=32, used=lambda: 3)
    full = Health("workflows", started=True)
    full.checks["streams"] = problem("stream RUNS is missing")
    full.warnings["logs"] = problem("2 are damaged")

    async def listed(http: AsyncClient) -> dict[str, Any]:
        found = (await http.get("/operator/services")).json()
        return {one["service"]: one for one in found["processes"]} | {"nats": found["nats"]}

    async with (
        gateway.http as http,
        await secured_nats.connect(AGENT) as agents,
        await secured_nats.connect(WORKFLOWS) as workflows,
        gateway.socket(),
    ):
        async with reported_state(agents, working), reported_state(workflows, full):
            await agents.ready()
            await workflows.ready()
            seen = await listed(http)
        await agents.ready()
        await workflows.ready()
        gone = await listed(http)
    agent, unready, own, nats = seen["agent"], seen["workflows"], seen["gateway"], seen["nats"]
    assert (agent["ready"], agent["used"], agent["places"], agent["responds"]) == (True, 3, 32, True)
    assert (unready["ready"], unready["problems"]) == (False, {"streams": "stream RUNS is missing"})
    assert unready["warnings"] == {"logs": "2 are damaged"}
    assert (own["ready"], own["used"], own["pid"]) == (True, 1, os.getpid())
    assert own["version"] == version("banksman")
    assert [gone[name]["responds"] for name in ("agent", "workflows", "gateway")] == [False, False, True]
    assert gone["agent"]["reported_at"] == agent["reported_at"]
    assert [(one["leads"], one["reachable"]) for one in nats["servers"]] == [(True, True)]
    assert 0 < nats["used_bytes"] < nats["max_bytes"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", nats["version"])
    assert violations() == []


def problem(text: str) -> Check:
    async def found() -> str | None:
        return text

    return found


async def test_a_total_that_cannot_be_read_hides_no_tenant_from_an_operator(
    deployment: Deployment, violations: Refused, tenant: str
) -> None:
    """Agents remove and count it again; a gateway, which may not, shows what it can read."""
    gateway, operator, _ = deployment
    subject = kv_subject(USAGE, usage_key(tenant))
    await durable(operator, subject, b"{", msg_id=new_id("total"))
    totals = UsageTotals().with_commit(1, datetime.now(UTC), CommitUsage(requests=1))
    await Bucket(operator, USAGE, UsageTotals).put(passthrough_key(tenant), totals)
    async with gateway.http as http:
        listed = (await http.get("/operator/tenants")).json()["items"]
    stored = await last_message(operator, kv_stream(USAGE), subject)
    assert [one["windows"][0]["requests"] for one in listed if one["tenant"] == tenant] == [1]
    assert stored is not None and stored.data == b"{"
    assert violations() == []


async def test_the_gateway_may_count_passthrough(secured_nats: SecuredNats, tenant: str) -> None:
    async with await secured_nats.connect(GATEWAY) as bus, BrokerClock(bus) as clock:
        passthrough = PassthroughUsage(bus, clock, TenantSettings(), {})
        passthrough.add(tenant, "demo:demo", Usage(input_tokens=5))
        await passthrough.store()
        entry = await Bucket(bus, USAGE, UsageTotals).get(passthrough_key(tenant))
    assert entry is not None and entry.value.day.tokens == 5


async def test_the_gateway_has_the_permission_to_place_a_workspace(
    deployment: Deployment, tenant: str
) -> None:
    gateway, operator, _ = deployment
    lease = RunnerLease(runner="r1", runner_epoch=1, workspaces=True)
    await Bucket(operator, RUNNERS, RunnerLease).put("r1", lease)
    async with gateway.http as http:
        conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        listed = await http.get(f"/context/conversations/{conversation}/files")
    placed = await Bucket(operator, OWNERS, WorkspaceOwner).get(f"{tenant}.{conversation}")
    assert placed is not None and placed.value.runner == "r1"
    assert listed.status_code == 503
