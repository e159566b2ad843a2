"""The definitions of the tools that every runner serves, from `workspace_tools.json`.

The limits here are the maximum, which descriptions state too. A runner with lower limits cuts output or ends
a call earlier, and reports this in the result.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject

MAX_OUTPUT_CHARS = 10_000
"""Characters of output in one result."""
COMMAND_TIMEOUT_S = 60.0
"""Default timeout of a command in seconds."""
FETCH_TIMEOUT_S = 30.0
"""Seconds from the first DNS look-up to the last byte, including redirects."""


def _definition(properties: JsonObject, required: list[str], **fields: Any) -> ToolDefinition:
    needed = {"required": required} if required else {}
    schema = {"type": "object", "properties": properties, **needed, "additionalProperties": False}
    return ToolDefinition(input_schema=cast(JsonObject, schema), **fields)


_ALL = tuple(
    _definition(**tool) for tool in json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
)
BASH, READ_FILE, EDIT_FILE, WRITE_FILE, WEB_FETCH, WEB_SEARCH, SEARCH_CODE, *_PROCESSES = _ALL
PROCESS_OUTPUT, PROCESS_STOP, PROCESS_LIST = _PROCESSES

WORKSPACE_TOOLS: tuple[ToolDefinition, ...] = tuple(tool for tool in _ALL if tool is not WEB_SEARCH)
"""The tools of every tenant. `WEB_SEARCH` is offered to tenants with a search provider."""

MAX_COMMAND_TIMEOUT_S = BASH.timeout_s
"""Maximum timeout of a command in seconds."""
MAX_MATCHES = 500
"""Matches in one result of a search."""

NETWORK_TOOLS = frozenset({BASH.name, WEB_FETCH.name, WEB_SEARCH.name})
"""Names of the tools whose calls contain the assistant's network policy."""

PROCESS_TOOLS = frozenset(tool.name for tool in _PROCESSES)
"""Names of the tools that use no file of the workspace, so that they need not wait for other calls."""

WORKSPACE_NAMES = frozenset(tool.name for tool in _ALL)
"""Names that no other tool may use."""
