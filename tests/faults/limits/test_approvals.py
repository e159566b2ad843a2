"""Decisions: exactly one wins at every interface, and only approved calls run (P3, P4)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from banksman.bus.connection import Bus
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.bus.storage.log import EventLog
from banksman.contracts.approvals import ApprovalItem, ApprovalRequested, Preview
from banksman.contracts.assistants import RunSettings, ToolSettings
from banksman.contracts.events import (
    Commit,
    Event,
    EventBody,
    IterationStarted,
    MessageCompleted,
    Owner,
    RunStarted,
    ToolCallRequested,
)
from banksman.contracts.ids import new_id, run_id_for
from banksman.contracts.tools import ToolCall
from banksman.contracts.work import ApprovalRequest
from tests.gateway.conftest import Agent, GatewayFactory, Served
from tests.scenarios.conftest import Play
from tests.scenarios.test_approvals import bash
from tests.support.chaos.fleet import OPTIONAL, Fleet
from tests.support.client import Client
from tests.support.polling import eventually, scripted_delay
from tests.support.scripted_models import ScriptedReply
from tests.support.system import ScriptedModel, System, wait_ready
from tests.support.timeouts import WAIT_TIMEOUT_S

pytestmark = pytest.mark.timeout(240)

FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"


# -- one decision --------------------------------------------------------------------------------------------


async def test_one_of_eight_decisions_at_two_gateways_wins_and_all_users_receive_it(
    start_gateway: GatewayFactory, agent: Agent
) -> None:
    """P3, A08: approve and reject at once, over HTTP and the websocket; losers get the winner's value."""
    async with start_gateway() as first, start_gateway() as second:
        for _ in range(10):
            request = await _parked(first, agent)
            async with asyncio.TaskGroup() as group:
                racers = [
                    group.create_task(_decides(gateway, request.approval_id, verdict, door))
                    for gateway in (first, second)
                    for verdict in ("approve", "reject")
                    for door in (_over_http, _over_websocket)
                ]
            replies = [racer.result() for racer in racers]

            [winner] = [response for response in replies if not response["already_resolved"]]
            assert {response["outcome"] for response in replies} == {winner["outcome"]}
            losers = [response["status"] for response in replies if response["already_resolved"]]
            assert sorted(losers) == sorted([409] * losers.count(409) + [0] * losers.count(0))
            assert losers.count(409) >= 3


async def _parked(gateway: Served, agent: Agent) -> ApprovalRequest:
    async with gateway.socket() as socket:
        conversation = await socket.create()
        await socket.request("chat.send", conversation_id=conversation, content="go")
    start = await agent.started(conversation)
    await agent.begin(start)
    return await agent.request_approval(start)


async def _decides(gateway: Served, approval_id: str, verdict: str, door: Any) -> dict[str, Any]:
    return await door(gateway, approval_id, verdict)


async def _over_http(gateway: Served, approval_id: str, verdict: str) -> dict[str, Any]:
    async with gateway.http as http:
        response = await http.post(f"/context/approvals/{approval_id}", json={"all": verdict})
    status = response.status_code if response.status_code == 409 else 200
    return {**response.json(), "status": status}


async def _over_websocket(gateway: Served, approval_id: str, verdict: str) -> dict[str, Any]:
    async with gateway.socket() as socket:
        ack = await socket.request("approval.reply", approval_id=approval_id, all=verdict)
    return {**ack, "status": 0}


