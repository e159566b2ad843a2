"""Two approvals: a call runs only after two users approved exactly the same."""

from __future__ import annotations

from typing import Any

import pytest

from banksman.contracts.approvals import ApprovalEscalated, ApprovalResolved, ItemDecision
from banksman.contracts.work import ApprovalReply, EscalateApproval, FirstApproval
from banksman.gateway.approvals.decisions import SubmittedDecision
from banksman.gateway.conversations.views import sent_items
from banksman.runs.approval.requests import problem, sign
from tests.runs.plans import Plan, calls, needing_approval
from tests.runs.scenario import Scenario
from tests.runs.world import KEY, TENANT

NEEDS_TWO = Plan((calls(needing_approval()),), approvers=2)


def parked(plan: Plan = NEEDS_TWO) -> Scenario:
    scenario = Scenario()
    scenario.start(plan)
    scenario.run(seconds=5)
    assert scenario.open_run.waits
    return scenario


def approve(scenario: Scenario, user: str, **more: Any) -> None:
    scenario.decide(SubmittedDecision(by=user, all="approve", **more))
    scenario.run(seconds=5)


def resolved(scenario: Scenario) -> ApprovalResolved:
    return next(body for body in scenario.bodies() if isinstance(body, ApprovalResolved))


def test_a_call_runs_after_two_users_approved_it_and_not_before() -> None:
    """P3. The same user may repeat the approval, which changes nothing."""
    scenario = parked()
    for _ in range(2):
        approve(scenario, "ann")
        assert (scenario.executed(), scenario.open_run.waits) == (0, True)
    approve(scenario, "bob")
    assert (scenario.executed(), scenario.outcomes()) == (1, ["completed"])
    assert (resolved(scenario).first_by, resolved(scenario).by) == ("ann", "bob")
    scenario.end()


def test_the_second_user_approves_exactly_what_the_first_one_approved() -> None:
    scenario = parked()
    (item,) = scenario.approval_request.items
    edit = ItemDecision(tool_call_id=item.tool_call_id, decision="approve", arguments={"edited": True})
    scenario.decide(SubmittedDecision(by="ann", decisions=(edit,)))
    request = scenario.approval_request
    current = tuple(
        one.digest for one in sent_items(request.items, scenario.broker.firsts[request.approval_id])
    )
    approve(scenario, "bob")
    approve(scenario, "bob", digests=(item.digest,))
    approve(scenario, "bob", remember="run", digests=current)
    scenario.decide(SubmittedDecision(by="bob", decisions=(edit,)))
    scenario.run(seconds=5)
    assert (scenario.executed(), scenario.open_run.waits) == (0, True)
    approve(scenario, "bob", digests=current)
    assert (scenario.executed(), scenario.outcomes()) == (1, ["completed"])
    scenario.end()


@pytest.mark.parametrize("users", [["ann"], ["bob", "ann"], ["ann", "ann"]])
def test_one_rejection_ends_the_run(users: list[str]) -> None:
    """P4. Before or after an approval, also by the user who approved."""
    scenario = parked()
    *approvers, last = users
    for user in approvers:
        approve(scenario, user)
    scenario.decide(SubmittedDecision(by=last, all="reject"))
    scenario.run(seconds=5)
    assert (scenario.executed(), scenario.outcomes()) == (0, ["rejected"])
    scenario.end()


def test_two_users_who_approve_at_once_are_first_and_second() -> None:
    """P3. Both found no first approval; one of them repeats its decision, as a client does."""
    scenario = parked()
    approval_id = scenario.approval_request.approval_id
    for user in ("ann", "bob"):
        scenario.client_decides(approval_id, SubmittedDecision(by=user, all="approve"))
    scenario.run(seconds=5)
    assert (scenario.executed(), scenario.outcomes()) == (1, ["completed"])
    scenario.end()


@pytest.mark.parametrize("how", ["none", "same user", "unsigned", "other call", "reply as first"])
def test_a_signed_reply_without_a_valid_first_approval_is_dead_lettered(how: str) -> None:
    """P4. A gateway of an earlier version, or a copy of the first approval, approves nothing."""
    scenario = parked()
    approve(scenario, "ann")
    request = scenario.broker.requests[scenario.approval_request.approval_id]
    first = scenario.broker.firsts[request.approval_id]
    reply = confirmed(first, by="bob")
    assert problem(reply, request, KEY) is None
    match how:
        case "none":
            reply = sign(reply.model_copy(update={"first": None}), KEY)
        case "same user":
            reply = confirmed(first, by="ann")
        case "unsigned":
            reply = confirmed(first.model_copy(update={"by": "eve"}), by="bob")
        case "other call":
            other = sign(first.model_copy(update={"digests": ("another",)}), KEY)
            reply = confirmed(other, by="bob", digests=first.digests)
        case _:
            reply = confirmed(first.model_copy(update={"signature": reply.signature}), by="bob")
    scenario.broker.store_approval_reply(reply)
    scenario.run(seconds=5)
    assert (scenario.executed(), len(scenario.broker.dead), scenario.open_run.waits) == (0, 1, True)
    scenario.end()


def confirmed(first: FirstApproval, *, by: str, digests: tuple[str, ...] | None = None) -> ApprovalReply:
    """Return a reply that a gateway would sign for a second user."""
    shared = first.model_dump(exclude={"by", "signature", "answer_id", "digests"})
    return sign(
        ApprovalReply(**shared, by=by, outcome="approved", digests=digests or first.digests, first=first),
        KEY,
    )


def test_an_approval_request_goes_to_further_users_once() -> None:
    """P3. The signal of a user who set it aside, and a redelivered timer, change nothing afterwards."""
    scenario = parked(Plan((calls(needing_approval()),), escalates_s=60))
    request = scenario.approval_request
    scenario.run(seconds=61)
    signal = EscalateApproval(tenant=TENANT, conversation_id="c", approval_id=request.approval_id, by="bob")
    scenario.signal("aside", signal)
    scenario.run(seconds=5)
    escalated = [body for body in scenario.bodies() if isinstance(body, ApprovalEscalated)]
    assert [(one.users, one.by) for one in escalated] == [(("eve",), "bob")]
    approve(scenario, "eve")
    scenario.signal("late", signal)
    scenario.run(seconds=5)
    assert scenario.outcomes() == ["completed"]
    scenario.end()
