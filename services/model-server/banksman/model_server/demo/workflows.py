"""The demo model's choice of a workflow for a request in plain language, by common words."""

from __future__ import annotations

import json
import re
from textwrap import shorten
from typing import Any, cast

from banksman.model_server.chat import ValidatedRequest
from banksman.model_server.json_values import dumps

_TASK = "Choose the workflow that the user wants to start"
_WORD = re.compile(r"[a-z0-9]+")
_VALUE = r"[`\"']?([\w./-]*\w)"
_NAMED = re.compile(rf"\b(?:named|called|for|in)\s+{_VALUE}", re.IGNORECASE)


def workflow_reply(chat: ValidatedRequest, request: str) -> str | None:
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


_SUMMARY = "You summarise conversations"
_REPORT = "You write cited reports"
_TITLE = "Write a title for the conversation"
_FIRST_MESSAGE = re.compile(r"^User:\s*(.+)$", re.MULTILINE)
_SAID = re.compile(r"^(User|Assistant): (.+)$", re.MULTILINE)
_SOURCE = re.compile(r"^\[(\d+)\] \S+\n(.*?)(?=^\[\d+\] |\Z)", re.MULTILINE | re.DOTALL)
_SENTENCE = re.compile(r"[^\s#>|*`-][^\n]{20,}?(?:[.!?](?=\s|$)|$)", re.MULTILINE)
MAX_LINES = 12
MAX_CHARS = 300
MAX_TITLE_CHARS = 60


def workflow_text(chat: ValidatedRequest, request: str) -> str | None:
    """Return a summary, a report or a title made of quotes; None if the system prompt requests none."""
    if _SUMMARY in chat.system:
        said = _SAID.findall(request)
        if not said:
            return "The conversation has no messages."
        lines = [f"- {who}: {text[:MAX_CHARS]}" for who, text in said[-MAX_LINES:]]
        return f"The last {len(lines)} of {len(said)} messages (the demo model only quotes):\n\n" + "\n".join(
            lines
        )
    if _REPORT in chat.system:
        sources = [(number, _SENTENCE.search(body)) for number, body in _SOURCE.findall(request)]
        lines = [f"- {found[0][:MAX_CHARS]} [{number}]" for number, found in sources if found]
        return "What the sources begin with (the demo model only quotes):\n\n" + "\n".join(lines)
    if _TITLE in chat.system and (first := _FIRST_MESSAGE.search(request)):
        return shorten(first[1].replace("`", ""), MAX_TITLE_CHARS, placeholder="…")
    return None
