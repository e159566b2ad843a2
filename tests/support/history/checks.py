"""The promises, as checks of a recording. Each check yields one sentence per violation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise

from tests.support.history.folded import Call, Folded
from tests.support.history.records import Calm, Seen, Send, Start, Violation
from tests.support.history.user_requests import (
    a_cancelled_run_begins_no_further_action,
    a_remembered_decision_prevents_further_requests,
    a_workflow_executes_each_step_once,
    a_workflow_leaves_one_link,
    an_accepted_message_is_in_its_log_once,
    invalid_parameters_start_no_workflow,
)

Check = Callable[[Folded], Iterator[str]]

LAST_END_S = 120.0
"""Seconds from the end of the faults within which the last run must end, if there is no backlog."""
BACKLOG = 100
"""Minimum number of waiting runs that is a backlog. Users who get replies have at most 60 open runs."""
STANDSTILL_S = 60.0
"""Maximum seconds in which no run of a backlog ends."""
SKEW_S = 2.0
"""Seconds by which the clocks of the processes that record times may differ."""
NEVER_STARTED = frozenset({"rejected", "not_executed", "denied", "invalid_arguments", "unknown_tool"})
"""Error kinds of calls that had no effect."""


def an_accepted_run_ends_exactly_once(history: Folded) -> Iterator[str]:
    """An accepted run, of a model or of a workflow, has exactly one terminal event."""
    for run_id, sends in history.accepted.items():
        run = history.runs.get(run_id)
        if run is None or not run.ends:
            if not all(send.steers for send in sends):
                yield f"run {run_id} was accepted and never ended"
    for run_id in history.workflows:
        if run_id not in history.runs or not history.runs[run_id].ends:
            yield f"workflow run {run_id} was accepted and never ended"
    for run in history.runs.values():
        if len(run.ends) > 1:
            yield f"run {run.run_id} ended {len(run.ends)} times"


def every_run_has_ended(history: Folded) -> Iterator[str]:
    """Every run in a log has ended, including runs whose acceptance no client received."""
    for run in history.runs.values():
        if not run.ends:
            yield f"run {run.run_id} is open at the end"


def nothing_follows_the_end_of_a_run(history: Folded) -> Iterator[str]:
    """The terminal event is the last event of its run."""
    for run in history.runs.values():
        for event in run.after_end:
            yield f"run {run.run_id}: {event.type} {event.seq} follows its end"


def no_effect_happens_twice(history: Folded) -> Iterator[str]:
    """A call is executed at most once."""
    for marker, executions in history.effects.items():
        if len(executions) > 1:
            yield f"{marker} was executed {len(executions)} times"


def no_refused_call_has_an_effect(history: Folded) -> Iterator[str]:
    """A rejected, expired, cancelled, superseded, replaced or never started call has no effect."""
    for call in history.calls.values():
        why = call.refused_by or (call.error_kind if call.error_kind in NEVER_STARTED else None)
        forbidden = call.replaced_markers | (call.markers if why else frozenset[str]())
        for marker in forbidden & history.effects.keys():
            yield f"call {call.call_id} ({why or 'its arguments were replaced'}) had the effect {marker}"


def every_effect_belongs_to_a_call(history: Folded) -> Iterator[str]:
    """Every effect belongs to a call in a log, and every successful call has its effect."""
    known = {
        marker: call for call in history.calls.values() for marker in call.markers | call.replaced_markers
    }
    for marker in history.effects:
        if marker not in known:
            yield f"{marker} was executed, and no log has its call"
    for marker, call in known.items():
        succeeded = bool(call.results) and call.error_kind is None and marker in call.markers
        if succeeded and marker not in history.effects:
            yield f"call {call.call_id} succeeded without its effect {marker}"


def effects_happen_between_start_and_end(history: Folded) -> Iterator[str]:
    """A call starts before its effect, and its run ends after the effect, unless the outcome is unknown."""
    for call in history.calls.values():
        run = history.runs.get(call.run_id or "")
        for marker in call.markers & history.effects.keys():
            for effect in history.effects[marker]:
                if effect.at < _not_before(call) - SKEW_S:
                    yield f"{marker} was executed before call {call.call_id} was started"
                ended = run is not None and bool(run.ends) and effect.at > run.ends[0].ts + SKEW_S
                if ended and call.error_kind != "unknown_outcome":
                    yield f"{marker} was executed after the end of its run"


def a_call_has_one_result(history: Folded) -> Iterator[str]:
    """A call of an ended run has exactly one result, and no result exists without its call."""
    for call in history.calls.values():
        run = history.runs.get(call.run_id or "")
        if len(call.results) > 1:
            yield f"call {call.call_id} has {len(call.results)} results"
        if not call.results and run is not None and run.ends:
            yield f"call {call.call_id} has no result, and its run has ended"
    for log in history.logs.values():
        for event in log.values():
            if event.type == "tool_call.completed" and str(event.data["tool_call_id"]) not in history.calls:
                yield f"call {event.data['tool_call_id']} has a result and was never requested"


def events_arrive_without_gaps(history: Folded) -> Iterator[str]:
    """On each subscription, new events have consecutive numbers; repeats are allowed."""
    last: dict[tuple[str, int], int] = {}
    for seen in history.of(Seen):
        key = (seen.reader, seen.subscription)
        before = last.setdefault(key, seen.after_seq)
        if seen.seq > before + 1:
            yield f"{seen.reader} of {seen.conversation_id}: event {seen.seq} follows event {before}"
        last[key] = max(before, seen.seq)


def logs_are_numbered_from_one(history: Folded) -> Iterator[str]:
    """The events of a conversation are 1..n, over all readers."""
    for (conversation_id, epoch), log in history.logs.items():
        missing = [number for number in range(1, max(log) + 1) if number not in log]
        if missing:
            yield f"{conversation_id} ({epoch}) has no events {missing[:5]}"


def readers_agree(history: Folded) -> Iterator[str]:
    """All readers receive the same event under a number, and a conversation has one epoch."""
    epochs: Mapping[str, set[str]] = defaultdict(set)
    for seen in history.of(Seen):
        epochs[seen.conversation_id].add(seen.log_epoch)
        first = history.logs[seen.conversation_id, seen.log_epoch][seen.seq]
        if first.digest != seen.digest:
            yield f"{seen.conversation_id}: event {seen.seq} differs for {first.reader} and {seen.reader}"
    for conversation_id, found in epochs.items():
        if len(found) > 1:
            yield f"{conversation_id} has several epochs: {sorted(found)}"


def the_first_decision_wins(history: Folded) -> Iterator[str]:
    """Every reply to a decision names the outcome of the log, and one request decided it."""
    for approval in history.approvals.values():
        if len(approval.resolutions) > 1:
            yield f"approval {approval.approval_id} was resolved {len(approval.resolutions)} times"
    for approval_id, decisions in history.decisions.items():
        approval = history.approvals.get(approval_id)
        resolved = [event.data["outcome"] for event in approval.resolutions] if approval else []
        reported = {decision.outcome for decision in decisions}
        if len(reported | set(resolved)) > 1:
            outcomes = f"clients received {_words(reported)}, the log has {_words(resolved)}"
            yield f"approval {approval_id}: {outcomes}"
        if not resolved:
            yield f"approval {approval_id} was decided, and the log does not contain the decision"
        winners = {decision.request_id for decision in decisions if not decision.already_resolved}
        if len(winners) > 1:
            yield f"approval {approval_id}: {len(winners)} requests were reported as the deciding one"


def a_request_has_one_run(history: Folded) -> Iterator[str]:
    """Requests with equal ids start the same run, and requests with different ids start different runs."""
    runs: dict[str, set[str]] = defaultdict(set)
    for line in (*history.of(Send), *history.of(Start)):
        if line.run_id is not None:
            runs[line.request_id].add(line.run_id)
    for request_id, found in runs.items():
        if len(found) > 1:
            yield f"request {request_id} got the runs {sorted(found)}"
    for run_id, sends in history.accepted.items():
        requests = {send.request_id for send in sends if not send.steers}
        if len(requests) > 1:
            yield f"run {run_id} was returned to the requests {sorted(requests)}"
    for run_id, starts in history.workflows.items():
        requests = {start.request_id for start in starts}
        if len(requests) > 1:
            yield f"workflow run {run_id} was returned to the requests {sorted(requests)}"


def the_last_run_ends_in_time(history: Folded) -> Iterator[str]:
    """After the faults, the last run ends within two minutes; of a backlog, one ends at least each minute."""
    calm = next(iter(history.of(Calm)), None)
    if calm is None:
        yield "the recording does not contain the end of the faults"
        return
    ends = {run.run_id: run.ends[0].t for run in history.runs.values() if run.ends}
    if calm.waiting >= BACKLOG:
        for earlier, later in pairwise((calm.t, *sorted(t for t in ends.values() if t > calm.t))):
            if later > earlier + STANDSTILL_S:
                yield f"no run of a backlog of {calm.waiting} ended for {later - earlier:.0f} s"
        return
    for run_id, ended in ends.items():
        if ended > calm.t + LAST_END_S:
            yield f"run {run_id} ended {ended - calm.t:.0f} s after the last fault"


def model_requests_follow_the_vendors_rules(history: Folded) -> Iterator[str]:
    """No model request violated its vendor's rules: one result for each call, in order."""
    for violation in history.of(Violation):
        yield f"a model request was refused: {violation.text}"


