"""Replies of scripted models."""

from __future__ import annotations

from tests.support.scripted_models import ScriptedCall, ScriptedReply


def bash(*commands: str) -> ScriptedReply:
    """Return a reply that calls these commands in parallel."""
    return ScriptedReply(
        tool_calls=tuple(ScriptedCall(name="bash", arguments={"command": c}) for c in commands)
    )
