"""A short test of the promises on three servers; `make promises SERVERS=3` runs every proof there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio

from banksman.bus.connection import Bus
from banksman.bus.dead import dead_letters
from banksman.bus.jetstream import call
from banksman.bus.names import APPROVALS, api
from banksman.bus.publish import durable
from banksman.contracts import subjects
from banksman.contracts.ids import new_id
from tests.faults.chaos.conftest import WAIT_TIMEOUT_S, Stage, bash, make_assistants, marker
from tests.faults.chaos.test_crashes import (
    test_a_cancel_that_races_with_completion_gives_one_terminal_event,
    test_a_run_queued_behind_the_run_of_a_dead_owner_starts,
)
from tests.support.chaos.fleet import OPTIONAL, Fleet, Member
from tests.support.chaos.plans import NEEDS_APPROVAL
from tests.support.model_server import ModelServer
from tests.support.scripted_models import Gate, ScriptedReply
from tests.support.timeouts import deadline

__all__ = [
    "marker",
    "test_a_cancel_that_races_with_completion_gives_one_terminal_event",
    "test_a_run_queued_behind_the_run_of_a_dead_owner_starts",
]

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stage]:
    """A fleet on three servers. Each test leaves it running, as it found it."""
    async with ModelServer.running() as model:
        directory = tmp_path_factory.mktemp("fleet")
        settings = {"BANKSMAN_AGENT__DRAIN_S": "3"}
        fleet = Fleet(directory, model.url, runners=1, servers=3, settings=settings, without=OPTIONAL)
        async with fleet:
            await make_assistants(fleet)
            yield Stage(fleet, model)
        assert model.violations == []


async def test_a_runner_that_dies_after_its_start_executes_the_call_at_most_once(
    stage: Stage, marker: str
) -> None:
    """P2: the start is stored on three servers; no process repeats the call, and its outcome is unknown."""
    async with stage.connected() as client:
        await stage.arm("runner.after_claim", "tool-runner-1")
        conversation, run_id = await stage.run(client, bash(marker), ScriptedReply(text="done"))
        outcome = await client.finished(run_id)
        await stage.disarm("tool-runner-1")
    [result] = client.events(conversation, "tool_call.completed")
    assert outcome["status"] == "completed"
    assert result["data"]["error_kind"] == "unknown_outcome"
    assert stage.fleet.executions(marker) == 0


async def test_one_decision_wins_during_a_leader_failure_and_all_users_receive_it(
    stage: Stage, marker: str
) -> None:
    """P3, P4: the request survives kill -9 of everything; four users decide at two gateways during an
    election."""
    async with stage.connected() as client:
        _, run_id = await stage.run(
            client, bash(marker), ScriptedReply(text="done"), assistant=NEEDS_APPROVAL
        )
        approval_request = await client.approval_request(run_id)
    await _all_killed(stage.fleet)

    async with stage.connected(0) as here, stage.connected(1) as there, stage.fleet.operator() as operator:
        leader = await _leader(stage.fleet, operator, APPROVALS)
        async with asyncio.TaskGroup() as group:
            leader.kill()
            racers = [
                group.create_task(client.decide(approval_request["approval_id"], verdict))
                for client in (here, there)
                for verdict in ("approve", "reject")
            ]
        replies = [racer.result() for racer in racers]
        outcome = await _ended(stage, run_id)
    await stage.fleet.ready()

    assert {response["type"] for response in replies} == {"ack"}, replies
    assert [response["already_resolved"] for response in replies].count(False) == 1
    assert len({response["outcome"] for response in replies}) == 1
    expected = {"approved": ("completed", 1), "rejected": ("rejected", 0)}[replies[0]["outcome"]]
    assert (outcome["status"], stage.fleet.executions(marker)) == expected


async def test_poison_is_dead_lettered_and_other_messages_are_handled(stage: Stage, marker: str) -> None:
    """P10."""
    poison = subjects.run_work("local", new_id("x"))
    async with stage.connected() as client, stage.fleet.operator() as operator:
        await durable(operator, poison, b'{"type": ', msg_id=new_id("p"))
        _, run_id = await stage.run(client, bash(marker), ScriptedReply(text="done"))
        outcome = await client.finished(run_id)
        async with deadline("the poison was not dead-lettered"):
            while not [one async for one in dead_letters(operator) if one.letter.subject == poison]:
                await operator.ready(WAIT_TIMEOUT_S)
    assert (outcome["status"], stage.fleet.executions(marker)) == ("completed", 1)


async def test_an_agent_hands_its_run_over_on_sigterm(stage: Stage, marker: str) -> None:
    """P16: it ends in order, and another agent finishes its run."""
    async with stage.connected() as client:
        held = bash(marker).model_copy(update={"gate": Gate(name=marker)})
        conversation, run_id = await stage.run(client, held, ScriptedReply(text="done"))
        await stage.model.wait_for_requests(stage.scripts[-1], 1, timeout_s=WAIT_TIMEOUT_S)
        driver = stage.fleet[await stage.driver(run_id)]
        code = await driver.restart()
        stage.model.open_gate(marker)
        outcome = await client.finished(run_id)
        await driver.ready()
    assert (code, outcome["status"], stage.fleet.executions(marker)) == (0, "completed", 1)
    assert len(client.events(conversation, "run.finished")) == 1


async def _all_killed(fleet: Fleet) -> None:
    """`kill -9` every process at once; each is restarted."""
    starts = {member: member.starts + 1 for member in fleet.members.values()}
    for member in starts:
        member.kill()
    for member, times in starts.items():
        await member.begun(times)
    await fleet.ready()


async def _leader(fleet: Fleet, operator: Bus, stream: str) -> Member:
    info = await call(operator, api("STREAM.INFO", stream), budget_s=WAIT_TIMEOUT_S)
    return fleet[info["cluster"]["leader"]]


async def _ended(stage: Stage, run_id: str) -> dict[str, Any]:
    """Return the ended run, as the other gateway reports it."""
    url = f"{stage.fleet.urls[1]}/context/runs/{run_id}"
    async with deadline(f"run {run_id} did not end"):
        while True:
            response = await stage.fleet.http.get(url, params={"wait_s": 5}, timeout=WAIT_TIMEOUT_S)
            if response.json().get("finished_at"):
                return dict(response.json())
