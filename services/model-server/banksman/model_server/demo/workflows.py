"""The demo model's choice of a workflow for a request in plain language, by common words."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from banksman.model_server.chat import ChatRequest
from banksman.model_server.json_values import dumps

_TASK = "Choose the workflow that the user wants to start"
_WORD = re.compile(r"[a-z0-9]+")
_VALUE = r"[`\"']?([\w./-]*\w)"
_NAMED = re.compile(rf"\b(?:named|called|for|in)\s+{_VALUE}", re.IGNORECASE)


def workflow_reply(chat: ChatRequest, request: str) -> str | None:
    """Return the JSON object of a filled form; None if the system prompt requests no workflow."""
    if _TASK not in chat.system:
        return None
    words = set(_WORD.findall(request.lower()))
    workflows = [_workflow(line) for line in chat.system.splitlines() if line.startswith('{"name"')]
    none: dict[str, Any] = {}
    best = max(workflows, key=lambda one: _score(one, words), default=none)
    if not _score(best, words):
        return dumps({"workflow": None})
    return dumps({"workflow": best["name"], "parameters": _parameters(best, words, request)})


def _workflow(line: str) -> dict[str, Any]:
    try:
        return cast(dict[str, Any], json.loads(line))
    except ValueError:
        return {}


def _score(workflow: dict[str, Any], words: set[str]) -> int:
    return len(words & set(_WORD.findall(str(workflow.get("name", "")).lower())))


def _parameters(workflow: dict[str, Any], words: set[str], request: str) -> dict[str, Any]:
    """Return the parameters in the request: choices, and texts such as `version 1.2` or `named demo`."""
    form = cast(dict[str, Any], workflow.get("parameters", {}))
    properties = cast(dict[str, dict[str, Any]], form.get("properties", {}))
    found: dict[str, Any] = {
        name: choice
        for name, field in properties.items()
        for choice in field.get("enum", ())
        if str(choice).lower() in words
    }
    texts = [name for name in form.get("required", ()) if properties.get(name, {}).get("type") == "string"]
    for name in texts:
        if stated := re.search(rf"\b{re.escape(name)}\s+{_VALUE}", request, re.IGNORECASE):
            found.setdefault(name, stated[1])
    named = _NAMED.search(request)
    if named and texts:
        found.setdefault(texts[0], named[1])
    return found
