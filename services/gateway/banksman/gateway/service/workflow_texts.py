"""Read which workflow a text starts: a command by the form of its workflow, plain language by a model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

from banksman.bus.publish import RunQueue
from banksman.contracts.assistants import Assistant, ConversationSettings, RunOverrides, RunSettings
from banksman.contracts.errors import BadInput, Unavailable
from banksman.contracts.ids import is_token, new_id, run_id_for
from banksman.contracts.registry import ParsedWorkflow, ParseWorkflow, WorkflowDefinition
from banksman.contracts.work import DeleteConversation, StartRun
from banksman.gateway.service.auth import Caller
from banksman.gateway.service.backlog import Backlog
from banksman.gateway.service.conversations import Conversations, new_record
from banksman.gateway.service.run_settings import resolve
from banksman.gateway.service.runs import Runs
from banksman.gateway.service.tenant_store import TenantStore
from banksman.gateway.service.workflows import Workflows
from banksman.runs.ports import Clock

REPLY_S = 60.0
"""Seconds that the model may take."""
MAX_WORKFLOWS = 100
"""Workflows that the prompt lists."""
MAX_PROMPT_CHARS = 60_000

INSTRUCTIONS = """\
Choose the workflow that the user wants to start, and fill in its form.
Reply with one JSON object and nothing else: {"workflow": "<name>", "parameters": {...}}
Leave out every parameter that the user did not state. If no workflow fits, reply {"workflow": null}.

Workflows:
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowTexts:
    """Reads texts of users. It starts no workflow: the user confirms the filled form."""

    workflows: Workflows
    runs: Runs
    conversations: Conversations
    assistants: TenantStore[Assistant]
    queue: RunQueue
    backlog: Backlog
    clock: Clock
    default_model: str | None

    async def parse(self, caller: Caller, text: str, *, model: str | None = None) -> ParsedWorkflow:
        """Return the form that a text fills, with what is missing or wrong.

        Args:
            caller: Who sent it.
            text: A command (`/name parameter=value`), or plain language, which takes one model request.
            model: `provider:model` for plain language; None for that of the default assistant.

        Raises:
            BadInput: The command cannot be read, or the model found no workflow that fits.
            RemoteError: With code `not_found` if no workflow has the command's name.
            Unavailable: The model did not reply in time.
        """
        if text.lstrip().startswith("/"):
            return await self.workflows.parse(ParseWorkflow(tenant=caller.tenant, text=text))
        listed = await self.workflows.list(caller.tenant)
        chosen = await self._chosen(caller, text, model, listed[:MAX_WORKFLOWS])
        name, parameters = chosen.get("workflow"), chosen.get("parameters")
        if not isinstance(name, str) or name not in {one.name for one in listed}:
            raise BadInput("text", text[:80], "a text that names what a registered workflow does")
        given = cast(dict[str, Any], parameters) if isinstance(parameters, dict) else {}
        request = ParseWorkflow(tenant=caller.tenant, workflow=name, parameters=given)
        return (await self.workflows.parse(request)).model_copy(update={"source": "language"})

    async def _chosen(
        self, caller: Caller, text: str, model: str | None, listed: tuple[WorkflowDefinition, ...]
    ) -> dict[str, Any]:
        """Return the object that a model replied; empty if its reply holds none."""
        await self.backlog.check(caller.tenant)
        assistant = await self.assistants.get(caller.tenant, "default")
        wanted = RunOverrides(model=model)
        settings = resolve(assistant, ConversationSettings(), wanted, {}, self.default_model)
        outcome = await self._one_request(caller, text, _without_tools(settings, _prompt(listed)))
        if outcome is None:
            raise Unavailable(f"the model did not reply within {REPLY_S:g} s")
        return _object_in(outcome)

    async def _one_request(self, caller: Caller, text: str, settings: RunSettings) -> str | None:
        """Return the text of one run, whose conversation is deleted afterwards; None if it takes too long."""
        conversation_id = new_id("c")
        record = new_record(
            conversation_id,
            "Start a workflow",
            "default",
            ConversationSettings(),
            by=caller.user,
            now=self.clock.now(),
        )
        await self.conversations.create(caller.tenant, record)
        run_id = run_id_for(conversation_id)
        try:
            await self.queue.publish(
                StartRun(
                    tenant=caller.tenant,
                    conversation_id=conversation_id,
                    run_id=run_id,
                    message_id=new_id("m"),
                    content=text,
                    settings=settings,
                    user=caller.user,
                )
            )
            found = await self.runs.wait(caller.tenant, run_id, REPLY_S)
        finally:
            delete = DeleteConversation(tenant=caller.tenant, conversation_id=conversation_id, by=caller.user)
            await self.queue.signal(delete, f"delete-{conversation_id}")
            await self.conversations.delete(caller.tenant, conversation_id)
        if found.outcome is not None and found.outcome.status != "completed":
            raise Unavailable(f"the model did not read the text: {found.outcome.content[:500]}")
        return None if found.outcome is None else found.outcome.content


def _without_tools(settings: RunSettings, prompt: str) -> RunSettings:
    changes = {
        "system_prompt": prompt,
        "system_prompt_id": None,
        "tools": settings.tools.model_copy(update={"enabled": False}),
        "limits": settings.limits.model_copy(update={"run_timeout_s": REPLY_S}),
    }
    return settings.model_copy(update=changes)


def _prompt(listed: tuple[WorkflowDefinition, ...]) -> str:
    lines = [
        json.dumps(
            {"name": one.name, "description": one.description, "parameters": one.parameters_schema},
            ensure_ascii=False,
        )
        for one in listed
        if is_token(one.name)
    ]
    # The prompt is a template, and forms of tenants must not be read as its variables.
    return (INSTRUCTIONS + "\n".join(lines).replace("{{", "{ {"))[:MAX_PROMPT_CHARS]


def _object_in(text: str) -> dict[str, Any]:
    """Return the JSON object in a reply, also between other text; empty if there is none."""
    try:
        found = json.loads(text[text.find("{") : text.rfind("}") + 1])
    except ValueError:
        return {}
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}
