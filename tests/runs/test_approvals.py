"""Parking, decisions and expiry: a call that needs approval runs only after a valid decision of a user."""

from __future__ import annotations

import random

import pytest

from banksman.contracts.approvals import ApprovalForgotten, ApprovalResolved, ItemDecision
from banksman.contracts.events import RunFinished
from banksman.contracts.work import ApprovalReply, ForgetDecision
from banksman.gateway.approvals.decisions import SubmittedDecision
from banksman.runs.approval.requests import problem, sign
from tests.runs.plans import CallPlan, Plan, calls, needing_approval
from tests.runs.random_schedule import forged
from tests.runs.scenario import Scenario
from tests.runs.world import KEY, TENANT

NEEDS_APPROVAL = Plan((calls(needing_approval()),))
TWO = calls(needing_approval(), needing_approval())


def parked(plan: Plan = NEEDS_APPROVAL) -> Scenario:
    """Return a scenario with a parked run."""
    scenario = Scenario()
    scenario.start(plan)
    scenario.run(seconds=5)
    assert scenario.state.owner is None
    assert scenario.open_run.waits
    return scenario


def mixed(scenario: Scenario, **second: object) -> SubmittedDecision:
    """Approve the first call, and reject the second or decide it by `second`."""
    first, other = (item.tool_call_id for item in scenario.approval_request.items)
    decision = {"decision": "reject", "reason": "not that", **second}
    return SubmittedDecision(
        by="ann",
        decisions=(
            ItemDecision(tool_call_id=first, decision="approve"),
            ItemDecision.model_validate({"tool_call_id": other, **decision}),
        ),
    )


def resolved(scenario: Scenario) -> ApprovalResolved:
    return next(body for body in scenario.bodies() if isinstance(body, ApprovalResolved))


def finished(scenario: Scenario) -> RunFinished:
    return next(body for body in scenario.bodies() if isinstance(body, RunFinished))


# -- parking -----------------------------------------------------------------------------------------------


def test_a_parked_run_consists_only_of_stored_data() -> None:
    """P3. There is no message, no task and no owner."""
    scenario = parked()
    assert all(not queue.open for queue in scenario.broker.queues.values())
    assert all(not process.tasks for process in scenario.processes)
    assert list(scenario.broker.requests) == [scenario.approval_request.approval_id]


def test_calls_without_approval_run_before_the_run_is_parked() -> None:
    scenario = parked(Plan((calls("effect", needing_approval()),)))
    assert scenario.executed() == 1
    scenario.end()


def test_redelivery_stores_an_approval_request_that_a_crash_omitted() -> None:
    scenario = Scenario()
    scenario.start(NEEDS_APPROVAL)
    scenario.crash_at(scenario.run_to("request approval"), done=False)
    assert scenario.open_run.waits
    scenario.run()
    assert list(scenario.broker.requests) == [scenario.approval_request.approval_id]
    scenario.end()


def test_takeover_stores_an_approval_request_that_a_crash_omitted() -> None:
    scenario = Scenario()
    scenario.start(Plan((calls(CallPlan(lasts_s=5), needing_approval()),)))
    scenario.crash_at(scenario.run_to("request approval"), done=False)
    scenario.run(seconds=1)
    assert list(scenario.broker.requests) == [scenario.approval_request.approval_id]
    scenario.end()


def test_a_decision_while_other_calls_run_continues_the_run_without_parking() -> None:
    scenario = Scenario()
    scenario.start(Plan((calls(CallPlan(lasts_s=5), needing_approval()),)))
    scenario.run(seconds=1)
    scenario.decide("approve")
    scenario.run(seconds=10)
    assert scenario.situations["parked"] == 0
    assert scenario.executed() == 2
    scenario.end()


# -- decisions ---------------------------------------------------------------------------------------------


def test_an_approved_call_is_executed_once_and_the_run_continues() -> None:
    scenario = parked()
    scenario.decide("approve")
    scenario.run(seconds=5)
    assert (scenario.executed(), scenario.outcomes()) == (1, ["completed"])
    assert scenario.situations["claim: resume"] == 1
    scenario.end()


def test_edited_arguments_are_executed_and_reported() -> None:
    scenario = parked()
    (item,) = scenario.approval_request.items
    edit = ItemDecision(tool_call_id=item.tool_call_id, decision="approve", arguments={"edited": True})
    scenario.decide(SubmittedDecision(by="ann", decisions=(edit,)))
    scenario.run(seconds=5)
    assert [tracked.params for tracked in finished(scenario).tool_calls] == [{"edited": True}]
    assert scenario.executed() == 1
    scenario.end()


def test_one_rejected_call_ends_the_run_without_executing_the_others() -> None:
    """P4."""
    scenario = parked(Plan((TWO,)))
    scenario.decide(mixed(scenario))
    scenario.run(seconds=5)
    assert sorted(scenario.kinds()) == ["not_executed", "rejected"]
    assert scenario.outcomes() == ["rejected"]
    assert "not that" in finished(scenario).content
    assert scenario.executed() == 0
    scenario.end()


