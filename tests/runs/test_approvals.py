"""Design 5, parking, decisions and expiry: nothing happens without the word of a person, and only by it."""

from __future__ import annotations

import random

import pytest

from banksman.contracts.events import ApprovalResolved, ItemDecision, RunFinished
from banksman.contracts.work import ApprovalReply
from banksman.gateway.service.door import Verdict
from banksman.runs.approvals import problem, sign
from tests.runs.plans import CallPlan, Plan, asking, calls
from tests.runs.scene import Scene
from tests.runs.storm import forged
from tests.runs.world import KEY

ASKS = Plan((calls(asking()),))
TWO = calls(asking(), asking())


def parked(plan: Plan = ASKS) -> Scene:
    """A run that waits for a person."""
    scene = Scene()
    scene.start(plan)
    scene.run(seconds=5)
    assert scene.state.owner is None
    assert scene.open_run.waits
    return scene


def mixed(scene: Scene, **second: object) -> Verdict:
    """Approve the first call and reject the second, or what is said of it."""
    first, other = (item.tool_call_id for item in scene.question.items)
    said = {"decision": "reject", "reason": "not that", **second}
    return Verdict(
        by="ann",
        decisions=(
            ItemDecision(tool_call_id=first, decision="approve"),
            ItemDecision.model_validate({"tool_call_id": other, **said}),
        ),
    )


def resolved(scene: Scene) -> ApprovalResolved:
    return next(body for body in scene.bodies() if isinstance(body, ApprovalResolved))


def finished(scene: Scene) -> RunFinished:
    return next(body for body in scene.bodies() if isinstance(body, RunFinished))


# -- parking -----------------------------------------------------------------------------------------------


def test_a_parked_run_holds_nothing_but_its_question() -> None:
    """P3. No message, no task, no owner."""
    scene = parked()
    assert all(not queue.open for queue in scene.broker.queues.values())
    assert all(not process.tasks for process in scene.processes)
    assert list(scene.broker.requests) == [scene.question.approval_id]


def test_calls_that_need_nobody_run_before_the_run_is_parked() -> None:
    scene = parked(Plan((calls("effect", asking()),)))
    assert scene.executed() == 1
    scene.end()


def test_a_question_that_a_crash_left_out_is_asked_on_redelivery() -> None:
    scene = Scene()
    scene.start(ASKS)
    scene.crash_at(scene.run_to("ask"), done=False)
    assert scene.open_run.waits
    scene.run()
    assert list(scene.broker.requests) == [scene.question.approval_id]
    scene.end()


def test_a_question_that_a_crash_left_out_is_asked_by_the_one_that_takes_over() -> None:
    scene = Scene()
    scene.start(Plan((calls(CallPlan(lasts_s=5), asking()),)))
    scene.crash_at(scene.run_to("ask"), done=False)
    scene.run(seconds=1)
    assert list(scene.broker.requests) == [scene.question.approval_id]
    scene.end()


def test_an_answer_that_comes_while_other_calls_run_is_taken_up_without_parking() -> None:
    scene = Scene()
    scene.start(Plan((calls(CallPlan(lasts_s=5), asking()),)))
    scene.run(seconds=1)
    scene.decide("approve")
    scene.run(seconds=10)
    assert scene.census["parked"] == 0
    assert scene.executed() == 2
    scene.end()


# -- decisions ---------------------------------------------------------------------------------------------


def test_an_approved_call_is_executed_once_and_the_run_goes_on() -> None:
    scene = parked()
    scene.decide("approve")
    scene.run(seconds=5)
    assert (scene.executed(), scene.outcomes()) == (1, ["completed"])
    assert scene.census["claim: resume"] == 1
    scene.end()


def test_edited_arguments_are_what_is_executed_and_what_is_told() -> None:
    scene = parked()
    (item,) = scene.question.items
    edit = ItemDecision(tool_call_id=item.tool_call_id, decision="approve", arguments={"edited": True})
    scene.decide(Verdict(by="ann", decisions=(edit,)))
    scene.run(seconds=5)
    assert [tracked.params for tracked in finished(scene).tool_calls] == [{"edited": True}]
    assert scene.executed() == 1
    scene.end()


def test_one_rejected_call_ends_the_run_and_none_of_the_others_is_executed() -> None:
    """P4."""
    scene = parked(Plan((TWO,)))
    scene.decide(mixed(scene))
    scene.run(seconds=5)
    assert sorted(scene.kinds()) == ["not_executed", "rejected"]
    assert scene.outcomes() == ["rejected"]
    assert "not that" in finished(scene).content
    assert scene.executed() == 0
    scene.end()


