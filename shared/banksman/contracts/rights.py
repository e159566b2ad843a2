"""The rights of an API key."""

from __future__ import annotations

from typing import Final, Literal, get_args

Right = Literal["chat", "approve", "admin", "operator"]
"""
chat      use conversations, files, assistants, prompts, workflows and the model APIs
approve   decide approval requests, provide what workflows request, and read the conversations for it
admin     manage the tenant's API keys, webhooks, MCP servers and secrets, and list its tools
operator  manage the API keys of every tenant, read the state of the system, and replay dead letters
"""

RIGHTS: Final[tuple[Right, ...]] = get_args(Right)
DEFAULT_RIGHTS: Final[tuple[Right, ...]] = ("chat", "approve")
"""The rights of a key that is created without a list of rights."""
