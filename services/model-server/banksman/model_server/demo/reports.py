"""The demo model's replies to requests of the platform: summaries, reports from pages, and titles."""

from __future__ import annotations

import re
from textwrap import shorten

from banksman.model_server.chat import ChatRequest

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


def workflow_text(chat: ChatRequest, request: str) -> str | None:
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
