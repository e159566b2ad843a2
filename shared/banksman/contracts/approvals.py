"""Approval requests and input requests: their events, and the parts that stored requests and replies share.

An approval request lists calls that a user must allow. An input request describes a value.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from banksman.contracts.assistants import ApprovalTerms, OnReject
from banksman.contracts.ids import digest
from banksman.contracts.tools import NetworkPolicy
from banksman.contracts.wire import JsonObject, JsonValue, Stored, Timestamp, Token


class Preview(Stored):
    """The display form of a call, shown to the approver in addition to the exact arguments."""

    kind: Literal["command", "diff", "url", "text"]
    command: str | None = None
    url: str | None = None
    path: str | None = None
    old: str | None = None
    new: str | None = None
    text: str | None = None

    @property
    def subject(self) -> str | None:
        """What the call is about in one text: its command, address or path; None without one."""
        return self.command or self.url or self.path or self.text or None


CoveredBy = Literal["command", "path", "host", "arguments", "nothing", "begins", "tool"]
"""The part of a call that is compared; `nothing` if a user decides every such call."""


class Coverage(Stored):
    """The further calls that a decision applies to if it is remembered."""

    by: CoveredBy
    words: str
    """The same for people; the text of others in it has its invisible characters marked."""


class ApprovalItem(Stored):
    """One call of an approval request."""

    tool_call_id: Token
    name: str
    arguments: JsonObject
    digest: str
    exact: str | None = Field(default=None, exclude_if=lambda text: text is None)
    """The arguments as JSON text, if a client that reads numbers as doubles would show others."""
    editable: bool = True
    preview: Preview
    network: NetworkPolicy | None = Field(default=None, exclude_if=lambda policy: policy is None)
    """The hosts that the call may reach; see `ToolCall.network`."""
    covers: Coverage | None = Field(default=None, exclude_if=lambda covers: covers is None)
    """The calls that a remembered approval covers; None in requests of version 1.0."""
    begins: str | None = Field(default=None, exclude_if=lambda words: words is None)
    """The first words of a command, if a decision can cover every command that begins with them."""
    requested: JsonObject | None = Field(default=None, exclude_if=lambda requested: requested is None)
    """The requested arguments, if the first of two approvers edited them; `arguments` are the edited ones.
    Only in requests as they are sent to the second one."""


ApprovalOutcome = Literal["approved", "rejected", "mixed", "expired", "cancelled", "superseded"]
"""
approved    every call may run
rejected    no call may run
mixed       some calls may run
expired     no decision arrived in time
cancelled   the run was cancelled before a decision
superseded  the user sent another message instead
"""

Remember = Literal["run", "conversation"]
Covers = Literal["begins", "tool"]
"""
begins  every simple command that begins with the words `begins` of the call
tool    every call of the tool; only for the rest of the run
"""


class ItemDecision(Stored):
    """The decision about one call."""

    tool_call_id: Token
    decision: Literal["approve", "reject"]
    arguments: JsonObject | None = None
    """Edited arguments; None keeps the requested ones."""
    reason: str | None = Field(default=None, max_length=2000)
    covers: Covers | None = Field(default=None, exclude_if=lambda covers: covers is None)
    """The further calls that a remembered decision covers; None for those of the item's `covers`."""
    on_reject: OnReject | None = Field(default=None, exclude_if=lambda choice: choice is None)
    """What a rejection does to the run; None for what its assistant states."""


class ApprovedFirst(Stored):
    """The first of two approvals."""

    by: str
    decided_at: Timestamp
    decisions: tuple[ItemDecision, ...]
    remember: Remember | None


class ApprovalRequested(Stored):
    """Calls of one iteration wait for a user's decision."""

    type: Literal["approval.requested"] = "approval.requested"
    approval_id: Token
    expires_at: Timestamp
    items: tuple[ApprovalItem, ...]
    terms: ApprovalTerms | None = Field(default=None, exclude_if=lambda terms: terms is None)
    """The terms of the decision; None for one approver and no escalation."""
    escalates_at: Timestamp | None = Field(default=None, exclude_if=lambda moment: moment is None)
    """Time of escalation if no decision arrives before; None for no escalation."""
    on_reject: OnReject = Field(default="abort", exclude_if=lambda choice: choice == "abort")
    """What a rejection does to the run if it does not state it."""
    first: ApprovedFirst | None = Field(default=None, exclude_if=lambda first: first is None)
    """The first of two approvals: the second user approves the same calls, and for as long. Only in requests
    as they are sent to the second one."""


def sent_digest(
    call: str,
    decision: str = "approve",
    remember: Remember | None = None,
    covers: Covers | None = None,
    on_reject: OnReject | None = None,
) -> str:
    """Return the digest of an item as the second approver is sent it, from the digest of its call.

    It covers the first user's decision about the call, what a rejection does to the run, and for how long and
    for which calls the decision is remembered.
    """
    decided = (decision, remember, covers, on_reject)
    if decided == ("approve", None, None, None):
        return call
    return digest("\n".join([call, *map(str, decided)]).encode())


class ApprovalResolved(Stored):
    """The decision about an approval request, as stored in the stream APPROVALS."""

    type: Literal["approval.resolved"] = "approval.resolved"
    approval_id: Token
    outcome: ApprovalOutcome
    by: str
    """The approver's identity, or `system`."""
    decisions: tuple[ItemDecision, ...] = ()
    remember: Remember | None = None
    first_by: str | None = Field(default=None, exclude_if=lambda user: user is None)
    """The first approver if two users must approve; None for one approver."""


class ApprovalEscalated(Stored):
    """An approval request is escalated: no decision arrived in time, or a user set it aside."""

    type: Literal["approval.escalated"] = "approval.escalated"
    approval_id: Token
    users: tuple[str, ...]
    """The users that the request is escalated to; if empty, all approvers."""
    by: str
    """The user who set it aside; `system` if no decision arrived in time."""


class ApprovalForgotten(Stored):
    """A remembered decision applies to no further call."""

    type: Literal["approval.forgotten"] = "approval.forgotten"
    approval_id: Token
    """The approval request whose decision was remembered."""
    by: str


class InputRequested(Stored):
    """A workflow, or the server of a tool during its call, requests a value from the user."""

    type: Literal["input.requested"] = "input.requested"
    request_id: Token
    message: str
    schema_: JsonObject = Field(alias="schema")
    """JSON Schema of the value; the page shows a form for it."""
    tool_call_id: Token
    """The workflow's step that waits for the value, which becomes the step's result; or the call of a tool,
    which continues with the value."""
    expires_at: Timestamp
    server: str | None = Field(default=None, exclude_if=lambda server: server is None)
    """The MCP server that requests the value and receives it; None for a workflow."""
    attempt: int = Field(default=0, exclude_if=lambda attempt: attempt == 0)
    """The number of the attempt in which the server requested the value; 0 for a workflow."""


InputOutcome = Literal["provided", "declined", "expired", "cancelled"]
"""
provided   a user provided the value
declined   a user declined to provide a value
expired    no value arrived in time
cancelled  the run ended first
"""


class InputResolved(Stored):
    """The value that a user provided, or the reason why no value was provided."""

    type: Literal["input.resolved"] = "input.resolved"
    request_id: Token
    value: JsonValue
    by: str
    """The user's identity, or `system`."""
    outcome: InputOutcome = Field(default="provided", exclude_if=lambda outcome: outcome == "provided")
    """Omitted if a user provided the value."""