CHECKS: tuple[Check, ...] = (
    an_accepted_run_ends_exactly_once,
    every_run_has_ended,
    nothing_follows_the_end_of_a_run,
    no_effect_happens_twice,
    no_refused_call_has_an_effect,
    every_effect_belongs_to_a_call,
    effects_happen_between_start_and_end,
    a_call_has_one_result,
    events_arrive_without_gaps,
    logs_are_numbered_from_one,
    readers_agree,
    the_first_decision_wins,
    a_remembered_decision_prevents_further_requests,
    a_request_has_one_run,
    an_accepted_message_is_in_its_log_once,
    a_cancelled_run_begins_no_further_action,
    invalid_parameters_start_no_workflow,
    a_workflow_executes_each_step_once,
    a_workflow_leaves_one_link,
    the_last_run_ends_in_time,
    model_requests_follow_the_vendors_rules,
)


def breaches(history: Folded) -> dict[str, list[str]]:
    """Return the violations in a recording by the name of the check; empty if no promise is broken."""
    found = {check.__name__: list(check(history)) for check in CHECKS}
    return {name: sentences for name, sentences in found.items() if sentences}


def _not_before(call: Call) -> float:
    """Return the earliest possible time of an effect: the recorded start, else the request."""
    started = call.results[0].data.get("started_at") if call.results else None
    return float(started) if isinstance(started, int | float) else call.requested.ts


def _words(outcomes: Iterable[object]) -> str:
    return ", ".join(sorted(str(one) for one in outcomes))
