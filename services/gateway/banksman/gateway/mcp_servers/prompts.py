"""Prompts of MCP servers, which users choose and send themselves. No model is offered them here."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from banksman.contracts import mcp
from banksman.contracts.wire import Stored, Token
from banksman.gateway.assistants.assistants import Assistants
from banksman.gateway.mcp_servers.servers import ConfiguredServers
from banksman.gateway.operation.declaration import CONFLICT, MISSING, Operations
from banksman.gateway.operation.parameters import CallerDep, Listing, RequestBody, StrictBody, provided

Servers = Annotated[ConfiguredServers, provided(ConfiguredServers)]
ArgumentValue = Annotated[str, StringConstraints(max_length=20_000)]

operations = Operations("mcp-servers")


class McpPrompt(mcp.ServedPrompt):
    """A prompt of a server."""

    server: mcp.McpServerId


class McpPromptChoice(RequestBody):
    """A prompt with the values of its arguments."""

    name: str = Field(max_length=256)
    arguments: dict[str, ArgumentValue] = Field(default_factory=dict, max_length=mcp.MAX_PROMPT_ARGUMENTS)


class McpPromptText(Stored):
    """The text of a prompt, for the user to read, change and send."""

    text: str


@operations.add("mcp.prompts", "GET /context/mcp-prompts")
async def list_mcp_prompts(
    servers: Servers,
    assistants: Annotated[Assistants, provided(Assistants)],
    caller: CallerDep,
    assistant_id: Token | None = None,
) -> Listing[McpPrompt]:
    """List the prompts of the tenant's servers, or of those that an assistant uses, as last listed."""
    used = None
    if assistant_id is not None:
        used = (await assistants.read_assistant(assistant_id, caller)).tools.mcp_servers
    found = [one for one in await servers.list(caller) if used is None or one.id in used]
    items = (McpPrompt(server=one.id, **dict(prompt)) for one in found for prompt in one.prompts)
    return Listing[McpPrompt](items=tuple(items))


@operations.add("mcp.prompt", "POST /context/mcp-servers/{server_id}/prompt", errors=(MISSING, CONFLICT))
async def get_mcp_prompt(
    server_id: str, body: StrictBody[McpPromptChoice], servers: Servers, caller: CallerDep
) -> McpPromptText:
    """Get the text of a prompt; characters that do not show are replaced by escapes."""
    return McpPromptText(text=await servers.prompt(caller, server_id, body.name, body.arguments))
