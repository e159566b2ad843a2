"""Find the JSON objects in a text that may be calls, and withhold such objects from a streamed reply.

The search parses at each position where an object with a key can start. It skips a valid object as a whole,
so text in a string or a nested object is never read as a call. After an object with a syntax error it
continues at the last brace before the error, so no character is read more than three times.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from banksman.prompting.templates import TOOL_KEY

MAX_OBJECTS = 20_000
"""Maximum objects to parse in a text with the key. More make the reply malformed, which bounds the time to
about 40 ms."""

MAX_FENCES = 5000
"""Maximum code fences to recognise. Objects after that many count as outside a nested fence."""

_UNDECIDED_CHARS = 16
"""An error this close to the end may be an incomplete token, such as `12e` or `\\u00`."""

_WINDOW_CHARS, _WINDOW_GROWTH = 512, 8

QUOTED_KEY = f'"{TOOL_KEY}"'

_SPACE = r"[ \t\n\r]*+"
_STRING_BODY = r"(?:[^\"\\\x00-\x1f]++|\\.)*+"
_OPENING = re.compile(rf'\{{{_SPACE}"{_STRING_BODY}"{_SPACE}:')
_PARTIAL_OPENING = re.compile(rf'\{{{_SPACE}(?:\Z|"{_STRING_BODY}(?:\\?\Z|"{_SPACE}(?:\Z|:)))')
_KEY = re.compile(rf'"{TOOL_KEY}"{_SPACE}:')
_FENCE = re.compile(r"^[ \t]*+(`{3,}+|~{3,}+)([^\n]*+)$", re.MULTILINE)
_FENCE_LINE = re.compile(r"[ \t]*+(?:[`~]{1,2}|(?:`{3,}+|~{3,}+)[^`\n]*+)")
_BLANK_OR_FENCE = re.compile(r"[\s\ufeff]*+(?:[`~]++[^\S\n]*+[\w+.-]*+\s*+)?")

_KEY_OF = rf'(?:{_SPACE}(?P<key>"{_STRING_BODY}"){_SPACE}:)?'
_TOKEN = re.compile(
    rf"{_SPACE}(?:(?:(?P<open>[{{\[]++)|,){_KEY_OF}|(?P<close>[}}\]]++)"
    rf'|"{_STRING_BODY}"|-?[0-9][0-9.eE+-]*+|true|false|null|NaN|-?Infinity)'
)
_CLOSED_BY = {"{": "}", "[": "]"}
_TOO_DEEP = "it is nested too deep"

# Numbers are only skipped here: the time to convert an integer grows with the square of its length.
_DECODER = json.JSONDecoder(parse_int=len, parse_float=len)


@dataclass(frozen=True, slots=True)
class Closed:
    """An object that is valid JSON except for possible duplicate keys and NaN."""

    start: int
    resume: int
    """Position after the object."""
    is_call: bool
    """True if it has the key at its top level."""


@dataclass(frozen=True, slots=True)
class Broken:
    """An object that starts like JSON and has a syntax error, or never closes."""

    start: int
    position: int
    """Position of the error."""
    rule: str
    resume: int
    """Position where the search continues."""
    is_call: bool = True
    """True if the key precedes the error."""
    in_string: bool = False
    """True if the text ends inside a string that starts at `position`."""


def next_object(text: str, start: int) -> Closed | Broken | None:
    opening = _OPENING.search(text, start)
    return None if opening is None else _read(text, opening.start())


def next_possible_start(text: str, start: int) -> int | None:
    """Return where an object starts, or may start if more text follows; None if none can start."""
    opening = _PARTIAL_OPENING.search(text, start)
    return None if opening is None else opening.start()


def attempts(text: str) -> Iterator[Closed | Broken]:
    """Yield the objects of a text that attempt a call outside nested fences, in their order."""
    last = text.rfind(QUOTED_KEY)
    position, read, fences = 0, 0, _Fences(text)
    while position <= last and (found := next_object(text, position)) is not None:
        position = found.resume
        read += 1
        if read > MAX_OBJECTS:
            yield Broken(found.start, found.start, f"it contains more than {MAX_OBJECTS:,} objects", position)
            return
        if found.is_call and not fences.nested_at(found.start):
            yield found


class _Fences:
    """The positions inside nested code fences, whose objects are quotations and not calls."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._changes: tuple[list[int], list[int]] | None = None

    def nested_at(self, position: int) -> bool:
        if self._changes is None:
            self._changes = self._read()
        positions, depths = self._changes
        index = bisect_right(positions, position)
        return index > 0 and depths[index - 1] > 1

    def _read(self) -> tuple[list[int], list[int]]:
        positions: list[int] = []
        depths: list[int] = []
        opened: list[str] = []
        for fence in islice(_FENCE.finditer(self._text), MAX_FENCES):
            mark, info = fence[1], fence[2].strip()
            if "`" in info:
                continue
            if not info and opened and mark.startswith(opened[-1]):
                opened.pop()
            else:
                opened.append(mark)
            positions.append(fence.start())
            depths.append(len(opened))
        return positions, depths


