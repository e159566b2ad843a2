"""Cancel, steer, limits and deletion, in every state of a run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from banksman.contracts.events import RunFinished, ToolCallCompleted
from banksman.contracts.messages import UserMessage
from banksman.contracts.work import RenameConversation
from tests.runs.plans import CallPlan, Plan, calls, needing_approval
from tests.runs.scenario import Scenario

EFFECT = Plan((calls("effect"),))
HANGS = Plan((calls(CallPlan(hangs=True)),))
NEEDS_APPROVAL = Plan((calls(needing_approval()),))


def queued(scenario: Scenario) -> str:
    scenario.start(NEEDS_APPROVAL, Plan())
    scenario.run()
    return scenario.state.queue[0].run_id


def calling_the_model(scenario: Scenario) -> str:
    scenario.start(Plan())
    scenario.run_to("model")
    scenario.agent.paused = True
    return scenario.open_run.run_id


def working(scenario: Scenario) -> str:
    scenario.start(HANGS)
    scenario.run()
    return scenario.open_run.run_id


def working_with_open_approval(scenario: Scenario) -> str:
    scenario.start(Plan((calls(CallPlan(hangs=True), needing_approval()),)))
    scenario.run()
    return scenario.open_run.run_id


def parked(scenario: Scenario) -> str:
    scenario.start(NEEDS_APPROVAL)
    scenario.run()
    return scenario.open_run.run_id


def decided(scenario: Scenario) -> str:
    parked(scenario)
    scenario.decide("approve")
    scenario.fail(scenario.run_to("publish work"), done=False)
    scenario.broker.queues["replies"].messages[0].not_before = scenario.now.replace(year=2030)
    return scenario.open_run.run_id


STATES = {
    "queued": queued,
    "during a model request": calling_the_model,
    "calls run": working,
    "calls run during an approval request": working_with_open_approval,
    "parked": parked,
    "decided, not resumed": decided,
}
states = pytest.mark.parametrize("state", STATES.values(), ids=STATES)
Reach = Callable[[Scenario], str]


def user_messages(scenario: Scenario) -> list[str]:
    return [str(message.content) for message in scenario.state.history if isinstance(message, UserMessage)]


def ended(scenario: Scenario, run_id: str) -> RunFinished:
    return scenario.invariants.ended[run_id]


def release(scenario: Scenario) -> None:
    """Let the task that the state blocks continue."""
    scenario.agent.paused = False
    for queue in scenario.broker.queues.values():
        for message in queue.open:
            message.not_before = None


# -- cancel ------------------------------------------------------------------------------------------------


@states
def test_a_run_is_cancelled_in_every_state_and_starts_nothing_afterwards(state: Reach) -> None:
    """P7, P1."""
    scenario = Scenario()
    run_id = state(scenario)
    scenario.cancel(run_id)
    scenario.run()
    before = scenario.executed()
    release(scenario)
    scenario.run(seconds=3)
    assert ended(scenario, run_id).status == "cancelled"
    assert scenario.executed() == before
    scenario.end()


@states
def test_a_second_cancel_changes_nothing(state: Reach) -> None:
    """P7."""
    scenario = Scenario()
    run_id = state(scenario)
    for request in ("one", "two"):
        scenario.cancel(run_id, request)
    scenario.run()
    release(scenario)
    scenario.run(seconds=3)
    assert scenario.story().count("run.cancel_requested") <= 1
    assert ended(scenario, run_id).status == "cancelled"
    scenario.end()


@pytest.mark.parametrize("letter", ["r", "語", "😀", "\0"])
def test_a_long_reason_cancels_a_thousand_open_calls(letter: str) -> None:
    """P7: the event of the run has the whole reason, the results of its calls have the beginning."""
    reason, count = letter * 2_000, 1_000
    scenario = Scenario()
    scenario.start(Plan((calls(*[needing_approval()] * count),)))
    scenario.run()
    run_id = scenario.open_run.run_id

    scenario.cancel(run_id, reason=reason)
    scenario.run()

    results = [body.result for body in scenario.bodies() if isinstance(body, ToolCallCompleted)]
    error = ended(scenario, run_id).error
    assert error is not None and error.message == reason
    assert len(results) == count
    assert all(reason.startswith(str(one.content["error"]).rstrip("…")) for one in results)
    scenario.end()


@pytest.mark.parametrize("label", ["append", "settle approval", "publish work", "nudge", "ack"])
@pytest.mark.parametrize("done", [False, True])
@states
def test_a_cancel_takes_effect_after_its_handler_dies(state: Reach, label: str, done: bool) -> None:
    """P1, P7."""
    scenario = Scenario()
    run_id = state(scenario)
    scenario.cancel(run_id)
    scenario.agent.paused = True
    signal = scenario.broker.queues["signals"].messages[0]
    task = scenario.redeliver(signal, scenario.other, "signals")
    while not task.over and task.op is not None and task.op.label != label:
        scenario.step(task)
    if not task.over:
        scenario.crash_at(task, done=done)
    scenario.restart(scenario.other)
    scenario.run()
    release(scenario)
    scenario.run(seconds=5)
    assert ended(scenario, run_id).status == "cancelled"
    scenario.end()


def closed_before_the_commit(scenario: Scenario) -> None:
    """Stop the handler between closing the approval request and its commit; another agent is notified."""
    held = scenario.run_to("settle approval")
    scenario.step(held)
    held.process.paused = True
    scenario.run()
    assert scenario.broker.queues["replies"].messages[0].acked
    held.process.paused = False


def test_an_approval_request_closed_by_a_cancel_does_not_resume_the_run() -> None:
    """P7. The reply in the slot precedes the cancel in the log; it is not a decision that resumes the run."""
    scenario = Scenario()
    run_id = parked(scenario)
    scenario.cancel(run_id)
    closed_before_the_commit(scenario)
    assert scenario.story().count("iteration.started") == 1
    scenario.run(seconds=5)
    assert ended(scenario, run_id).status == "cancelled"
    assert (scenario.kinds(), scenario.story().count("iteration.started")) == (["cancelled"], 1)
    scenario.end()


def test_a_run_whose_approval_request_was_superseded_continues_with_the_message() -> None:
    """The model is not called before the message that supersedes the approval request is in the log."""
    scenario = Scenario()
    parked(scenario)
    scenario.steer("c", 1, Plan())
    closed_before_the_commit(scenario)
    assert scenario.story().count("iteration.started") == 1
    scenario.run(seconds=5)
    assert (scenario.kinds(), scenario.outcomes()) == (["not_executed"], ["completed"])
    assert scenario.story().count("iteration.started") == 2
    scenario.end()


def test_a_run_cancelled_before_its_start_arrives_ends_with_the_start() -> None:
    scenario = Scenario()
    scenario.start(EFFECT)
    run_id = scenario.work().body.run_id
    scenario.cancel(run_id)
    scenario.redeliver(scenario.broker.queues["signals"].messages[0], scenario.agent, "signals")
    scenario.run_until(lambda: scenario.broker.queues["signals"].messages[0].acked)
    scenario.run(seconds=5)
    assert scenario.story() == ["run.cancel_requested", "run.started", "run.finished"]
    assert scenario.executed() == 0
    scenario.end()


def test_a_run_cancelled_before_it_is_queued_never_starts() -> None:
    scenario = Scenario()
    scenario.start(NEEDS_APPROVAL)
    scenario.run()
    scenario.start(EFFECT)
    scenario.cancel(scenario.work(1).body.run_id)
    scenario.redeliver(scenario.broker.queues["signals"].messages[0], scenario.agent, "signals")
    scenario.run_until(lambda: scenario.broker.queues["signals"].messages[0].acked)
    scenario.run()
    assert scenario.commits()[-1] == ["run.queued", "run.finished"]
    assert not scenario.state.queue
    scenario.end()


# -- steer -------------------------------------------------------------------------------------------------


@states
def test_a_steer_takes_effect_exactly_once_in_every_state(state: Reach) -> None:
    scenario = Scenario()
    state(scenario)
    scenario.steer("c", 1, Plan())
    scenario.run()
    release(scenario)
    scenario.end()
    assert user_messages(scenario).count("and this") == 1


@states
def test_a_redelivered_steer_adds_nothing(state: Reach) -> None:
    scenario = Scenario()
    state(scenario)
    scenario.steer("c", 1, Plan())
    scenario.run()
    signal = scenario.broker.queues["signals"].messages[0]
    signal.acked = False
    release(scenario)
    scenario.end()
    assert user_messages(scenario).count("and this") == 1
    signal.acked = False
    scenario.end()
    assert user_messages(scenario).count("and this") == 1


def test_a_steer_supersedes_the_approval_request_of_a_parked_run() -> None:
    scenario = Scenario()
    parked(scenario)
    scenario.steer("c", 1, Plan())
    scenario.run(seconds=5)
    assert (scenario.kinds(), scenario.outcomes()) == (["not_executed"], ["completed"])
    assert user_messages(scenario) == ["go", "and this"]
    assert scenario.situations["approval: superseded"] == 1
    scenario.end()


def test_a_steer_withdraws_what_follows_the_call_that_waits() -> None:
    """R13: it may build on the call that no user approved. What precedes that call has run."""
    scenario = Scenario()
    scenario.start(Plan((calls("effect", needing_approval(), "effect", "pure"),)))
    scenario.run()
    assert scenario.executed() == 1
    scenario.steer("c", 1, Plan())
    scenario.run(seconds=5)
    assert scenario.kinds() == ["ok", "not_executed", "not_executed", "not_executed"]
    assert (scenario.executed(), scenario.outcomes()) == (1, ["completed"])
    scenario.end()


def test_a_redelivered_steer_does_not_withdraw_the_next_approval_request() -> None:
    scenario = Scenario()
    scenario.start(Plan((calls(needing_approval()), calls(needing_approval()))))
    scenario.run()
    scenario.steer("c", 1, Plan())
    scenario.run(seconds=5)
    assert scenario.open_run.waits
    scenario.broker.queues["signals"].messages[0].acked = False
    scenario.run()
    assert scenario.open_run.waits
    scenario.end()


def test_a_steer_before_the_final_commit_gets_a_reply() -> None:
    scenario = Scenario()
    calling_the_model(scenario)
    scenario.steer("c", 1, Plan())
    scenario.run()
    release(scenario)
    scenario.run()
    assert scenario.story().count("iteration.started") == 2
    assert scenario.outcomes() == ["completed"]
    scenario.end()


def test_a_steer_without_an_open_run_starts_a_run() -> None:
    scenario = Scenario()
    run_id = scenario.steer("c", 1, EFFECT)
    scenario.run(seconds=5)
    assert ended(scenario, run_id).status == "completed"
    assert scenario.executed() == 1
    scenario.end()


@pytest.mark.parametrize("done", [False, True])
def test_a_steer_is_either_a_run_or_a_message_of_an_open_run(done: bool) -> None:
    """Between its two deliveries another client starts a run."""
    scenario = Scenario()
    scenario.steer("c", 1, Plan())
    scenario.crash_at(scenario.run_to("append"), done=done)
    scenario.start(NEEDS_APPROVAL)
    scenario.end()
    assert user_messages(scenario).count("and this") == 1


def test_a_steer_in_the_last_iteration_starts_a_separate_run() -> None:
    """The open run has no model request left that could contain it."""
    scenario = Scenario()
    scenario.start(Plan((calls(CallPlan(hangs=True)),), max_iterations=1))
    scenario.run()
    run_id = scenario.steer("c", 1, Plan())
    scenario.run()
    assert scenario.state.queue[0].run_id == run_id
    scenario.cancel(scenario.open_run.run_id)
    scenario.end()
    assert ended(scenario, run_id).status == "completed"
    assert user_messages(scenario).count("and this") == 1


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("label", ["settle approval", "append", "publish work"])
def test_a_steer_during_the_last_approval_request_does_not_wait_for_the_decision(
    label: str, done: bool
) -> None:
    """This also holds if the handler of the steer dies at any step."""
    scenario = Scenario()
    scenario.start(Plan((calls(needing_approval()),), max_iterations=1))
    scenario.run()
    run_id = scenario.steer("c", 1, Plan())
    scenario.crash_at(scenario.run_to(label), done=done)
    scenario.end()
    assert [scenario.invariants.ended[one].status for one in scenario.invariants.ended] == [
        "max_iterations",
        "completed",
    ]
    assert ended(scenario, run_id).status == "completed"
    assert scenario.kinds()[0] == "not_executed"
    assert user_messages(scenario).count("and this") == 1


def test_a_steer_to_an_ending_run_is_queued_as_a_run() -> None:
    scenario = Scenario()
    working(scenario)
    scenario.lossy = lambda: True
    scenario.cancel(scenario.open_run.run_id)
    scenario.run()
    run_id = scenario.steer("c", 1, Plan())
    scenario.run()
    assert scenario.state.queue[0].run_id == run_id
    scenario.end()
    assert [finished.status for finished in scenario.invariants.ended.values()] == ["cancelled", "completed"]


# -- limits ------------------------------------------------------------------------------------------------


def test_run_times_out_at_its_time_limit() -> None:
    """P12."""
    scenario = Scenario()
    scenario.start(Plan(HANGS.replies, run_timeout_s=20))
    scenario.run(seconds=19)
    assert not scenario.outcomes()
    scenario.run(seconds=3)
    assert scenario.outcomes() == ["timed_out"]
    scenario.end()


def test_the_time_limit_does_not_include_waiting_for_a_user() -> None:
    scenario = Scenario()
    scenario.start(Plan(NEEDS_APPROVAL.replies, run_timeout_s=20))
    scenario.run()
    scenario.run(seconds=1_000)
    scenario.decide("approve")
    scenario.run(seconds=5)
    assert scenario.outcomes() == ["completed"]
    scenario.end()


def test_the_time_limit_includes_calls_during_an_open_approval_request() -> None:
    """Otherwise a call that hangs would occupy its owner until the approval request expires."""
    scenario = Scenario()
    scenario.start(Plan((calls(CallPlan("pure", hangs=True), needing_approval()),), run_timeout_s=20))
    scenario.run(seconds=25)
    assert scenario.outcomes() == ["timed_out"]
    scenario.end()


def test_a_run_ends_at_its_iteration_limit() -> None:
    """P12."""
    scenario = Scenario()
    scenario.start(Plan((calls("effect"),) * 5, max_iterations=3))
    scenario.run(seconds=20)
    assert scenario.outcomes() == ["max_iterations"]
    assert scenario.executed() == 3
    scenario.end()


def test_a_run_ends_at_its_token_limit() -> None:
    """P12."""
    scenario = Scenario()
    scenario.start(Plan((calls("effect"),) * 5, max_tokens=30))
    scenario.run(seconds=20)
    assert scenario.situations["end: failed token_limit"] == 1
    assert scenario.executed() == 2
    scenario.end()


# -- deletion ----------------------------------------------------------------------------------------------


@states
def test_a_deletion_ends_the_open_run_and_all_queued_runs(state: Reach) -> None:
    scenario = Scenario()
    run_id = state(scenario)
    scenario.delete("c")
    scenario.run()
    release(scenario)
    scenario.run(seconds=10)
    assert ended(scenario, run_id).status == "cancelled"
    assert scenario.situations["delete: purged"] == 1
    assert not scenario.state.history
    scenario.end()


def test_a_conversation_is_deleted_whose_queued_starts_exceed_one_commit() -> None:
    """P7: each claim ends as many queued runs as fit."""
    scenario = Scenario()
    for _ in range(7):
        scenario.start(NEEDS_APPROVAL, content="x" * 250_000)
    scenario.run()
    assert len(scenario.state.queue) == 6

    scenario.delete("c")
    scenario.run(seconds=30)

    assert {end.status for end in scenario.invariants.ended.values()} == {"cancelled"}
    assert len(scenario.invariants.ended) == 7
    assert scenario.situations["delete: purged"] == 1
    scenario.end()


def test_a_start_after_the_purge_finds_the_conversation_deleted() -> None:
    """P1. An accepted run has a terminal event here too."""
    scenario = Scenario()
    parked(scenario)
    scenario.delete("c")
    scenario.run(seconds=10)
    scenario.start(EFFECT)
    scenario.run(seconds=10)
    assert scenario.outcomes() == ["cancelled"]
    assert scenario.executed() == 0
    scenario.end()


@pytest.mark.parametrize("late", ["start", "rename"])
def test_a_message_between_tombstone_and_purge_does_not_restore_the_conversation(
    late: str,
) -> None:
    """P1."""
    scenario = Scenario()
    parked(scenario)
    scenario.delete("c")
    purge = scenario.run_to("purge", seconds=10)
    if late == "start":
        scenario.client_starts("c", "late", EFFECT)
    else:
        named = RenameConversation(tenant="acme", conversation_id="c", title="Pumps", request_id="r1")
        scenario.signal("rename", named)
    purge.process.paused = True
    scenario.run(seconds=10)
    purge.process.paused = False
    scenario.run(seconds=10)
    assert scenario.situations["delete: purged behind what came late"] == 1
    scenario.start(EFFECT)
    scenario.run(seconds=10)
    assert set(scenario.outcomes()) == {"cancelled"}
    assert scenario.executed() == 0
    scenario.end()


def test_a_redelivered_rename_does_not_restore_an_older_title() -> None:
    scenario = Scenario()
    for number, title in enumerate(("Pumps", "Valves")):
        named = RenameConversation(tenant="acme", conversation_id="c", title=title, request_id=f"r{number}")
        scenario.signal(f"rename-{number}", named)
        scenario.run()
    scenario.broker.queues["signals"].messages[0].acked = False
    scenario.run()
    assert scenario.state.title == "Valves"
    assert scenario.story().count("conversation.updated") == 2
    scenario.end()


def test_a_title_is_set_in_every_state_of_the_run() -> None:
    scenario = Scenario()
    working(scenario)
    scenario.signal(
        "rename", RenameConversation(tenant="acme", conversation_id="c", title="Pumps", request_id="r1")
    )
    scenario.run()
    assert scenario.state.title == "Pumps"
    assert scenario.open_run.cancel is None
    scenario.end()
