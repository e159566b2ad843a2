"""Pass on the text of an unfinished reply, except text that is or may become part of a call.

The published text is always a prefix of the reply. It ends before the object that makes the reply a call or
an attempt, and before a code fence around it. A reply that starts with a brace is withheld to its end. An
object within prose is withheld until it closes without the key `tool` or has a syntax error.
"""

from __future__ import annotations

import re

from banksman.agent.protocols.objects import MAX_OBJECTS, Broken, Closed, next_object, next_possible_start

_UNDECIDED_CHARS = 16
"""An error this close to the end may be an incomplete token, such as `12e` or `\\u00`."""

_BLANK_OR_FENCE = re.compile(r"[\s\ufeff]*+(?:[`~]++[^\S\n]*+[\w+.-]*+\s*+)?")
_FENCE_LINE = re.compile(r"[ \t]*+(?:[`~]{1,2}|(?:`{3,}+|~{3,}+)[^`\n]*+)")


class CallFilter:
    """A `DeltaFilter` for replies that may contain a call as text."""

    def __init__(self) -> None:
        self._withheld: list[str] = []
        self._size = 0
        self._next_scan = 0
        """Withheld characters that trigger the next scan. The intervals grow, so the total time is linear."""
        self._started = False
        """False while the reply consists of white space and a code fence."""
        self._withholds_rest = False
        """True if all further text is withheld."""
        self._objects_read = 0

    def feed(self, text: str) -> str:
        """Add the next piece; return the text that may be published now."""
        self._withheld.append(text)
        self._size += len(text)
        if self._withholds_rest or self._size < self._next_scan:
            return ""
        pending = "".join(self._withheld)
        end = self._safe_end(pending)
        self._withhold(pending[end:])
        return pending[:end]

    def flush(self) -> str:
        """Return all withheld text."""
        rest = "".join(self._withheld)
        self._withhold("")
        return rest

    def _withhold(self, rest: str) -> None:
        self._withheld = [rest]
        self._size = len(rest)
        self._next_scan = len(rest) + len(rest) // 4

    def _safe_end(self, pending: str) -> int:
        if not self._started:
            blank = _BLANK_OR_FENCE.match(pending)
            content_start = blank.end() if blank else 0
            if content_start == len(pending):
                return 0
            self._started = True
            self._withholds_rest = pending[content_start] == "{"
        return 0 if self._withholds_rest else _before_fence(pending, self._first_candidate(pending))

    def _first_candidate(self, pending: str) -> int:
        """Return the start of the first object that may be a call, or the end of the text."""
        position = 0
        while (start := next_possible_start(pending, position)) is not None:
            found = next_object(pending, start)
            if found is None or found.start != start or self._is_open(found, len(pending)):
                return start
            self._objects_read += 1
            if found.is_call or self._objects_read > MAX_OBJECTS:
                self._withholds_rest = True
                return start
            position = found.resume
        return len(pending)

    def _is_open(self, found: Closed | Broken, length: int) -> bool:
        """Return True if more text may close the object."""
        if not isinstance(found, Broken) or found.is_call:
            return False
        return found.in_string or found.position > length - _UNDECIDED_CHARS


def _before_fence(text: str, end: int) -> int:
    """Return `end`, or the start of the preceding line if that line opens a fence."""
    before = text[:end].rstrip()
    line = before.rfind("\n") + 1
    return line if _FENCE_LINE.fullmatch(before, line) else end
