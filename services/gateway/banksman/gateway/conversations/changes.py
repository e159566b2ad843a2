"""Creates, renames and deletes conversations for clients."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.bus.publish import RunQueue
from banksman.contracts.frames import Ack, ConversationCreate
from banksman.contracts.ids import new_id
from banksman.contracts.messages import Content, text_of
from banksman.contracts.work import DeleteConversation, RenameConversation
from banksman.gateway.assistants.model_catalog import model_name
from banksman.gateway.assistants.tenant_store import AssistantStore, PromptStore
from banksman.gateway.conversations.conversations import (
    Conversations,
    CreatedConversations,
    new_record,
    title_of,
)
from banksman.gateway.operation.caller import Caller
from banksman.gateway.quotas.backlog import Backlog
from banksman.gateway.runs.idempotency import RequestIds, ids_once
from banksman.runs.ports import Clock


async def publish_title(queue: RunQueue, tenant: str, conversation_id: str, title: str) -> None:
    """Let an agent write a stored title into the log, whose event notifies clients."""
    signal = RenameConversation(
        tenant=tenant, conversation_id=conversation_id, title=title, request_id=new_id("rename-")
    )
    await queue.signal(signal, signal.request_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationChanges:
    """Changes conversations and their entries in the index."""

    conversations: Conversations
    created: CreatedConversations
    assistants: AssistantStore
    prompts: PromptStore
    queue: RunQueue
    backlog: Backlog
    clock: Clock

    async def create(
        self, caller: Caller, request: ConversationCreate, requests: RequestIds, *, title_from: Content = ""
    ) -> Ack:
        """Create a conversation; a repeated request returns the one that the first request created.

        Args:
            caller: Who creates it.
            request: Its settings.
            requests: The ids of accepted requests.
            title_from: The first message, from which a missing title is derived.

        Raises:
            BadInput, NotFound: The assistant, the prompt or the model does not exist.
            Overloaded: The tenant has reached its limit of conversations.
        """
        changes = {"model": request.model, "system_prompt_id": request.system_prompt_id}
        given = {name: value for name, value in changes.items() if value is not None}
        settings = request.settings.model_copy(update=given)
        await self.assistants.in_use(caller.tenant, request.assistant)
        if settings.system_prompt_id is not None:
            await self.prompts.get(caller.tenant, settings.system_prompt_id)
        if settings.model is not None:
            model_name(settings.model)
        ids = await ids_once(requests, caller, request, {"conversation_id": requests.new("c")})
        record = new_record(
            ids["conversation_id"],
            request.title or title_of(text_of(title_from)),
            request.assistant,
            settings,
            by=caller.user,
            now=self.clock.now(),
            title_by="person" if request.title else "message",
        )
        if await self.conversations.create(caller.tenant, record):
            self.created.add(caller.tenant, record)
        return Ack(reply_to=request.id, conversation_id=record.conversation_id)

    async def rename(self, caller: Caller, conversation_id: str, title: str) -> None:
        """Rename a conversation, in the index and in its log.

        Raises:
            NotFound: This tenant has no such conversation.
        """
        await self.backlog.check_signal(caller.tenant, len(title))
        await self.conversations.rename(caller.tenant, conversation_id, title)
        await publish_title(self.queue, caller.tenant, conversation_id, title)

    async def delete(self, caller: Caller, conversation_id: str) -> None:
        """Delete a conversation and end its open runs.

        Raises:
            NotFound: This tenant has no such conversation.
        """
        await self.conversations.get(caller.tenant, conversation_id)
        signal = DeleteConversation(tenant=caller.tenant, conversation_id=conversation_id, by=caller.user)
        await self.queue.signal(signal, f"delete-{conversation_id}")
        await self.conversations.delete(caller.tenant, conversation_id)
        self.created.take(caller.tenant, conversation_id)
