"""The body of a webhook as a message of a chat: Slack's `text`, which Mattermost and others accept as well.

https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

MAX_SHOWN_CHARS = 1_500
"""Characters of each call in a message; the page shows all of it."""
MAX_CALLS = 5
_SUBJECTS = ("command", "path", "url")
"""The arguments that say most about a call."""


def chat_body(kind: str, data: dict[str, Any], page_url: str) -> dict[str, str]:
    """Return the body of a message.

    Its links only lead to the page, where a user signs in: they open nothing by themselves.

    Args:
        kind: The type of the event.
        data: The data of the webhook's message.
        page_url: The address of the page; empty for messages without links.
    """
    match kind:
        case "approval.requested":
            items: list[dict[str, Any]] = data["items"]
            lines = [f"{'A call waits' if len(items) == 1 else f'{len(items)} calls wait'} for approval:"]
            lines += [_call(item) for item in items[:MAX_CALLS]]
            lines += [f"and {len(items) - MAX_CALLS} more"] if len(items) > MAX_CALLS else []
            lines += _link(page_url, f"approvals/{quote(data['approval_id'])}", "Decide")
        case "approval.escalated":
            users = ", ".join(_escaped(user) for user in data["users"]) or "everyone who may approve"
            lines = [f"An approval request still waits. Asked now: {users}"]
            lines += _link(page_url, f"approvals/{quote(data['approval_id'])}", "Decide")
        case "input.requested":
            lines = [f"A workflow needs a value: {_escaped(data['message'])}"]
            lines += _link(page_url, f"c/{data['conversation_id']}", "Provide it")
        case "run.finished":
            lines = [f"A run has ended: {_escaped(data['status'])}"]
            lines += _link(page_url, f"runs/{data['run_id']}", "Show it")
        case _:
            lines = ["This is a test message of Banksman."]
    return {"text": "\n".join(lines)}


def _call(item: dict[str, Any]) -> str:
    arguments: dict[str, Any] = item["arguments"]
    shown = next((arguments[name] for name in _SUBJECTS if isinstance(arguments.get(name), str)), "")
    cut = shown if len(shown) <= MAX_SHOWN_CHARS else f"{shown[:MAX_SHOWN_CHARS]}…"
    # A model chooses this text: it must not end the block.
    block = _escaped(cut).replace("```", "` ` `")
    return f"*{_escaped(item['name'])}*" + (f"\n```{block}```" if block else "")


def _link(page_url: str, path: str, words: str) -> list[str]:
    return [f"<{page_url.rstrip('/')}/#/{path}|{words}>"] if page_url else []


def _escaped(text: str) -> str:
    """Return text that holds no markup of its own: `<!channel>` would notify everyone."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