def test_with_feedback_the_approved_call_runs_and_the_model_receives_the_rejection() -> None:
    scenario = parked(Plan((TWO,), feedback=True))
    scenario.decide(mixed(scenario))
    scenario.run(seconds=5)
    assert sorted(scenario.kinds()) == ["ok", "rejected"]
    assert scenario.outcomes() == ["completed"]
    assert scenario.executed() == 1
    scenario.end()


def test_the_first_decision_wins_and_is_returned_to_the_second() -> None:
    """P3."""
    scenario = parked()
    approval_id = scenario.approval_request.approval_id
    for verdict in ("approve", "reject"):
        scenario.client_decides(approval_id, SubmittedDecision(by="ann", all=verdict))
    first, second = scenario.gateway.tasks
    scenario.step(first)
    scenario.step(second)
    scenario.run(seconds=5)
    assert resolved(scenario).outcome == "approved"
    assert scenario.invariants.reported == {approval_id: "approved"}
    scenario.end()


@pytest.mark.parametrize("label", ["append", "publish work", "ack"])
@pytest.mark.parametrize("done", [False, True])
def test_a_decision_takes_effect_after_its_handler_dies(label: str, done: bool) -> None:
    """P3."""
    scenario = parked()
    scenario.decide("approve")
    scenario.crash_at(scenario.run_to(label), done=done)
    scenario.run(seconds=5)
    assert (scenario.executed(), scenario.outcomes()) == (1, ["completed"])
    scenario.end()


def test_a_redelivered_decision_has_no_effect() -> None:
    scenario = parked(Plan((calls(needing_approval()), calls(needing_approval()))))
    scenario.decide("approve")
    scenario.run(seconds=5)
    again = scenario.broker.queues["replies"].messages[0]
    again.acked = False
    scenario.run()
    assert scenario.open_run.waits
    scenario.end()


@pytest.mark.parametrize(("remember", "requests"), [("run", 2), ("conversation", 1), (None, 3)])
def test_a_decision_is_remembered_for_its_scope(remember: str | None, requests: int) -> None:
    plan = Plan((calls(needing_approval()), calls(needing_approval())))
    scenario = parked(plan)
    scenario.decide(_approve(remember))
    scenario.run(seconds=5)
    if remember is None:
        scenario.decide("approve")
        scenario.run(seconds=5)
    scenario.start(Plan((calls(needing_approval()),)))
    scenario.run(seconds=5)
    assert len(scenario.invariants.requested) == requests
    scenario.end()


@pytest.mark.parametrize("remember", ["run", "conversation"])
def test_a_withdrawn_decision_applies_to_no_further_call(remember: str) -> None:
    """P3. The next call needs approval again; a repeated withdrawal changes nothing."""
    plan = Plan((calls(needing_approval()), calls(needing_approval(), CallPlan(lasts_s=5)), TWO))
    scenario = parked(plan)
    approval_id = scenario.approval_request.approval_id
    scenario.decide(_approve(remember))
    scenario.run_until(lambda: scenario.open_run.iteration == 2, seconds=5)
    forget = ForgetDecision(tenant=TENANT, conversation_id="c", approval_id=approval_id, by="bob")
    for repeat in range(2):
        scenario.signal(f"forget-{repeat}", forget)
    scenario.run(seconds=10)
    assert scenario.open_run.waits
    assert (scenario.state.remembered, scenario.open_run.remembered) == ((), ())
    assert sum(isinstance(body, ApprovalForgotten) for body in scenario.bodies()) == 1
    scenario.end()


def _approve(remember: str | None) -> SubmittedDecision:
    match remember:
        case "run":
            return SubmittedDecision(by="ann", all="approve", remember="run")
        case "conversation":
            return SubmittedDecision(by="ann", all="approve", remember="conversation")
        case _:
            return SubmittedDecision(by="ann", all="approve")


# -- expiry ------------------------------------------------------------------------------------------------


def test_an_undecided_approval_request_ends_its_run_when_it_expires() -> None:
    """P4."""
    scenario = parked(Plan((calls(needing_approval()),), expires_s=60))
    scenario.run(seconds=54)
    assert scenario.open_run.waits
    scenario.run(seconds=2)
    assert scenario.situations["end: rejected approval_expired"] == 1
    assert scenario.executed() == 0
    scenario.end()


def test_a_decision_after_the_expiry_is_refused() -> None:
    """P4."""
    scenario = parked(Plan((calls(needing_approval()),), expires_s=60))
    scenario.now = scenario.approval_request.expires_at.replace(microsecond=1)
    scenario.decide("approve")
    assert not scenario.broker.replies
    assert not scenario.invariants.reported


def test_a_decision_before_the_expiry_wins_over_the_timer() -> None:
    """P4."""
    scenario = parked(Plan((calls(needing_approval()),), expires_s=60))
    scenario.decide("approve")
    scenario.pass_time(100)
    timer = scenario.broker.queues["timers"].messages[0]
    scenario.redeliver(timer, scenario.other, "timers")
    scenario.run(seconds=10)
    assert resolved(scenario).outcome == "approved"
    assert scenario.outcomes() == ["completed"]
    scenario.end()