# -- every way to close an approval request ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "outcome", "status"),
    [
        ("approve", "approved", "completed"),
        ("edit", "approved", "completed"),
        ("remember", "approved", "completed"),
        ("reject", "rejected", "rejected"),
        ("cancel", "cancelled", "cancelled"),
        ("steer", "superseded", "completed"),
    ],
)
async def test_an_approval_request_is_closed_exactly_once_in_the_log(
    client: Client, http: httpx.AsyncClient, play: Play, how: str, outcome: str, status: str
) -> None:
    """P3, P4: afterwards it is open at no interface."""
    conversation = await client.create(play(bash("echo original"), ScriptedReply(text="ok")))
    run_id = await client.chat(conversation, "go")
    approval_request = await client.approval_request(run_id)
    call_id = approval_request["items"][0]["tool_call_id"]

    match how:
        case "edit":
            edit = {"tool_call_id": call_id, "decision": "approve", "arguments": {"command": "echo edited"}}
            await client.request(
                "approval.reply", approval_id=approval_request["approval_id"], decisions=[edit]
            )
        case "remember":
            await client.approve(run_id, remember="conversation")
        case "cancel":
            await client.request("run.cancel", run_id=run_id)
        case "steer":
            await client.chat(conversation, "rather not", mode="steer")
        case verdict:
            await client.approve(run_id, verdict)
    ended = await client.finished(run_id)

    assert ended["status"] == status
    closed = [event["data"]["outcome"] for event in client.events(conversation, "approval.resolved")]
    assert closed == [outcome]
    kinds = [event["data"]["error_kind"] for event in client.events(conversation, "tool_call.completed")]
    assert kinds == [{"cancel": "cancelled", "steer": "not_executed", "reject": "rejected"}.get(how)]
    pending = (await http.get("/context/approvals")).json()["items"]
    assert approval_request["approval_id"] not in {one["approval_id"] for one in pending}
    late = await http.post(f"/context/approvals/{approval_request['approval_id']}", json={"all": "approve"})
    assert (late.status_code, late.json()["outcome"]) == (409, outcome)


# -- only the approved call runs ---------------------------------------------------------------------------


