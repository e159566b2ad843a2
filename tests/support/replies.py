"""Replies of scripted models."""

from __future__ import annotations

from banksman.model_server import Reply, ToolCall


def bash(*commands: str) -> Reply:
    """Return a reply that calls these commands in parallel."""
    return Reply(tool_calls=tuple(ToolCall(name="bash", arguments={"command": c}) for c in commands))
