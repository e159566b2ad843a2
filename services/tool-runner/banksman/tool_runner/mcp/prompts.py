"""The prompts of a server, which users choose, and the tools with which models read prompts and resources.

A runner adds these tools to those of the server. What a server sends is untrusted and limited.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Final

import mcp_types as types
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ValidationError

from banksman.contracts.mcp import PromptArgument, ServedPrompt
from banksman.contracts.visible import one_line, visible
from banksman.contracts.wire import JsonObject
from banksman.runtime.redaction import Redaction
from banksman.tool_runner.mcp.connection import ServerFailed
from banksman.tool_runner.mcp.messages import pages

MAX_PROMPTS: Final = 100
"""Maximum prompts of a server; further ones are not listed."""
MAX_LISTED_BYTES: Final = 32 * 1024
"""Maximum bytes of the descriptions of all prompts of a server."""
MAX_TEXT_CHARS: Final = 100_000
"""Maximum characters of the text of a prompt."""
_MAX_TITLE_CHARS, _MAX_DESCRIPTION_CHARS = 200, 500
_SHOWN = str.maketrans({"\r": None, "\xa0": " ", "\ufe0f": None})
"""Characters that texts commonly have, and that do not show."""


async def served_prompts(client: ClientSession, secrets: Redaction) -> tuple[ServedPrompt, ...]:
    """Return the prompts of a server that can be used; none if it does not list them."""
    declared = client.server_capabilities
    found: dict[str, ServedPrompt] = {}
    if declared is None or declared.prompts is None:
        return ()
    # A server that does not list its prompts has usable tools all the same.
    with contextlib.suppress(MCPError, ValidationError):
        size = 0
        async for prompt in _listed(client):
            one = _served(prompt, secrets)
            if one is None or one.name in found:
                continue
            size += len(one.model_dump_json())
            if len(found) == MAX_PROMPTS or size > MAX_LISTED_BYTES:
                break
            found[one.name] = one
    return tuple(found.values())


async def _listed(client: ClientSession) -> AsyncGenerator[types.Prompt]:
    async for page in pages(client.list_prompts):
        for prompt in page.prompts:
            yield prompt


def _served(prompt: types.Prompt, secrets: Redaction) -> ServedPrompt | None:
    """Return a prompt; None if a name of it is too long, does not show as it is, or contains a secret."""
    given = prompt.arguments or []
    if not all(_is_plain(name, secrets) for name in (prompt.name, *(one.name for one in given))):
        return None

    def shown(text: str | None, max_chars: int) -> str:
        return one_line(secrets.of(text or "").translate(_SHOWN))[:max_chars]

    try:
        arguments = tuple(
            PromptArgument(
                name=one.name,
                description=shown(one.description, _MAX_DESCRIPTION_CHARS),
                required=one.required or False,
            )
            for one in given
        )
        return ServedPrompt(
            name=prompt.name,
            title=shown(prompt.title, _MAX_TITLE_CHARS),
            description=shown(prompt.description, _MAX_DESCRIPTION_CHARS),
            arguments=arguments,
        )
    except ValidationError:
        return None


def _is_plain(name: str, secrets: Redaction) -> bool:
    return bool(name) and one_line(name) == name and secrets.of(name) == name


async def prompt_messages(
    client: ClientSession, name: str, arguments: dict[str, str]
) -> list[types.ContentBlock]:
    """Return the contents of a prompt's messages; raise `ServerFailed` if the server requests values."""
    try:
        result = await client.get_prompt(name, arguments)
    except RuntimeError as error:
        raise ServerFailed("the server requests more values than the arguments of the prompt") from error
    return [message.content for message in result.messages]


def prompt_text(contents: list[types.ContentBlock], secrets: Redaction) -> str:
    """Return the text of a prompt, in which hidden characters are escapes; raise `ServerFailed` for none."""
    text = secrets.of("\n\n".join(_text(block) for block in contents)).translate(_SHOWN)
    if len(text) > MAX_TEXT_CHARS:
        raise ServerFailed(f"the prompt has {len(text)} characters; at most {MAX_TEXT_CHARS} are accepted")
    return visible(text)


def _text(block: types.ContentBlock) -> str:
    match block:
        case types.TextContent():
            return block.text
        case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
            return resource.text
        case types.ResourceLink():
            return block.uri
        case _:
            return f"[{block.type}]"


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
