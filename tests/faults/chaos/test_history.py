"""Tests of the history checker: one valid history, and invalid ones for each promise."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.history.checks import BACKLOG, CHECKS, breaches
from tests.support.history.folded import Folded
from tests.support.history.outcomes import needless_timeouts, unknown_outcomes
from tests.support.history.records import (
    Began,
    Calm,
    Cancel,
    Decide,
    Effect,
    Fault,
    Line,
    Outage,
    Recording,
    Seen,
    Send,
    Start,
    Violation,
    read,
)

NOON = 1_800_000_000.0
"""The time of the recording, in seconds since 1970."""


class Story:
    """A hand-written history: three runs of one conversation and a workflow's, read by two readers."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.time = 0.0
        self.seqs: dict[str, int] = {}

    def add(self, line: Line) -> None:
        self.time += 0.1
        self.lines.append(line.model_copy(update={"t": self.time}))

    def event(self, type: str, run_id: str | None = "c1.r1", **data: Any) -> None:
        """An event of conversation `c1` if it belongs to no run."""
        conversation_id = (run_id or "c1").partition(".")[0]
        seq = self.seqs[conversation_id] = self.seqs.get(conversation_id, 0) + 1
        for reader in ("ann", "bob"):
            self.add(
                Seen(
                    reader=reader,
                    subscription=1 if conversation_id == "c1" else 9,
                    after_seq=0,
                    conversation_id=conversation_id,
                    log_epoch="e1",
                    seq=seq,
                    type=type,
                    run_id=run_id,
                    ts=NOON + self.time,
                    digest=f"{conversation_id} d{seq}",
                    data=data,
                )
            )

    def effect(self, marker: str, execution: str) -> None:
        self.add(Effect(marker=marker, execution=execution, at=NOON + self.time))


def good() -> Story:
    """A run with an approved and edited call, a rejected run, and the runs below."""
    story = Story()
    for phase in ("invoke", "info", "invoke", "ok"):
        sent = Send(phase=phase, request_id="q1", conversation_id="c1")
        answered = {"run_id": "c1.r1", "message_id": "m1"} if phase == "ok" else {}
        story.add(sent.model_copy(update=answered))
    story.event("run.started", message_id="m1")
    for number in (1, 2):
        arguments = {"command": f"echo mark-{number} >> ledger"}
        story.event("tool_call.requested", tool_call_id=f"k{number}", name="bash", arguments=arguments)
    items = [{"tool_call_id": "k1"}, {"tool_call_id": "k2"}]
    story.event("approval.requested", approval_id="a1", items=items)
    story.add(Decide(phase="invoke", request_id="q2", approval_id="a1"))
    story.add(Decide(phase="ok", request_id="q2", approval_id="a1", outcome="approved"))
    story.add(
        Decide(phase="ok", request_id="q3", approval_id="a1", outcome="approved", already_resolved=True)
    )
    edited = {"tool_call_id": "k2", "decision": "approve", "arguments": {"command": "echo mark-2-edited"}}
    decisions = [{"tool_call_id": "k1", "decision": "approve"}, edited]
    story.event("approval.resolved", approval_id="a1", outcome="approved", decisions=decisions)
    story.effect("mark-1", "x1")
    story.effect("mark-2-edited", "x2")
    story.event("tool_call.completed", tool_call_id="k1", error_kind=None)
    story.event("tool_call.completed", tool_call_id="k2", error_kind=None)
    story.event("run.finished", status="completed")
    story.add(Send(phase="ok", request_id="q4", conversation_id="c1", run_id="c1.r2", message_id="m2"))
    story.event("run.started", "c1.r2", message_id="m2")
    arguments = {"command": "echo mark-3"}
    story.event("tool_call.requested", "c1.r2", tool_call_id="k3", name="bash", arguments=arguments)
    story.event("approval.requested", "c1.r2", approval_id="a2", items=[{"tool_call_id": "k3"}])
    story.add(Decide(phase="ok", request_id="q5", approval_id="a2", outcome="rejected"))
    story.event("approval.resolved", "c1.r2", approval_id="a2", outcome="rejected", decisions=[])
    story.event("tool_call.completed", "c1.r2", tool_call_id="k3", error_kind="rejected")
    story.add(Cancel(phase="ok", request_id="q6", run_id="c1.r2"))
    story.event("run.finished", "c1.r2", status="rejected")
    _remembered(story)
    _workflow(story)
    story.add(Calm())
    return story


