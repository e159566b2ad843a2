"""The decided approval requests: who decided which calls, and when.

The audit trail has the entries, and the logs have the calls, which a deletion removes with their log.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Annotated, cast

from fastapi import Query

from banksman.contracts.administration import AuditEntry, AuditInterface, DecidedCall, DecisionDetails
from banksman.contracts.approvals import (
    ApprovalItem,
    ApprovalOutcome,
    ApprovalRequested,
    Coverage,
    CoveredBy,
    Preview,
    Remember,
)
from banksman.contracts.errors import BanksmanError
from banksman.contracts.visible import one_line
from banksman.contracts.wire import Stored, Timestamp
from banksman.gateway.audit.operations import Actor, After, AuditFilter, ListedEntry, Trail
from banksman.gateway.conversations.conversations import Conversations, read_all
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.declaration import Operations
from banksman.gateway.operation.parameters import CallerDep, provided
from banksman.runs.approval.policy import coverage

MAX_DECISIONS = 50
"""Maximum decisions of a page; each reads one commit."""
SEARCH_S = 1.0
"""Seconds in which a page searches for a text."""
MAX_LINE_CHARS = 200

Outcome = Annotated[ApprovalOutcome | None, Query(description="How the request ended.")]
Tool = Annotated[str | None, Query(max_length=200, description="A tool of which a call was decided.")]
Text = Annotated[
    str | None,
    Query(max_length=200, description="A text in the calls, the title, the name of a tool or of the user."),
]
Limit = Annotated[int, Query(ge=1, le=MAX_DECISIONS)]

operations = Operations("approvals")


class CallDecision(Stored):
    tool: str
    call: str
    """The command, path or address, otherwise the arguments: one line, cut at 200 characters. Empty if the
    log does not contain it any more."""
    decision: DecidedCall | None
    """Null if no user decided."""
    covers: Coverage | None
    """The further calls that a remembered decision decided too; null if it is not remembered, or the log does
    not contain the call any more."""
    begins: str | None
    """The first words of a command, if the decision covers every command that begins with them."""


class Decision(Stored):
    """A decided approval request."""

    id: int
    approval_id: str
    conversation_id: str
    run_id: str
    title: str
    """The title of the conversation; empty if it was deleted."""
    outcome: ApprovalOutcome
    by: str
    """The approver; `system` if no user decided."""
    first_by: str | None
    """The first of two approvers; if the request was not approved, no second one followed."""
    at: Timestamp
    interface: AuditInterface
    remember: Remember | None
    calls: tuple[CallDecision, ...]
    more: int
    """Number of further calls."""


class DecisionPage(Stored):
    """Decided approval requests, newest first."""

    items: tuple[Decision, ...]
    next: int | None
    """`after` of the next page; null at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted(AuditFilter):
    tool: str | None
    by: str | None
    """One of the approvers."""

    def matches(self, entry: AuditEntry) -> bool:
        tools = entry.details.get("tools")
        uses = self.tool is None or (isinstance(tools, list) and self.tool in tools)
        decided = self.by is None or self.by in (entry.actor, entry.details.get("first_by"))
        return uses and decided and AuditFilter.matches(self, entry)


@dataclass(frozen=True, slots=True)
class Decided:
    trail: Trail
    conversations: Conversations
    views: Views

    @operations.add("decision.list", "GET /context/decisions")
    async def list_decisions(
        self: Service,
        caller: CallerDep,
        after: After = None,
        limit: Limit = MAX_DECISIONS,
        outcome: Outcome = None,
        by: Actor = None,
        tool: Tool = None,
        text: Text = None,
        since: Timestamp | None = None,
        until: Timestamp | None = None,
    ) -> DecisionPage:
        """List who decided which calls, newest first. A page with fewer than `limit` may not be the last."""
        action = "approval" if outcome is None else f"approval.{outcome}"
        wanted = _Wanted(tenant=caller.tenant, action=action, since=since, until=until, tool=tool, by=by)
        searched = (text or "").casefold()
        stop = time.monotonic() + SEARCH_S
        items: list[Decision] = []
        while True:
            page = await self.trail.page(wanted, after=after, limit=limit - len(items))
            shown = [one for one in page.items if not self._hides(caller, one)]
            found = await read_all(partial(self._decision, caller.tenant), shown)
            items += (one for one in found if searched in _text(one))
            after = page.next
            if after is None or len(items) == limit or not searched or time.monotonic() > stop:
                return DecisionPage(items=tuple(items), next=after)

    def _hides(self, caller: Caller, entry: ListedEntry) -> bool:
        conversation_id = DecisionDetails.model_validate(entry.details).conversation_id
        return self.conversations.limited.hides(caller, conversation_id)

    async def _decision(self, tenant: str, entry: ListedEntry) -> Decision:
        details = DecisionDetails.model_validate(entry.details)
        title, items = await self._content(tenant, entry.target, details)
        return Decision(
            id=entry.id,
            approval_id=entry.target,
            outcome=cast(ApprovalOutcome, entry.action.partition(".")[2]),
            by=entry.actor,
            at=entry.ts,
            interface=entry.interface,
            title=title,
            calls=_calls(details, items),
            **details.model_dump(include={"conversation_id", "run_id", "first_by", "remember", "more"}),
        )

    async def _content(
        self, tenant: str, approval_id: str, details: DecisionDetails
    ) -> tuple[str, tuple[ApprovalItem, ...]]:
        """Return the title and the calls; nothing of a deleted or damaged log."""
        try:
            title = (await self.conversations.get(tenant, details.conversation_id)).title
            stored = await self.views.commit(tenant, details.conversation_id, details.commit)
        except BanksmanError:
            return "", ()
        events = stored.commit.events if stored else ()
        requests = (one.data for one in events if isinstance(one.data, ApprovalRequested))
        request = next((one for one in requests if one.approval_id == approval_id), None)
        return title, request.items if request else ()


Service = Annotated[Decided, provided(Decided)]


def _calls(details: DecisionDetails, items: tuple[ApprovalItem, ...]) -> tuple[CallDecision, ...]:
    shown = items[: len(details.tools)]
    return tuple(
        CallDecision(
            tool=tool,
            call=_line(item.preview) if item else "",
            decision=decision,
            covers=_covers(item, decision, by) if item and by else None,
            begins=item.begins if item and by == "begins" and decision != "edited" else None,
        )
        for tool, item, decision, by in zip_longest(details.tools, shown, details.decisions, details.covers)
    )


def _covers(item: ApprovalItem, decision: DecidedCall, by: CoveredBy) -> Coverage:
    # The list reads the commit of the request, which does not have the edited arguments.
    if decision == "edited" and by != "tool":
        return Coverage(by=by, words="the calls that are like the edited one")
    return coverage(item.name, item.arguments, by if by in ("begins", "tool") else None)


def _line(preview: Preview) -> str:
    return one_line(preview.subject or "")[:MAX_LINE_CHARS]


def _text(one: Decision) -> str:
    return "\n".join(
        (one.title, one.by, one.first_by or "", *(f"{call.tool} {call.call}" for call in one.calls))
    ).casefold()


async def build(base: Foundation) -> None:
    services = base.services
    services.add(Decided(services[Trail], services[Conversations], services[Views]))


FEATURE = Feature(operations, build)
