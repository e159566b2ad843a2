"""Design 5.3 to 5.8: replies, dispatch, the race for the slots, and runners that go away."""

from __future__ import annotations

import pytest

from banksman.contracts.calls import CallRequest
from banksman.contracts.events import ProtocolRetry, RunFinished
from banksman.contracts.messages import ToolMessage
from banksman.contracts.tools import ToolResult
from banksman.contracts.wire import MAX_DEPTH, JsonObject
from banksman.runs.settle import fitting
from tests.runs.plans import CallPlan, Plan, Reply, calls
from tests.runs.processes import Process, Task
from tests.runs.scene import Scene

EFFECT = Plan((calls("effect"),))
HANGS = Plan((calls(CallPlan(hangs=True)),))


def scene_at(label: str, plan: Plan = EFFECT) -> tuple[Scene, Task]:
    """A run that has come to an await of this name."""
    scene = Scene()
    scene.start(plan)
    return scene, scene.run_to(label)


def home(scene: Scene) -> Process:
    """The runner that has the workspace."""
    return scene.runners[scene.homes["c"]]


def finished(scene: Scene) -> RunFinished:
    return next(body for body in scene.bodies() if isinstance(body, RunFinished))


# -- replies -----------------------------------------------------------------------------------------------


def test_an_unreadable_reply_is_corrected_without_a_new_iteration() -> None:
    scene = Scene()
    scene.start(Plan((Reply(malformed=2),)))
    scene.run()
    assert [body.attempt for body in scene.bodies() if isinstance(body, ProtocolRetry)] == [1, 2]
    assert scene.story().count("iteration.started") == 1
    assert scene.outcomes() == ["completed"]


def test_the_third_unreadable_reply_in_a_row_ends_the_run() -> None:
    scene = Scene()
    scene.start(Plan((Reply(malformed=3),)))
    scene.run()
    assert finished(scene).error is not None
    assert scene.census["end: failed malformed_calls"] == 1


def test_a_call_with_unreadable_arguments_is_answered_and_never_sent() -> None:
    scene = Scene()
    scene.start(Plan((calls(CallPlan(unreadable=True), "effect"),)))
    scene.run(seconds=10)
    assert sorted(scene.kinds()) == ["invalid_arguments", "ok"]
    assert scene.executed() == 1


def test_the_calls_of_a_reply_run_at_the_same_time_and_their_results_keep_its_order() -> None:
    scene = Scene()
    scene.start(Plan((calls(CallPlan(lasts_s=5), CallPlan(lasts_s=1)),)))
    scene.run(seconds=5.9)
    assert [event for event in scene.story() if event == "tool_call.completed"] == ["tool_call.completed"] * 2
    asked = list(scene.ledger.calls)
    assert list(scene.ledger.results) == asked[::-1]
    answered = [m.result.tool_call_id for m in scene.state.history if isinstance(m, ToolMessage)]
    assert answered == asked


def test_results_go_back_to_the_model_in_the_next_iteration() -> None:
    scene = Scene()
    scene.start(Plan((calls("effect"), calls("effect"))))
    scene.run(seconds=10)
    assert finished(scene).iterations == 3
    assert [tracked.iteration for tracked in finished(scene).tool_calls] == [1, 2]


def test_the_result_of_a_terminating_call_is_the_answer() -> None:
    scene = Scene()
    scene.start(Plan((calls(CallPlan(terminate=True)),)))
    scene.run(seconds=10)
    assert (finished(scene).iterations, finished(scene).content) == (1, '{"success": true}')


def test_with_a_final_summary_the_model_is_asked_after_a_terminating_call() -> None:
    scene = Scene()
    scene.start(Plan((calls(CallPlan(terminate=True)),), final_summary=True))
    scene.run(seconds=10)
    assert (finished(scene).iterations, finished(scene).content) == (2, "done")


def test_a_provider_that_fails_for_good_ends_the_run() -> None:
    scene = Scene()
    scene.start(Plan((Reply(fails=True),)))
    scene.run()
    assert scene.outcomes() == ["failed"]


