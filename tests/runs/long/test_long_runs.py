"""The terminal event of a run with very many calls still fits one message."""

from __future__ import annotations

import pytest

from banksman.contracts.events import RunFinished, TrackedCall
from banksman.deployment.declarations import MAX_MESSAGE_BYTES
from banksman.runs.outcome import MAX_TRACKED_BYTES, finished, outcome_calls
from tests.runs.long.test_histories import Log


def calls(count: int, chars: int) -> tuple[TrackedCall, ...]:
    return tuple(
        TrackedCall(
            tool="bash",
            params={"command": f"echo {number}"},
            result={"success": True, "stdout": "x" * chars, "exit_code": 0, "lines": ["y" * chars]},
            iteration=number + 1,
        )
        for number in range(count)
    )


def size(tracked: tuple[TrackedCall, ...]) -> int:
    return sum(len(call.model_dump_json()) for call in tracked)


def test_a_usual_run_reports_its_calls_in_full() -> None:
    tracked = calls(9, 10_000)
    assert outcome_calls(tracked) == tracked


@pytest.mark.parametrize(("count", "chars"), [(40, 10_000), (300, 10_000), (700, 10_000)])
def test_the_texts_of_many_calls_are_cut_and_no_call_is_missing(count: int, chars: int) -> None:
    reported = outcome_calls(calls(count, chars))
    assert [call.iteration for call in reported] == list(range(1, count + 1))
    assert size(reported) <= MAX_TRACKED_BYTES
    assert "characters left out" in str(reported[0].result["stdout"])
    assert reported[0].params == {"command": "echo 0"}


def test_the_newest_of_thousands_of_calls_are_reported() -> None:
    reported = outcome_calls(calls(20_000, 50))
    assert MAX_TRACKED_BYTES * 0.9 < size(reported) <= MAX_TRACKED_BYTES
    assert reported[-1].iteration == 20_000


def test_the_end_of_a_run_of_hundreds_of_calls_fits_one_message_and_refers_to_the_rest() -> None:
    """R102: the texts that do not fit are not lost."""
    log = Log()
    log.start("go")
    for _ in range(150):
        log.reply(None, ["z" * 10_000] * 2, 0)
    run = log.state.run
    assert run is not None
    end: RunFinished = finished(run, "completed", "done", None)

    assert len(end.model_dump_json()) < MAX_MESSAGE_BYTES / 2
    assert len(end.tool_calls) == 300
    assert (end.tool_calls[0].iteration, end.tool_calls[-1].iteration) == (0, 149)
    assert end.tool_calls_ref == f"/context/runs/{run.run_id}/tool-calls"


def test_an_outcome_with_all_of_its_calls_refers_to_nothing() -> None:
    log = Log()
    log.start("go")
    log.reply(None, ["short"], 0)
    assert log.state.run is not None

    assert finished(log.state.run, "completed", "done", None).tool_calls_ref is None
