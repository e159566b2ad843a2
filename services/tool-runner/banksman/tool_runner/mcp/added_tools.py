"""Tools that a runner adds to those of a server, with which models read its resources and prompts."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Final

import mcp_types as types
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ValidationError

from banksman.contracts.wire import JsonObject

READ_RESOURCE: Final = types.Tool(
    name="read_resource",
    description="Read a resource of this server. Without a URI, list its resources and templates of URIs.",
    input_schema={"type": "object", "properties": {"uri": {"type": "string"}}},
    annotations=types.ToolAnnotations(read_only_hint=True),
)
GET_PROMPT: Final = types.Tool(
    name="get_prompt",
    description="Get a prompt of this server, with its arguments. Without a name, list its prompts.",
    input_schema={
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "arguments": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    },
    annotations=types.ToolAnnotations(read_only_hint=True),
)


def may_add_tools(client: ClientSession) -> bool:
    """Return whether a server declares resources or prompts."""
    capabilities = client.server_capabilities
    return capabilities is not None and bool(capabilities.resources or capabilities.prompts)


async def added_tools(client: ClientSession) -> AsyncGenerator[types.Tool]:
    """Yield the tools for what a server has. Many declare resources and prompts without having any."""
    if not may_add_tools(client):
        return
    for tool, listed in ((READ_RESOURCE, _resources), (GET_PROMPT, _prompts)):
        try:
            found = await listed(client)
        except (MCPError, ValidationError):
            continue
        if found:
            yield tool


async def call_added(client: ClientSession, name: str, arguments: JsonObject) -> types.CallToolResult:
    """Call an added tool; raise `MCPError` with the server's error."""
    if name == READ_RESOURCE.name:
        return types.CallToolResult(content=await _resource(client, arguments.get("uri")))
    return types.CallToolResult(content=await _prompt(client, arguments))


async def _resource(client: ClientSession, uri: object) -> list[types.ContentBlock]:
    if isinstance(uri, str) and uri:
        read = await client.read_resource(uri)
        return [types.EmbeddedResource(resource=contents) for contents in read.contents]
    return await _resources(client)


async def _resources(client: ClientSession) -> list[types.ContentBlock]:
    listed = await client.list_resources()
    try:
        templates = (await client.list_resource_templates()).resource_templates
    except MCPError:
        templates = []
    return _lines(*listed.resources, *templates)


async def _prompts(client: ClientSession) -> list[types.ContentBlock]:
    return _lines(*(await client.list_prompts()).prompts)


async def _prompt(client: ClientSession, arguments: JsonObject) -> list[types.ContentBlock]:
    name, given = arguments.get("name"), arguments.get("arguments")
    if not isinstance(name, str) or not name:
        return await _prompts(client)
    values = {key: str(value) for key, value in given.items()} if isinstance(given, dict) else {}
    return [message.content for message in (await client.get_prompt(name, values)).messages]


def _lines(*items: BaseModel) -> list[types.ContentBlock]:
    shown = (one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in items)
    return [types.TextContent(text=json.dumps(one, ensure_ascii=False)) for one in shown]