# -- dispatch ----------------------------------------------------------------------------------------------


def test_the_slots_of_a_call_are_deleted_once_its_result_is_in_the_log() -> None:
    scene, forget = scene_at("forget")
    assert scene.story()[-2:] == ["tool_call.completed", "iteration.started"]
    scene.step(forget)
    assert not scene.broker.started
    assert not scene.broker.finished


def test_an_owner_that_hears_nothing_looks_into_the_slots_after_two_seconds() -> None:
    scene, _ = scene_at("start")
    scene.lossy = lambda: True
    scene.run(seconds=1.9)
    assert not scene.results()
    scene.run(seconds=0.2)
    assert scene.kinds() == ["ok"]


def test_a_call_whose_request_was_lost_is_sent_again_with_the_same_id() -> None:
    scene, _ = scene_at("call")
    scene.lossy = lambda: True
    scene.step(scene.run_to("call"))
    scene.lossy = lambda: False
    scene.run(seconds=1)
    assert scene.kinds() == ["ok"]
    assert list(scene.ledger.starts) == [f"{scene.results()[0].tool_call_id}-1"]


def test_a_busy_runner_is_asked_again() -> None:
    scene = Scene()
    scene.start(Plan((calls(*[CallPlan(lasts_s=1)] * 4),)))
    scene.run(seconds=5)
    assert scene.census["runner: busy"] > 0
    assert scene.kinds() == ["ok"] * 4


def test_without_any_runner_for_75_seconds_a_call_ends_as_unavailable() -> None:
    scene = Scene()
    for runner in scene.runners.values():
        scene.crash(runner)
    scene.pass_time(3)
    scene.start(EFFECT)
    scene.run(seconds=74)
    assert not scene.results()
    scene.run(seconds=2)
    assert scene.kinds() == ["unavailable"]
    assert scene.outcomes() == ["completed"]


def test_a_call_that_waited_long_for_a_busy_runner_is_still_offered_to_the_next() -> None:
    """Its runner was there all the time; only from when it goes away do the 75 s count."""
    scene = Scene()
    scene.start(Plan((calls(*[CallPlan(lasts_s=50)] * 7),)))
    scene.run(seconds=90)
    scene.crash(home(scene))
    scene.run(seconds=200)
    assert sorted(scene.kinds()) == ["ok"] * 4 + ["unknown_outcome"] * 3
    assert scene.census["runner: next attempt elsewhere"] == 1


def test_a_runner_that_refuses_a_call_ends_it() -> None:
    scene, _ = scene_at("call")
    scene.unfit |= set(scene.runners)
    scene.run(seconds=3)
    assert scene.kinds() == ["unavailable"]


# -- runners that go away ----------------------------------------------------------------------------------


def test_a_call_that_had_not_started_on_a_lost_runner_is_executed_elsewhere_and_never_there() -> None:
    """P2. The one that was cut off wakes up with the request still in hand."""
    scene, start = scene_at("start")
    scene.cut_off(start.process)
    start.process.paused = True
    scene.run(seconds=5)
    assert scene.kinds() == ["ok"]
    start.process.paused = False
    scene.run()
    assert scene.census["runner: start refused to one that was cut off"] == 1
    assert scene.executed() == 1
    scene.end()


def test_a_call_that_had_started_on_a_lost_runner_has_an_unknown_outcome_and_is_not_repeated() -> None:
    """P2."""
    scene, effect = scene_at("effect ends")
    scene.crash(effect.process)
    scene.run(seconds=10)
    assert scene.kinds() == ["unknown_outcome"]
    assert scene.executed() == 1
    assert scene.outcomes() == ["completed"]
    scene.end()


def test_an_idempotent_call_is_repeated_when_its_runner_is_lost() -> None:
    scene, effect = scene_at("effect ends", Plan((calls("pure"),)))
    scene.crash(effect.process)
    scene.restart(effect.process)
    scene.run(seconds=10)
    assert scene.kinds() == ["ok"]
    assert scene.executed() == 2
    scene.end()