def _read(text: str, start: int) -> Closed | Broken:
    """Parse in windows that grow: an error of the parser counts the lines of the whole text before it."""
    size = _WINDOW_CHARS
    while True:
        window = text[start : start + size]
        is_last = start + size >= len(text)
        try:
            value: dict[str, Any]
            value, end = _DECODER.raw_decode(window)
        except json.JSONDecodeError as error:
            unterminated = error.msg.startswith("Unterminated string")
            if is_last or not (unterminated or error.pos > size - _UNDECIDED_CHARS):
                return _broken(text, start, start + error.pos, error.msg, in_string=unterminated)
        except RecursionError:
            return _read_deep(text, start)
        else:
            return Closed(start, start + end, TOOL_KEY in value)
        size *= _WINDOW_GROWTH


def _read_deep(text: str, start: int) -> Broken:
    """Return the end of an object that is nested too deep for the parser, from its brackets and strings."""
    expected: list[str] = []
    is_call, position = False, start
    while token := _TOKEN.match(text, position):
        expected += (_CLOSED_BY[bracket] for bracket in token["open"] or "")
        for closed, bracket in enumerate(token["close"] or ""):
            position = token.start("close") + closed
            if expected.pop() != bracket:
                return _broken(text, start, position, _TOO_DEEP, in_string=False)
            if not expected:
                return Broken(start, start, _TOO_DEEP, position + 1, is_call)
        is_call = is_call or (token["key"] == QUOTED_KEY and len(expected) == 1)
        position = token.end()
    in_string = text[position : position + 16].lstrip().startswith('"')
    return _broken(text, start, position, _TOO_DEEP, in_string=in_string)


def _broken(text: str, start: int, position: int, rule: str, *, in_string: bool) -> Broken:
    inner = text.rfind("{", start + 1, position)
    resume = inner if inner > start else max(position, start + 1)
    is_call = _KEY.search(text, start, position) is not None
    return Broken(start, position, rule, resume, is_call, in_string)


class CallFilter:
    """A `DeltaFilter` for replies that may contain a call as text.

    The published text is always a prefix of the reply. It ends before the object that makes the reply a call
    or an attempt, and before a code fence around it. A reply that starts with a brace is withheld to its end.
    An object within prose is withheld until it closes without the key `tool` or has a syntax error.
    """

    def __init__(self) -> None:
        self._withheld: list[str] = []
        self._size = 0
        self._next_scan = 0
        """Withheld characters that trigger the next scan. The intervals grow, so the total time is linear."""
        self._started = False
        """False while the reply consists of white space and a code fence."""
        self._withholds_rest = False
        self._objects_read = 0

    def feed(self, text: str) -> str:
        self._withheld.append(text)
        self._size += len(text)
        if self._withholds_rest or self._size < self._next_scan:
            return ""
        pending = "".join(self._withheld)
        end = self._safe_end(pending)
        self._withhold(pending[end:])
        return pending[:end]

    def flush(self) -> str:
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
