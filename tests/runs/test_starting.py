"""Design 5.1 and 5.2: a request is one run, a run has one start, and one waits behind another."""

from __future__ import annotations

from tests.runs.plans import Plan, asking, calls
from tests.runs.scene import Scene


def test_a_start_is_one_claim_and_one_end() -> None:
    scene = Scene()
    scene.start(Plan())
    scene.run()
    assert scene.commits() == [
        ["run.started", "iteration.started"],
        ["message.completed", "run.finished"],
    ]
    assert [commit.claim for _, commit in scene.broker.logs["c"]] == [True, False]
    assert scene.work().acked
    scene.end()


def test_a_gateway_that_dies_before_its_answer_starts_the_same_run_when_the_client_repeats() -> None:
    """P14."""
    scene = Scene()
    scene.client_starts("c", "q", Plan())
    scene.crash_at(scene.run_to("publish start"), done=True)
    scene.restart(scene.gateway)
    scene.client_starts("c", "q", Plan())
    scene.run()
    assert scene.outcomes() == ["completed"]
    assert scene.ledger.accepted == set(scene.ledger.ended)
    scene.end()


def test_another_body_under_the_same_request_is_refused() -> None:
    """P14."""
    scene = Scene()
    scene.client_starts("c", "q", Plan(), body="one")
    scene.client_starts("c", "q", Plan(), body="two")
    scene.run()
    assert scene.outcomes() == ["completed"]
    assert scene.census["client: other body under the same request"] == 1


def test_a_start_that_is_stored_twice_runs_once() -> None:
    scene = Scene()
    scene.start(Plan((calls("effect"),)))
    scene.broker.duplicate("work", 0)
    scene.run(seconds=10)
    assert scene.outcomes() == ["completed"]
    assert scene.executed() == 1
    scene.end()


def test_a_second_start_waits_and_the_commit_that_ends_the_first_claims_it() -> None:
    scene = Scene()
    scene.start(Plan())
    scene.run_to("model")
    scene.start(Plan())
    scene.agent.paused = True
    scene.run()
    scene.agent.paused = False
    scene.run()
    assert scene.commits() == [
        ["run.started", "iteration.started"],
        ["run.queued"],
        ["message.completed", "run.finished", "run.started", "iteration.started"],
        ["message.completed", "run.finished"],
    ]
    scene.end()


def test_a_queued_run_goes_on_when_the_one_before_it_is_cancelled_while_parked() -> None:
    scene = Scene()
    scene.start(Plan((calls(asking()),)), Plan())
    scene.run()
    scene.cancel(scene.open_run.run_id)
    scene.run()
    assert scene.outcomes() == ["cancelled", "completed"]
    scene.end()


def test_a_handler_that_dies_before_it_wakes_the_queue_wakes_it_on_redelivery() -> None:
    scene = Scene()
    scene.start(Plan((calls(asking()),)), Plan())
    scene.run()
    scene.cancel(scene.open_run.run_id)
    scene.crash_at(scene.run_to("publish work"), done=False)
    scene.run()
    assert scene.outcomes() == ["cancelled", "completed"]
    scene.end()
