"""The agent card, by which A2A clients discover this server. It is public, so it names no assistant or tool.

https://a2a-protocol.org/latest/specification/#441-agentcard
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

PROTOCOL_VERSION = "1.0"
CARD_PATH = "/.well-known/agent-card.json"


def agent_card(base_url: str, *, keyless: bool, push: bool) -> dict[str, Any]:
    """Return the card.

    Args:
        base_url: The URL of the gateway as the client wrote it, without a trailing slash.
        keyless: Whether the gateway serves requests without a key.
        push: Whether it notifies receivers of a task's updates.
    """
    card: dict[str, Any] = {
        "name": "Banksman",
        "description": "Runs LLM agents with tools in sandboxes. Some calls wait for a decision.",
        "version": version("banksman"),
        "supportedInterfaces": [
            {"url": f"{base_url}/a2a", "protocolBinding": "JSONRPC", "protocolVersion": PROTOCOL_VERSION}
        ],
        "capabilities": {"streaming": True, "pushNotifications": push, "extendedAgentCard": False},
        "defaultInputModes": ["text/plain", "application/json", "image/*"],
        "defaultOutputModes": ["text/plain"],
        "skills": [
            {
                "id": "run",
                "name": "Do a task",
                "description": "Does a task written in plain language, with the tools of an assistant. "
                "`metadata.banksman.assistant` of a message names another assistant than `default`.",
                "tags": ["agent", "tools", "files", "commands", "approval"],
            }
        ],
    }
    if not keyless:
        card["securitySchemes"] = {"bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}}
        card["securityRequirements"] = [{"schemes": {"bearer": {"list": []}}}]
    return card
