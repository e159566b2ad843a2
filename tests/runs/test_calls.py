"""Replies, dispatch, the race for the slots, and lost runners."""

from __future__ import annotations

import pytest

from banksman.contracts.calls import CallRequest
from banksman.contracts.events import ProtocolRetry, RunFinished
from banksman.contracts.json_text import MAX_DEPTH
from banksman.contracts.messages import ToolMessage
from banksman.contracts.tools import ToolResult
from banksman.contracts.wire import JsonObject
from banksman.quotas.places import Shares
from banksman.runs.outcome import storable
from tests.runs.plans import CallPlan, Plan, Reply, calls
from tests.runs.processes import Process, Task
from tests.runs.scenario import Scenario

EFFECT = Plan((calls("effect"),))
HANGS = Plan((calls(CallPlan(hangs=True)),))


def scenario_at(label: str, plan: Plan = EFFECT) -> tuple[Scenario, Task]:
    """Return a scenario whose run has reached the await `label`."""
    scenario = Scenario()
    scenario.start(plan)
    return scenario, scenario.run_to(label)


def home(scenario: Scenario) -> Process:
    """Return the runner that has the workspace."""
    return scenario.runners[scenario.homes["c"]]


def finished(scenario: Scenario) -> RunFinished:
    return next(body for body in scenario.bodies() if isinstance(body, RunFinished))


# -- replies -----------------------------------------------------------------------------------------------


def test_a_malformed_reply_is_corrected_without_a_new_iteration() -> None:
    scenario = Scenario()
    scenario.start(Plan((Reply(malformed=2),)))
    scenario.run()
    assert [body.attempt for body in scenario.bodies() if isinstance(body, ProtocolRetry)] == [1, 2]
    assert scenario.story().count("iteration.started") == 1
    assert scenario.outcomes() == ["completed"]


def test_three_corrections_are_sent_before_the_run_ends() -> None:
    """R10."""
    scenario = Scenario()
    scenario.start(Plan((Reply(malformed=4),)))
    scenario.run()
    assert [body.attempt for body in scenario.bodies() if isinstance(body, ProtocolRetry)] == [1, 2, 3]
    assert finished(scenario).error is not None
    assert scenario.situations["end: failed malformed_calls"] == 1


def test_a_call_with_malformed_arguments_gets_a_result_and_is_never_sent() -> None:
    scenario = Scenario()
    scenario.start(Plan((calls(CallPlan(unreadable=True), "effect"),)))
    scenario.run(seconds=10)
    assert sorted(scenario.kinds()) == ["invalid_arguments", "ok"]
    assert scenario.executed() == 1


def test_calls_of_one_reply_run_in_parallel_and_their_results_are_in_order() -> None:
    scenario = Scenario()
    scenario.start(Plan((calls(CallPlan(lasts_s=5), CallPlan(lasts_s=1)),)))
    scenario.run(seconds=5.9)
    assert [event for event in scenario.story() if event == "tool_call.completed"] == [
        "tool_call.completed"
    ] * 2
    requested = list(scenario.invariants.calls)
    assert list(scenario.invariants.results) == requested[::-1]
    results = [m.result.tool_call_id for m in scenario.state.history if isinstance(m, ToolMessage)]
    assert results == requested


def test_results_go_back_to_the_model_in_the_next_iteration() -> None:
    scenario = Scenario()
    scenario.start(Plan((calls("effect"), calls("effect"))))
    scenario.run(seconds=10)
    assert finished(scenario).iterations == 3
    assert [tracked.iteration for tracked in finished(scenario).tool_calls] == [0, 1]


def test_the_result_of_a_terminating_call_is_the_final_reply() -> None:
    scenario = Scenario()
    scenario.start(Plan((calls(CallPlan(terminate=True)),)))
    scenario.run(seconds=10)
    assert (finished(scenario).iterations, finished(scenario).content) == (1, '{"success": true}')


def test_with_a_final_summary_the_model_is_called_after_a_terminating_call() -> None:
    scenario = Scenario()
    scenario.start(Plan((calls(CallPlan(terminate=True)),), final_summary=True))
    scenario.run(seconds=10)
    assert (finished(scenario).iterations, finished(scenario).content) == (2, "done")


def test_a_permanent_provider_failure_ends_the_run() -> None:
    scenario = Scenario()
    scenario.start(Plan((Reply(fails=True),)))
    scenario.run()
    assert scenario.outcomes() == ["failed"]


# -- dispatch ----------------------------------------------------------------------------------------------


