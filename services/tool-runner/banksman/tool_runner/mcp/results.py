"""The result of a call as models receive it."""

from __future__ import annotations

import json

from mcp_types import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from banksman.contracts.wire import JsonObject
from banksman.runtime.redaction import Redaction
from banksman.tool_runner.tools.base import ToolOutcome
from banksman.tool_runner.tools.pages import continuation, store_output
from banksman.tool_runner.workspaces.workspace import Workspace


def outcome_of(
    result: CallToolResult, secrets: Redaction, workspace: Workspace, max_chars: int
) -> ToolOutcome:
    """Return a server's result without the server's secrets, and with its first `max_chars` characters."""
    text = secrets.of(_text(result))
    truncated = len(text) > max_chars
    value: JsonObject = {"success": not result.is_error, "truncated": truncated}
    value["error" if result.is_error else "result"] = text[:max_chars]
    if result.is_error:
        value["error_kind"] = "tool_error"
    whole = text.encode("utf-8", "replace") if truncated else None
    if whole is not None and (path := store_output(workspace, whole)):
        shown = len(text[:max_chars].encode("utf-8", "replace"))
        value |= {"full_output_path": path, "more": continuation(path, shown)}
    return ToolOutcome(
        value=value,
        is_error=result.is_error,
        error_kind="tool_error" if result.is_error else None,
        truncated=truncated,
        output=whole,
    )


def _text(result: CallToolResult) -> str:
    """Return the text content or, without any, the structured content, which servers repeat as text."""
    text = "\n".join(_block(block) for block in result.content)
    if text.strip() or result.structured_content is None:
        return text
    return json.dumps(result.structured_content, ensure_ascii=False)


def _block(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case EmbeddedResource(resource=TextResourceContents(text=text)):
            return text
        case ImageContent() | AudioContent():
            return (
                f"[{block.type} {block.mime_type[:100]}, {len(block.data)} characters of base64, not shown]"
            )
        case ResourceLink():
            return f"[resource {block.uri}]"
        case _:
            return f"[{block.type}, not shown]"
