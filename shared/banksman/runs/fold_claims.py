"""Changes of a commit in addition to its events: the owner of the run, and how long it was driven. Pure."""

from __future__ import annotations

from banksman.contracts.events import Commit
from banksman.runs.state import CRASH_LOOP_CLAIMS, Conversation, Run, replace


def apply_owner(state: Conversation, commit: Commit) -> Conversation:
    """Return the state with the owner of a commit, the claims in a row and the clock of the open run."""
    return replace(
        state,
        run=_clocked(state, commit),
        owner=commit.owner,
        owner_epoch=commit.owner_epoch,
        claims_in_row=_claims_in_row(state, commit),
        claimants=_claimants(state, commit),
    )


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


def _clocked(state: Conversation, commit: Commit) -> Run | None:
    """Return the open run; the clock of its time limit stops while the run is parked."""
    run = state.run
    if run is None:
        return None
    if commit.claim and run.parked_at is not None:
        waited = max(0.0, (commit.ts - run.parked_at).total_seconds())
        return replace(run, parked_at=None, waited_s=run.waited_s + waited)
    if commit.owner is None and state.owner is not None:
        return replace(run, parked_at=commit.ts)
    return run