def _remembered(story: Story) -> None:
    """A run with a decision remembered for the conversation; it is steered, and finally cancelled."""
    story.add(Send(phase="ok", request_id="q20", conversation_id="c1", run_id="c1.r3", message_id="m3"))
    story.event("run.started", "c1.r3", message_id="m3")
    for number in (4, 5):
        arguments = {"path": "notes.txt", "content": f"version {number}"}
        story.event("iteration.started", "c1.r3")
        story.event(
            "tool_call.requested", "c1.r3", tool_call_id=f"k{number}", name="write_file", arguments=arguments
        )
        if number == 4:
            story.event("approval.requested", "c1.r3", approval_id="a3", items=[{"tool_call_id": "k4"}])
            decided = [{"tool_call_id": "k4", "decision": "approve"}]
            story.event(
                "approval.resolved",
                "c1.r3",
                approval_id="a3",
                outcome="approved",
                decisions=decided,
                remember="conversation",
            )
        story.event("tool_call.completed", "c1.r3", tool_call_id=f"k{number}", error_kind=None)
    steered = Send(phase="ok", request_id="q21", conversation_id="c1", run_id="c1.r3", message_id="m4")
    story.add(steered.model_copy(update={"steers": True}))
    story.event("message.completed", "c1.r3", message_id="m4", role="user")
    story.add(Cancel(phase="ok", request_id="q22", run_id="c1.r3"))
    story.event("run.cancel_requested", "c1.r3")
    story.event("run.finished", "c1.r3", status="cancelled")


def _workflow(story: Story) -> None:
    """A workflow started in the conversation, and one with invalid parameters."""
    for phase in ("invoke", "info", "invoke", "ok"):
        requested = Start(phase=phase, request_id="q30", workflow="make", in_conversation="c1")
        answered = {"run_id": "w1.r1", "conversation_id": "w1"} if phase == "ok" else {}
        story.add(requested.model_copy(update=answered))
    story.event("workflow.linked", None, workflow_run_id="w1.r1")
    story.event("run.started", "w1.r1", message_id="m5")
    for number, path in enumerate(("README.md", "main.py"), start=1):
        story.event("workflow.progress", "w1.r1", step=number, total=2)
        arguments = {"path": path, "content": ""}
        story.event(
            "tool_call.requested", "w1.r1", tool_call_id=f"w{number}", name="write_file", arguments=arguments
        )
        story.event("tool_call.completed", "w1.r1", tool_call_id=f"w{number}", error_kind=None)
    story.event("run.finished", "w1.r1", status="completed")
    story.add(Start(phase="fail", request_id="q31", workflow="make", fits=False, problem="no such template"))


def seen(story: Story, type: str, number: int = 0) -> list[int]:
    """Return the lines of the n-th event of a type, one for each reader."""
    found = [i for i, line in enumerate(story.lines) if isinstance(line, Seen) and line.type == type]
    return found[2 * number : 2 * number + 2]


def change(story: Story, positions: list[int], **fields: Any) -> None:
    for position in positions:
        story.lines[position] = story.lines[position].model_copy(update=fields)


def never_ends(story: Story) -> None:
    """The terminal event of the last run is missing."""
    for position in reversed(seen(story, "run.finished", 1)):
        del story.lines[position]


def ends_twice(story: Story) -> None:
    story.event("run.finished", status="failed")


def accepted_and_unknown(story: Story) -> None:
    story.add(Send(phase="ok", request_id="q9", conversation_id="c1", run_id="c1.r9"))


def is_open(story: Story) -> None:
    story.event("run.started", "c1.r9", message_id="m9")


def goes_on(story: Story) -> None:
    story.event("message.completed", "c1.r1")


def acts_twice(story: Story) -> None:
    story.effect("mark-1", "x9")


def acts_though_rejected(story: Story) -> None:
    story.effect("mark-3", "x9")


def acts_with_replaced_arguments(story: Story) -> None:
    story.effect("mark-2", "x9")


def acts_though_not_executed(story: Story) -> None:
    change(
        story, seen(story, "tool_call.completed"), data={"tool_call_id": "k1", "error_kind": "not_executed"}
    )


def acts_though_expired(story: Story) -> None:
    data = {"approval_id": "a1", "outcome": "expired", "decisions": []}
    change(story, seen(story, "approval.resolved"), data=data)