def test_with_feedback_the_approved_call_runs_and_the_model_is_told_of_the_other() -> None:
    scene = parked(Plan((TWO,), feedback=True))
    scene.decide(mixed(scene))
    scene.run(seconds=5)
    assert sorted(scene.kinds()) == ["ok", "rejected"]
    assert scene.outcomes() == ["completed"]
    assert scene.executed() == 1
    scene.end()


def test_the_first_answer_wins_and_the_second_is_told_so() -> None:
    """P3."""
    scene = parked()
    approval_id = scene.question.approval_id
    for verdict in ("approve", "reject"):
        scene.client_decides(approval_id, Verdict(by="ann", all=verdict))
    first, second = scene.gateway.tasks
    scene.step(first)
    scene.step(second)
    scene.run(seconds=5)
    assert resolved(scene).outcome == "approved"
    assert scene.ledger.told == {approval_id: "approved"}
    scene.end()


@pytest.mark.parametrize("label", ["append", "publish work", "ack"])
@pytest.mark.parametrize("done", [False, True])
def test_a_decision_is_honoured_though_its_handler_dies(label: str, done: bool) -> None:
    """P3."""
    scene = parked()
    scene.decide("approve")
    scene.crash_at(scene.run_to(label), done=done)
    scene.run(seconds=5)
    assert (scene.executed(), scene.outcomes()) == (1, ["completed"])
    scene.end()


def test_a_decision_that_is_delivered_again_later_does_nothing() -> None:
    scene = parked(Plan((calls(asking()), calls(asking()))))
    scene.decide("approve")
    scene.run(seconds=5)
    again = scene.broker.queues["replies"].messages[0]
    again.acked = False
    scene.run()
    assert scene.open_run.waits
    scene.end()


@pytest.mark.parametrize(("remember", "asked"), [("run", 2), ("conversation", 1), (None, 3)])
def test_a_decision_is_remembered_for_as_long_as_it_was_said_to_be(remember: str | None, asked: int) -> None:
    plan = Plan((calls(asking()), calls(asking())))
    scene = parked(plan)
    scene.decide(_approve(remember))
    scene.run(seconds=5)
    if remember is None:
        scene.decide("approve")
        scene.run(seconds=5)
    scene.start(Plan((calls(asking()),)))
    scene.run(seconds=5)
    assert len(scene.ledger.asked) == asked
    scene.end()


def _approve(remember: str | None) -> Verdict:
    match remember:
        case "run":
            return Verdict(by="ann", all="approve", remember="run")
        case "conversation":
            return Verdict(by="ann", all="approve", remember="conversation")
        case _:
            return Verdict(by="ann", all="approve")


# -- expiry ------------------------------------------------------------------------------------------------


def test_a_question_that_nobody_answers_ends_its_run_when_it_expires() -> None:
    """P4."""
    scene = parked(Plan((calls(asking()),), expires_s=60))
    scene.run(seconds=54)
    assert scene.open_run.waits
    scene.run(seconds=2)
    assert scene.census["end: rejected approval_expired"] == 1
    assert scene.executed() == 0
    scene.end()


def test_an_answer_after_the_expiry_is_refused_by_the_door() -> None:
    """P4."""
    scene = parked(Plan((calls(asking()),), expires_s=60))
    scene.now = scene.question.expires_at.replace(microsecond=1)
    scene.decide("approve")
    assert not scene.broker.answers
    assert not scene.ledger.told


def test_an_answer_before_the_expiry_wins_against_the_timer() -> None:
    """P4."""
    scene = parked(Plan((calls(asking()),), expires_s=60))
    scene.decide("approve")
    scene.pass_time(100)
    timer = scene.broker.queues["timers"].messages[0]
    scene.redeliver(timer, scene.other, "timers")
    scene.run(seconds=10)
    assert resolved(scene).outcome == "approved"
    assert scene.outcomes() == ["completed"]
    scene.end()


# -- forged answers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", range(5))
def test_an_answer_that_must_not_count_is_put_away_and_the_question_stays_open(kind: int) -> None:
    """P4. Unsigned, signed by somebody else, about other calls, decided in the system's name, or too late."""
    scene = parked()
    forge(scene, kind)
    scene.run(seconds=5)
    assert [reply.by for reply, _ in scene.broker.dead] == ["mallory"]
    assert scene.open_run.waits
    assert scene.executed() == 0
    scene.decide("approve")
    scene.run(seconds=5)
    assert (scene.executed(), scene.outcomes()) == (1, ["completed"])
    scene.end()


