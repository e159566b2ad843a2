"""Builds enhanced prompts as runs do: for an assistant, and for the current state of a conversation."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from banksman.contracts.assistants import Assistant, RunSettings, ToolSettings
from banksman.contracts.errors import NotFound
from banksman.contracts.messages import Message, ToolProtocol, UserMessage, text_of
from banksman.contracts.registry import SystemPrompt
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject, Token, Wire
from banksman.gateway.assistants.run_settings import protocol
from banksman.gateway.assistants.tenant_store import TenantStore
from banksman.gateway.assistants.tools import Tools
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.conversations.views import Views
from banksman.gateway.operation.caller import Caller
from banksman.gateway.settings import OfferSettings
from banksman.prompting.enhance import EnhancedPrompt, enhance, needs_of
from banksman.prompting.templates import DEFAULT_PROMPT, render, run_variables
from banksman.runs.state import Run

NEXT_MESSAGE = "next"
"""Placeholder for the id of the user's next message."""


class EnhancePrompt(Wire):
    """Request a prompt with tools and instructions."""

    protocol: ToolProtocol | None = None
    """None for the protocol of the conversation or assistant; without either, of the assistant `default`."""
    budget_tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    variables: JsonObject | None = None
    """Values for the placeholders; None leaves them unchanged."""
    assistant: Token | None = None
    conversation_id: Token | None = None
    user_message: str = Field(default="", max_length=20_000)


@dataclass(frozen=True, slots=True)
class EnhancedPrompts:
    """Enhances prompts from the same settings as agents."""

    conversations: Conversations
    views: Views
    assistants: TenantStore[Assistant]
    prompts: TenantStore[SystemPrompt]
    tools: Tools
    settings: OfferSettings

    async def protocol(self, caller: Caller, context: EnhancePrompt) -> ToolProtocol:
        """Return the tool protocol of a run in this context; an empty context uses `default` (R25)."""
        wanted, assistant_id = None, context.assistant
        if context.conversation_id is not None:
            record = await self.conversations.get(caller.tenant, context.conversation_id)
            wanted, assistant_id = record.settings.tool_protocol, assistant_id or record.assistant
        assistant = await self.assistants.get(caller.tenant, assistant_id or "default")
        return protocol(wanted or assistant.tools.tool_protocol)

    async def rendered(self, caller: Caller, template: str, context: EnhancePrompt) -> str:
        """Return a prompt with the values that a run would have; without variables, return it unchanged."""
        if context.variables is None:
            return template
        assistant = await self._assistant(caller, context) or await self._default(caller)
        variables = run_variables(
            service=assistant.service,
            user_message=context.user_message,
            variables={**assistant.variables, **context.variables},
        )
        return render(template, variables)

    async def enhanced(
        self, caller: Caller, base: str, protocol: ToolProtocol, context: EnhancePrompt
    ) -> EnhancedPrompt:
        """Return a rendered prompt with the relevant tools, and the names of the omitted tools."""
        tools, budget = await self._tool_settings(caller, context), context.budget_tokens
        next_message = UserMessage(message_id=NEXT_MESSAGE, content=context.user_message)
        history = (*await self._history(caller, context), next_message)
        return await self._enhance(caller.tenant, base, protocol, tools, history, budget)

    async def of_assistant(self, caller: Caller, assistant: Assistant) -> EnhancedPrompt:
        """Return the prompt of a run's first request, with placeholders in place of variables."""
        base = await self._base_prompt(caller.tenant, assistant)
        tools = assistant.tools
        return await self._enhance(caller.tenant, base, protocol(tools.tool_protocol), tools, ())

    async def of_run(
        self, caller: Caller, run: Run, history: tuple[Message, ...]
    ) -> tuple[str, tuple[ToolDefinition, ...]]:
        """Return the system prompt and the tools of a run's next model request, as they are now.

        Raises `BadInput` if a variable of the prompt is missing.
        """
        settings = run.settings
        variables = run_variables(
            service=settings.service, user_message=text_of(run.message.content), variables=settings.variables
        )
        base = render(await self._base_prompt(caller.tenant, settings), variables)
        enhanced = await self._enhance(
            caller.tenant,
            base,
            settings.tool_protocol,
            settings.tools,
            history,
            message_id=run.message.message_id,
        )
        return enhanced.text, enhanced.tools

    async def _enhance(
        self,
        tenant: str,
        base: str,
        protocol: ToolProtocol,
        tools: ToolSettings,
        history: tuple[Message, ...],
        budget_tokens: int | None = None,
        message_id: str = NEXT_MESSAGE,
    ) -> EnhancedPrompt:
        return enhance(
            base,
            await self._available_tools(tenant, tools),
            protocol,
            budget_tokens=self.settings.prompt_budget_tokens if budget_tokens is None else budget_tokens,
            max_tools=self.settings.max_offered_tools,
            needs=needs_of(history, message_id, tools.always_offered),
        )

    async def _base_prompt(self, tenant: str, settings: RunSettings | Assistant) -> str:
        if settings.system_prompt_id is not None:
            return (await self.prompts.get(tenant, settings.system_prompt_id)).content
        return DEFAULT_PROMPT if settings.system_prompt is None else settings.system_prompt

    async def _tool_settings(self, caller: Caller, context: EnhancePrompt) -> ToolSettings:
        assistant = await self._assistant(caller, context)
        return ToolSettings(enabled=True) if assistant is None else assistant.tools

    async def _default(self, caller: Caller) -> Assistant:
        return await self.assistants.get(caller.tenant, "default")

    async def _assistant(self, caller: Caller, context: EnhancePrompt) -> Assistant | None:
        assistant_id = context.assistant
        if assistant_id is None and context.conversation_id is not None:
            record = await self.conversations.get(caller.tenant, context.conversation_id)
            assistant_id = record.assistant
        return None if assistant_id is None else await self.assistants.get(caller.tenant, assistant_id)

    async def _available_tools(self, tenant: str, settings: ToolSettings) -> tuple[ToolDefinition, ...]:
        if not (self.settings.tools_enabled and settings.enabled):
            return ()
        found = await self.tools.available(tenant)
        return tuple(tool for tool in found if settings.allows(tool))

    async def _history(self, caller: Caller, context: EnhancePrompt) -> tuple[Message, ...]:
        if context.conversation_id is None:
            return ()
        await self.conversations.get(caller.tenant, context.conversation_id)
        state = await self.views.state(caller.tenant, context.conversation_id)
        if state.deleted:
            raise NotFound("conversation", context.conversation_id)
        return state.history