def test_the_slots_of_a_call_are_deleted_after_its_result_commit() -> None:
    scenario, forget = scenario_at("forget")
    assert scenario.story()[-2:] == ["tool_call.completed", "iteration.started"]
    scenario.step(forget)
    assert not scenario.broker.started
    assert not scenario.broker.finished


def test_an_owner_without_notifications_reads_the_slots_after_two_seconds() -> None:
    scenario, _ = scenario_at("start")
    scenario.lossy = lambda: True
    scenario.run(seconds=1.9)
    assert not scenario.results()
    scenario.run(seconds=0.2)
    assert scenario.kinds() == ["ok"]


def test_a_lost_call_request_is_repeated_with_the_same_id() -> None:
    scenario, _ = scenario_at("call")
    scenario.lossy = lambda: True
    scenario.step(scenario.run_to("call"))
    scenario.lossy = lambda: False
    scenario.run(seconds=1)
    assert scenario.kinds() == ["ok"]
    assert list(scenario.invariants.starts) == [f"{scenario.results()[0].tool_call_id}-1"]


def test_a_busy_runner_gets_the_request_again() -> None:
    scenario = Scenario()
    scenario.start(Plan((calls(*[CallPlan(lasts_s=1)] * 4),)))
    scenario.run(seconds=5)
    assert scenario.situations["runner: busy"] > 0
    assert scenario.kinds() == ["ok"] * 4


def test_a_call_ends_as_unavailable_after_75_seconds_without_a_runner() -> None:
    scenario = Scenario()
    for runner in scenario.runners.values():
        scenario.crash(runner)
    scenario.pass_time(3)
    scenario.start(EFFECT)
    scenario.run(seconds=74)
    assert not scenario.results()
    scenario.run(seconds=2)
    assert scenario.kinds() == ["unavailable"]
    assert scenario.outcomes() == ["completed"]


def test_time_at_a_busy_runner_does_not_count_as_time_without_a_runner() -> None:
    """Its runner was present all the time; the 75 s count from the loss of the runner."""
    scenario = Scenario()
    scenario.start(Plan((calls(*[CallPlan(lasts_s=50)] * 7),)))
    scenario.run(seconds=90)
    scenario.crash(home(scenario))
    scenario.run(seconds=200)
    assert sorted(scenario.kinds()) == ["ok"] * 4 + ["unknown_outcome"] * 3
    assert scenario.situations["runner: next attempt elsewhere"] == 1


def test_a_runner_that_refuses_a_call_ends_it() -> None:
    scenario, _ = scenario_at("call")
    scenario.unfit |= set(scenario.runners)
    scenario.run(seconds=3)
    assert scenario.kinds() == ["unavailable"]


# -- lost runners ------------------------------------------------------------------------------------------


def test_an_unstarted_call_of_a_lost_runner_is_executed_only_elsewhere() -> None:
    """P2. The disconnected runner returns, and the request is still in its queue."""
    scenario, start = scenario_at("start")
    scenario.cut_off(start.process)
    start.process.paused = True
    scenario.run(seconds=5)
    assert scenario.kinds() == ["ok"]
    start.process.paused = False
    scenario.run()
    assert scenario.situations["runner: start refused to a disconnected one"] == 1
    assert scenario.executed() == 1
    scenario.end()


def test_a_started_call_of_a_lost_runner_has_an_unknown_outcome_and_is_not_repeated() -> None:
    """P2."""
    scenario, effect = scenario_at("effect ends")
    scenario.crash(effect.process)
    scenario.run(seconds=10)
    assert scenario.kinds() == ["unknown_outcome"]
    assert scenario.executed() == 1
    assert scenario.outcomes() == ["completed"]
    scenario.end()


def test_an_idempotent_call_of_a_lost_runner_is_repeated() -> None:
    scenario, effect = scenario_at("effect ends", Plan((calls("pure"),)))
    scenario.crash(effect.process)
    scenario.restart(effect.process)
    scenario.run(seconds=10)
    assert scenario.kinds() == ["ok"]
    assert scenario.executed() == 2
    scenario.end()


def test_slots_stay_while_a_disconnected_runner_may_hold_the_request() -> None:
    """P2. The first owner sent the call to a runner that is then disconnected, the second to its
    successor."""
    scenario, start = scenario_at("start")
    zombie = start.process
    scenario.cut_off(zombie)
    zombie.paused = True
    scenario.crash(scenario.agent)
    scenario.run(seconds=10)
    assert scenario.kinds() == ["ok"]
    zombie.paused = False
    scenario.run()
    assert scenario.executed() == 1
    assert scenario.situations["runner: start refused, started elsewhere"] == 1
    scenario.end()


