"""One request to a model outside the conversations of users, as a run that is metered like others."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.bus.publish import RunQueue
from banksman.contracts.assistants import Assistant, ConversationSettings, RunOverrides, RunSettings
from banksman.contracts.errors import Unavailable
from banksman.contracts.ids import new_id, part_of, run_id_for
from banksman.contracts.work import DeleteConversation, StartRun
from banksman.gateway.assistants.run_settings import ModelNames, resolve_settings
from banksman.gateway.assistants.tenant_store import TenantStore
from banksman.gateway.conversations.conversations import Conversations, new_record
from banksman.gateway.operation.caller import Caller
from banksman.gateway.quotas.backlog import Backlog
from banksman.gateway.runs.runs import Runs
from banksman.runs.ports import Clock

REPLY_S = 60.0
"""Seconds within which the model must reply."""


@dataclass(frozen=True, slots=True)
class OneRequest:
    """Requests one reply from a model, by a run with the limits, retries and usage of the tenant."""

    runs: Runs
    conversations: Conversations
    assistants: TenantStore[Assistant]
    queue: RunQueue
    backlog: Backlog
    clock: Clock
    models: ModelNames

    async def reply(
        self,
        caller: Caller,
        text: str,
        prompt: str,
        *,
        title: str,
        model: str | None = None,
        about: str | None = None,
    ) -> str:
        """Return the reply to a text. No tool is offered, and the run's conversation is deleted afterwards.

        `title` is that of the run's conversation, which operators see in lists. `model` is `provider:model`;
        None stands for the model of the default assistant. `about` is the conversation from which the text
        is: only those who may see it see the request. Raises `Unavailable` if the model did not reply within
        `REPLY_S` seconds, or its run failed.
        """
        await self.backlog.check_load(caller.tenant)
        await self.backlog.check(caller.tenant)
        assistant = await self.assistants.get(caller.tenant, "default")
        wanted = RunOverrides(model=model)
        settings = resolve_settings(
            assistant, ConversationSettings(), wanted, {}, self.models.of(caller.tenant)
        )
        conversation_id = new_id("c") if about is None else part_of(about)
        reply = await self._run(caller, conversation_id, text, _without_tools(settings, prompt), title)
        if reply is None:
            raise Unavailable(f"the model did not reply within {REPLY_S:g} s")
        return reply

    async def _run(
        self, caller: Caller, conversation_id: str, text: str, settings: RunSettings, title: str
    ) -> str | None:
        record = new_record(conversation_id, title, by=caller.user, now=self.clock.now())
        # Archived, so that users' lists do not show it during the run.
        await self.conversations.create(caller.tenant, record.model_copy(update={"archived": True}))
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
        # The prompt is a template: placeholders in texts of tenants must not be replaced.
        "system_prompt": prompt.replace("{{", "{ {"),
        "system_prompt_id": None,
        "options": settings.options.model_copy(update={"response_schema": None}),
        "tools": settings.tools.model_copy(update={"enabled": False}),
        "limits": settings.limits.model_copy(update={"run_timeout_s": REPLY_S}),
    }
    return settings.model_copy(update=changes)
