"""Assistants and models, as the gateway lists them."""

from __future__ import annotations

from typing import Any

from tests.e2e.stage import Stage

MODELS = [
    {"id": "openai:gpt-5", "provider": "openai", "name": "gpt-5", "context_tokens": 400_000}
    | {"input_usd": 1.25, "output_usd": 10, "default": True},
    {"id": "anthropic:claude", "provider": "anthropic", "name": "claude", "context_tokens": None}
    | {"input_usd": None, "output_usd": None, "default": False},
]
ASSISTANT: dict[str, Any] = {
    "id": "cranes",
    "revision": 7,
    "name": "Cranes",
    "service": "banksman",
    "model": None,
    "fallback_models": [],
    "system_prompt_id": None,
    "system_prompt": "You know cranes.",
    "options": {},
    "tools": {"enabled": True, "allowed_tools": ["bash", "read_file"], "max_iterations": 10},
    "limits": {"run_timeout_s": 300, "calls_per_reply": 32, "max_cost_usd": None},
    "approval_policy": [{"tool": "bash", "arguments": {"command": "ls *"}, "action": "auto"}],
    "variables": {},
    "files": [],
}
PREVIEW = {
    "content": "You know cranes.\n## Tools",
    "tools": ["bash"],
    "dropped_tools": [],
    "estimated_tokens": 1_234,
}


def assistants(stage: Stage) -> None:
    """One assistant, two models and three tools."""
    stage.resources |= {
        "context/models": {"items": MODELS},
        "context/assistants": {"items": [ASSISTANT]},
        "context/assistants/cranes": ASSISTANT,
        "context/tools": {"items": [{"name": "bash"}, {"name": "read_file"}, {"name": "web_fetch"}]},
        "POST context/assistants/preview": PREVIEW,
        "PUT context/assistants/cranes": {**ASSISTANT, "revision": 8},
    }
