from __future__ import annotations

import re

_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_REQUEST = re.compile(
    rf"\b(?P<count>{'|'.join(_NUMBERS)}|[1-9]|10)\s+(?:\w+\s+)?ideas?\b"
    r"(?:\s+(?:for|about|on)\s+(?P<topic>[^\n.!?;]{1,200}))?",
    re.IGNORECASE,
)
_TEMPLATES = (
    "Begin with the smallest version of {} that is useful by itself.",
    "Ask three people what they expect from {}, and build on what all of them name.",
    "Combine {} with something that you already do every week.",
    "Limit {} to one hour and one sheet of paper.",
    "Invite a friend to {}, and divide the work.",
    "Look for the oldest example of {}, and repeat it with what exists today.",
    "Plan {} without spending any money.",
    "Write down what could go wrong with {}, and try that part first.",
    "Give {} a name, and draw a poster for it.",
    "Do the opposite of what is usual for {}.",
)


def ideas(request: str) -> str | None:
    """Return the requested number of ideas as a numbered list; None if the request is not for ideas."""
    found = _REQUEST.search(request)
    if found is None:
        return None
    word = found["count"].lower()
    count = _NUMBERS.index(word) + 1 if word in _NUMBERS else int(word)
    topic = (found["topic"] or "it").strip()
    return "\n".join(f"{number}. {text.format(topic)}" for number, text in enumerate(_TEMPLATES[:count], 1))
