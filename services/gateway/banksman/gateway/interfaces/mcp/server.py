"""The tools in the Model Context Protocol. Only this module imports its SDK, on the first request."""

from __future__ import annotations

import json
import logging
import sys
from functools import cache
from typing import Any

from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as McpTool
from starlette.types import Receive, Scope, Send

from banksman.contracts.errors import BanksmanError
from banksman.contracts.frames import error_frame
from banksman.contracts.wire import JsonObject, parse
from banksman.gateway.interfaces.mcp.following import StepReport
from banksman.gateway.interfaces.mcp.tools import TOOLS, Platform, ToolCallRequest

logger = logging.getLogger(__name__)
# At level info the SDK logs every request twice.
logging.getLogger("mcp").setLevel(logging.WARNING)

INSTRUCTIONS = (
    "Banksman runs agents and workflows in a sandbox. start_run gives an agent a task. A run may outlast the "
    "call: follow it with read_run. A run that waits for a decision continues after decide_approval."
)


async def serve(platform: Platform, version: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one request of a client. It leaves no state, so any gateway may serve the next one."""
    manager = StreamableHTTPSessionManager(
        _server(platform, version),
        stateless=True,
        # `Perimeter` has limited the body already.
        max_request_body_size=sys.maxsize,
    )
    async with manager.run():
        await manager.handle_request(scope, receive, send)


def _server(platform: Platform, version: str) -> Server[Any]:
    async def list_tools(context: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(
            tools=[_definition(name) for name, tool in TOOLS.items() if platform.offers(tool)]
        )

    async def call_tool(context: Any, params: CallToolRequestParams) -> CallToolResult:
        tool = TOOLS.get(params.name)
        if tool is None or not platform.offers(tool):
            raise MCPError(INVALID_PARAMS, f"unknown tool {params.name[:80]!r}")
        wants_progress = bool(context.meta and context.meta.get("progress_token") is not None)
        try:
            arguments = parse(tool.arguments, params.arguments or {}, what="arguments")
            report = _report(context) if wants_progress else None
            return _result(await tool.run(ToolCallRequest(platform, arguments, report)))
        except BanksmanError as error:
            return _failure(error)
        except Exception:
            logger.exception("tool %s failed", tool.name)
            return CallToolResult(content=[TextContent(text="internal error")], is_error=True)

    return Server(
        "banksman",
        version=version,
        instructions=INSTRUCTIONS,
        get_tool_input_schema=lambda name: _schema(name) if name in TOOLS else None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _report(context: Any) -> StepReport:
    async def report(count: int, text: str) -> None:
        await context.session.report_progress(float(count), None, text)

    return report


def _result(value: JsonObject) -> CallToolResult:
    # Clients of revisions before 2025-06-18 read the text only.
    text = TextContent(text=json.dumps(value, ensure_ascii=False))
    return CallToolResult(content=[text], structured_content=value)


def _failure(error: BanksmanError) -> CallToolResult:
    frame = error_frame(error)
    wait = f" Try again after {frame.retry_after_s:g} s." if frame.retry_after_s is not None else ""
    return CallToolResult(content=[TextContent(text=f"{frame.code}: {frame.message}.{wait}")], is_error=True)


@cache
def _definition(name: str) -> McpTool:
    tool = TOOLS[name]
    return McpTool(
        name=tool.name,
        description=tool.description,
        input_schema=_schema(name),
        annotations=ToolAnnotations(
            read_only_hint=tool.reads,
            destructive_hint=tool.decides,
            # A repeat without its `request_id` starts another run.
            idempotent_hint=tool.reads,
            open_world_hint=not tool.reads,
        ),
    )


@cache
def _schema(name: str) -> dict[str, Any]:
    schema = TOOLS[name].arguments.model_json_schema()
    return {key: value for key, value in schema.items() if key not in ("title", "description")}
