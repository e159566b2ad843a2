"""The agent runs that a workflow starts. Each has its own conversation and uses the workflow's workspace."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.bus.publish import RunQueue
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.live import LiveHub
from banksman.contracts.assistants import ConversationRecord, RunSettings
from banksman.contracts.errors import Unavailable
from banksman.contracts.events import RunFinished
from banksman.contracts.ids import digest, part_of
from banksman.contracts.messages import AssistantMessage, Message, UserMessage, text_of
from banksman.contracts.tools import ToolResult, failed
from banksman.contracts.wire import JsonObject
from banksman.contracts.work import CancelRun, StartRun
from banksman.contracts.workflows import AgentRunStep, WorkflowLinked
from banksman.runs.owner import Ownership
from banksman.runs.steps import RequestModel, next_step
from banksman.workflows.step_events import call_id

MAX_TITLE_CHARS = 80
MAX_TRANSCRIPT_CHARS = 100_000
"""Maximum characters of a transcript; a longer transcript loses its beginning."""


@dataclass(frozen=True, slots=True)
class AgentRuns:
    queue: RunQueue
    hub: LiveHub
    conversations: Bucket[ConversationRecord]

    async def outcome(self, owned: Ownership, step: AgentRunStep, workflow_title: str) -> ToolResult:
        """Start the run of a step unless it was started before, wait for its end, and return it as a result.

        The conversation of the run is listed under the title of the workflow and the name of the step. If the
        workflow is cancelled meanwhile, the run is cancelled too.
        """
        workflow = owned.run.settings.workflow
        call = call_id(owned.run.run_id, step.step)
        if workflow is None or workflow.agent is None:
            return failed(call, "unavailable", "No model is configured, so no agent run can start.")
        start = _start(owned, step, workflow.agent, await _transcript(owned, step))
        await self._open(owned, start, f"{workflow_title}: {step.step}"[:MAX_TITLE_CHARS])
        await self._link(owned, start)
        if not _is_wanted(owned):
            await self._cancel(start)
            return failed(call, "cancelled", "The workflow ended before its agent run.")
        try:
            end = await self._end(start)
        except BaseException:
            # If only this process stops, the run continues: the next process waits for the same run.
            if not _is_wanted(owned):
                await self._cancel(start)
            raise
        content: JsonObject = {"status": end.status, "content": end.content, "run_id": start.run_id}
        if end.structured_output is not None:
            content["structured_output"] = end.structured_output
        return ToolResult(
            tool_call_id=call,
            content={"success": end.status == "completed", **content},
            is_error=end.status != "completed",
            error_kind=None if end.status == "completed" else "tool_error",
        )

    async def _open(self, owned: Ownership, start: StartRun, title: str) -> None:
        now = owned.ports.clock.now().isoformat()
        record = ConversationRecord(
            conversation_id=start.conversation_id,
            title=title,
            assistant=start.settings.assistant_id,
            created_at=now,
            updated_at=now,
        )
        await self.conversations.create(f"{start.tenant}.{start.conversation_id}", record)
        state = await owned.ports.log.read(start.tenant, start.conversation_id)
        if not state.knows(start.run_id) and not state.deleted:
            await self.queue.publish(start)

    async def _link(self, owned: Ownership, start: StartRun) -> None:
        """Record a link to the run, once, so that users find the run and its approval requests."""
        link = WorkflowLinked(
            workflow="agent", workflow_run_id=start.run_id, workflow_conversation_id=start.conversation_id
        )
        await owned.commit(lambda state: () if start.run_id in state.linked else (link,))

    async def _end(self, start: StartRun) -> RunFinished:
        async with self.hub.tail(start.tenant, start.conversation_id) as commits:
            async for stored in commits:
                for event in stored.commit.events:
                    if event.run_id == start.run_id and isinstance(event.data, RunFinished):
                        return event.data
        raise Unavailable(f"{start.run_id}: its log cannot be followed")

    async def _cancel(self, start: StartRun) -> None:
        cancel = CancelRun(
            tenant=start.tenant,
            conversation_id=start.conversation_id,
            run_id=start.run_id,
            reason="The workflow that started it has ended.",
            by="workflow",
        )
        await self.queue.signal(cancel, f"{start.run_id}-workflow")


def _is_wanted(owned: Ownership) -> bool:
    return isinstance(next_step(owned.state, owned.ports.clock.now()), RequestModel)


async def _transcript(owned: Ownership, step: AgentRunStep) -> str:
    if not step.with_conversation or owned.workspace is None:
        return ""
    state = await owned.ports.log.read(owned.state.tenant, owned.workspace)
    said = [_line(message) for message in state.history]
    text = "\n\n".join(line for line in said if line)
    return f"Conversation:\n\n{text[-MAX_TRANSCRIPT_CHARS:]}\n\n---\n\n"


def _line(message: Message) -> str:
    match message:
        case UserMessage():
            return f"User: {text_of(message.content)}"
        case AssistantMessage(content=str(text)) if text:
            return f"Assistant: {text}"
        case _:
            return ""


def _start(owned: Ownership, step: AgentRunStep, settings: RunSettings, transcript: str) -> StartRun:
    """Return the start of a step's run. Its ids derive from the step, so a repeat starts nothing."""
    state, run_id = owned.state, owned.run.run_id
    name = digest(f"{run_id}/{step.step}".encode())
    tools = settings.tools
    if step.tools is not None:
        # A step selects among the tools of its workflow, which are those of the assistant if users built it.
        own = owned.run.settings.tools
        allowed = [one for one in step.tools if own.allowed_tools is None or one in own.allowed_tools]
        selected = {"enabled": own.enabled and bool(allowed), "allowed_tools": tuple(allowed)}
        tools = tools.model_copy(update=selected)
    if step.max_iterations is not None:
        tools = tools.model_copy(update={"max_iterations": step.max_iterations})
    changes: dict[str, object] = {
        "tools": tools,
        "workspace": owned.workspace or state.conversation_id,
        "traceparent": owned.run.settings.traceparent,
        "account": owned.run.settings.acts_for,
    }
    options = {name: value for name, value in step.options if value is not None}
    if options:
        changes["options"] = settings.options.model_copy(update=options)
    if step.system_prompt is not None:
        changes |= {"system_prompt": step.system_prompt, "system_prompt_id": None}
    conversation_id = part_of(state.conversation_id, name[:12])
    return StartRun(
        tenant=state.tenant,
        conversation_id=conversation_id,
        run_id=f"{conversation_id}-{name[12:24]}",
        message_id=f"m{name[24:45]}",
        content=transcript + step.message,
        settings=settings.model_copy(update=changes),
        user=f"workflow {run_id}"[:200],
        # What the person typed into the form; the values of earlier steps may be texts of pages.
        provenance=owned.run.message.provenance,
    )