# -- forged decisions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", range(5))
def test_an_invalid_decision_is_dead_lettered_and_the_approval_request_stays_open(kind: int) -> None:
    """P4. The decision is unsigned, signed with another key, for other calls, of the system, or too late."""
    scenario = parked()
    forge(scenario, kind)
    scenario.run(seconds=5)
    assert [reply.by for reply, _ in scenario.broker.dead] == ["mallory"]
    assert scenario.open_run.waits
    assert scenario.executed() == 0
    scenario.decide("approve")
    scenario.run(seconds=5)
    assert (scenario.executed(), scenario.outcomes()) == (1, ["completed"])
    scenario.end()


def forge(scenario: Scenario, kind: int = 0) -> None:
    """Store a decision in the slot without the gateway."""

    class Kind(random.Random):
        def randrange(self, *_: object, **__: object) -> int:
            return kind

    request = scenario.broker.requests[scenario.approval_request.approval_id]
    scenario.broker.store_approval_reply(forged(request, Kind(), scenario))


def test_an_invalid_stored_decision_is_not_returned_as_the_winner() -> None:
    scenario = parked()
    forge(scenario)
    scenario.decide("approve")
    assert not scenario.invariants.reported
    scenario.end()


def test_a_request_closed_by_the_system_is_not_remembered() -> None:
    """P4. An unsigned decision is never remembered: the same call needs approval again in the next run."""
    scenario = parked()
    request = scenario.broker.requests[scenario.approval_request.approval_id]
    remembered = ApprovalReply(
        tenant=request.tenant,
        conversation_id=request.conversation_id,
        run_id=request.run_id,
        approval_id=request.approval_id,
        outcome="superseded",
        by="system",
        decisions=tuple(ItemDecision(tool_call_id=i.tool_call_id, decision="approve") for i in request.items),
        remember="conversation",
        decided_at=scenario.now,
    )
    scenario.broker.store_approval_reply(remembered)
    scenario.run(seconds=5)
    assert scenario.state.remembered == ()
    assert [reply for reply, _ in scenario.broker.dead] == [remembered]
    assert scenario.open_run.waits
    scenario.end()


def test_a_decision_signed_for_another_approval_request_closes_no_request() -> None:
    """P4. Two requests for the same call have the same digest; a decision is for the one that was shown."""
    scenario = parked(Plan((calls(needing_approval()),), expires_s=60))
    request = scenario.broker.requests[scenario.approval_request.approval_id]
    reply = forged(request, random.Random(1), scenario).model_copy(
        update={"digests": tuple(item.digest for item in request.items), "approval_id": "another"}
    )
    replayed = sign(reply, KEY)
    assert problem(replayed, request, KEY) is not None
    for belongs in ("run_id", "conversation_id", "tenant"):
        moved = reply.model_copy(update={"approval_id": request.approval_id, belongs: "another"})
        assert problem(sign(moved, KEY), request, KEY) is not None


@pytest.mark.parametrize("how", ["cancel", "steer", "expiry"])
def test_closing_an_approval_request_verifies_the_stored_decision(how: str) -> None:
    """P4. A forged approval is in the slot, and it is delivered last."""
    scenario = parked(Plan((calls(needing_approval()),), expires_s=60))
    forge(scenario)
    reply = scenario.broker.queues["replies"].messages[0]
    reply.not_before = scenario.now.replace(year=2030)
    match how:
        case "cancel":
            scenario.cancel(scenario.open_run.run_id)
        case "steer":
            scenario.steer("c", 1, Plan())
        case _:
            scenario.pass_time(60)
    scenario.run(seconds=5)
    assert resolved(scenario).by == "system"
    assert scenario.executed() == 0
    reply.not_before = None
    scenario.end()


def test_a_signed_decision_with_other_digests_closes_nothing() -> None:
    """P4, P15. The signature covers the digests that were shown."""
    scenario = parked()
    request = scenario.broker.requests[scenario.approval_request.approval_id]
    reply = forged(request, random.Random(1), scenario).model_copy(update={"digests": ("0" * 64,)})
    scenario.broker.store_approval_reply(sign(reply, KEY))
    scenario.run()
    assert scenario.open_run.waits
    scenario.end()


def test_a_frozen_owner_does_not_close_an_approval_request_of_a_lost_run() -> None:
    """P3, P4. For the frozen owner the run has timed out; for its successor the run waits for a user."""
    scenario = Scenario()
    scenario.start(Plan((calls(needing_approval(), "effect"),), run_timeout_s=20))
    frozen = scenario.run_to("request approval")
    frozen.process.paused = True
    scenario.redeliver(scenario.work(), scenario.other)
    scenario.run(seconds=2)
    assert scenario.state.owner is None, scenario.story()
    scenario.pass_time(60)
    frozen.process.paused = False
    while not frozen.over:
        scenario.step(frozen)
    assert scenario.broker.replies == {}
    scenario.decide("approve")
    scenario.run(seconds=10)
    assert scenario.outcomes() == ["completed"]
    assert scenario.executed() == 2
    scenario.end()
