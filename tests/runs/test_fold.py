"""The fold and the functions on it, over logs of random schedules: total, and independent of the split."""

from __future__ import annotations

from datetime import timedelta
from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from banksman.contracts.events import Commit, Owner
from banksman.contracts.work import ResumeRun
from banksman.runs.claim import Claim, TakeIn, delivered_work
from banksman.runs.fold import apply_commit
from banksman.runs.state import Conversation
from banksman.runs.steps import next_step
from tests.runs.broker import TENANT
from tests.runs.plans import Plan, calls_without_result
from tests.runs.random_schedule import RandomSchedule
from tests.runs.world import EPOCH, start_of

Log = list[tuple[int, Commit]]


@cache
def logs() -> tuple[Log, ...]:
    """Return the logs of random schedules."""
    found: list[Log] = []
    for seed in range(25):
        schedule = RandomSchedule(seed, actions=150)
        schedule.run()
        found += [
            log for log in schedule.world.broker.logs.values() if log[0][1].first_seq == 1 and len(log) > 3
        ]
    return tuple(found)


def fold(log: Log, state: Conversation | None = None) -> Conversation:
    state = state or Conversation(TENANT, "c0")
    for seq, commit in log:
        state = apply_commit(state, seq, commit)
    return state


which = st.integers(0, 10_000)
law = settings(max_examples=150, deadline=None)


def test_the_sample_contains_enough_logs() -> None:
    assert len(logs()) >= 20
    assert sum(len(log) for log in logs()) >= 500


@law
@given(which, which)
def test_a_log_folds_to_the_same_state_for_every_split(number: int, cut: int) -> None:
    log = logs()[number % len(logs())]
    cut %= len(log) + 1
    assert fold(log[cut:], fold(log[:cut])) == fold(log)


@law
@given(which, which)
def test_every_prefix_of_a_log_folds_and_numbers_its_events_without_gaps(number: int, cut: int) -> None:
    """P5."""
    log = logs()[number % len(logs())]
    prefix = log[: cut % (len(log) + 1)]
    state = fold(prefix)
    numbers = [event.seq for _, commit in prefix for event in commit.events]
    assert numbers == list(range(1, state.last_seq + 1))


@law
@given(which, which)
def test_the_history_of_every_prefix_lacks_the_results_of_open_calls_and_nothing_else(
    n: int, cut: int
) -> None:
    """P11."""
    log = logs()[n % len(logs())]
    state = fold(log[: cut % (len(log) + 1)])
    assert (
        calls_without_result(state.history) == [c.call.id for c in state.run.open_calls]
        if state.run
        else True
    )


@law
@given(which, which)
def test_a_stored_commit_equals_the_written_commit(number: int, which_commit: int) -> None:
    log = logs()[number % len(logs())]
    commit = log[which_commit % len(log)][1]
    assert Commit.model_validate_json(commit.model_dump_json(by_alias=True)) == commit


@law
@given(which, which, st.floats(-10, 10_000_000))
def test_every_state_has_a_next_step_at_any_moment(number: int, cut: int, later_s: float) -> None:
    """Clocks differ, and agents return after days."""
    log = logs()[number % len(logs())]
    prefix = log[: cut % (len(log) + 1)]
    now = (prefix[-1][1].ts if prefix else EPOCH) + timedelta(seconds=later_s)
    assert next_step(fold(prefix), now) == next_step(fold(prefix), now)


@law
@given(which, which, st.booleans())
def test_a_message_that_was_due_for_an_ack_never_claims_again(number: int, cut: int, resumes: bool) -> None:
    """A slow process may still ack it, which would leave the claim without a message."""
    log = logs()[number % len(logs())]
    states = [fold(log[: length + 1]) for length in range(len(log))]
    orphaned = [at for at, state in enumerate(states) if is_orphaned(state)]
    assume(orphaned or not resumes)
    born = orphaned[cut % len(orphaned)] if resumes else 0
    message = resume_of(states[born]) if resumes else start_of("c0", first_run(log), "m", Plan())
    claims = [isinstance(delivered_work(state, message, 10**9), Claim | TakeIn) for state in states[born:]]
    assert claims == sorted(claims, reverse=True)


def is_orphaned(state: Conversation) -> bool:
    """Return True if a process must publish a resume: the run can continue, and has no owner."""
    if state.run is None:
        return bool(state.queue)
    return state.owner is None and not state.run.waits


def resume_of(state: Conversation) -> ResumeRun:
    run_id = state.run.run_id if state.run else state.queue[0].run_id
    return ResumeRun(
        tenant=TENANT,
        conversation_id=state.conversation_id,
        run_id=run_id,
        cause="x",
        owner_epoch=state.owner_epoch,
    )


def first_run(log: Log) -> str:
    return next(event.run_id for _, commit in log for event in commit.events if event.run_id)


def test_a_commit_of_a_higher_version_is_refused_by_name() -> None:
    text = logs()[0][0][1].model_dump_json().replace('"v":1', '"v":2', 1)
    with pytest.raises(ValueError, match=r"\nv\n"):
        Commit.model_validate_json(text)


@pytest.mark.parametrize(
    ("agents", "after_reconnect", "counted"),
    [
        pytest.param("abcdef", False, 5, id="each claim of another process"),
        pytest.param("abc", True, 0, id="after reconnects to the broker"),
        pytest.param("abababab", False, 2, id="two processes that both live"),
        pytest.param("abacad", False, 4, id="three processes that died, and one that lives"),
    ],
)
def test_a_claim_counts_as_a_crash_unless_its_process_was_alive_all_the_time(
    agents: str, after_reconnect: bool, counted: int
) -> None:
    claims = [
        Commit(
            ts=EPOCH,
            id=f"e{number}",
            log_epoch="l1",
            first_seq=1,
            owner=Owner(agent=f"agent-{agent}", owner_epoch=number, work_seq=1),
            owner_epoch=number,
            claim=True,
            after_reconnect=after_reconnect,
        )
        for number, agent in enumerate(agents, 1)
    ]
    assert fold(list(enumerate(claims, 1))).claims_in_row == counted
