"""A request starts one run, a run has one start, and a second run is queued."""

from __future__ import annotations

from tests.runs.plans import Plan, calls, needing_approval
from tests.runs.scenario import Scenario


def test_a_start_leads_to_one_claim_and_one_end() -> None:
    scenario = Scenario()
    scenario.start(Plan())
    scenario.run()
    assert scenario.commits() == [
        ["run.started", "iteration.started"],
        ["message.completed", "run.finished"],
    ]
    assert [commit.claim for _, commit in scenario.broker.logs["c"]] == [True, False]
    assert scenario.work().acked
    scenario.end()


def test_a_repeated_request_after_a_gateway_crash_starts_the_same_run() -> None:
    """P14."""
    scenario = Scenario()
    scenario.client_starts("c", "q", Plan())
    scenario.crash_at(scenario.run_to("publish start"), done=True)
    scenario.restart(scenario.gateway)
    scenario.client_starts("c", "q", Plan())
    scenario.run()
    assert scenario.outcomes() == ["completed"]
    assert scenario.invariants.accepted == set(scenario.invariants.ended)
    scenario.end()


def test_another_body_under_the_same_request_id_is_refused() -> None:
    """P14."""
    scenario = Scenario()
    scenario.client_starts("c", "q", Plan(), body="one")
    scenario.client_starts("c", "q", Plan(), body="two")
    scenario.run()
    assert scenario.outcomes() == ["completed"]
    assert scenario.situations["client: other body under the same request id"] == 1


def test_a_start_that_is_stored_twice_runs_once() -> None:
    scenario = Scenario()
    scenario.start(Plan((calls("effect"),)))
    scenario.broker.duplicate("work", 0)
    scenario.run(seconds=10)
    assert scenario.outcomes() == ["completed"]
    assert scenario.executed() == 1
    scenario.end()


def test_a_second_start_is_queued_and_claimed_by_the_commit_that_ends_the_first() -> None:
    scenario = Scenario()
    scenario.start(Plan())
    scenario.run_to("model")
    scenario.start(Plan())
    scenario.agent.paused = True
    scenario.run()
    scenario.agent.paused = False
    scenario.run()
    assert scenario.commits() == [
        ["run.started", "iteration.started"],
        ["run.queued"],
        ["message.completed", "run.finished", "run.started", "iteration.started"],
        ["message.completed", "run.finished"],
    ]
    scenario.end()


def test_a_queued_run_starts_when_the_parked_run_before_it_is_cancelled() -> None:
    scenario = Scenario()
    scenario.start(Plan((calls(needing_approval()),)), Plan())
    scenario.run()
    scenario.cancel(scenario.open_run.run_id)
    scenario.run()
    assert scenario.outcomes() == ["cancelled", "completed"]
    scenario.end()


def test_redelivery_wakes_the_queue_after_the_handler_died() -> None:
    scenario = Scenario()
    scenario.start(Plan((calls(needing_approval()),)), Plan())
    scenario.run()
    scenario.cancel(scenario.open_run.run_id)
    scenario.crash_at(scenario.run_to("publish work"), done=False)
    scenario.run()
    assert scenario.outcomes() == ["cancelled", "completed"]
    scenario.end()


def test_the_first_message_of_a_conversation_is_claimed_without_reading_its_log() -> None:
    scenario = Scenario()
    scenario.start(Plan(first=True))
    next_to_log = {"read log", "append"}
    scenario.run_until(lambda: bool(labels(scenario) & next_to_log))
    assert labels(scenario) & next_to_log == {"append"}
    scenario.run()
    assert scenario.outcomes() == ["completed"]
    scenario.end()


def test_a_message_that_is_wrongly_marked_as_the_first_is_queued_like_any_other() -> None:
    scenario = Scenario()
    scenario.start(Plan((calls("effect"),), first=True))
    scenario.run_to("model")
    scenario.agent.paused = True
    scenario.start(Plan(first=True))
    # The other agent knows nothing of the conversation.
    assert scenario.run_to("append").process is scenario.other
    scenario.agent.paused = False
    scenario.run(seconds=10)
    assert scenario.outcomes() == ["completed", "completed"]
    assert scenario.executed() == 1
    assert scenario.situations["owner: append met another commit"]
    scenario.end()


def labels(scenario: Scenario) -> set[str]:
    """Return the awaits at which tasks are."""
    return {task.op.label for task in scenario.ready if task.op is not None}
