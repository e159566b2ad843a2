"""The scripted replies of the model in a run, and the commits that they become."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from banksman.agent.model.context import Size, cut
from banksman.contracts.approvals import ApprovalItem, Preview
from banksman.contracts.assistants import ApprovalTerms, Escalation, Limits, RunSettings, ToolSettings
from banksman.contracts.errors import ErrorCode
from banksman.contracts.events import (
    EventBody,
    HistoryCompacted,
    MessageCompleted,
    ProtocolRetry,
    ToolCallRequested,
)
from banksman.contracts.messages import AssistantMessage, Message, ToolMessage, Usage
from banksman.contracts.tools import ToolCall
from banksman.contracts.wire import JsonObject
from banksman.runs.approval.policy import approval_requested
from banksman.runs.outcome import Ending, finished
from banksman.runs.owner import Build
from banksman.runs.ports import Clock
from banksman.runs.state import Conversation, Run
from banksman.runs.steps import MAX_MALFORMED, malformed_ending


@dataclass(frozen=True)
class CallPlan:
    """One scripted call of a reply."""

    name: str = "effect"
    """The tool: `effect` must never run twice; `pure` is idempotent."""
    needs_approval: bool = False
    """Whether a user must approve it."""
    terminate: bool = False
    hangs: bool = False
    """Whether it exceeds its time-out."""
    lasts_s: float = 0.0
    unreadable: bool = False
    """Whether its arguments are malformed."""


@dataclass(frozen=True)
class Reply:
    """One reply of the model: calls, or the final reply without any."""

    calls: tuple[CallPlan, ...] = ()
    malformed: int = 0
    """The number of malformed replies before this one."""
    fails: bool = False
    """Whether the provider fails permanently."""


@dataclass(frozen=True)
class Plan:
    """The replies of the model in one run, followed by a final reply."""

    replies: tuple[Reply, ...] = ()
    max_iterations: int = 4
    feedback: bool = False
    """Whether a rejection is returned to the model instead of ending the run."""
    run_timeout_s: float = 300.0
    expires_s: float = 7 * 86_400.0
    """Seconds until an approval request expires."""
    final_summary: bool = False
    max_tokens: int | None = None
    approvers: Literal[1, 2] = 1
    """Users who must approve a call."""
    escalates_s: float | None = None
    """Seconds until an approval request goes to `eve`."""
    compacts: bool = False
    """Whether a summary replaces the older part of the history, once it is long enough."""
    first: bool = False
    """Whether its start is marked as the first message of its conversation, rightly or not."""

    def terms(self) -> ApprovalTerms:
        escalation = Escalation(after_s=self.escalates_s, users=("eve",)) if self.escalates_s else None
        return ApprovalTerms(approvers=self.approvers, escalation=escalation)

    def settings(self) -> RunSettings:
        return RunSettings(
            assistant_id="default",
            model="demo:demo",
            tools=ToolSettings(
                enabled=True,
                max_iterations=self.max_iterations,
                on_reject="feedback" if self.feedback else "abort",
                final_summary=self.final_summary,
            ),
            limits=Limits(run_timeout_s=self.run_timeout_s, max_tokens_per_run=self.max_tokens),
            approvals=self.terms(),
        )


def calls(*planned: CallPlan | str) -> Reply:
    """Return a reply with these calls; a string is the name of a plain call."""
    return Reply(tuple(CallPlan(call) if isinstance(call, str) else call for call in planned))


def needing_approval(name: str = "effect") -> CallPlan:
    """Return a call that needs approval."""
    return CallPlan(name, needs_approval=True)


def commit_of_reply(clock: Clock, plan: Plan, run: Run) -> Build:
    """Return the commit for the reply to the current model request of `run`."""
    reply = plan.replies[run.iteration - 1] if run.iteration <= len(plan.replies) else Reply()
    message_id = clock.new_id("m")
    if reply.fails:
        ending = Ending("failed", ErrorCode.PROVIDER_ERROR, "The model's API failed.", "not_executed")
        return lambda state: _unless_cancelled(state, (finished(run, "failed", ending.message, ending),))
    if reply.malformed > MAX_MALFORMED == run.malformed:
        ending = malformed_ending(run, reply.malformed)
        return lambda state: _unless_cancelled(state, (finished(run, "failed", ending.message, ending),))
    if run.malformed < reply.malformed:
        retry = ProtocolRetry(
            attempt=run.malformed + 1,
            max=MAX_MALFORMED,
            error="no JSON",
            message_id=message_id,
            reply="{",
            correction="Write one JSON object.",
        )
        return lambda state: _unless_cancelled(state, (retry,))
    made = tuple((ToolCall(**_call(clock, call)), call) for call in reply.calls)
    expires = clock.now() + timedelta(seconds=plan.expires_s)
    approval_id = clock.new_id("a")
    terms = plan.terms()
    usage = Usage(input_tokens=10, output_tokens=5)

    def build(state: Conversation) -> Iterable[EventBody]:
        items = tuple(
            _item(call)
            for call, planned in made
            if planned.needs_approval and not is_remembered(state, call.name)
        )
        message = MessageCompleted(
            message_id=message_id, role="assistant", content=None if made else "done", usage=usage
        )
        requested = [
            ToolCallRequested(call=call, arguments_error="not JSON" if planned.unreadable else None)
            for call, planned in made
        ]
        request = approval_requested(approval_id, items, terms, now=clock.now(), expires_at=expires)
        return _unless_cancelled(state, (message, *requested, *([request] if items else [])))

    return build


def compact(clock: Clock, state: Conversation, run: Run) -> Build | None:
    """Return a compaction as an agent would create it if each message had ten tokens."""
    size = Size(0, (10,) * len(state.history), 1.0)
    chosen = cut(state.history, size, limit=60, message=run.message, iterations=2)
    if chosen is None or size.total < 60:
        return None
    event = HistoryCompacted(
        message_id=clock.new_id("m"),
        how="summarised",
        summary="The summary.",
        kept_from=chosen.kept_from,
        tokens_before=size.total,
        tokens_after=0,
    )
    return lambda state: _unless_cancelled(state, (event,))


def _unless_cancelled(state: Conversation, bodies: tuple[EventBody, ...]) -> tuple[EventBody, ...]:
    return () if state.run is None or state.run.cancel is not None else bodies


def _call(clock: Clock, planned: CallPlan) -> dict[str, Any]:
    number = clock.new_id("k")
    arguments: JsonObject = {"n": number, "hangs": planned.hangs, "lasts_s": planned.lasts_s}
    return {
        "id": number,
        "name": planned.name,
        "arguments": arguments,
        "idempotent": planned.name == "pure",
        "requires_approval": planned.needs_approval,
        "terminate": planned.terminate,
    }


def _item(call: ToolCall) -> ApprovalItem:
    return ApprovalItem(
        tool_call_id=call.id,
        name=call.name,
        arguments=call.arguments,
        digest=call.digest,
        preview=Preview(kind="text", text=call.name),
    )


def is_remembered(state: Conversation, name: str) -> bool:
    """Return True if a user approved this tool for the run or the conversation."""
    held = (*(state.run.remembered if state.run else ()), *state.remembered)
    return any(
        item.name == name and decision.decision == "approve" and item.tool_call_id == decision.tool_call_id
        for approval in held
        if approval.resolved is not None
        for item in approval.request.items
        for decision in approval.resolved.decisions
    )


def calls_without_result(history: tuple[Message, ...]) -> list[str]:
    """Return the calls at the end of a history without a result.

    Raises:
        AssertionError: A provider would refuse the history: a result is missing, extra or out of order.
    """
    order: list[str] = []
    missing: list[str] = []
    for message in history:
        if isinstance(message, ToolMessage):
            call_id = message.result.tool_call_id
            assert call_id in missing, f"{call_id}: a result without its call"
            missing.remove(call_id)
            order = order[order.index(call_id) :]
        else:
            assert not missing, f"{missing} had no result before {message}"
            order = [c.id for c in message.calls] if isinstance(message, AssistantMessage) else []
            missing = list(order)
    return missing
