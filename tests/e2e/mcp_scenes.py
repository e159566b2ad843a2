"""MCP servers, as the gateway describes them."""

from __future__ import annotations

from typing import Any


def tool(name: str, description: str) -> dict[str, Any]:
    """Return a tool of the server `issues`."""
    return {
        "name": f"issues__{name}",
        "tool": name,
        "description": description,
        "input_schema": {"type": "object", "properties": {"title": {"type": "string"}}},
        "requires_approval": True,
    }


def server(id: str, **more: Any) -> dict[str, Any]:
    """Return a server over HTTP that lists no tools."""
    return {
        "id": id,
        "transport": {"type": "http", "url": f"https://{id}.example.org/mcp", "secrets": ["X-Team"]},
        "description": "",
        "trusted": False,
        "timeout_s": 60,
        "revision": 1,
        "tools": [],
        "changes": [],
        "changes_digest": None,
        "found_at": "2026-01-05T08:00:00Z",
        "created_at": "2026-01-02T08:00:00Z",
        "created_by": "ada",
        "problem": None,
        "problem_code": None,
        "refused": [],
        "needs_sign_in": False,
        "sign_in": "tenant",
        "signed_in": None,
        **more,
    }


CLOSE = tool("close", "Closes an issue.")
ISSUES = server(
    "issues",
    tools=[tool("create", "Creates an issue.")],
    changes=[{**CLOSE, "description": "Closes all issues.", "replaces": CLOSE}],
    changes_digest="0" * 64,
    signed_in={"user": "ada", "at": "2026-01-05T07:00:00Z", "expires_at": None},
    refused=[{"name": "search", "reason": "its inputSchema is [], not an object"}],
)
WIKI = server(
    "wiki", needs_sign_in=True, problem="the server responded with status 401", problem_code="server"
)
RESOURCES: dict[str, Any] = {
    "context/mcp-servers": {"items": [ISSUES, WIKI]},
    "context/mcp-servers/issues": ISSUES,
    "context/mcp-servers/wiki": WIKI,
}
