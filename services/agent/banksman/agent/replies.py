"""The events of a model's reply. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from banksman.agent.paid_replies import PaidReply, paid_events
from banksman.agent.protocols.base import Calls, Final, Malformed, Reading, RequestedCall
from banksman.contracts.assistants import Decision
from banksman.contracts.errors import BanksmanError, ErrorCode
from banksman.contracts.events import (
    EventBody,
    MessageCompleted,
    ProtocolRetry,
    ToolCallCompleted,
    ToolCallRequested,
)
from banksman.contracts.messages import Usage, text_of
from banksman.contracts.network import NetworkPolicy
from banksman.contracts.tools import ErrorKind, ToolCall, ToolDefinition, ToolResult, failed
from banksman.contracts.wire import JsonObject
from banksman.contracts.workspace_tools import NETWORK_TOOLS
from banksman.runs.approval.policy import (
    Pattern,
    approval_item,
    approval_requested,
    decide,
    hosts_fetched,
    remembered_decisions,
    treated,
)
from banksman.runs.outcome import Ending, finished
from banksman.runs.schema_checks.checker import ArgumentProblem
from banksman.runs.state import Conversation, Run
from banksman.runs.steps import MAX_MALFORMED
from banksman.runtime.redaction import redacted


@dataclass(frozen=True, slots=True)
class Reply:
    """A parsed reply with the data for its events. The object itself is the `Build` of its commit."""

    reading: Reading
    text: str
    """The text as the model wrote it."""
    message_id: str
    approval_id: str
    """The id of the approval request, for calls that need one."""
    requested_at: datetime
    """The time of the approval request."""
    expires_at: datetime
    call_ids: tuple[str, ...]
    """One id for each call."""
    usage: Usage
    model: str
    """The model that wrote the reply, as `provider:model`."""
    provider: str
    provider_state: JsonObject | None
    tools: Mapping[str, ToolDefinition]
    """The tools that may be called."""
    problems: Mapping[str, ArgumentProblem]
    """Why arguments do not fit the schema of their tool, by call id."""
    old_contents: Mapping[str, str]
    """The current contents of files that the calls would overwrite, by path."""
    approvals_full: str | None
    """Why the tenant may store no further approval request; None if it may."""

    @property
    def paid(self) -> PaidReply:
        """What the vendor charges for."""
        return PaidReply(self.message_id, self.model, self.provider, self.usage)

    def __call__(self, state: Conversation) -> tuple[EventBody, ...]:
        """Return the events of the reply; without its calls if the run was cancelled meanwhile."""
        run = state.run
        if run is None:
            return ()
        if run.cancel is not None:
            text = None if isinstance(self.reading, Malformed) else self.reading.text
            return paid_events(state, self.paid, text)
        match self.reading:
            case Final(text, finish_reason):
                return (_message(run, self, text).model_copy(update={"finish_reason": finish_reason}),)
            case Malformed() as malformed:
                return (_retry(run, self, malformed),)
            case Calls(text, calls):
                return _call_events(state, run, self, text, calls)
            case _:
                assert_never(self.reading)


def failure_events(state: Conversation, error: BanksmanError) -> tuple[EventBody, ...]:
    """Return the end of a run whose model request failed."""
    code = error.code if error.code != ErrorCode.INTERNAL else ErrorCode.PROVIDER_ERROR
    return end_events(state, Ending("failed", code, redacted(str(error)), "not_executed"))


def end_events(state: Conversation, ending: Ending) -> tuple[EventBody, ...]:
    """Return the end of a run without a further model request; nothing if it was cancelled meanwhile."""
    if state.run is None or state.run.cancel is not None:
        return ()
    return (finished(state.run, ending.status, ending.message, ending),)


def _message(run: Run, reply: Reply, text: str | None) -> MessageCompleted:
    return MessageCompleted(
        message_id=reply.message_id,
        role="assistant",
        content=text,
        finish_reason="tool_calls",
        model=reply.model,
        protocol=run.settings.tool_protocol,
        provider=reply.provider,
        provider_state=reply.provider_state,
        usage=reply.usage,
    )


def _retry(run: Run, reply: Reply, malformed: Malformed) -> ProtocolRetry:
    return ProtocolRetry(
        attempt=run.malformed + 1,
        max=MAX_MALFORMED,
        error=malformed.error,
        message_id=reply.message_id,
        reply=reply.text,
        correction=malformed.correction,
        model=reply.model,
        provider=reply.provider,
        provider_state=reply.provider_state,
        usage=reply.usage,
    )


def _call_events(
    state: Conversation, run: Run, reply: Reply, text: str | None, requested: tuple[RequestedCall, ...]
) -> tuple[EventBody, ...]:
    message = _message(run, reply, text)
    most = run.settings.limits.calls_per_reply
    policy = _CallPolicy.of(state, run, reply)
    numbered = list(zip(requested, reply.call_ids, strict=True))
    calls = [
        policy.check(one, _call(one, call_id, reply.tools, run.settings.tools.network))
        for one, call_id in numbered[:most]
    ]
    events: list[EventBody] = [
        ToolCallRequested(call=one.call, arguments_error=one.arguments_error) for one in calls
    ]
    events += [_over_limit(one, call_id, most) for one, call_id in numbered[most:]]
    items = tuple(
        approval_item(one.call, old_content=reply.old_contents.get(str(one.call.arguments.get("path"))))
        for one in calls
        if one.needs_approval
    )
    if items:
        now, expires_at = reply.requested_at, reply.expires_at
        terms = run.settings.approvals
        events.append(approval_requested(reply.approval_id, items, terms, now=now, expires_at=expires_at))
    events += [ToolCallCompleted(result=one.refusal) for one in calls if one.refusal is not None]
    return (message, *events)


def _over_limit(requested: RequestedCall, call_id: str, most: int) -> ToolCallRequested:
    """Return a call that is not executed, without its arguments: one commit must hold hundreds of calls."""
    return ToolCallRequested(
        call=ToolCall(id=call_id, name=requested.name, provider_call_id=requested.provider_call_id),
        arguments_error=f"a reply may request at most {most} calls.",
        over_limit=True,
    )


def _call(
    requested: RequestedCall,
    call_id: str,
    tools: Mapping[str, ToolDefinition],
    network: NetworkPolicy | None,
) -> ToolCall:
    tool = tools.get(requested.name)
    call = ToolCall(
        id=call_id,
        name=requested.name,
        arguments=requested.arguments or {},
        provider_call_id=requested.provider_call_id,
        terminate=requested.terminate or (tool is not None and tool.terminate),
        network=network if tool is not None and tool.name in NETWORK_TOOLS else None,
    )
    return call if tool is None else treated(call, tool)


@dataclass(frozen=True, slots=True)
class _CheckedCall:
    """A checked call."""

    call: ToolCall
    arguments_error: str | None
    """Why the arguments cannot be read; `runs.steps` gives such a call its result."""
    refusal: ToolResult | None
    """The result of a call that is not executed; None for a call that may be executed."""
    needs_approval: bool


@dataclass(frozen=True, slots=True)
class _CallPolicy:
    """Decides about the calls of one reply."""

    tools: Mapping[str, ToolDefinition]
    run: Run
    remembered: Mapping[Pattern, Decision]
    fetched_hosts: frozenset[str]
    problems: Mapping[str, ArgumentProblem]
    approvals_full: str | None

    @classmethod
    def of(cls, state: Conversation, run: Run, reply: Reply) -> _CallPolicy:
        remembered = remembered_decisions((*state.remembered, *run.remembered))
        return cls(
            reply.tools,
            run,
            remembered,
            hosts_fetched(state.history),
            reply.problems,
            reply.approvals_full,
        )

    def check(self, requested: RequestedCall, call: ToolCall) -> _CheckedCall:
        """Check a call against the tools, the schema of its tool and the approval policy, in this order."""
        if requested.arguments_error is not None:
            return _CheckedCall(call, requested.arguments_error, None, False)
        tool = self.tools.get(call.name)
        if tool is None:
            known = ", ".join(sorted(self.tools)) or "none"
            return _refused(call, "unknown_tool", f"There is no tool {call.name!r}. Tools: {known}.")
        problem = self.problems.get(call.id)
        if problem is not None:
            return _refused(call, "invalid_arguments", f"Invalid arguments of {call.name}: {problem}")
        decision = decide(
            call,
            tool,
            self.run.settings.approval_policy,
            remembered=self.remembered,
            message_text=text_of(self.run.message.content),
            fetched_hosts=self.fetched_hosts,
        )
        if decision == "deny":
            text = f"The policy of this assistant does not allow this call of {call.name}."
            return _refused(call, "denied", text)
        if decision == "ask" and self.approvals_full is not None:
            text = f"This call needs an approval, which cannot be requested now: {self.approvals_full}."
            return _refused(call, "unavailable", text)
        return _CheckedCall(call, None, None, needs_approval=decision == "ask")


def _refused(call: ToolCall, kind: ErrorKind, text: str) -> _CheckedCall:
    return _CheckedCall(call, None, failed(call.id, kind, text), False)
