"""The enhanced prompt as a run would have it: of an assistant, and of a conversation as it stands."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.contracts.assistants import ToolSettings
from banksman.contracts.errors import NotFound
from banksman.contracts.messages import Message, ToolProtocol, UserMessage
from banksman.contracts.tools import ToolDefinition
from banksman.gateway.service.auth import Caller
from banksman.gateway.service.client_requests import Service
from banksman.gateway.settings import OfferSettings
from banksman.prompting.enhance import EnhancedPrompt, enhance
from banksman.prompting.relevance import needs_of
from banksman.runs.placement import Placements
from banksman.runs.state import Conversation, apply_commit

NEXT_MESSAGE = "next"
"""Stands for the id that the next message of the user will have."""


@dataclass(frozen=True, slots=True)
class Occasion:
    """What a prompt is enhanced for; nothing of it is every tool of the tenant."""

    assistant: str | None = None
    conversation_id: str | None = None
    """Its assistant counts where none is given, and its history for what it needs."""
    user_message: str = ""
    """What the user would write next."""


@dataclass(frozen=True, slots=True)
class EnhancedPrompts:
    """Enhances prompts as agents do, from the same settings."""

    service: Service
    settings: OfferSettings
    placements: Placements

    async def enhanced(
        self, caller: Caller, base: str, protocol: ToolProtocol, budget_tokens: int | None, occasion: Occasion
    ) -> EnhancedPrompt:
        """A rendered prompt with the tools that matter, and what was left out.

        Raises:
            NotFound: the tenant has no such assistant or conversation.
        """
        tool_settings = await self._tool_settings(caller, occasion)
        history = (*await self._history(caller, occasion), *_next(occasion))
        return enhance(
            base,
            await self._tools(caller, tool_settings),
            protocol,
            budget_tokens=self.settings.prompt_budget_tokens if budget_tokens is None else budget_tokens,
            max_tools=self.settings.max_offered_tools,
            needs=needs_of(history, NEXT_MESSAGE, tool_settings.always_offered),
        )

    async def _tool_settings(self, caller: Caller, occasion: Occasion) -> ToolSettings:
        assistant_id = occasion.assistant
        if assistant_id is None and occasion.conversation_id is not None:
            record = await self.service.conversations.get(caller.tenant, occasion.conversation_id)
            assistant_id = record.assistant
        if assistant_id is None:
            return ToolSettings(enabled=True)
        return (await self.service.assistants.get(caller.tenant, assistant_id)).tools

    async def _tools(self, caller: Caller, settings: ToolSettings) -> tuple[ToolDefinition, ...]:
        if not (self.settings.tools_enabled and settings.enabled):
            return ()
        allowed = settings.allowed_tools
        found = await self.service.tools.callable_now(caller.tenant, self.placements)
        return tuple(tool for tool in found if allowed is None or tool.name in allowed)

    async def _history(self, caller: Caller, occasion: Occasion) -> tuple[Message, ...]:
        if occasion.conversation_id is None:
            return ()
        await self.service.conversations.get(caller.tenant, occasion.conversation_id)
        state = Conversation(caller.tenant, occasion.conversation_id)
        for stored in await self.service.views.log.read(caller.tenant, occasion.conversation_id):
            state = apply_commit(state, stored.stream_seq, stored.commit)
        if state.deleted:
            raise NotFound("conversation", occasion.conversation_id)
        return state.history


def _next(occasion: Occasion) -> tuple[UserMessage, ...]:
    return (UserMessage(message_id=NEXT_MESSAGE, content=occasion.user_message),)