def acts_out_of_nowhere(story: Story) -> None:
    story.effect("mark-unknown", "x9")


def succeeds_without_effect(story: Story) -> None:
    story.lines = [one for one in story.lines if not (isinstance(one, Effect) and one.marker == "mark-1")]


def _effect(story: Story) -> list[int]:
    return [i for i, line in enumerate(story.lines) if isinstance(line, Effect)][:1]


def acts_before_its_start(story: Story) -> None:
    change(story, _effect(story), at=NOON - 60)


def acts_before_its_recorded_start(story: Story) -> None:
    data = {"tool_call_id": "k1", "error_kind": None, "started_at": NOON + 30}
    change(story, seen(story, "tool_call.completed"), data=data)


def acts_after_the_end(story: Story) -> None:
    change(story, _effect(story), at=NOON + 60)


def has_two_results(story: Story) -> None:
    change(story, seen(story, "tool_call.completed", 1), data={"tool_call_id": "k1", "error_kind": None})


def has_no_result(story: Story) -> None:
    change(story, seen(story, "tool_call.completed", 1), type="message.completed", data={})


def has_a_result_without_a_call(story: Story) -> None:
    change(story, seen(story, "tool_call.completed", 2), data={"tool_call_id": "k9", "error_kind": None})


def skips_an_event(story: Story) -> None:
    del story.lines[seen(story, "tool_call.requested")[0]]


def begins_late(story: Story) -> None:
    for position in reversed(seen(story, "run.started")):
        del story.lines[position]


def skips_after_a_cut(story: Story) -> None:
    """A subscription that should resume after event 3 begins with event 5."""
    after = seen(story, "approval.resolved")[0]
    change(story, [after], subscription=2, after_seq=3)


def differs(story: Story) -> None:
    change(story, seen(story, "run.started")[1:], digest="other")


def has_two_epochs(story: Story) -> None:
    change(story, seen(story, "run.finished", 1)[1:], log_epoch="e2")


def loses_a_message(story: Story) -> None:
    story.add(Send(phase="ok", request_id="q9", conversation_id="c1", run_id="c1.r1", message_id="m9"))


def receives_a_message_twice(story: Story) -> None:
    """A steer of the open run also starts a run."""
    story.event("run.started", "c1.r4", message_id="m4")


def goes_on_though_cancelled(story: Story) -> None:
    change(story, seen(story, "run.finished", 2), type="iteration.started", data={})


def completes_though_cancelled(story: Story) -> None:
    change(story, seen(story, "run.finished", 2), data={"status": "completed"})


def requests_approval_again(story: Story) -> None:
    """In the next run of the conversation, for another content of the same file."""
    arguments = {"path": "notes.txt", "content": "another"}
    story.event("tool_call.requested", "c1.r5", tool_call_id="k9", name="write_file", arguments=arguments)
    story.event("approval.requested", "c1.r5", approval_id="a9", items=[{"tool_call_id": "k9"}])


def never_ends_its_workflow(story: Story) -> None:
    for position in reversed(seen(story, "run.finished", 3)):
        del story.lines[position]


def starts_two_workflow_runs(story: Story) -> None:
    story.add(Start(phase="ok", request_id="q30", workflow="make", run_id="w2.r1", conversation_id="w2"))


def shares_a_workflow_run(story: Story) -> None:
    story.add(Start(phase="ok", request_id="q39", workflow="make", run_id="w1.r1", conversation_id="w1"))


def starts_a_misfit(story: Story) -> None:
    wrong = Start(phase="ok", request_id="q31", workflow="make", fits=False, run_id="w1.r1")
    story.add(wrong.model_copy(update={"conversation_id": "w1"}))


def writes_a_file_again(story: Story) -> None:
    arguments = {"path": "README.md", "content": ""}
    story.event("tool_call.requested", "w1.r1", tool_call_id="w9", name="write_file", arguments=arguments)


def goes_back_a_step(story: Story) -> None:
    story.event("workflow.progress", "w1.r1", step=1, total=2)


def leaves_a_step_out(story: Story) -> None:
    change(story, seen(story, "workflow.progress", 1), data={"step": 1, "total": 2})


def leaves_no_link(story: Story) -> None:
    change(story, seen(story, "workflow.linked"), type="conversation.updated", data={})


def leaves_two_links(story: Story) -> None:
    story.event("workflow.linked", None, workflow_run_id="w1.r1")


