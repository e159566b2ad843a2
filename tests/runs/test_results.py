"""Invalid and oversized results, and calls that never get a result (P2, P4, P12)."""

from __future__ import annotations

from banksman.contracts.calls import CallFinished
from banksman.contracts.tools import ToolResult
from banksman.runs.call_attempt import MAX_LOST_RUNNERS
from banksman.runs.outcome import COMMIT_BYTES, RESULT_BYTES, batches, storable
from tests.runs.plans import Plan, calls, needing_approval
from tests.runs.scenario import Scenario

PURE = Plan((calls("pure"),))


def result(number: int, chars: int) -> ToolResult:
    return ToolResult(tool_call_id=f"k{number}", content={"success": True, "text": "x" * chars})


def test_a_repeatable_call_is_given_up_after_the_maximum_of_lost_runners() -> None:
    scenario = Scenario()
    scenario.start(PURE)
    for _ in range(MAX_LOST_RUNNERS):
        runner = scenario.run_to("effect ends", seconds=10).process
        scenario.crash(runner)
        # The runner receives the repeated request, and does not respond.
        scenario.run(seconds=2.5)
        scenario.restart(runner)
    scenario.run(seconds=100)
    assert scenario.kinds() == ["unavailable"]
    assert scenario.executed() == MAX_LOST_RUNNERS
    assert scenario.outcomes() == ["completed"]
    scenario.end()


def test_a_result_of_another_call_in_the_slot_is_rejected() -> None:
    """P2, P11. The slots are not freed while a runner may still start the call."""
    scenario = Scenario()
    scenario.start(Plan((calls("effect"),)))
    scenario.run_to("call")
    call_id = next(iter(scenario.invariants.calls))
    foreign = ToolResult(tool_call_id="of-another", content={"success": True})
    scenario.broker.store_result(CallFinished(conversation_id="c", attempt=f"{call_id}-1", result=foreign))
    scenario.run(seconds=100)
    assert scenario.kinds() == ["unknown_outcome"]
    assert scenario.outcomes() == ["completed"]
    scenario.end()


def test_an_approved_call_that_could_not_start_before_the_expiry_does_not_start() -> None:
    """P4. There is no runner until the approval has expired."""
    scenario = Scenario()
    scenario.start(Plan((calls(needing_approval()),), expires_s=10))
    scenario.run()
    for runner in tuple(scenario.runners.values()):
        scenario.crash(runner)
    scenario.pass_time(9)
    scenario.decide("approve")
    scenario.run(seconds=2)
    for runner in tuple(scenario.runners.values()):
        scenario.restart(runner)
    scenario.run(seconds=100)
    assert scenario.kinds() == ["not_executed"]
    assert scenario.executed() == 0
    scenario.end()


def test_results_that_do_not_fit_one_commit_go_into_several_in_order() -> None:
    """P1. Results of any number and length can be committed."""
    results = [result(number, RESULT_BYTES - 200) for number in range(7)]

    found = list(batches(results))

    assert [one for batch in found for one in batch] == results
    assert len(found) > 1
    assert all(sum(len(one.model_dump_json()) for one in batch) <= COMMIT_BYTES for batch in found)


def test_an_oversized_result_is_replaced_by_an_explanation() -> None:
    """P12. An executed call is never reported to the model as not executed."""
    short, long = result(1, 10), result(2, RESULT_BYTES)

    assert storable(short) is short
    assert (storable(long).error_kind, storable(long).tool_call_id) == ("output_limit", "k2")
    assert len(storable(long).model_dump_json()) <= RESULT_BYTES
