"""Design 5, ownership and takeover: one owner, fenced by the log, whatever the broker says about messages."""

from __future__ import annotations

import pytest

from tests.runs.plans import CallPlan, Plan, asking, calls
from tests.runs.scene import Scene

EFFECT = Plan((calls("effect"),))
ASKS = Plan((calls(asking()),))


@pytest.mark.parametrize("label", ["model", "call", "read log", "append", "forget", "ack"])
@pytest.mark.parametrize("done", [False, True])
def test_a_run_whose_owner_dies_anywhere_is_finished_by_another(label: str, done: bool) -> None:
    """P1, P2."""
    scene = Scene()
    scene.start(EFFECT)
    scene.crash_at(scene.run_to(label, seconds=3), done=done)
    scene.run(seconds=10)
    assert scene.outcomes() == ["completed"]
    assert scene.executed() == 1
    scene.end()


def test_an_owner_that_was_thought_dead_stops_at_its_next_commit_and_acks_nothing() -> None:
    """P5."""
    scene = Scene()
    scene.start(EFFECT)
    scene.run_to("model")
    scene.agent.paused = True
    scene.redeliver(scene.work(), scene.other)
    scene.run_to("queued")
    scene.agent.paused = False
    (old,) = scene.agent.tasks
    while not old.over:
        scene.step(old)
    assert not scene.work().acked
    assert scene.census["owner: fenced"] == 1
    scene.run(seconds=5)
    assert scene.outcomes() == ["completed"]
    scene.end()


def test_a_delivery_that_finds_another_owner_is_acked_without_effect() -> None:
    scene = Scene()
    scene.start(EFFECT)
    scene.run_to("model")
    scene.broker.duplicate("work", 0)
    scene.redeliver(scene.work(1), scene.other)
    scene.agent.paused = True
    scene.run()
    assert scene.work(1).acked
    assert [commit.claim for _, commit in scene.broker.logs["c"]] == [True]
    scene.agent.paused = False
    scene.end()


def test_a_message_that_parked_its_run_never_claims_again() -> None:
    """The ack of the one that parked it may still come, and would leave a claim without a message."""
    scene = Scene()
    scene.start(ASKS)
    scene.run_to("ack")
    scene.agent.paused = True
    scene.decide("approve")
    resolved = scene.broker.queues["replies"].messages[0]
    scene.redeliver(resolved, scene.other, "replies")
    scene.run_to("publish work")
    (handler,) = scene.other.tasks
    scene.redeliver(scene.work(), scene.other)
    while scene.other.tasks != [handler]:
        scene.step(scene.other.tasks[-1])
    assert scene.state.owner is None
    scene.agent.paused = False
    scene.run(seconds=5)
    assert scene.outcomes() == ["completed"]
    scene.end()


def test_the_fifth_claim_in_a_row_ends_the_run_as_a_crash_loop() -> None:
    scene = Scene()
    scene.start(Plan())
    for _ in range(4):
        scene.crash(scene.run_to("model").process)
        for agent in scene.agents:
            scene.restart(agent)
    scene.run()
    assert scene.census["end: failed crash_loop"] == 1
    scene.end()


def test_a_crash_loop_stays_one_while_its_calls_are_wound_down() -> None:
    """The first result is committed before the second; that is no sign that the run works again."""
    scene = Scene()
    scene.start(Plan((calls(CallPlan(hangs=True), "pure"), calls("effect"))))
    scene.run_to("effect")
    for _ in range(6):
        scene.crash(scene.agent)
        scene.restart(scene.agent)
        scene.run_to("alive")
    scene.run(seconds=10)
    assert scene.census["end: failed crash_loop"] == 1
    assert scene.story().count("iteration.started") == 1
    scene.end()


def test_a_commit_that_lost_the_race_is_repeated_behind_the_other() -> None:
    scene = Scene()
    scene.start(EFFECT)
    scene.run_to("model")
    scene.step(scene.agent.tasks[0])
    scene.steer("c", 1, Plan())
    scene.agent.paused = True
    scene.run()
    scene.agent.paused = False
    scene.run(seconds=5)
    assert scene.census["owner: append met another commit"] == 1
    assert scene.outcomes() == ["completed"]
    scene.end()


@pytest.mark.parametrize("label", ["read log", "append", "call", "place", "void", "read slots", "ack"])
@pytest.mark.parametrize("done", [False, True])
def test_a_broker_that_is_away_for_one_request_loses_nothing(label: str, done: bool) -> None:
    scene = Scene()
    scene.start(EFFECT)
    if label in ("void", "read slots"):
        runner = scene.run_to("start").process
        scene.cut_off(runner)
        runner.paused = True
    scene.fail(scene.run_to(label, seconds=5), done=done)
    scene.run(seconds=20)
    assert scene.outcomes() == ["completed"]
    assert scene.executed() == 1
    scene.end()


def fail(scene: Scene, label: str, *, done: bool) -> None:
    """The broker does not answer whoever comes to this await next; it may have done what was asked."""
    scene.fail(scene.run_to(label, seconds=5), done=done)


def test_a_broker_that_is_away_now_and_then_is_no_crash_loop() -> None:
    """P1: the owner lives and holds on; its claim is not counted as if it had died."""
    scene = Scene()
    scene.start(Plan((calls(CallPlan("effect", lasts_s=60)),)))
    scene.run_to("effect")
    for _ in range(8):
        fail(scene, "read log", done=False)
    scene.run(seconds=120)
    assert scene.outcomes() == ["completed"]
    assert scene.state.owner_epoch == 1
    scene.end()


def test_a_call_is_ended_once_the_broker_takes_its_void_and_no_sooner() -> None:
    """P1, P7: storage is full when a run is cancelled; it ends as cancelled, when there is room."""
    scene = Scene()
    scene.start(EFFECT)
    scene.run_to("queued").process.paused = True
    scene.cancel(scene.open_run.run_id)
    for _ in range(8):
        fail(scene, "void", done=False)
    scene.run(seconds=60)
    assert scene.outcomes() == ["cancelled"]
    assert scene.state.owner_epoch == 1
    scene.end()


def test_a_question_that_was_not_stored_is_asked_before_the_message_is_acked() -> None:
    """P3: the broker refuses the question again and again, behind a commit and behind a claim."""
    scene = Scene()
    scene.start(Plan((calls(asking(), CallPlan("effect", lasts_s=2)),)))
    for _ in range(8):
        fail(scene, "ask", done=False)
        assert not scene.work().acked
    scene.crash(scene.agent)
    for _ in range(8):
        fail(scene, "ask", done=False)
    scene.run(seconds=60)
    assert scene.question.approval_id in scene.broker.requests
    assert scene.work().acked
    assert scene.state.owner_epoch == 2
    scene.decide("approve")
    scene.end()
    assert scene.outcomes() == ["completed"]
