"""System prompts, assistants, workflows, tools and usage."""

from __future__ import annotations

from banksman.bus.control import Received
from banksman.contracts.errors import ErrorCode
from banksman.contracts.registry import SystemPrompt
from banksman.contracts.tool_views import ToolView, ToolViews
from banksman.contracts.usage import UsageReport
from banksman.gateway.assistants.enhanced_prompts import PromptContext
from banksman.gateway.interfaces.nats.endpoints import (
    ApiEndpoints,
    Deleted,
    caller_of,
    named_by,
    request_id_of,
    tenant_of,
)
from banksman.gateway.interfaces.nats.messages import (
    EnhancePrompt,
    ListPrompts,
    PromptPage,
    UpdatePrompt,
)
from banksman.gateway.service.bodies import EnhancedPromptBody, NewPrompt
from banksman.gateway.service.gateway import Gateway

MISSING, CONFLICT, EARLY = ErrorCode.NOT_FOUND, ErrorCode.CONFLICT, ErrorCode.NOT_READY


def add_prompts(api: ApiEndpoints, gateway: Gateway) -> None:
    """Serve system prompts."""

    @api.serve("prompt", "list")
    async def list_prompts(request: ListPrompts, message: Received) -> PromptPage:
        """List the system prompts, sorted by id."""
        found = await gateway.prompts.list(tenant_of(message))
        later = [one for one in found if request.after is None or one.id > request.after]
        page = tuple(later[: request.limit])
        return PromptPage(items=page, next=page[-1].id if len(later) > len(page) else None)

    @api.serve("prompt", "create", errors=(CONFLICT, EARLY))
    async def create_prompt(request: NewPrompt, message: Received) -> SystemPrompt:
        """Create a system prompt; a repeated request id returns the one that was created."""
        return await gateway.prompts.create(caller_of(message), request, request_id_of(message))

    @api.serve("prompt", "read", "{prompt_id}", errors=(MISSING,))
    async def read_prompt(message: Received) -> SystemPrompt:
        """Read a system prompt."""
        return await gateway.prompts.get(tenant_of(message), named_by(message))

    @api.serve("prompt", "update", "{prompt_id}", errors=(MISSING,))
    async def update_prompt(request: UpdatePrompt, message: Received) -> SystemPrompt:
        """Replace a system prompt."""
        return await gateway.prompts.replace(tenant_of(message), named_by(message), request)

    @api.serve("prompt", "delete", "{prompt_id}", errors=(MISSING,))
    async def delete_prompt(message: Received) -> Deleted:
        """Delete a system prompt."""
        await gateway.prompts.delete(tenant_of(message), named_by(message))
        return Deleted(id=named_by(message))

    @api.serve("prompt", "enhance", "{prompt_id}", errors=(MISSING,))
    async def enhance_prompt(request: EnhancePrompt, message: Received) -> EnhancedPromptBody:
        """Read a prompt with tools by category, call instructions and diagram instructions."""
        return await gateway.prompts.enhanced(
            caller_of(message),
            named_by(message),
            PromptContext(request.assistant, request.conversation_id, request.user_message),
            protocol=request.protocol,
            budget_tokens=request.budget_tokens,
            variables=request.variables,
        )


def add_tools(api: ApiEndpoints, gateway: Gateway) -> None:
    """Serve tools and usage."""

    @api.serve("tool", "list")
    async def list_tools(message: Received) -> ToolViews:
        """List the tools that the tenant's models may call."""
        return ToolViews.of(await gateway.tools.list(tenant_of(message)))

    @api.serve("tool", "read", "{name}", errors=(MISSING,))
    async def read_tool(message: Received) -> ToolView:
        """Read a tool that the tenant's models may call."""
        return await gateway.tools.get(tenant_of(message), named_by(message))

    @api.serve("usage")
    async def usage(message: Received) -> UsageReport:
        """Read the usage of the tenant's runs today and this month (UTC), with the operator's limits."""
        return await gateway.usage.of(tenant_of(message))
