"""The events of a model's reply, and of a reply that failed, was interrupted or cannot be recorded."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import assert_never

from banksman.agent.model.checks import CallFacts, CallPolicy
from banksman.agent.protocols.base import Final, Malformed, Reading, RequestedCall, RequestedCalls
from banksman.bus.errors import MessageTooLarge
from banksman.contracts import events
from banksman.contracts.errors import BanksmanError, ErrorCode, ProviderTimedOut
from banksman.contracts.messages import Usage
from banksman.contracts.tools import NetworkPolicy, ToolCall, ToolDefinition
from banksman.contracts.wire import JsonObject
from banksman.contracts.workspace_tools import NETWORK_TOOLS
from banksman.runs.approval.policy import approval_item, approval_requested, treated
from banksman.runs.outcome import Ending, finished
from banksman.runs.owner import Build, Ownership, nothing
from banksman.runs.state import Conversation, Run, replace
from banksman.runs.steps import MAX_MALFORMED, deadline_of, malformed_ending, timed_out
from banksman.runtime.redaction import redacted

logger = logging.getLogger(__name__)

MAX_NOTICES = 20
"""Maximum notices of one reply that are recorded."""
MAX_NOTICE_CHARS = 500


@dataclass(frozen=True, slots=True)
class PaidReply:
    message_id: str
    model: str
    """The model that wrote the reply, as `provider:model`."""
    provider: str
    usage: Usage
    reasoning: tuple[events.ReasoningCompleted, ...] = ()
    """The event of the reasoning before the reply; empty without reasoning."""


@dataclass(frozen=True, slots=True)
class PartialReply:
    text: str
    paid: PaidReply
    """The model that was requested first, and an estimate of the usage: vendors report it at the end of a
    reply."""
    charged: bool = False
    """True if the vendor reported the usage, which is then recorded also without text."""


class UnusableReply(ValueError):
    """A reply that may be charged for cannot be read or checked. The cause is an error of this project.

    `consumed` returns the events that record the usage of the reply.
    """

    def __init__(self, consumed: Build) -> None:
        self.consumed = consumed
        super().__init__("an unforeseen error")


@dataclass(frozen=True, slots=True)
class ReplyCommit:
    """A parsed reply with the data for its events. The object itself is the `Build` of its commit."""

    reading: Reading
    text: str
    """The text as the model wrote it."""
    paid: PaidReply
    provider_state: JsonObject | None
    call_ids: tuple[str, ...]
    """One id for each call."""
    facts: CallFacts
    approval_id: str
    """The id of the approval request, for calls that need one."""
    requested_at: datetime
    """The time of the approval request."""
    expires_at: datetime
    notices: tuple[events.ModelNotice, ...] = ()
    """What was changed in the request or the reply; see `shown_notices`."""

    def __call__(self, state: Conversation) -> tuple[events.EventBody, ...]:
        run = state.run
        if run is None:
            return ()
        if run.cancel is not None:
            text = None if isinstance(self.reading, Malformed) else self.reading.text
            return paid_events(state, self.paid, text)
        return (*self.notices, *self.paid.reasoning, *self._events(state, run))

    def _events(self, state: Conversation, run: Run) -> tuple[events.EventBody, ...]:
        match self.reading:
            case Final(text, finish_reason):
                return (_message(run, self.paid, text, finish_reason, self.provider_state),)
            case Malformed() if run.malformed >= MAX_MALFORMED:
                return _uncorrected(run, self.paid)
            case Malformed() as malformed:
                return (_retry(run, self, malformed),)
            case RequestedCalls(text, calls):
                return _call_events(state, run, self, text, calls)
            case _:
                assert_never(self.reading)


def shown_notices(run_id: str, notices: Iterable[events.ModelNotice]) -> tuple[events.ModelNotice, ...]:
    """Log notices and return those to record: each once, without secrets, at most `MAX_NOTICES`."""
    shown: dict[events.ModelNotice, None] = {}
    for notice in notices:
        one = notice.model_copy(update={"text": redacted(notice.text)[:MAX_NOTICE_CHARS]})
        if one not in shown and len(shown) < MAX_NOTICES:
            shown[one] = None
            logger.warning("%s", one.text, extra={"run_id": run_id, "kind": one.kind})
    return tuple(shown)


def _message(
    run: Run,
    paid: PaidReply,
    text: str | None,
    finish_reason: events.FinishReason,
    provider_state: JsonObject | None = None,
    *,
    is_partial: bool = False,
) -> events.MessageCompleted:
    return events.MessageCompleted(
        message_id=paid.message_id,
        role="assistant",
        content=text,
        finish_reason=finish_reason,
        model=paid.model,
        protocol=run.settings.tool_protocol,
        provider=paid.provider,
        provider_state=provider_state,
        usage=paid.usage,
        partial=is_partial,
    )


def _uncorrected(run: Run, paid: PaidReply) -> tuple[events.EventBody, ...]:
    """Return the end of a run whose model did not follow the last correction."""
    ending = malformed_ending(run, MAX_MALFORMED + 1)
    ended = replace(run, usage=run.usage + paid.usage, answered_by=paid.model)
    return (_message(run, paid, None, "unknown"), finished(ended, ending.status, ending.message, ending))


def _retry(run: Run, reply: ReplyCommit, malformed: Malformed) -> events.ProtocolRetry:
    return events.ProtocolRetry(
        attempt=run.malformed + 1,
        max=MAX_MALFORMED,
        error=malformed.error,
        message_id=reply.paid.message_id,
        reply=reply.text,
        correction=malformed.correction,
        model=reply.paid.model,
        provider=reply.paid.provider,
        provider_state=reply.provider_state,
        usage=reply.paid.usage,
    )


def _call_events(
    state: Conversation, run: Run, reply: ReplyCommit, text: str | None, requested: tuple[RequestedCall, ...]
) -> tuple[events.EventBody, ...]:
    message = _message(run, reply.paid, text, "tool_calls", reply.provider_state)
    most = run.settings.limits.calls_per_reply
    policy = CallPolicy.of(state, run, reply.facts)
    numbered = list(zip(requested, reply.call_ids, strict=True))
    calls = [
        policy.check(one, _call(one, call_id, reply.facts.tools, run.settings.tools.network))
        for one, call_id in numbered[:most]
    ]
    made: list[events.EventBody] = [
        events.ToolCallRequested(call=one.call, arguments_error=one.arguments_error) for one in calls
    ]
    made += [_over_limit(one, call_id, most) for one, call_id in numbered[most:]]
    old_contents = reply.facts.old_contents
    items = tuple(
        approval_item(one.call, old_content=old_contents.get(str(one.call.arguments.get("path"))))
        for one in calls
        if one.needs_approval
    )
    if items:
        now, expires_at = reply.requested_at, reply.expires_at
        terms, choice = run.settings.approvals, run.settings.tools.on_reject
        made.append(
            approval_requested(reply.approval_id, items, terms, choice, now=now, expires_at=expires_at)
        )
    made += [events.ToolCallCompleted(result=one.refusal) for one in calls if one.refusal is not None]
    return (message, *made)


def _over_limit(requested: RequestedCall, call_id: str, most: int) -> events.ToolCallRequested:
    """Return a call that is not executed, without its arguments: one commit must hold hundreds of calls."""
    return events.ToolCallRequested(
        call=ToolCall(id=call_id, name=requested.name, provider_call_id=requested.provider_call_id),
        arguments_error=f"a reply may request at most {most} calls.",
        over_limit=True,
    )


def _call(
    requested: RequestedCall, call_id: str, tools: Mapping[str, ToolDefinition], network: NetworkPolicy | None
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


def paid_events(
    state: Conversation, reply: PaidReply, text: str | None = None, *, is_partial: bool = False
) -> tuple[events.EventBody, ...]:
    """Return the message of a reply that is not acted on; it records the usage, which the vendor charges."""
    if state.run is None:
        return ()
    return (*reply.reasoning, _message(state.run, reply, text, "unknown", is_partial=is_partial))


def partial_events(state: Conversation, reply: PartialReply) -> tuple[events.EventBody, ...]:
    """Return the streamed text as a message, once; nothing if no text was streamed or charged."""
    # The broker may have stored a commit although it reported an error. The commit of this message leaves the
    # model request open, so the loop may build it again.
    stored = any(getattr(message, "message_id", None) == reply.paid.message_id for message in state.history)
    if stored or not (reply.text or reply.charged):
        return ()
    return paid_events(state, reply.paid, reply.text or None, is_partial=bool(reply.text))


def end_events(state: Conversation, ending: Ending) -> tuple[events.EventBody, ...]:
    if state.run is None or state.run.cancel is not None:
        return ()
    return (finished(state.run, ending.status, ending.message, ending),)


def failure(
    owned: Ownership, error: BanksmanError, streamed: PartialReply | None, state: Conversation
) -> tuple[events.EventBody, ...]:
    run = state.run
    if run is None:
        return ()
    text = () if streamed is None else partial_events(state, streamed)
    if streamed is not None and text:
        # The outcome is in the same commit as the text, so the folded usage does not include the text yet.
        run = replace(run, usage=run.usage + streamed.paid.usage)
        state = replace(state, run=run)
    # The request ends at the run's deadline by a local timer, possibly a moment early by the broker's clock.
    late = isinstance(error, ProviderTimedOut) or owned.ports.clock.now() >= deadline_of(run)
    return (*text, *end_events(state, timed_out(run) if late else _failed(error)))


def _failed(error: BanksmanError) -> Ending:
    code = error.code if error.code != ErrorCode.INTERNAL else ErrorCode.PROVIDER_ERROR
    return Ending("failed", code, redacted(str(error)), "not_executed")


def unrecorded(error: Exception, reply: Build) -> tuple[Ending, Build] | None:
    """Return the ending of a run whose reply cannot be recorded; None for an error of another commit.

    Only the usage of the reply is recorded. The run also ends for an unforeseen error: without an end, the
    same reply would be paid for again every few seconds, until the time limit of the run. `reply` is
    `nothing` for an `UnusableReply`.
    """
    paid = partial(paid_events, reply=reply.paid) if isinstance(reply, ReplyCommit) else nothing
    if isinstance(error, MessageTooLarge):
        size = error.size
        text = f"The model's reply and the details of its calls take {size} bytes: too many for the log."
        return Ending("failed", ErrorCode.TOO_LARGE, text, "not_executed"), paid
    if isinstance(error, UnusableReply):
        paid = error.consumed
    elif not isinstance(reply, ReplyCommit):
        return None
    logger.error("the reply of the model cannot be processed", exc_info=error)
    text = "The model's reply could not be processed because of an internal error."
    return Ending("failed", ErrorCode.INTERNAL, text, "not_executed"), paid