async def test_a_call_other_than_the_approved_one_never_runs(
    system: System, operator: Bus, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """P4, A11: the request shows one command and the log has another; the runner compares the digests."""
    name = play(ScriptedReply(text="It was refused."), at_end="repeat")
    conversation = (await http.post("/context/conversations", json={"model": name})).json()["conversation_id"]
    shown = ToolCall(id=new_id("k"), name="bash", arguments={"command": "echo shown > shown"})
    altered = shown.model_copy(update={"arguments": {"command": "echo altered > altered"}})
    approval = await _park_by_hand(operator, conversation, name, shown=shown, stored=altered)

    response = await http.post(f"/context/approvals/{approval}", json={"all": "approve"})
    run = await _ended(http, response.json()["run_id"])

    assert response.json()["outcome"] == "approved"
    assert (run["status"], run["content"]) == ("completed", "It was refused.")
    [call] = run["tool_calls"]
    assert "not the one that was approved" in call["result"]["error"]
    files = (await http.get(f"/context/conversations/{conversation}/files")).json()["items"]
    assert files == []


async def _park_by_hand(
    bus: Bus,
    conversation: str,
    model: str,
    *,
    shown: ToolCall,
    stored: ToolCall,
    ago: timedelta = timedelta(0),
) -> str:
    """A parked run, as an attacker with write access to the log would leave it."""
    run_id, now = run_id_for(conversation), datetime.now(UTC) - ago
    settings = RunSettings(assistant_id="default", model=model, tools=ToolSettings(enabled=True))
    approval_id, expires_at = new_id("a"), now + timedelta(days=7)
    item = ApprovalItem(
        tool_call_id=shown.id,
        name=shown.name,
        arguments=shown.arguments,
        digest=shown.digest,
        preview=Preview(kind="command", command=str(shown.arguments["command"])),
    )
    bodies: tuple[EventBody, ...] = (
        RunStarted(message_id=new_id("m"), message="go", settings=settings),
        IterationStarted(n=1, max=10),
        MessageCompleted(message_id=new_id("m"), role="assistant", content=None),
        ToolCallRequested(call=stored),
        ApprovalRequested(approval_id=approval_id, expires_at=expires_at, items=(item,)),
    )
    events = tuple(Event(seq=n, ts=now, run_id=run_id, data=body) for n, body in enumerate(bodies, 1))
    owner = Owner(agent=new_id("agent-"), owner_epoch=1, work_seq=0)
    claim = Commit(
        ts=now,
        id=new_id("e"),
        log_epoch=new_id("l"),
        first_seq=1,
        owner=owner,
        owner_epoch=1,
        claim=True,
        events=events[:1],
    )
    parked = claim.model_copy(
        update={"id": new_id("e"), "first_seq": 2, "owner": None, "claim": False, "events": events[1:]}
    )
    last = await EventLog(bus).append("local", conversation, claim, after=0)
    assert isinstance(last, int)
    await EventLog(bus).append("local", conversation, parked, after=last)
    request = ApprovalRequest(
        tenant="local",
        conversation_id=conversation,
        run_id=run_id,
        approval_id=approval_id,
        expires_at=expires_at,
        items=(item,),
    )
    await ApprovalSlots(bus).store_request(request)
    return approval_id


# -- time --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hasty(model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory) -> Generator[System]:
    """A system with one agent, whose approval requests expire after seconds."""
    settings = {"BANKSMAN_AGENT__APPROVAL_EXPIRY_S": "8", "BANKSMAN_LOCAL__AGENTS": "1"}
    system = System(tmp_path_factory.mktemp("hasty"), model, settings)
    try:
        system.start()
        yield system
    finally:
        system.close()


async def test_an_approval_request_expires_by_the_brokers_clock(hasty: System, model: ScriptedModel) -> None:
    """P4, A10: a decision in time counts, even at a gateway with a fast clock; later ones are refused."""
    name = model.play("expires", [bash("echo ran"), ScriptedReply(text="ok")], at_end="repeat")
    with _gateway_with_clock(hasty, -300) as late, _gateway_with_clock(hasty, 300) as early:
        async with Client.connected(hasty.url, timeout_s=WAIT_TIMEOUT_S) as client:
            runs = [await client.chat(await client.create(name), "go") for _ in range(2)]
            first, second = [await client.approval_request(run) for run in runs]
            async with httpx.AsyncClient(timeout=WAIT_TIMEOUT_S) as http:
                path = "/context/approvals/"
                in_time = await http.post(f"{early}{path}{first['approval_id']}", json={"all": "approve"})
                outcomes = [await client.finished(run) for run in runs]
                after = [
                    await http.post(f"{gateway}{path}{second['approval_id']}", json={"all": "approve"})
                    for gateway in (hasty.url, late)
                ]

    assert in_time.status_code == 200
    assert [outcome["status"] for outcome in outcomes] == ["completed", "rejected"]
    assert outcomes[0]["tool_calls"][0]["result"]["stdout"] == "ran\n"
    assert outcomes[1]["error"]["code"] == "approval_expired"
    assert [(response.status_code, response.json()["outcome"]) for response in after] == [
        (409, "expired")
    ] * 2


async def test_a_call_approved_after_the_expiry_does_not_start(hasty: System, model: ScriptedModel) -> None:
    """P4, A10: all agents are frozen during the expiry, and a gateway with a slow clock accepts the
    decision."""
    name = model.play("late", [bash("echo ran > ran"), ScriptedReply(text="It did not run.")])
    with _gateway_with_clock(hasty, -300) as late:
        async with Client.connected(late, timeout_s=WAIT_TIMEOUT_S) as client:
            conversation = await client.create(name)
            run_id = await client.chat(conversation, "go")
            approval_request = await client.approval_request(run_id)
            with _frozen(hasty.service_pids("agent")):
                await _until(datetime.fromisoformat(approval_request["expires_at"]) + timedelta(seconds=1))
                await client.request(
                    "approval.reply", approval_id=approval_request["approval_id"], all="approve"
                )
            outcome = await client.finished(run_id)
            async with httpx.AsyncClient(base_url=hasty.url, timeout=WAIT_TIMEOUT_S) as http:
                files = (await http.get(f"/context/conversations/{conversation}/files")).json()["items"]

    assert files == []
    results = [entry["result"] for entry in outcome["tool_calls"]]
    assert [result["error_kind"] for result in results] == ["not_executed"]


async def test_decisions_survive_restarts_of_everything_and_three_days(
    model: ScriptedModel, tmp_path: Path
) -> None:
    """P3, P4, A09: decided while no process can act on it; all processes are killed and restarted.

    All processes use the broker's clock, which a test cannot shift: one run is logged as of three days ago.
    """
    name = model.play(
        "lasts", [bash("echo ran >> ledger; cat ledger"), ScriptedReply(text="ok")], at_end="repeat"
    )
    verdicts = ("approve", "reject", None, None)
    async with Fleet(tmp_path, model.url, agents=1, gateways=1, runners=1, without=OPTIONAL) as fleet:
        async with Client.connected(fleet.urls[0], timeout_s=WAIT_TIMEOUT_S) as client:
            runs = [await client.chat(await client.create(name), "go") for _ in verdicts]
            approvals = [(await client.approval_request(run))["approval_id"] for run in runs]

        async def listed() -> bool:
            return await _open_at(fleet) >= set(approvals)

        await eventually(listed, WAIT_TIMEOUT_S, interval_s=0.1)
        old = await _old(fleet, model, timedelta(days=3))
        fleet["agent-1"].freeze()
        for approval_id, verdict in zip(approvals, verdicts, strict=True):
            if verdict is not None:
                await _decide_over_http(fleet, approval_id, verdict)
        for member in fleet.members.values():
            await member.stop()

        await fleet.start()
        assert await _open_at(fleet) == {*approvals[2:], old}
        await _decide_over_http(fleet, approvals[2], "approve")
        await _decide_over_http(fleet, approvals[3], "reject")
        async with httpx.AsyncClient(base_url=fleet.urls[0], timeout=WAIT_TIMEOUT_S) as http:
            response = await http.post(f"/context/approvals/{old}", json={"all": "approve"})
            ended = [await _ended(http, run) for run in (*runs, response.json()["run_id"])]

    *ended, aged = ended
    assert (aged["status"], aged["tool_calls"][0]["result"]["stdout"]) == ("completed", "ran\n")
    assert [run["status"] for run in ended] == ["completed", "rejected", "completed", "rejected"]
    ran = [call["result"].get("stdout") for run in ended for call in run["tool_calls"]]
    assert ran == ["ran\n", None, "ran\n", None]
    waited = datetime.fromisoformat(aged["finished_at"]) - datetime.fromisoformat(aged["started_at"])
    assert waited > timedelta(days=3)


async def _old(fleet: Fleet, model: ScriptedModel, ago: timedelta) -> str:
    """The approval request of a run whose log shows three days of waiting."""
    name = model.play("old", [ScriptedReply(text="ok")], at_end="repeat")
    made = await fleet.http.post(f"{fleet.urls[0]}/context/conversations", json={"model": name})
    call = ToolCall(id=new_id("k"), name="bash", arguments={"command": "echo ran >> ledger; cat ledger"})
    async with fleet.operator() as bus:
        conversation = made.json()["conversation_id"]
        return await _park_by_hand(bus, conversation, name, shown=call, stored=call, ago=ago)


async def _open_at(fleet: Fleet) -> set[str]:
    """Return the approvals that the gateway lists."""
    response = await fleet.http.get(f"{fleet.urls[0]}/context/approvals", timeout=WAIT_TIMEOUT_S)
    return {one["approval_id"] for one in response.json()["items"]}


async def _decide_over_http(fleet: Fleet, approval_id: str, verdict: str) -> None:
    url = f"{fleet.urls[0]}/context/approvals/{approval_id}"
    decided = await fleet.http.post(url, json={"all": verdict}, timeout=WAIT_TIMEOUT_S)
    assert decided.status_code == 200, decided.text


@contextmanager
def _gateway_with_clock(system: System, shift_s: int) -> Generator[str]:
    """Another gateway of the system, whose clock is ahead by this number of seconds."""
    environment = system.environments()["gateway"]
    port = environment["BANKSMAN_GATEWAY__PORT"]
    environment |= shifted(shift_s)
    command = [sys.executable, "-m", "banksman.cli", "gateway"]
    output = system.data_dir / f"gateway{shift_s:+d}.out"
    with output.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        wait_ready(
            f"http://127.0.0.1:{port}/readyz",
            lambda: output.read_text() or "ended" if process.poll() is not None else None,
        )
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=WAIT_TIMEOUT_S)


def shifted(shift_s: int) -> dict[str, str]:
    """Return variables that shift the time of day of a process; intervals are not affected."""
    return {"LD_PRELOAD": FAKETIME, "FAKETIME": f"{shift_s:+d}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


@contextmanager
def _frozen(pids: list[int]) -> Generator[None]:
    """Freeze processes during the context; processes killed in the meantime stay dead."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue


async def _until(moment: datetime) -> None:
    await scripted_delay((moment - datetime.now(UTC)).total_seconds())


async def _ended(http: httpx.AsyncClient, run_id: str) -> dict[str, Any]:
    """Return a run after its end."""
    run: dict[str, Any] = {}
    for _ in range(18):
        run = (await http.get(f"/context/runs/{run_id}", params={"wait_s": 5})).json()
        if run.get("finished_at") is not None:
            return run
    raise AssertionError(f"it did not end: {run}")