def is_acked_otherwise(story: Story) -> None:
    story.add(
        Decide(phase="ok", request_id="q8", approval_id="a1", outcome="rejected", already_resolved=True)
    )


def decides_twice(story: Story) -> None:
    story.add(Decide(phase="ok", request_id="q8", approval_id="a1", outcome="approved"))


def forgets_a_decision(story: Story) -> None:
    story.add(Decide(phase="ok", request_id="q8", approval_id="a9", outcome="approved"))


def resolves_twice(story: Story) -> None:
    story.event("approval.resolved", "c1.r2", approval_id="a2", outcome="rejected", decisions=[])


def starts_two_runs(story: Story) -> None:
    story.add(Send(phase="ok", request_id="q1", conversation_id="c1", run_id="c1.r2"))


def shares_a_run(story: Story) -> None:
    story.add(Send(phase="ok", request_id="q9", conversation_id="c1", run_id="c1.r1"))


def ends_late(story: Story) -> None:
    change(story, seen(story, "run.finished", 1), t=1_000.0)


def with_backlog(*ended_s: float) -> Callable[[Story], None]:
    """Return a change to a history with a backlog, whose runs end these seconds after the faults."""

    def ends_one_after_another(story: Story) -> None:
        calm = next(i for i, line in enumerate(story.lines) if isinstance(line, Calm))
        change(story, [calm], waiting=BACKLOG)
        for number, after_s in enumerate(ended_s):
            change(story, seen(story, "run.finished", number), t=story.lines[calm].t + after_s)

    return ends_one_after_another


stands_still = with_backlog(50.0, 100.0, 165.0)


def never_calms(story: Story) -> None:
    story.lines = [line for line in story.lines if not isinstance(line, Calm)]


def breaks_a_rule(story: Story) -> None:
    story.add(Violation(text="an orphaned tool result"))


BREACHES: dict[str, tuple[Callable[[Story], None], ...]] = {
    "an_accepted_run_ends_exactly_once": (
        never_ends,
        ends_twice,
        accepted_and_unknown,
        never_ends_its_workflow,
    ),
    "every_run_has_ended": (is_open,),
    "nothing_follows_the_end_of_a_run": (goes_on,),
    "no_effect_happens_twice": (acts_twice,),
    "no_refused_call_has_an_effect": (
        acts_though_rejected,
        acts_with_replaced_arguments,
        acts_though_not_executed,
        acts_though_expired,
    ),
    "every_effect_belongs_to_a_call": (acts_out_of_nowhere, succeeds_without_effect),
    "effects_happen_between_start_and_end": (
        acts_before_its_start,
        acts_before_its_recorded_start,
        acts_after_the_end,
    ),
    "a_call_has_one_result": (has_two_results, has_no_result, has_a_result_without_a_call),
    "events_arrive_without_gaps": (skips_an_event, skips_after_a_cut),
    "logs_are_numbered_from_one": (begins_late,),
    "readers_agree": (differs, has_two_epochs),
    "the_first_decision_wins": (is_acked_otherwise, decides_twice, forgets_a_decision, resolves_twice),
    "a_remembered_decision_prevents_further_requests": (requests_approval_again,),
    "a_request_has_one_run": (
        starts_two_runs,
        shares_a_run,
        starts_two_workflow_runs,
        shares_a_workflow_run,
    ),
    "an_accepted_message_is_in_its_log_once": (loses_a_message, receives_a_message_twice),
    "a_cancelled_run_begins_no_further_action": (goes_on_though_cancelled, completes_though_cancelled),
    "invalid_parameters_start_no_workflow": (starts_a_misfit,),
    "a_workflow_executes_each_step_once": (writes_a_file_again, goes_back_a_step, leaves_a_step_out),
    "a_workflow_leaves_one_link": (leaves_no_link, leaves_two_links),
    "the_last_run_ends_in_time": (ends_late, never_calms, stands_still),
    "model_requests_follow_the_vendors_rules": (breaks_a_rule,),
}
CASES = [(name, broken) for name, cases in BREACHES.items() for broken in cases]


def test_a_correct_history_violates_no_check() -> None:
    assert breaches(Folded(good().lines)) == {}


