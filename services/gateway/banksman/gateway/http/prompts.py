"""System prompts, plain and enhanced."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import TypeAdapter

from banksman.contracts.ids import check_token
from banksman.contracts.messages import ToolProtocol
from banksman.contracts.registry import SystemPrompt
from banksman.contracts.wire import JsonObject, parse_as
from banksman.gateway.assistants.enhanced_prompts import PromptContext
from banksman.gateway.operation.bodies import Listing
from banksman.gateway.service.bodies import EnhancedPromptBody, NewPrompt, PromptBody
from banksman.gateway.service.dependencies import CallerDep, RequestId, ServiceDep
from banksman.gateway.service.routing import StrictBody, router

VARIABLES: TypeAdapter[JsonObject] = TypeAdapter(JsonObject)

routes = router("system prompts")


@routes.get("/v1/system-prompts")
async def list_prompts(gateway: ServiceDep, caller: CallerDep) -> Listing[SystemPrompt]:
    """List system prompts."""
    return Listing[SystemPrompt](items=await gateway.prompts.list(caller.tenant))


@routes.post("/v1/system-prompts", status_code=201)
async def create_prompt(
    body: StrictBody[NewPrompt], gateway: ServiceDep, caller: CallerDep, request_id: RequestId
) -> SystemPrompt:
    """Create a system prompt."""
    return await gateway.prompts.create(caller, body, request_id)


@routes.get("/v1/system-prompts/{prompt_id}")
async def read_prompt(prompt_id: str, gateway: ServiceDep, caller: CallerDep) -> SystemPrompt:
    """Read a system prompt."""
    return await gateway.prompts.get(caller.tenant, prompt_id)


@routes.put("/v1/system-prompts/{prompt_id}")
async def update_prompt(
    prompt_id: str, body: StrictBody[PromptBody], gateway: ServiceDep, caller: CallerDep
) -> SystemPrompt:
    """Replace a system prompt."""
    return await gateway.prompts.replace(caller.tenant, prompt_id, body)


@routes.delete("/v1/system-prompts/{prompt_id}", status_code=204)
async def delete_prompt(prompt_id: str, gateway: ServiceDep, caller: CallerDep) -> None:
    """Delete a system prompt."""
    await gateway.prompts.delete(caller.tenant, prompt_id)


@routes.get("/v1/system-prompts/{prompt_id}/enhanced")
async def read_enhanced_prompt(
    prompt_id: str,
    gateway: ServiceDep,
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
    return await gateway.prompts.enhanced(
        caller,
        prompt_id,
        context,
        protocol=protocol,
        budget_tokens=budget_tokens,
        variables=None if variables is None else parse_as(VARIABLES, variables, what="variables"),
    )
