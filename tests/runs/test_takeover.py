"""Ownership and takeover: one owner, fenced by the log, regardless of deliveries and acks."""

from __future__ import annotations

import pytest

from tests.runs.plans import CallPlan, Plan, calls, needing_approval
from tests.runs.scenario import Scenario

EFFECT = Plan((calls("effect"),))
NEEDS_APPROVAL = Plan((calls(needing_approval()),))


@pytest.mark.parametrize("label", ["model", "call", "read log", "append", "forget", "ack"])
@pytest.mark.parametrize("done", [False, True])
def test_a_run_whose_owner_dies_at_any_step_is_finished_by_another(label: str, done: bool) -> None:
    """P1, P2."""
    scenario = Scenario()
    scenario.start(EFFECT)
    scenario.crash_at(scenario.run_to(label, seconds=3), done=done)
    scenario.run(seconds=10)
    assert scenario.outcomes() == ["completed"]
    assert scenario.executed() == 1
    scenario.end()


def test_a_fenced_owner_stops_at_its_next_commit_and_acks_nothing() -> None:
    """P5."""
    scenario = Scenario()
    scenario.start(EFFECT)
    scenario.run_to("model")
    scenario.agent.paused = True
    scenario.redeliver(scenario.work(), scenario.other)
    scenario.run_to("queued")
    scenario.agent.paused = False
    (old,) = scenario.agent.tasks
    while not old.over:
        scenario.step(old)
    assert not scenario.work().acked
    assert scenario.situations["owner: fenced"] == 1
    scenario.run(seconds=5)
    assert scenario.outcomes() == ["completed"]
    scenario.end()


def test_a_delivery_that_finds_another_owner_is_acked_without_effect() -> None:
    scenario = Scenario()
    scenario.start(EFFECT)
    scenario.run_to("model")
    scenario.broker.duplicate("work", 0)
    scenario.redeliver(scenario.work(1), scenario.other)
    scenario.agent.paused = True
    scenario.run()
    assert scenario.work(1).acked
    assert [commit.claim for _, commit in scenario.broker.logs["c"]] == [True]
    scenario.agent.paused = False
    scenario.end()


def test_the_message_that_parked_a_run_never_claims_it_again() -> None:
    """The ack of the owner that parked the run may still arrive, and would leave a claim without a
    message."""
    scenario = Scenario()
    scenario.start(NEEDS_APPROVAL)
    scenario.run_to("ack")
    scenario.agent.paused = True
    scenario.decide("approve")
    resolved = scenario.broker.queues["replies"].messages[0]
    scenario.redeliver(resolved, scenario.other, "replies")
    scenario.run_to("publish work")
    (handler,) = scenario.other.tasks
    scenario.redeliver(scenario.work(), scenario.other)
    while scenario.other.tasks != [handler]:
        scenario.step(scenario.other.tasks[-1])
    assert scenario.state.owner is None
    scenario.agent.paused = False
    scenario.run(seconds=5)
    assert scenario.outcomes() == ["completed"]
    scenario.end()


def test_the_fifth_claim_in_a_row_ends_the_run_as_a_crash_loop() -> None:
    scenario = Scenario()
    scenario.start(Plan())
    for _ in range(4):
        scenario.crash(scenario.run_to("model").process)
        for agent in scenario.agents:
            scenario.restart(agent)
    scenario.run()
    assert scenario.situations["end: failed crash_loop"] == 1
    scenario.end()


def test_a_crash_loop_is_not_reset_while_its_calls_end() -> None:
    """The first result is committed before the second; this does not show that the run works again."""
    scenario = Scenario()
    scenario.start(Plan((calls(CallPlan(hangs=True), "pure"), calls("effect"))))
    scenario.run_to("effect")
    for _ in range(6):
        scenario.crash(scenario.agent)
        scenario.restart(scenario.agent)
        scenario.run_to("alive")
    scenario.run(seconds=10)
    assert scenario.situations["end: failed crash_loop"] == 1
    assert scenario.story().count("iteration.started") == 1
    scenario.end()


def test_a_commit_that_lost_the_race_is_repeated_after_the_winner() -> None:
    scenario = Scenario()
    scenario.start(EFFECT)
    scenario.run_to("model")
    scenario.step(scenario.agent.tasks[0])
    scenario.steer("c", 1, Plan())
    scenario.agent.paused = True
    scenario.run()
    scenario.agent.paused = False
    scenario.run(seconds=5)
    assert scenario.situations["owner: append met another commit"] == 1
    assert scenario.outcomes() == ["completed"]
    scenario.end()


@pytest.mark.parametrize("label", ["read log", "append", "call", "place", "void", "read slots", "ack"])
@pytest.mark.parametrize("done", [False, True])
def test_a_broker_outage_of_one_request_loses_nothing(label: str, done: bool) -> None:
    scenario = Scenario()
    scenario.start(EFFECT)
    if label in ("void", "read slots"):
        runner = scenario.run_to("start").process
        scenario.cut_off(runner)
        runner.paused = True
    scenario.fail(scenario.run_to(label, seconds=5), done=done)
    scenario.run(seconds=20)
    assert scenario.outcomes() == ["completed"]
    assert scenario.executed() == 1
    scenario.end()


def fail(scenario: Scenario, label: str, *, done: bool) -> None:
    """Let the next task at this await fail, with its operation executed or not."""
    scenario.fail(scenario.run_to(label, seconds=5), done=done)


def test_intermittent_broker_outages_are_no_crash_loop() -> None:
    """P1. The owner retains its run; its claim does not count as a crash."""
    scenario = Scenario()
    scenario.start(Plan((calls(CallPlan("effect", lasts_s=60)),)))
    scenario.run_to("effect")
    for _ in range(8):
        fail(scenario, "read log", done=False)
    scenario.run(seconds=120)
    assert scenario.outcomes() == ["completed"]
    assert scenario.state.owner_epoch == 1
    scenario.end()


def test_a_call_ends_only_after_the_broker_stored_its_void() -> None:
    """P1, P7. Storage is full when a run is cancelled; the run ends as cancelled when there is space."""
    scenario = Scenario()
    scenario.start(EFFECT)
    scenario.run_to("queued").process.paused = True
    scenario.cancel(scenario.open_run.run_id)
    for _ in range(8):
        fail(scenario, "void", done=False)
    scenario.run(seconds=60)
    assert scenario.outcomes() == ["cancelled"]
    assert scenario.state.owner_epoch == 1
    scenario.end()


def test_an_approval_request_is_stored_before_the_message_is_acked() -> None:
    """P3. The broker refuses the approval request repeatedly, after a commit and after a claim."""
    scenario = Scenario()
    scenario.start(Plan((calls(CallPlan("effect", lasts_s=2), needing_approval()),)))
    for _ in range(8):
        fail(scenario, "request approval", done=False)
        assert not scenario.work().acked
    scenario.crash(scenario.agent)
    for _ in range(8):
        fail(scenario, "request approval", done=False)
    scenario.run(seconds=60)
    assert scenario.approval_request.approval_id in scenario.broker.requests
    assert scenario.work().acked
    assert scenario.state.owner_epoch == 2
    scenario.decide("approve")
    scenario.end()
    assert scenario.outcomes() == ["completed"]