def test_slots_stay_when_a_runner_that_was_cut_off_may_still_hold_the_request() -> None:
    """P2. The first owner sent the call to a runner that is cut off, the second to its successor."""
    scene, start = scene_at("start")
    zombie = start.process
    scene.cut_off(zombie)
    zombie.paused = True
    scene.crash(scene.agent)
    scene.run(seconds=10)
    assert scene.kinds() == ["ok"]
    zombie.paused = False
    scene.run()
    assert scene.executed() == 1
    assert scene.census["runner: start refused, started elsewhere"] == 1
    scene.end()


def test_a_call_goes_on_at_the_next_attempt_though_its_owner_died_between() -> None:
    scene, start = scene_at("start")
    scene.cut_off(start.process)
    start.process.paused = True
    scene.crash_at(scene.run_to("void", seconds=5), done=True)
    scene.run(seconds=10)
    assert scene.kinds() == ["ok"]
    assert list(scene.ledger.starts) == [f"{scene.results()[0].tool_call_id}-2"]
    scene.end()


def test_a_void_that_moves_a_call_on_does_not_end_it_for_the_next_owner() -> None:
    """P2, P4. The second attempt runs while its owner is cut off; the next one cancels the run."""
    scene = Scene()
    scene.start(HANGS)
    start = scene.run_to("start")
    scene.cut_off(start.process)
    start.process.paused = True
    scene.run_to("effect", seconds=5)
    scene.crash(scene.agent)
    scene.cancel(scene.open_run.run_id)
    scene.run(seconds=10)
    (result,) = scene.results()
    assert (result.error_kind, result.runner) == ("cancelled", home(scene).name)
    assert scene.executed() == 1
    scene.end()


@pytest.mark.parametrize("moved", [False, True])
def test_an_owner_that_was_fenced_cannot_move_on_a_call_that_was_ended(moved: bool) -> None:
    """P2, P4. It is cut off before, or right after it moved the call on; the next owner ends the call."""
    scene = Scene()
    scene.start(EFFECT)
    start = scene.run_to("start")
    scene.cut_off(start.process)
    start.process.paused = True
    if moved:
        scene.step(scene.run_to("void", seconds=5))
        scene.run_to("call")
    else:
        scene.run_to("void", seconds=5)
    scene.agent.paused = True
    scene.cancel(scene.open_run.run_id)
    scene.run()
    scene.redeliver(scene.work(), scene.other)
    scene.run(seconds=5)
    assert scene.outcomes() == ["cancelled"]
    scene.agent.paused = False
    start.process.paused = False
    scene.run(seconds=100)
    assert scene.executed() == 0
    assert scene.census["owner: fenced"] == 1
    scene.end()


def test_a_runner_without_a_lease_starts_nothing_and_takes_the_call_again_when_it_has_one() -> None:
    scene, queued = scene_at("queued")
    queued.process.lease_lost = True
    scene.run(seconds=1)
    assert scene.executed() == 0
    queued.process.lease_lost = False
    scene.run(seconds=3)
    assert scene.kinds() == ["ok"]
    scene.end()


def test_a_runner_whose_broker_is_away_at_the_start_takes_the_call_again() -> None:
    scene, start = scene_at("start")
    scene.fail(start, done=False)
    scene.run(seconds=3)
    assert scene.kinds() == ["ok"]
    scene.end()


def test_a_start_that_was_stored_without_an_answer_is_not_executed() -> None:
    """P2. Nobody can tell it from the start of another process."""
    scene, start = scene_at("start")
    scene.fail(start, done=True)
    scene.run(seconds=100)
    assert scene.kinds() == ["unknown_outcome"]
    assert scene.executed() == 0


# -- calls that hang ---------------------------------------------------------------------------------------


def test_a_call_that_runs_over_its_time_is_cancelled_by_the_owner() -> None:
    scene, _ = scene_at("effect", HANGS)
    scene.run(seconds=64)
    assert not scene.results()
    scene.run(seconds=3)
    (result,) = scene.results()
    assert (result.error_kind, result.runner) == ("cancelled", home(scene).name)
    scene.end()


