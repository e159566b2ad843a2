"""Workflows without code, as the gateway returns them."""

from __future__ import annotations

from typing import Any

STORED: dict[str, Any] = {
    "name": "announce_a_version",
    "title": "Announce a version",
    "description": "",
    "category": "general",
    "timeout_s": 3600,
    "server": "stored",
    "revision": 4,
    "parameters_schema": {
        "type": "object",
        "properties": {"version": {"type": "string", "title": "Version"}},
        "required": ["version"],
    },
    "built": {"steps": [{"type": "prompt", "name": "prompt1", "prompt": "Announce", "tools": []}]},
}

BUILT: dict[str, Any] = {
    **STORED,
    "built": {
        "steps": [
            {"type": "input", "name": "news", "message": "What is new in {{parameters.version}}?"},
            {"type": "approval", "name": "release", "message": "Release it?"},
            {"type": "tool", "name": "write", "tool": "write_file", "arguments": {"path": "NOTES.md"}},
        ],
        "result": "Announced in {{steps.write.path}}.",
    },
}
"""With one step of each kind that the other one lacks."""
