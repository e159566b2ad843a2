"""The events of the steps that a workflow's function requests. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from banksman.contracts import workflows
from banksman.contracts.approvals import ApprovalRequested, InputRequested
from banksman.contracts.assistants import Decision
from banksman.contracts.events import EventBody, MessageCompleted, ToolCallCompleted, ToolCallRequested
from banksman.contracts.ids import digest
from banksman.contracts.messages import AssistantMessage, ToolMessage
from banksman.contracts.tools import ToolCall, ToolDefinition, ToolResult, call_digest, failed
from banksman.contracts.workflows import WorkflowOutput, WorkflowProgress
from banksman.contracts.workspace_tools import NETWORK_TOOLS
from banksman.runs.approval import policy
from banksman.runs.state import Conversation, Run

APPROVAL_S = 7 * 86_400
"""Seconds until the approval request of a workflow's calls expires."""


def call_id(run_id: str, step: str) -> str:
    """Return the id of a step's call, which is the same in every execution of the run."""
    return f"w{digest(f'{run_id}/{step}'.encode())[:40]}"


def recorded_results(state: Conversation) -> dict[str, workflows.StepResult]:
    replies = (message for message in state.history if isinstance(message, AssistantMessage))
    steps = {call.id: call for reply in replies for call in reply.calls}
    messages = (message for message in state.history if isinstance(message, ToolMessage))
    results = ((steps[message.result.tool_call_id], message.result) for message in messages)
    return {
        call.provider_call_id or call.id: workflows.StepResult(
            digest=call_digest(call.name, call.arguments),
            content=result.content,
            is_error=result.is_error,
            error_kind=result.error_kind,
        )
        for call, result in results
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedSteps:
    reply: workflows.TurnReply
    message_id: str
    approval_id: str
    input_ids: Mapping[str, str]
    """Ids of the requests for a value by step."""
    tools: Mapping[str, ToolDefinition]
    """The definitions of the tools that are called, by name."""
    problems: Mapping[str, str]
    """Why arguments do not fit the schema of their tool, by step."""
    outcomes: Mapping[str, ToolResult]
    """Results of the ended agent runs, by step."""
    now: datetime

    def events(self, state: Conversation, run: Run) -> tuple[EventBody, ...]:
        calls = [(step, self._call(run, step)) for step in self.reply.steps]
        decisions = self._decisions(state, run, calls)
        results = [
            result
            for step, call in calls
            if (result := self._result(run, step, call, decisions.get(call.id)))
        ]
        refused = {result.tool_call_id for result in results}
        waiting = [call for _, call in calls if call.id not in refused and decisions.get(call.id) == "ask"]
        return (
            MessageCompleted(
                message_id=self.message_id, role="assistant", content=None, finish_reason="tool_calls"
            ),
            *(ToolCallRequested(call=call) for _, call in calls),
            *self._inputs(calls),
            *self._approvals(run, waiting),
            *(ToolCallCompleted(result=result) for result in results),
        )

    def _call(self, run: Run, step: workflows.Step) -> ToolCall:
        name, arguments = workflows.call_of(step)
        call = ToolCall(
            id=call_id(run.run_id, step.step), name=name, arguments=arguments, provider_call_id=step.step
        )
        tool = self.tools.get(name) if isinstance(step, workflows.ToolStep) else None
        if tool is None:
            return call
        network = run.settings.tools.network if tool.name in NETWORK_TOOLS else None
        return policy.treated(call, tool).model_copy(update={"network": network})

    def _result(
        self, run: Run, step: workflows.Step, call: ToolCall, decision: Decision | None
    ) -> ToolResult | None:
        """Return the result of a step that needs no execution; None for the others."""
        match step:
            case workflows.AgentRunStep():
                return self.outcomes[step.step]
            case workflows.InputStep():
                return None
            case workflows.ToolStep():
                pass
        if call.name not in self.tools:
            return failed(call.id, "unknown_tool", f"There is no tool {call.name!r}.")
        settings = run.settings.tools
        if not (settings.enabled and settings.allows(self.tools[call.name])):
            return failed(call.id, "denied", f"The assistant of this workflow does not offer {call.name}.")
        if (problem := self.problems.get(step.step)) is not None:
            return failed(call.id, "invalid_arguments", f"Invalid arguments of {call.name}: {problem}")
        if decision == "deny":
            text = f"The policy of the assistant does not allow this call of {call.name}."
            return failed(call.id, "denied", text)
        return None

    def _decisions(
        self, state: Conversation, run: Run, calls: list[tuple[workflows.Step, ToolCall]]
    ) -> dict[str, Decision]:
        remembered = policy.remembered_decisions((*state.remembered, *run.remembered))
        fetched_hosts = policy.hosts_fetched(state.history)
        return {
            call.id: policy.decide(
                call,
                self.tools[call.name],
                run.settings.approval_policy,
                remembered=remembered,
                message_text=policy.typed_in(run, state.history),
                fetched_hosts=fetched_hosts,
            )
            for step, call in calls
            if isinstance(step, workflows.ToolStep) and call.name in self.tools
        }

    def _inputs(self, calls: list[tuple[workflows.Step, ToolCall]]) -> tuple[InputRequested, ...]:
        return tuple(
            InputRequested(
                request_id=self.input_ids[step.step],
                message=step.message,
                schema=step.schema_,
                tool_call_id=call.id,
                expires_at=self.now + timedelta(seconds=step.expires_s),
            )
            for step, call in calls
            if isinstance(step, workflows.InputStep)
        )

    def _approvals(self, run: Run, calls: list[ToolCall]) -> tuple[ApprovalRequested, ...]:
        if not calls:
            return ()
        items = tuple(policy.approval_item(call) for call in calls)
        expires_at = self.now + timedelta(seconds=APPROVAL_S)
        terms, choice = run.settings.approvals, run.settings.tools.on_reject
        requested = policy.approval_requested(
            self.approval_id, items, terms, choice, now=self.now, expires_at=expires_at
        )
        return (requested,)


def progress_event(progress: workflows.Progress) -> WorkflowProgress:
    return WorkflowProgress(step=progress.step, total=progress.total, message=progress.message)


def progress_events(
    reply: workflows.TurnReply, last: WorkflowProgress | None
) -> tuple[WorkflowProgress, ...]:
    """Return the progress that a turn reports after `last`, the last progress in the log."""
    events = [progress_event(one) for one in reply.progress]
    known = max((place for place, event in enumerate(events, start=1) if event == last), default=0)
    return tuple(events[known:])


def output_events(end: workflows.TurnEnd) -> tuple[WorkflowOutput, ...]:
    return tuple(WorkflowOutput(output=output) for output in end.outputs)


def end_text(end: workflows.TurnEnd) -> str:
    """Return the text that the user reads: the returned text, followed by the outputs."""
    return "\n\n".join(part for part in (end.content, *map(_markdown, end.outputs)) if part)


def _markdown(output: workflows.Output) -> str:
    match output:
        case workflows.TextOutput(text=text):
            return text
        case workflows.FileOutput(path=path, title=title):
            return f"{title or 'File'}: `{path}`"
        case workflows.TableOutput():
            return _table(output)


def _table(table: workflows.TableOutput) -> str:
    lines = [
        _row(table.columns),
        _row(["---"] * len(table.columns)),
        *(_row([_cell(cell) for cell in row]) for row in table.rows),
    ]
    return "\n".join([f"**{table.title}**\n", *lines] if table.title else lines)


def _row(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: object) -> str:
    return str("" if value is None else value).replace("|", "\\|").replace("\n", " ")
