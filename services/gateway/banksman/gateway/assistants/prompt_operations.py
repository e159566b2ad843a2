"""System prompts, plain and enhanced."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import Field, TypeAdapter

from banksman.contracts.ids import check_token
from banksman.contracts.messages import ToolProtocol
from banksman.contracts.registry import SystemPrompt
from banksman.contracts.wire import JsonObject, Stored, Token, Wire, parse_as
from banksman.gateway.assistants.enhanced_prompts import PromptContext
from banksman.gateway.assistants.prompts import EnhancedPromptBody, NewPrompt, PromptBody, Prompts
from banksman.gateway.operation.declaration import CONFLICT, EARLY, MISSING, Audit, Operations
from banksman.gateway.operation.parameters import CallerDep, Listing, RequestId, StrictBody, provided

Service = Annotated[Prompts, provided(Prompts)]
VARIABLES: TypeAdapter[JsonObject] = TypeAdapter(JsonObject)

operations = Operations("system prompts")


@operations.add(
    "prompt.list", "GET /v1/system-prompts", not_over_nats="declared below, in pages that fit a message"
)
async def list_prompts(prompts: Service, caller: CallerDep) -> Listing[SystemPrompt]:
    """List system prompts."""
    return Listing[SystemPrompt](items=await prompts.list(caller))


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


@operations.over_nats("prompt.list", not_over_http="declared above, in one page")
async def list_prompt_page(request: ListPrompts, prompts: Service, caller: CallerDep) -> PromptPage:
    """List the system prompts, sorted by id."""
    found = await prompts.list(caller)
    later = [one for one in found if request.after is None or one.id > request.after]
    page = tuple(later[: request.limit])
    return PromptPage(items=page, next=page[-1].id if len(later) > len(page) else None)


@operations.add(
    "prompt.create",
    "POST /v1/system-prompts",
    status=201,
    errors=(CONFLICT, EARLY),
    audit=Audit("prompt.created"),
)
async def create_prompt(
    body: StrictBody[NewPrompt], prompts: Service, caller: CallerDep, request_id: RequestId
) -> SystemPrompt:
    """Create a system prompt."""
    return await prompts.create(caller, body, request_id)


@operations.add("prompt.read", "GET /v1/system-prompts/{prompt_id}", errors=(MISSING,))
async def read_prompt(prompt_id: str, prompts: Service, caller: CallerDep) -> SystemPrompt:
    """Read a system prompt."""
    return await prompts.get(caller, prompt_id)


@operations.add(
    "prompt.update",
    "PUT /v1/system-prompts/{prompt_id}",
    errors=(MISSING,),
    audit=Audit("prompt.changed"),
)
async def update_prompt(
    prompt_id: str, body: StrictBody[PromptBody], prompts: Service, caller: CallerDep
) -> SystemPrompt:
    """Replace a system prompt."""
    return await prompts.replace(caller, prompt_id, body)


@operations.add(
    "prompt.delete",
    "DELETE /v1/system-prompts/{prompt_id}",
    status=204,
    errors=(MISSING,),
    audit=Audit("prompt.deleted"),
)
async def delete_prompt(prompt_id: str, prompts: Service, caller: CallerDep) -> None:
    """Delete a system prompt."""
    await prompts.delete(caller, prompt_id)


@operations.add(
    "prompt.enhance",
    "GET /v1/system-prompts/{prompt_id}/enhanced",
    not_over_nats="declared below, with an object as `variables`",
)
async def read_enhanced_prompt(
    prompt_id: str,
    prompts: Service,
    caller: CallerDep,
    protocol: ToolProtocol | None = None,
    budget_tokens: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
    variables: str | None = None,
    assistant: str | None = None,
    conversation_id: str | None = None,
    user_message: Annotated[str, Query(max_length=20_000)] = "",
) -> EnhancedPromptBody:
    """Read a prompt with tools by category, call instructions and diagram instructions (R25).

    `protocol` defaults to that of the conversation or assistant, or of the assistant `default` if neither is
    given. `variables` is a JSON object for the placeholders; without it they stay unchanged. If more tools
    exist than fit, the prompt contains those relevant to `assistant`, to the history of `conversation_id` and
    to the user's next message, `user_message` (R26, R33).
    """
    context = PromptContext(
        assistant and check_token(assistant, "assistant"),
        conversation_id and check_token(conversation_id, "conversation_id"),
        user_message,
    )
    return await prompts.enhanced(
        caller,
        prompt_id,
        context,
        protocol=protocol,
        budget_tokens=budget_tokens,
        variables=None if variables is None else parse_as(VARIABLES, variables, what="variables"),
    )


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


@operations.over_nats(
    "prompt.enhance",
    "prompt_id",
    errors=(MISSING,),
    not_over_http="declared above, with `variables` in the query",
)
async def enhance_prompt(
    prompt_id: str, request: EnhancePrompt, prompts: Service, caller: CallerDep
) -> EnhancedPromptBody:
    """Read a prompt with tools by category, call instructions and diagram instructions."""
    return await prompts.enhanced(
        caller,
        prompt_id,
        PromptContext(request.assistant, request.conversation_id, request.user_message),
        protocol=request.protocol,
        budget_tokens=request.budget_tokens,
        variables=request.variables,
    )
