"""Stores starts of workflows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from banksman.bus.publish import RunQueue
from banksman.contracts.assistants import Assistant, ConversationSettings, RunOverrides, RunSettings
from banksman.contracts.errors import BadInput
from banksman.contracts.frames import Ack, WorkflowStart
from banksman.contracts.registry import StartWorkflow, ToolPolicy, WorkflowChecked
from banksman.gateway.assistants.policies import GovernedAssistants
from banksman.gateway.assistants.run_settings import resolve_settings
from banksman.gateway.conversations.conversations import Conversations, new_record
from banksman.gateway.operation.caller import Caller
from banksman.gateway.quotas.backlog import Backlog
from banksman.gateway.runs.idempotency import RequestIds, ids_once
from banksman.gateway.workflows.workflows import Workflows
from banksman.runs.ports import Clock
from banksman.runtime.tracing import current, valid

DEFAULT_ASSISTANT = "default"
"""The assistant that every tenant has."""
_NO_SETTINGS = ConversationSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowStarts:
    workflows: Workflows
    conversations: Conversations
    assistants: GovernedAssistants
    queue: RunQueue
    backlog: Backlog
    clock: Clock
    default_model: str | None

    async def start(self, caller: Caller, request: WorkflowStart, requests: RequestIds) -> Ack:
        """Store the start of a workflow in a conversation of its own. Raises as `Dispatcher.handle`."""
        assistant, agent = await self._settings(caller, request)
        checked = await self.workflows.check(caller.tenant, request)
        settings_bytes = 0 if agent is None else len(agent.model_dump_json())
        await self.backlog.check_workflow(caller.tenant, len(str(request.parameters)) + settings_bytes)
        conversation_id = requests.new("c")
        fresh = {
            "conversation_id": conversation_id,
            "run_id": requests.new_run(conversation_id),
            "message_id": requests.new("m"),
        }
        ids = await ids_once(requests, caller, request, fresh)
        work = _work(checked, request, caller, ids, assistant, agent)
        title = checked.workflow.title or checked.workflow.name
        record = new_record(
            work.conversation_id, title, DEFAULT_ASSISTANT, _NO_SETTINGS, by=caller.user, now=self.clock.now()
        )
        await self.conversations.create(caller.tenant, record)
        await self.queue.start_workflow(work)
        return Ack(
            reply_to=request.id,
            conversation_id=work.conversation_id,
            run_id=work.run_id,
            message_id=work.message_id,
        )

    async def _settings(self, caller: Caller, request: WorkflowStart) -> tuple[Assistant, RunSettings | None]:
        """Return the assistant whose policy applies to a workflow's calls, and settings of its agent runs."""
        name, settings = DEFAULT_ASSISTANT, _NO_SETTINGS
        if request.conversation_id is not None:
            record = await self.conversations.get(caller.tenant, request.conversation_id)
            name, settings = record.assistant, record.settings
        assistant = await self.assistants.in_use(caller.tenant, name)
        try:
            agent = resolve_settings(assistant, settings, RunOverrides(), {}, self.default_model)
        except BadInput:
            # No model is configured, which only a workflow with agent runs needs.
            agent = None
        return assistant, agent


def _work(
    checked: WorkflowChecked,
    request: WorkflowStart,
    caller: Caller,
    ids: Mapping[str, str],
    assistant: Assistant,
    agent: RunSettings | None,
) -> StartWorkflow:
    return StartWorkflow(
        tenant=caller.tenant,
        workflow=checked.workflow.name,
        conversation_id=ids["conversation_id"],
        run_id=ids["run_id"],
        message_id=ids["message_id"],
        parameters=checked.parameters,
        user=caller.user,
        in_conversation=request.conversation_id,
        traceparent=valid(request.traceparent) or current(),
        tools=ToolPolicy(
            rules=assistant.approval_policy,
            on_reject=assistant.tools.on_reject,
            approvals=assistant.approvals,
        ),
        agent=agent,
    )
