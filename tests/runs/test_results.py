"""Results that are not what they should be, and calls that never come to one (P2, P4, P12)."""

from __future__ import annotations

from banksman.contracts.calls import CallFinished
from banksman.contracts.tools import ToolResult
from banksman.runs.settle import COMMIT_BYTES, MOST_LOST_RUNNERS, RESULT_BYTES, batches, fitting
from tests.runs.plans import Plan, asking, calls
from tests.runs.scene import Scene

PURE = Plan((calls("pure"),))


def result(number: int, chars: int) -> ToolResult:
    return ToolResult(tool_call_id=f"k{number}", content={"success": True, "text": "x" * chars})


def test_a_call_that_may_be_repeated_is_given_up_when_as_many_runners_as_may_did_not_survive_it() -> None:
    scene = Scene()
    scene.start(PURE)
    for _ in range(MOST_LOST_RUNNERS):
        runner = scene.run_to("effect ends", seconds=10).process
        scene.crash(runner)
        # It is asked again meanwhile, and does not answer.
        scene.run(seconds=2.5)
        scene.restart(runner)
    scene.run(seconds=100)
    assert scene.kinds() == ["unavailable"]
    assert scene.executed() == MOST_LOST_RUNNERS
    assert scene.outcomes() == ["completed"]
    scene.end()


def test_the_result_of_another_call_in_a_slot_is_not_taken_for_this_ones() -> None:
    """P2, P11. Nor are the slots freed while a runner may still begin."""
    scene = Scene()
    scene.start(Plan((calls("effect"),)))
    scene.run_to("call")
    call_id = next(iter(scene.ledger.calls))
    foreign = ToolResult(tool_call_id="of-another", content={"success": True})
    scene.broker.put_result(CallFinished(conversation_id="c", attempt=f"{call_id}-1", result=foreign))
    scene.run(seconds=100)
    assert scene.kinds() == ["unknown_outcome"]
    assert scene.outcomes() == ["completed"]
    scene.end()


def test_what_was_approved_in_time_and_could_not_begin_in_time_does_not_begin() -> None:
    """P4. No runner is there until the approval has expired."""
    scene = Scene()
    scene.start(Plan((calls(asking()),), expires_s=10))
    scene.run()
    for runner in tuple(scene.runners.values()):
        scene.crash(runner)
    scene.pass_time(9)
    scene.decide("approve")
    scene.run(seconds=2)
    for runner in tuple(scene.runners.values()):
        scene.restart(runner)
    scene.run(seconds=100)
    assert scene.kinds() == ["not_executed"]
    assert scene.executed() == 0
    scene.end()


def test_results_that_do_not_fit_one_commit_go_into_several_in_their_order() -> None:
    """P1. However many come at once, and however long each is."""
    results = [result(number, RESULT_BYTES - 200) for number in range(7)]

    found = list(batches(results))

    assert [one for batch in found for one in batch] == results
    assert len(found) > 1
    assert all(sum(len(one.model_dump_json()) for one in batch) <= COMMIT_BYTES for batch in found)


def test_a_result_that_is_longer_than_may_be_kept_is_replaced_by_one_that_says_so() -> None:
    """P12. What was executed stays so: the model is not told that it was not."""
    short, long = result(1, 10), result(2, RESULT_BYTES)

    assert fitting(short) is short
    assert (fitting(long).error_kind, fitting(long).tool_call_id) == ("output_limit", "k2")
    assert len(fitting(long).model_dump_json()) <= RESULT_BYTES
