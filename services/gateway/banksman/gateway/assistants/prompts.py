"""System prompts, as clients read and change them."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from banksman.contracts.errors import Conflict
from banksman.contracts.ids import check_token, digest, new_id
from banksman.contracts.messages import ToolProtocol
from banksman.contracts.registry import SystemPrompt
from banksman.contracts.wire import JsonObject, Stored, Token
from banksman.gateway.assistants.enhanced_prompts import EnhancedPrompts, PromptContext
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.parameters import RequestBody
from banksman.gateway.quotas.tenant_store import TenantStore
from banksman.gateway.runs.idempotency import StoredRequests
from banksman.prompting.templates import render, variables_of


class PromptBody(RequestBody):
    """The content of a system prompt."""

    name: str = Field(default="", max_length=200)
    content: str = Field(max_length=256 * 1024)


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


@dataclass(frozen=True, slots=True)
class Prompts:
    """The system prompts of all tenants, as clients read and change them."""

    store: TenantStore[SystemPrompt]
    requests: StoredRequests
    enhancing: EnhancedPrompts

    async def list(self, caller: Caller) -> tuple[SystemPrompt, ...]:
        """Return all prompts of the caller's tenant, sorted by id."""
        return tuple(await self.store.list(caller.tenant))

    async def get(self, caller: Caller, prompt_id: str) -> SystemPrompt:
        """Return a prompt.

        Raises:
            BadInput: The id is malformed.
            NotFound: No such prompt.
        """
        return await self.store.get(caller.tenant, check_token(prompt_id, "prompt_id"))

    async def create(self, caller: Caller, given: NewPrompt, request_id: str) -> SystemPrompt:
        """Store a new prompt. A repeated request returns the prompt that the first one created.

        Raises:
            BadInput: The content has a malformed placeholder.
            Conflict: The id is taken, or the request id was used with another body.
        """
        variables_of(given.content)  # refuses malformed placeholders
        key = digest(f"{caller.user}\nprompt\n{request_id}".encode())
        mine = {"id": given.id or new_id("p"), "request": new_id("q")}
        ids = await self.requests.once(caller.tenant, key, given, mine)
        try:
            return await self.store.create(caller.tenant, _prompt(ids["id"], given))
        except Conflict:
            # Another request has taken the id, or an earlier attempt of this request has stored the prompt.
            if ids["request"] == mine["request"]:
                raise
            return await self.store.get(caller.tenant, ids["id"])

    async def replace(self, caller: Caller, prompt_id: str, given: PromptBody) -> SystemPrompt:
        """Replace a prompt.

        Raises:
            BadInput: The id or a placeholder of the content is malformed.
            NotFound: No such prompt.
        """
        variables_of(given.content)
        prompt = _prompt(check_token(prompt_id, "prompt_id"), given)
        return await self.store.replace(caller.tenant, prompt, rewrite_equal=True)

    async def delete(self, caller: Caller, prompt_id: str) -> None:
        """Delete a prompt.

        Raises:
            NotFound: No such prompt.
        """
        # `get` stores the built-in prompt, so deleting it succeeds even before its first use.
        prompt = await self.get(caller, prompt_id)
        await self.store.delete(caller.tenant, prompt.id)

    async def enhanced(
        self,
        caller: Caller,
        prompt_id: str,
        context: PromptContext,
        *,
        protocol: ToolProtocol | None,
        budget_tokens: int | None,
        variables: JsonObject | None,
    ) -> EnhancedPromptBody:
        """Return a prompt with tools and instructions, as a run in `context` would have it.

        Args:
            caller: The client.
            prompt_id: The prompt.
            context: The run that the prompt is enhanced for.
            protocol: How calls are written; None for that of the context.
            budget_tokens: Maximum tokens for tools; None for the limit of the settings.
            variables: Values for the placeholders; None leaves placeholders unchanged.

        Raises:
            NotFound: No such prompt, assistant or conversation.
        """
        prompt = await self.get(caller, prompt_id)
        base = prompt.content if variables is None else render(prompt.content, variables)
        if protocol is None:
            protocol = await self.enhancing.protocol(caller, context)
        enhanced = await self.enhancing.enhanced(caller, base, protocol, budget_tokens, context)
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


def _prompt(prompt_id: str, body: PromptBody) -> SystemPrompt:
    return SystemPrompt(id=prompt_id, name=body.name, content=body.content)
