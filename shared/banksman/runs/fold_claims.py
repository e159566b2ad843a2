"""Changes of a commit in addition to its events: the owner of the run, and how long it was driven. Pure."""

from __future__ import annotations

from typing import Any

from banksman.contracts.events import Commit, RunFinished, RunStarted
from banksman.runs.state import CRASH_LOOP_CLAIMS, Conversation, Run, replace


def owner_changes(before: Conversation, folded: Conversation, commit: Commit) -> dict[str, Any]:
    """Return the fields of a state that a commit changes in addition to its events.

    These are the owner, the claims in a row and the clock of the open run.

    Args:
        before: The state that the commit follows.
        folded: `before` after the events of the commit.
        commit: The commit.
    """
    return {
        "run": _clocked(before, folded.run, commit),
        "owner": commit.owner,
        "owner_epoch": commit.owner_epoch,
        "claims_in_row": 0 if _ends_open_run(before, commit) else _claims_in_row(before, commit),
        "claimants": _claimants(before, commit),
    }


def _ends_open_run(before: Conversation, commit: Commit) -> bool:
    """Return whether the commit ends the open run, or a run that it started itself."""
    ended = {event.run_id for event in commit.events if isinstance(event.data, RunFinished)}
    if not ended:
        return False
    # Not a queued run that is cancelled: the open run may still be in a crash loop.
    started = {event.run_id for event in commit.events if isinstance(event.data, RunStarted)}
    return not ended.isdisjoint(started if before.run is None else started | {before.run.run_id})


def _claims_in_row(state: Conversation, commit: Commit) -> int:
    # The count stays at the limit until the run has ended. Otherwise the first commit that ends the run would
    # reset the count, and the next owner would continue a half-ended run.
    if state.claims_in_row >= CRASH_LOOP_CLAIMS:
        return state.claims_in_row
    if not commit.claim:
        return 0
    if commit.events:
        return 1
    # A process that claims a second time has not crashed. On an overloaded machine, agents without CPU time
    # for the length of a claim take over a run from each other.
    alive = commit.owner is not None and commit.owner.agent in state.claimants
    return state.claims_in_row + (not commit.after_reconnect and not alive)


def _claimants(state: Conversation, commit: Commit) -> frozenset[str]:
    if not commit.claim or commit.owner is None:
        return frozenset()
    agent = frozenset({commit.owner.agent})
    return agent if commit.events else state.claimants | agent


def _clocked(before: Conversation, run: Run | None, commit: Commit) -> Run | None:
    """Return the open run; the clock of its time limit stops while the run is parked."""
    if run is None or before.run is None or run.run_id != before.run.run_id:
        return run
    if commit.claim and run.parked_at is not None:
        waited = max(0.0, (commit.ts - run.parked_at).total_seconds())
        return replace(run, parked_at=None, waited_s=run.waited_s + waited)
    if commit.owner is None and before.owner is not None:
        return replace(run, parked_at=commit.ts)
    return run