def test_a_call_that_does_not_end_when_it_is_told_to_has_an_unknown_outcome_after_two_seconds() -> None:
    """P7."""
    scene, _ = scene_at("effect", HANGS)
    scene.run()
    scene.lossy = lambda: True
    scene.cancel(scene.open_run.run_id)
    scene.run(seconds=3.9)
    assert not scene.results()
    scene.run(seconds=1)
    assert scene.kinds() == ["unknown_outcome"]
    assert scene.outcomes() == ["cancelled"]


def test_an_idempotent_call_is_told_to_end_too() -> None:
    """P7."""
    scene, _ = scene_at("effect", Plan((calls(CallPlan("pure", hangs=True)),)))
    scene.run()
    scene.cancel(scene.open_run.run_id)
    scene.run()
    assert home(scene).told_to_end
    assert scene.outcomes() == ["cancelled"]
    scene.end()


# -- the runner's own door ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "answer"),
    [({"runner_epoch": 9}, "wrong_epoch"), ({"digest": "0" * 64}, "refused"), ({}, "accepted")],
)
def test_a_runner_checks_epoch_and_digest(change: dict[str, object], answer: str) -> None:
    scene, _ = scene_at("call")
    runner = home(scene)
    assert runner.desk is not None
    call = next(iter(scene.ledger.calls.values()))
    request = CallRequest(
        tenant="acme",
        conversation_id="c",
        run_id=scene.open_run.run_id,
        attempt=f"{call.id}-1",
        call=call,
        digest=call.digest,
        runner_epoch=runner.generation,
        deadline=scene.now,
    )
    assert runner.desk.admit(request.model_copy(update=change))[0].answer == answer


def test_a_request_that_arrives_late_is_answered_done() -> None:
    """P2. The slots are deleted by then; the runner itself remembers."""
    scene, call = scene_at("call")
    assert call.op is not None
    late = call.op.do
    scene.run(seconds=5)
    assert scene.outcomes() == ["completed"]
    answer = late()
    assert answer.answer == "done"
    assert scene.executed() == 1


# -- results of many bytes -----------------------------------------------------------------------------------

WIDE = "水"
"""Three bytes in the log."""
LONG = WIDE * 87_000
"""As much as is kept of a result."""
RESULTS = {
    "five results": ((CallPlan(),) * 5, LONG),
    "a result that is the answer": ((*(CallPlan(),) * 4, CallPlan(terminate=True)), LONG),
    "an answer that is written twice as long": ((CallPlan(), CallPlan(terminate=True)), '"\\' * 65_400),
}


@pytest.mark.parametrize(("planned", "output"), RESULTS.values(), ids=RESULTS)
@pytest.mark.parametrize("queued", [False, True], ids=["alone", "with a long message behind it"])
def test_results_of_many_bytes_end_their_run_in_as_many_commits_as_they_need(
    planned: tuple[CallPlan, ...], output: str, queued: bool
) -> None:
    """P1: what fits no message by itself would be tried for ever."""
    scene = Scene()
    scene.output = output
    for runner in scene.runners.values():
        assert runner.desk is not None
        runner.desk.capacity = len(planned)
    scene.start(Plan((Reply(planned),)))
    if queued:
        scene.client_starts("c", "long", Plan(), LONG)
    scene.run_until(lambda: len([task for task in scene.ready if task.name == "perform"]) == len(planned))
    scene.agent.paused = True
    scene.run(seconds=1)
    scene.agent.paused = False
    scene.run(seconds=30)
    assert scene.outcomes() == ["completed"] * (1 + queued)
    assert scene.kinds() == ["ok"] * len(planned)
    scene.end()


def test_a_result_that_is_nested_too_deep_is_replaced() -> None:
    content: JsonObject = {}
    for _ in range(MAX_DEPTH):
        content = {"a": content}
    told = fitting(ToolResult(tool_call_id="k", content=content, runner="r1"))
    assert (told.error_kind, told.runner) == ("output_limit", "r1")
