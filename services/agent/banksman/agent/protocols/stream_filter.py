"""Shows the text of a reply while it is written, but nothing that is, or may become, part of a call.

What was shown is always a beginning of the reply. It ends before the object, and before the fence round it,
that makes the whole reply a call or an attempt at one. A reply that begins with a brace is held to its end;
an object in the middle of prose only until it closes without naming a tool, or breaks.
"""

from __future__ import annotations

import re

from banksman.agent.protocols.objects import MAX_OBJECTS, Broken, Closed, next_object, next_possible_start

_UNDECIDED_CHARS = 16
"""A break this close to the end may be a token that is not complete yet, such as `12e` or `\\u00`."""

_BLANK_OR_FENCE = re.compile(r"[\s\ufeff]*+(?:[`~]++[^\S\n]*+[\w+.-]*+\s*+)?")
_FENCE_LINE = re.compile(r"[ \t]*+(?:[`~]{1,2}|(?:`{3,}+|~{3,}+)[^`\n]*+)")


class CallFilter:
    """A `DeltaFilter` for replies that may hold a call as text."""

    def __init__(self) -> None:
        self._held: list[str] = []
        self._size = 0
        self._look_at = 0
        """Held characters that make another look worth it: looks grow apart, so their sum is linear."""
        self._begun = False
        """False until something other than white space and a fence was seen."""
        self._closed = False
        """True once everything to come is held."""
        self._read = 0

    def feed(self, text: str) -> str:
        """Take the next piece; return what may be shown now."""
        self._held.append(text)
        self._size += len(text)
        if self._closed or self._size < self._look_at:
            return ""
        pending = "".join(self._held)
        end = self._safe_end(pending)
        self._hold(pending[end:])
        return pending[:end]

    def flush(self) -> str:
        """Everything that was held."""
        rest = "".join(self._held)
        self._hold("")
        return rest

    def _hold(self, rest: str) -> None:
        self._held = [rest]
        self._size = len(rest)
        self._look_at = len(rest) + len(rest) // 4

    def _safe_end(self, pending: str) -> int:
        if not self._begun:
            blank = _BLANK_OR_FENCE.match(pending)
            behind = blank.end() if blank else 0
            if behind == len(pending):
                return 0
            self._begun = True
            self._closed = pending[behind] == "{"
        return 0 if self._closed else _before_fence(pending, self._next_hold(pending))

    def _next_hold(self, pending: str) -> int:
        """Where the first object begins that may be a call, or the end."""
        position = 0
        while (start := next_possible_start(pending, position)) is not None:
            found = next_object(pending, start)
            if found is None or found.start != start or self._is_open(found, len(pending)):
                return start
            self._read += 1
            if found.is_call or self._read > MAX_OBJECTS:
                self._closed = True
                return start
            position = found.resume
        return len(pending)

    def _is_open(self, found: Closed | Broken, length: int) -> bool:
        """True when more text could still close the object."""
        if not isinstance(found, Broken) or found.is_call:
            return False
        return found.in_string or found.position > length - _UNDECIDED_CHARS


def _before_fence(text: str, end: int) -> int:
    """`end`, or the start of the line before it when that line opens a fence."""
    shown = text[:end].rstrip()
    line = shown.rfind("\n") + 1
    return line if _FENCE_LINE.fullmatch(shown, line) else end
