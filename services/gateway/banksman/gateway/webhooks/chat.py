"""The bodies of messages, in each format: chats (Slack's `text`, which others accept), e-mails, devices.

https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from banksman.contracts.visible import one_line, visible
from banksman.contracts.wire import JsonValue
from banksman.gateway.runs.bodies import JsonDict, status
from banksman.gateway.webhooks.store import Webhook

MAX_SHOWN_CHARS = 1_500
"""Maximum characters of each call in a message; the page shows the complete call."""
MAX_PUSHED_CHARS = 500
"""Maximum characters of all calls in a notification."""
MAX_CALLS = 5
_SUBJECTS = ("command", "path", "url")
"""The arguments that describe a call best."""


def message_body(
    webhook: Webhook, kind: str, at: datetime, data: dict[str, Any], link: str
) -> Mapping[str, Any]:
    """Return the body of a message about an event of type `kind`, in the format of its webhook.

    `link` is the signed part of the link to an approval request; empty for other events.
    """
    match webhook.format:
        case "chat":
            return chat_body(kind, data, webhook.page_url, link)
        case "email":
            return mail_body(kind, data, webhook.page_url, link)
        case "push":
            return push_body(kind, data)
        case "a2a":
            return task_body(kind, data, at)
        case "standard":
            return {"type": kind, "timestamp": at, "data": {"tenant": webhook.tenant, **data}}


def chat_body(kind: str, data: dict[str, Any], page_url: str, link: str = "") -> dict[str, str]:
    """Return the body of a message about an event of type `kind`.

    Links only lead to the page at `page_url`, where a user must sign in: they grant nothing. Without a
    `page_url` there are none. `link` is the signed part of the link to an approval request.
    """
    lines, words, path = _content(kind, data, link, _call, _escaped)
    address = f"<{_address(page_url, path)}|{words}>"
    return {"text": "\n".join([*lines, address] if page_url and path else lines)}


def mail_body(kind: str, data: dict[str, Any], page_url: str, link: str = "") -> dict[str, str]:
    """Return subject and text of an e-mail, with the parameters of `chat_body`."""
    lines, words, path = _content(kind, data, link, _plain_call, visible)
    subject = lines[0].rstrip(":")
    end = ["", f"{words}: {_address(page_url, path)}"] if page_url and path else []
    return {"subject": subject.replace("\n", " ")[:200], "text": "\n".join([*lines, *end]) + "\n"}


def push_body(kind: str, data: dict[str, Any]) -> dict[str, JsonValue]:
    """Return what a device shows of an event about an approval request; the page adds the other text."""
    items: list[dict[str, Any]] = data.get("items", [])
    # Push services limit the size of a message; this bound keeps the text below the limit.
    lines = [
        f"{one_line(item['name'])}: {visible(_subject(item))}"[:MAX_PUSHED_CHARS]
        for item in items[:MAX_CALLS]
    ]
    return {
        "type": kind,
        "approval_id": data["approval_id"],
        "calls": len(items),
        "tool": one_line(items[0]["name"]) if items else "",
        "text": "\n".join(lines)[:MAX_PUSHED_CHARS],
    }


def task_body(kind: str, data: dict[str, Any], at: datetime) -> JsonDict:
    """Return the body for A2A's receivers: the state of the task. They read the rest with `GetTask`."""
    run_status = {"approval.requested": "awaiting_approval", "input.requested": "awaiting_input"}.get(kind)
    ids = {"taskId": data["run_id"], "contextId": data["conversation_id"]}
    return {"statusUpdate": {**ids, "status": status(run_status or data["status"], at)}}


def _content(
    kind: str,
    data: dict[str, Any],
    link: str,
    call: Callable[[dict[str, Any]], str],
    shown: Callable[[str], str],
) -> tuple[list[str], str, str]:
    match kind:
        case "approval.requested":
            items: list[dict[str, Any]] = data["items"]
            lines = [f"{'A call waits' if len(items) == 1 else f'{len(items)} calls wait'} for approval:"]
            lines += _changed(data.get("first"), shown)
            lines += [call(item) for item in items[:MAX_CALLS]]
            lines += [f"and {len(items) - MAX_CALLS} more"] if len(items) > MAX_CALLS else []
            return lines, "Decide", f"approvals/{quote(data['approval_id'])}/{link}"
        case "approval.escalated":
            users = ", ".join(shown(user) for user in data["users"]) or "everyone who may approve"
            text = f"An approval request still waits. Asked now: {users}"
            return [text], "Decide", f"approvals/{quote(data['approval_id'])}"
        case "input.requested":
            text = f"A workflow needs a value: {shown(data['message'])}"
            return [text], "Provide it", f"c/{data['conversation_id']}"
        case "run.finished":
            return [f"A run has ended: {shown(data['status'])}"], "Show it", f"runs/{data['run_id']}"
        case _:
            return ["This is a test message of Banksman."], "", ""


def _changed(first: dict[str, Any] | None, shown: Callable[[str], str]) -> list[str]:
    if first is None:
        return []
    scope = f", remembered for the {first['remember']}" if first["remember"] else ""
    return [f"{shown(first['by'])} approved it as follows{scope}. A second user must approve the same."]


def _call(item: dict[str, Any]) -> str:
    # A model wrote this text, which must not end the code block.
    block = _escaped(_subject(item)).replace("```", "` ` `")
    return (
        f"*{_escaped(one_line(item['name']))}*"
        + (f"\n```{block}```" if block else "")
        + _covers(item, _escaped)
    )


def _plain_call(item: dict[str, Any]) -> str:
    return f"\n{one_line(item['name'])}\n{visible(_subject(item))}".rstrip() + _covers(item, visible)


def _covers(item: dict[str, Any], shown: Callable[[str], str]) -> str:
    covers: dict[str, str] = item.get("covers") or {}
    words = covers.get("words", "")
    return f"\nIf remembered, it applies to {shown(words[:MAX_SHOWN_CHARS])}" if words else ""


def _subject(item: dict[str, Any]) -> str:
    arguments: dict[str, Any] = item["arguments"]
    shown = next((arguments[name] for name in _SUBJECTS if isinstance(arguments.get(name), str)), "")
    return shown if len(shown) <= MAX_SHOWN_CHARS else f"{shown[:MAX_SHOWN_CHARS]}…"


def _address(page_url: str, path: str) -> str:
    return f"{page_url.rstrip('/')}/#/{path}"


def _escaped(text: str) -> str:
    """Return visible text with its markup escaped: `<!channel>` would notify all members of a channel."""
    return visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
