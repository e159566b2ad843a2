"""Previews of calls that need approval, shown beside their exact arguments."""

from __future__ import annotations

import json
import re

from banksman.contracts.events import Preview
from banksman.contracts.tools import ToolCall
from banksman.contracts.wire import JsonValue

MAX_PREVIEW_CHARS = 50_000
"""Characters of each text of a preview; the arguments beside it are always whole."""

# Control characters but line feed and tab, and the format characters that hide or reorder text: soft hyphen,
# zero-width and bidirectional marks, fillers, variation selectors, tags (https://unicode.org/reports/tr36/).
_INVISIBLE = re.compile(
    "\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def preview(call: ToolCall, *, old_content: str | None = None) -> Preview:
    """Return the preview of a call.

    Args:
        call: The call that needs approval.
        old_content: For `write_file` the current content of the file; None when it is new or cannot be read.
    """
    arguments = call.arguments
    match call.name:
        case "bash" if isinstance(arguments.get("command"), str):
            return Preview(kind="command", command=_shown(arguments["command"]))
        case "web_fetch" if isinstance(arguments.get("url"), str):
            return Preview(kind="url", url=_shown(arguments["url"]))
        case "write_file" if isinstance(arguments.get("content"), str):
            return Preview(
                kind="diff",
                path=_shown(arguments.get("path")),
                old=None if old_content is None else _shown(old_content),
                new=_shown(arguments["content"]),
            )
        case _:
            return Preview(kind="text", text=_shown(json.dumps(arguments, indent=2, ensure_ascii=False)))


def visible(text: str) -> str:
    """Return the text with every character that hides or reorders others written as its escape."""
    return _INVISIBLE.sub(_escape, text)


def _shown(value: JsonValue) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    cut = text[:MAX_PREVIEW_CHARS]
    left_out = len(text) - len(cut)
    return visible(cut) + (f"\n[{left_out:,} more characters]" if left_out else "")


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