def test_a_call_continues_at_the_next_attempt_after_its_owner_died() -> None:
    scenario, start = scenario_at("start")
    scenario.cut_off(start.process)
    start.process.paused = True
    scenario.crash_at(scenario.run_to("void", seconds=5), done=True)
    scenario.run(seconds=10)
    assert scenario.kinds() == ["ok"]
    assert list(scenario.invariants.starts) == [f"{scenario.results()[0].tool_call_id}-2"]
    scenario.end()


def test_a_void_before_the_next_attempt_does_not_end_the_call_after_a_takeover() -> None:
    """P2, P4. The second attempt runs while its owner is disconnected; the next owner cancels the run."""
    scenario = Scenario()
    scenario.start(HANGS)
    start = scenario.run_to("start")
    scenario.cut_off(start.process)
    start.process.paused = True
    scenario.run_to("effect", seconds=5)
    scenario.crash(scenario.agent)
    scenario.cancel(scenario.open_run.run_id)
    scenario.run(seconds=10)
    (result,) = scenario.results()
    assert (result.error_kind, result.runner) == ("cancelled", home(scenario).name)
    assert scenario.executed() == 1
    scenario.end()


@pytest.mark.parametrize("moved", [False, True])
def test_a_fenced_owner_cannot_restart_a_call_that_has_ended(moved: bool) -> None:
    """P2, P4. The owner is disconnected before or after it voids the attempt. The next owner ends the
    call.
    """
    scenario = Scenario()
    scenario.start(EFFECT)
    start = scenario.run_to("start")
    scenario.cut_off(start.process)
    start.process.paused = True
    if moved:
        scenario.step(scenario.run_to("void", seconds=5))
        scenario.run_to("call")
    else:
        scenario.run_to("void", seconds=5)
    scenario.agent.paused = True
    scenario.cancel(scenario.open_run.run_id)
    scenario.run()
    scenario.redeliver(scenario.work(), scenario.other)
    scenario.run(seconds=5)
    assert scenario.outcomes() == ["cancelled"]
    scenario.agent.paused = False
    start.process.paused = False
    scenario.run(seconds=100)
    assert scenario.executed() == 0
    assert scenario.situations["owner: fenced"] == 1
    scenario.end()


def test_a_runner_without_a_lease_starts_nothing_and_accepts_the_call_with_a_new_one() -> None:
    scenario, queued = scenario_at("queued")
    queued.process.lease_lost = True
    scenario.run(seconds=1)
    assert scenario.executed() == 0
    queued.process.lease_lost = False
    scenario.run(seconds=3)
    assert scenario.kinds() == ["ok"]
    scenario.end()


def test_a_runner_accepts_a_call_again_after_its_start_could_not_be_stored() -> None:
    scenario, start = scenario_at("start")
    scenario.fail(start, done=False)
    scenario.run(seconds=3)
    assert scenario.kinds() == ["ok"]
    scenario.end()


def test_a_start_without_an_acknowledgement_is_not_executed() -> None:
    """P2. The runner cannot distinguish such a start from the start of another process."""
    scenario, start = scenario_at("start")
    scenario.fail(start, done=True)
    scenario.run(seconds=100)
    assert scenario.kinds() == ["unknown_outcome"]
    assert scenario.executed() == 0


# -- calls that hang ---------------------------------------------------------------------------------------


def test_the_owner_cancels_a_call_that_exceeds_its_timeout() -> None:
    scenario, _ = scenario_at("effect", HANGS)
    scenario.run(seconds=64)
    assert not scenario.results()
    scenario.run(seconds=3)
    (result,) = scenario.results()
    assert (result.error_kind, result.runner) == ("cancelled", home(scenario).name)
    scenario.end()


def test_a_cancelled_call_leaves_its_start_and_not_its_result() -> None:
    """P2. Results are large; the start alone prevents another one."""
    scenario, _ = scenario_at("effect", HANGS)
    scenario.cancel(scenario.open_run.run_id)
    scenario.run(seconds=10)
    (result,) = scenario.results()
    assert result.runner == home(scenario).name
    assert list(scenario.broker.started) == [f"{result.tool_call_id}-1"]
    assert not scenario.broker.finished
    scenario.end()


