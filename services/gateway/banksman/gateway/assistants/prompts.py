"""System prompts, plain and enhanced as runs do, for clients that read and change them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Query
from pydantic import Field, TypeAdapter

from banksman.contracts.assistants import Assistant, RunSettings, ToolSettings
from banksman.contracts.errors import NotFound
from banksman.contracts.ids import check_token, new_id
from banksman.contracts.messages import Message, ToolProtocol, UserMessage, text_of
from banksman.contracts.registry import SystemPrompt
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject, Stored, Token, Wire, parse_as
from banksman.gateway.assistants.run_settings import protocol
from banksman.gateway.assistants.tenant_store import TenantStore
from banksman.gateway.assistants.tools import Tools
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.conversations.views import Views
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.declaration import CONFLICT, EARLY, Operations
from banksman.gateway.operation.parameters import (
    CallerDep,
    Listing,
    RequestBody,
    RequestId,
    StrictBody,
    provided,
)
from banksman.gateway.runs.idempotency import StoredRequests
from banksman.gateway.settings import OfferSettings
from banksman.prompting.enhance import EnhancedPrompt, enhance, needs_of
from banksman.prompting.templates import DEFAULT_PROMPT, render, run_variables, variables_of
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


class PromptBody(RequestBody):
    """The content of a system prompt."""

    name: str = Field(default="", max_length=200)
    content: str = Field(max_length=256 * 1024)

    def prompt(self, prompt_id: str) -> SystemPrompt:
        return SystemPrompt(id=prompt_id, name=self.name, content=self.content)


class NewPrompt(PromptBody):
    """A system prompt to create."""

    id: Token | None = None
    """None for a generated id."""


class EnhancedPromptBody(Stored):
    """A system prompt with tools and instructions."""

    id: Token
    name: str
    content: str
    base: str
    """The rendered prompt without tools and instructions."""
    tools: tuple[str, ...]
    dropped_tools: tuple[str, ...]
    """Tools that did not fit, in the order in which they were dropped."""
    shortened: bool
    """Whether descriptions were cut to fit."""
    estimated_tokens: int
    protocol: ToolProtocol
    revision: int


VARIABLES: TypeAdapter[JsonObject] = TypeAdapter(JsonObject)

operations = Operations("system prompts")


class ListPrompts(Wire):
    """Request a page of the system prompts, sorted by id."""

    after: Token | None = None
    """`next` of the previous page: the id of its last prompt."""
    limit: int = Field(default=50, ge=1, le=200)


class PromptPage(Stored):
    """A page of the system prompts."""

    items: tuple[SystemPrompt, ...]
    next: Token | None
    """`after` of the next page; null at the end."""


@dataclass(frozen=True, slots=True)
class Prompts:
    store: TenantStore[SystemPrompt]
    requests: StoredRequests
    enhancing: EnhancedPrompts

    @operations.add(
        "prompt.list", "GET /v1/system-prompts", not_over_nats="declared below, in pages that fit a message"
    )
    async def list_prompts(self: Service, caller: CallerDep) -> Listing[SystemPrompt]:
        """List system prompts."""
        return Listing[SystemPrompt](items=tuple(await self.store.list(caller.tenant)))

    @operations.over_nats("prompt.list", not_over_http="declared above, in one page")
    async def list_prompt_page(self: Service, request: ListPrompts, caller: CallerDep) -> PromptPage:
        """List the system prompts, sorted by id."""
        found = await self.store.list(caller.tenant)
        later = [one for one in found if request.after is None or one.id > request.after]
        page = tuple(later[: request.limit])
        return PromptPage(items=page, next=page[-1].id if len(later) > len(page) else None)

    @operations.add("prompt.create", "POST /v1/system-prompts", errors=(CONFLICT, EARLY), audit=())
    async def create_prompt(
        self: Service, body: StrictBody[NewPrompt], caller: CallerDep, request_id: RequestId
    ) -> SystemPrompt:
        """Create a system prompt."""
        variables_of(body.content)  # refuses malformed placeholders
        mine = {"id": body.id or new_id("p"), "request": new_id("q")}
        ids = await self.requests.once_created(caller, "prompt", request_id, body, mine)
        prompt = body.prompt(ids["id"])
        return (await self.store.create_once(caller.tenant, prompt, is_first=ids == mine))[0]

    @operations.add("prompt.read", "GET /v1/system-prompts/{prompt_id}")
    async def read_prompt(self: Service, prompt_id: str, caller: CallerDep) -> SystemPrompt:
        """Read a system prompt."""
        return await self.store.get(caller.tenant, check_token(prompt_id, "prompt_id"))

    @operations.add("prompt.update", "PUT /v1/system-prompts/{prompt_id}", audit=())
    async def update_prompt(
        self: Service, prompt_id: str, body: StrictBody[PromptBody], caller: CallerDep
    ) -> SystemPrompt:
        """Replace a system prompt."""
        variables_of(body.content)
        prompt = body.prompt(check_token(prompt_id, "prompt_id"))
        return await self.store.replace(caller.tenant, prompt, rewrite_equal=True)

    @operations.add("prompt.delete", "DELETE /v1/system-prompts/{prompt_id}", audit=())
    async def delete_prompt(self: Service, prompt_id: str, caller: CallerDep) -> None:
        """Delete a system prompt."""
        # Reading stores the built-in prompt, so deleting it succeeds even before its first use.
        prompt = await self.read_prompt(prompt_id, caller)
        await self.store.delete(caller.tenant, prompt.id)

    @operations.add(
        "prompt.enhance",
        "GET /v1/system-prompts/{prompt_id}/enhanced",
        not_over_nats="declared below, with an object as `variables`",
    )
    async def read_enhanced_prompt(
        self: Service,
        prompt_id: str,
        caller: CallerDep,
        protocol: ToolProtocol | None = None,
        budget_tokens: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
        variables: str | None = None,
        assistant: str | None = None,
        conversation_id: str | None = None,
        user_message: Annotated[str, Query(max_length=20_000)] = "",
    ) -> EnhancedPromptBody:
        """Read a prompt with tools by category, call instructions and diagram instructions (R25).

        `protocol` defaults to that of the conversation or assistant, or of the assistant `default` if neither
        is given. `variables` is a JSON object for the placeholders; without it they stay unchanged. If more
        tools exist than fit, the prompt contains those relevant to `assistant`, to the history of
        `conversation_id` and to the user's next message, `user_message` (R26, R33).
        """
        wanted = EnhancePrompt(
            protocol=protocol,
            budget_tokens=budget_tokens,
            variables=None if variables is None else parse_as(VARIABLES, variables, what="variables"),
            assistant=None if assistant is None else check_token(assistant, "assistant"),
            conversation_id=(
                None if conversation_id is None else check_token(conversation_id, "conversation_id")
            ),
            user_message=user_message,
        )
        return await self.enhance_prompt(prompt_id, wanted, caller)

    @operations.over_nats(
        "prompt.enhance", "prompt_id", not_over_http="declared above, with `variables` in the query"
    )
    async def enhance_prompt(
        self: Service, prompt_id: str, request: EnhancePrompt, caller: CallerDep
    ) -> EnhancedPromptBody:
        """Read a prompt with tools by category, call instructions and diagram instructions."""
        prompt = await self.read_prompt(prompt_id, caller)
        base = await self.enhancing.rendered(caller, prompt.content, request)
        protocol = request.protocol or await self.enhancing.protocol(caller, request)
        enhanced = await self.enhancing.enhanced(caller, base, protocol, request)
        return EnhancedPromptBody(
            id=prompt.id,
            name=prompt.name,
            content=enhanced.text,
            base=base,
            tools=tuple(tool.name for tool in enhanced.tools),
            dropped_tools=enhanced.dropped,
            shortened=enhanced.shortened,
            estimated_tokens=enhanced.estimated_tokens,
            protocol=protocol,
            revision=prompt.revision,
        )


Service = Annotated[Prompts, provided(Prompts)]