def forge(scene: Scene, kind: int = 0) -> None:
    """An answer gets into the slot past the door."""

    class Kind(random.Random):
        def randrange(self, *_: object, **__: object) -> int:
            return kind

    request = scene.broker.requests[scene.question.approval_id]
    scene.broker.answer(forged(request, Kind(), scene))


def test_a_door_does_not_tell_a_decision_that_will_not_count() -> None:
    scene = parked()
    forge(scene)
    scene.decide("approve")
    assert not scene.ledger.told
    scene.end()


def test_what_the_system_closes_approves_nothing_for_later() -> None:
    """P4. What is not signed cannot be remembered: the same call asks again in the next run."""
    scene = parked()
    request = scene.broker.requests[scene.question.approval_id]
    remembered = ApprovalReply(
        tenant=request.tenant,
        conversation_id=request.conversation_id,
        run_id=request.run_id,
        approval_id=request.approval_id,
        outcome="superseded",
        by="system",
        decisions=tuple(ItemDecision(tool_call_id=i.tool_call_id, decision="approve") for i in request.items),
        remember="conversation",
        decided_at=scene.now,
    )
    scene.broker.answer(remembered)
    scene.run(seconds=5)
    assert scene.state.remembered == ()
    assert [reply for reply, _ in scene.broker.dead] == [remembered]
    assert scene.open_run.waits
    scene.end()


def test_an_answer_that_was_signed_for_another_question_closes_none() -> None:
    """P4. The same call asked twice has the same digest; its answer is for the one that was shown."""
    scene = parked(Plan((calls(asking()),), expires_s=60))
    request = scene.broker.requests[scene.question.approval_id]
    reply = forged(request, random.Random(1), scene).model_copy(
        update={"digests": tuple(item.digest for item in request.items), "approval_id": "another"}
    )
    replayed = sign(reply, KEY)
    assert problem(replayed, request, KEY) is not None
    for belongs in ("run_id", "conversation_id", "tenant"):
        moved = reply.model_copy(update={"approval_id": request.approval_id, belongs: "another"})
        assert problem(sign(moved, KEY), request, KEY) is not None


@pytest.mark.parametrize("how", ["cancel", "steer", "expiry"])
def test_whoever_closes_a_question_looks_at_the_answer_it_finds(how: str) -> None:
    """P4. A forged approval is in the slot, and its own delivery comes last."""
    scene = parked(Plan((calls(asking()),), expires_s=60))
    forge(scene)
    reply = scene.broker.queues["replies"].messages[0]
    reply.not_before = scene.now.replace(year=2030)
    match how:
        case "cancel":
            scene.cancel(scene.open_run.run_id)
        case "steer":
            scene.steer("c", 1, Plan())
        case _:
            scene.pass_time(60)
    scene.run(seconds=5)
    assert resolved(scene).by == "system"
    assert scene.executed() == 0
    reply.not_before = None
    scene.end()


def test_a_signed_answer_about_something_else_closes_nothing() -> None:
    """P4, P15. The digests of what was shown are part of what is signed."""
    scene = parked()
    request = scene.broker.requests[scene.question.approval_id]
    reply = forged(request, random.Random(1), scene).model_copy(update={"digests": ("0" * 64,)})
    scene.broker.answer(sign(reply, KEY))
    scene.run()
    assert scene.open_run.waits
    scene.end()


def test_an_owner_that_was_frozen_closes_no_question_of_a_run_that_it_has_lost() -> None:
    """P3, P4: to it the time of the run is over; to its successor, the run waits for a person."""
    scene = Scene()
    scene.start(Plan((calls(asking(), "effect"),), run_timeout_s=20))
    frozen = scene.run_to("ask")
    frozen.process.paused = True
    scene.redeliver(scene.work(), scene.other)
    scene.run(seconds=2)
    assert scene.state.owner is None, scene.story()
    scene.pass_time(60)
    frozen.process.paused = False
    while not frozen.over:
        scene.step(frozen)
    assert scene.broker.answers == {}
    scene.decide("approve")
    scene.run(seconds=10)
    assert scene.outcomes() == ["completed"]
    assert scene.executed() == 2
    scene.end()