@pytest.mark.parametrize(("name", "breach"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_a_history_that_violates_a_promise_is_detected(name: str, breach: Callable[[Story], None]) -> None:
    story = good()
    breach(story)
    assert name in breaches(Folded(story.lines))


def test_every_check_has_a_history_that_violates_it() -> None:
    assert {check.__name__ for check in CHECKS} == BREACHES.keys()


def test_a_backlog_may_take_its_time_while_its_runs_end_one_after_another() -> None:
    story = good()
    with_backlog(50.0, 100.0, 155.0)(story)
    assert breaches(Folded(story.lines)) == {}


def test_a_repeated_event_is_no_gap() -> None:
    """Delivery is at least once: a client drops repeated events."""
    story = good()
    again = [line for line in story.lines if isinstance(line, Seen) and line.seq in (4, 5)]
    story.lines += again
    assert breaches(Folded(story.lines)) == {}


def test_a_call_with_an_unknown_outcome_may_have_its_effect_late() -> None:
    story = good()
    data = {"tool_call_id": "k1", "error_kind": "unknown_outcome"}
    change(story, seen(story, "tool_call.completed"), data=data)
    acts_after_the_end(story)
    assert breaches(Folded(story.lines)) == {}


def interrupted(*faults: Line) -> Story:
    """A call with an unknown outcome, after these faults."""
    story = good()
    data = {"tool_call_id": "k1", "error_kind": "unknown_outcome", "error": "lost"}
    change(story, seen(story, "tool_call.completed"), data=data)
    for fault in faults:
        story.lines.insert(seen(story, "tool_call.completed")[0], fault)
    return story


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (Outage(target="nats", seconds=8.7), None),
        (Outage(target="nats", seconds=9.0), "nats was away for 9.0 s"),
        (Outage(target="tool-runner-2", seconds=9.0), "tool-runner-2 was away for 9.0 s"),
        (Outage(target="agent-1", seconds=20.0), None),
        (Fault(what="kill", target="nats"), None),
        (Fault(what="kill", target="tool-runner-1"), "kill tool-runner-1"),
    ],
)
def test_an_unknown_outcome_is_necessary_after_a_fault_that_ends_a_lease(
    fault: Line, cause: str | None
) -> None:
    history = Folded([Began(seed=7, at=NOON), *interrupted(fault).lines])
    [found] = unknown_outcomes(history)
    assert (found.call_id, found.tool, found.reason) == ("k1", "bash", "lost")
    assert found.cause == cause


@pytest.mark.parametrize(("away_s", "found"), [(5.0, ["c1.r1"]), (60.0, [])])
def test_a_run_reaches_its_time_limit_only_because_of_a_long_fault(away_s: float, found: list[str]) -> None:
    story = good()
    change(story, seen(story, "run.finished"), data={"status": "timed_out"})
    story.add(Outage(target="nats", seconds=away_s))
    assert needless_timeouts(Folded(story.lines)) == found


@pytest.mark.parametrize(("up_s", "cause"), [(0.5, "nats was away for 9.5 s"), (1.5, None)])
def test_outages_separated_by_a_short_return_count_as_one(up_s: float, cause: str | None) -> None:
    """A process reconnects within a second, if the broker stays."""
    story = interrupted()
    at = story.lines[seen(story, "tool_call.completed")[0]].t
    for end in (at - 4.5 - up_s, at):
        outage = Outage(target="nats", seconds=4.5).model_copy(update={"t": end})
        story.lines.insert(seen(story, "tool_call.completed")[0], outage)
    [found] = unknown_outcomes(Folded([Began(seed=7, at=NOON), *story.lines]))
    assert found.cause == cause


def _recorded(story: Story, file: Path) -> Path:
    with Recording(file, seed=7) as recording:
        for line in story.lines:
            recording.add(line)
    return file


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    story = good()
    lines = read(_recorded(story, tmp_path / "good.jsonl"))
    assert [line.model_copy(update={"t": 0}) for line in lines[1:]] == [
        line.model_copy(update={"t": 0}) for line in story.lines
    ]


def test_the_command_checks_a_file(tmp_path: Path) -> None:
    story = good()
    fine = _recorded(story, tmp_path / "good.jsonl")
    acts_twice(story)
    broken = _recorded(story, tmp_path / "broken.jsonl")
    command = [sys.executable, "-m", "tests.support.history"]
    assert subprocess.run([*command, str(fine)], capture_output=True).returncode == 0
    done = subprocess.run([*command, str(broken)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "mark-1 was executed 2 times" in done.stdout
