"""What a model's reply becomes in the log. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from banksman.agent.policy import decide, hosts_fetched, remembered_decisions
from banksman.agent.previews import preview
from banksman.agent.protocols.base import Calls, Final, Malformed, Reading, RequestedCall
from banksman.contracts.assistants import Decision
from banksman.contracts.errors import BanksmanError, ErrorCode
from banksman.contracts.events import (
    ApprovalItem,
    ApprovalRequested,
    EventBody,
    MessageCompleted,
    ProtocolRetry,
    ToolCallCompleted,
    ToolCallRequested,
)
from banksman.contracts.messages import Usage, text_of
from banksman.contracts.network import NetworkPolicy
from banksman.contracts.tools import ToolCall, ToolDefinition, ToolResult, failed
from banksman.contracts.wire import JsonObject
from banksman.contracts.workspace_tools import NETWORK_TOOLS
from banksman.runs.schemas import argument_problem
from banksman.runs.state import Conversation, Run
from banksman.runs.steps import MAX_MALFORMED, Ending, finished


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply that was read, with all that is recorded of it."""

    reading: Reading
    text: str
    """What the model wrote."""
    message_id: str
    approval_id: str
    """Used when calls must ask."""
    expires_at: datetime
    call_ids: tuple[str, ...]
    """One for each call."""
    usage: Usage
    model: str
    """`provider:model` that wrote it."""
    provider: str
    provider_state: JsonObject | None
    tools: Mapping[str, ToolDefinition]
    """The tools that may be called."""
    old_contents: Mapping[str, str]
    """By path: what files that the calls would write hold now."""


def recorded(state: Conversation, reply: Reply) -> tuple[EventBody, ...]:
    """The events of a reply; none when the run was cancelled while the model wrote it."""
    run = state.run
    if run is None or run.cancel is not None:
        return ()
    match reply.reading:
        case Final(text, finish_reason):
            return (_message(run, reply, text).model_copy(update={"finish_reason": finish_reason}),)
        case Malformed() as malformed:
            return (_retry(run, reply, malformed),)
        case Calls(text, calls):
            return _calls(state, run, reply, text, calls)
        case _:
            assert_never(reply.reading)


def failure(state: Conversation, error: BanksmanError) -> tuple[EventBody, ...]:
    """The end of a run whose model could not be asked."""
    code = error.code if error.code != ErrorCode.INTERNAL else ErrorCode.PROVIDER_ERROR
    return ended(state, Ending("failed", code, str(error), "not_executed"))


def ended(state: Conversation, ending: Ending) -> tuple[EventBody, ...]:
    """The end of a run whose model is not asked; nothing when it was cancelled meanwhile."""
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


def _calls(
    state: Conversation, run: Run, reply: Reply, text: str | None, requested: tuple[RequestedCall, ...]
) -> tuple[EventBody, ...]:
    message = _message(run, reply, text)
    most = run.settings.limits.calls_per_reply
    if len(requested) > most:
        said = f"The model asked for {len(requested)} calls in one reply; {most} are allowed."
        ending = Ending("failed", ErrorCode.CALL_LIMIT, said, "not_executed")
        return (message, finished(run, "failed", said, ending))
    pairs = list(zip(requested, reply.call_ids, strict=True))
    network = run.settings.tools.network
    calls = [_call(asked, call_id, reply.tools, network) for asked, call_id in pairs]
    decided = _policy(state, run, reply)
    events: list[EventBody] = [
        ToolCallRequested(call=call, arguments_error=asked.arguments_error)
        for call, (asked, _) in zip(calls, pairs, strict=True)
    ]
    refused = [
        _refusal(call, asked, reply.tools, decided) for call, (asked, _) in zip(calls, pairs, strict=True)
    ]
    asking = [
        call
        for call, (asked, _), result in zip(calls, pairs, refused, strict=True)
        if result is None and asked.arguments_error is None and decided(call) == "ask"
    ]
    if asking:
        events.append(_question(reply, asking))
    events += [ToolCallCompleted(result=result) for result in refused if result is not None]
    return (message, *events)


def _call(
    asked: RequestedCall, call_id: str, tools: Mapping[str, ToolDefinition], network: NetworkPolicy | None
) -> ToolCall:
    tool = tools.get(asked.name)
    call = ToolCall(
        id=call_id,
        name=asked.name,
        arguments=asked.arguments or {},
        provider_call_id=asked.provider_call_id,
        terminate=asked.terminate,
    )
    if tool is None:
        return call
    return call.model_copy(
        update={
            "requires_approval": tool.requires_approval,
            "idempotent": tool.idempotent,
            "timeout_s": tool.timeout_s,
            "server": tool.server,
            "network": network if tool.name in NETWORK_TOOLS else None,
        }
    )


def _policy(state: Conversation, run: Run, reply: Reply) -> Callable[[ToolCall], Decision]:
    remembered = remembered_decisions((*state.remembered, *run.remembered))
    fetched = hosts_fetched(state.history)

    def decided(call: ToolCall) -> Decision:
        return decide(
            call,
            reply.tools[call.name],
            run.settings.approval_policy,
            remembered=remembered,
            message_text=text_of(run.message.content),
            fetched_hosts=fetched,
        )

    return decided


def _refusal(
    call: ToolCall,
    asked: RequestedCall,
    tools: Mapping[str, ToolDefinition],
    decided: Callable[[ToolCall], Decision],
) -> ToolResult | None:
    """The result of a call that will not be tried; None for one that may be, or was not readable."""
    if asked.arguments_error is not None:
        return None
    tool = tools.get(call.name)
    if tool is None:
        known = ", ".join(sorted(tools)) or "none"
        return failed(call.id, "unknown_tool", f"There is no tool {call.name!r}. Tools: {known}.")
    problem = argument_problem(tool.input_schema, call.arguments)
    if problem is not None:
        return failed(call.id, "invalid_arguments", f"Invalid arguments of {call.name}: {problem}")
    if decided(call) == "deny":
        return failed(
            call.id, "denied", f"The policy of this assistant does not allow this call of {call.name}."
        )
    return None


def _question(reply: Reply, calls: list[ToolCall]) -> ApprovalRequested:
    items = tuple(
        ApprovalItem(
            tool_call_id=call.id,
            name=call.name,
            arguments=call.arguments,
            digest=call.digest,
            network=call.network,
            preview=preview(call, old_content=reply.old_contents.get(str(call.arguments.get("path")))),
        )
        for call in calls
    )
    return ApprovalRequested(approval_id=reply.approval_id, expires_at=reply.expires_at, items=items)
