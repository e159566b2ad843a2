"""The tools that an assistant is offered."""

from __future__ import annotations

import pytest

from banksman.contracts.assistants import ToolSettings
from banksman.contracts.tools import ToolDefinition

TOOLS = (
    ToolDefinition(name="issues__create", description="of an MCP server"),
    ToolDefinition(name="wiki__read", description="of an MCP server"),
    ToolDefinition(name="own__tool", description="of a tool server", server="own"),
    ToolDefinition(name="read_file", description="of workspaces"),
)


@pytest.mark.parametrize(
    ("settings", "offered"),
    [
        ({}, {"issues__create", "wiki__read", "own__tool", "read_file"}),
        ({"mcp_servers": ["wiki"]}, {"wiki__read", "own__tool", "read_file"}),
        ({"mcp_servers": []}, {"own__tool", "read_file"}),
        ({"mcp_servers": ["wiki"], "allowed_tools": ["issues__create", "wiki__read"]}, {"wiki__read"}),
        ({"allowed_tools": ["issues__create", "own__tool"]}, {"issues__create", "own__tool"}),
    ],
)
def test_an_assistant_chooses_the_mcp_servers_whose_tools_it_is_offered(
    settings: dict[str, list[str]], offered: set[str]
) -> None:
    """R84: tools of other kinds are offered as before, whatever their names are."""
    chosen = ToolSettings.model_validate(settings)

    assert {tool.name for tool in TOOLS if chosen.allows(tool)} == offered
