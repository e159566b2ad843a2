from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_ENVELOPE = frozenset({"success"})


def fenced(text: str, max_chars: int) -> str:
    """The text in a code fence, its beginning only when it is longer than `max_chars`."""
    if not text.strip():
        return "(empty)"
    shown = text if len(text) <= max_chars else text[:max_chars]
    ticks = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    fence = "`" * max(3, ticks + 1)
    note = "" if shown is text else f"\n\n(the first {max_chars:,} of {len(text):,} characters)"
    return f"{fence}\n{shown.rstrip()}\n{fence}{note}"


def code(text: str) -> str:
    """The text as inline code, on one line."""
    text = " ".join(text.split())
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def bullets(facts: Mapping[str, Any]) -> str:
    """The fields of a result object as a list."""
    return "\n".join(f"- {name}: {value}" for name, value in facts.items() if name not in _ENVELOPE)


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is one."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"