def test_a_declared_result_stays_so_that_the_late_result_of_the_runner_is_recognised() -> None:
    """P2."""
    scenario, _ = scenario_at("effect", HANGS)
    scenario.lossy = lambda: True
    scenario.cancel(scenario.open_run.run_id)
    scenario.run(seconds=10)
    assert scenario.kinds() == ["unknown_outcome"]
    assert list(scenario.broker.finished) == list(scenario.broker.started)


def test_a_cancelled_call_that_does_not_end_has_an_unknown_outcome_after_two_seconds() -> None:
    """P7."""
    scenario, _ = scenario_at("effect", HANGS)
    scenario.run()
    scenario.lossy = lambda: True
    scenario.cancel(scenario.open_run.run_id)
    scenario.run(seconds=3.9)
    assert not scenario.results()
    scenario.run(seconds=1)
    assert scenario.kinds() == ["unknown_outcome"]
    assert scenario.outcomes() == ["cancelled"]


def test_an_idempotent_call_is_cancelled_too() -> None:
    """P7."""
    scenario, _ = scenario_at("effect", Plan((calls(CallPlan("pure", hangs=True)),)))
    scenario.run()
    scenario.cancel(scenario.open_run.run_id)
    scenario.run()
    assert home(scenario).cancelled
    assert scenario.outcomes() == ["cancelled"]
    scenario.end()


# -- the runner's own checks -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "answer"),
    [({"runner_epoch": 9}, "wrong_epoch"), ({"digest": "0" * 64}, "refused"), ({}, "accepted")],
)
def test_a_runner_checks_epoch_and_digest(change: dict[str, object], answer: str) -> None:
    scenario, _ = scenario_at("call")
    runner = home(scenario)
    assert runner.calls is not None
    call = next(iter(scenario.invariants.calls.values()))
    request = CallRequest(
        tenant="acme",
        conversation_id="c",
        run_id=scenario.open_run.run_id,
        attempt=f"{call.id}-1",
        call=call,
        digest=call.digest,
        runner_epoch=runner.generation,
        deadline=scenario.now,
        left_s=0,
    )
    assert runner.calls.admit(request.model_copy(update=change))[0].answer == answer


def test_a_late_call_request_returns_done() -> None:
    """P2. The slots are already deleted; the runner itself remembers the attempt."""
    scenario, call = scenario_at("call")
    assert call.op is not None
    late = call.op.do
    scenario.run(seconds=5)
    assert scenario.outcomes() == ["completed"]
    reply = late()
    assert reply.answer == "done"
    assert scenario.executed() == 1


# -- large results -------------------------------------------------------------------------------------------

WIDE = "水"
"""A character that takes three bytes in the log."""
LONG = WIDE * 87_000
"""The maximum length of a stored result."""
RESULTS = {
    "five results": ((CallPlan(),) * 5, LONG),
    "a result that is the final reply": ((*(CallPlan(),) * 4, CallPlan(terminate=True)), LONG),
    "a final reply that doubles when encoded": ((CallPlan(), CallPlan(terminate=True)), '"\\' * 65_400),
}


@pytest.mark.parametrize(("planned", "output"), RESULTS.values(), ids=RESULTS)
@pytest.mark.parametrize("queued", [False, True], ids=["alone", "before a queued long message"])
def test_large_results_end_their_run_in_as_many_commits_as_they_need(
    planned: tuple[CallPlan, ...], output: str, queued: bool
) -> None:
    """P1: a result that fits no message would be retried without end."""
    scenario = Scenario()
    scenario.output = output
    for runner in scenario.runners.values():
        assert runner.calls is not None
        runner.calls.capacity = Shares(2 * len(planned))
    scenario.start(Plan((Reply(planned),)))
    if queued:
        scenario.client_starts("c", "long", Plan(), LONG)
    scenario.run_until(
        lambda: len([task for task in scenario.ready if task.name == "perform"]) == len(planned)
    )
    scenario.agent.paused = True
    scenario.run(seconds=1)
    scenario.agent.paused = False
    scenario.run(seconds=30)
    assert scenario.outcomes() == ["completed"] * (1 + queued)
    assert scenario.kinds() == ["ok"] * len(planned)
    scenario.end()


def test_a_result_that_is_nested_too_deep_is_replaced() -> None:
    content: JsonObject = {}
    for _ in range(MAX_DEPTH):
        content = {"a": content}
    stored = storable(ToolResult(tool_call_id="k", content=content, runner="r1"))
    assert (stored.error_kind, stored.runner) == ("output_limit", "r1")
