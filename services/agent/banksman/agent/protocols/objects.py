"""Finds the JSON objects in a text that may mean a call, in one pass.

A position is tried when an object with a key could begin there. Objects that close are skipped whole, so
what lies inside a string or deeper in a valid object is never mistaken for a call. Behind an object that
breaks the search goes on at the last brace before the break, so no character is read more than three times.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from banksman.prompting.call_format import TOOL_KEY

MAX_OBJECTS = 1000
"""Objects read in a text that names the key; with one more it is taken for a bad call, to bound the time."""

MAX_FENCES = 5000
"""Code fences that are told apart; objects behind so many count as if outside."""

QUOTED_KEY = f'"{TOOL_KEY}"'

_SPACE = r"[ \t\n\r]*+"
_STRING_BODY = r"(?:[^\"\\\x00-\x1f]++|\\.)*+"
_OPENING = re.compile(rf'\{{{_SPACE}"{_STRING_BODY}"{_SPACE}:')
_PARTIAL_OPENING = re.compile(
    rf'\{{{_SPACE}(?:\Z|"{_STRING_BODY}(?:\\?\Z|"{_SPACE}(?:\Z|:)))',
)
_KEY = re.compile(rf'"{TOOL_KEY}"{_SPACE}:')
_FENCE = re.compile(r"^[ \t]*+(`{3,}+|~{3,}+)([^\n]*+)$", re.MULTILINE)

# Numbers are only skipped here: converting them costs time that grows with the square of their length.
_DECODER = json.JSONDecoder(parse_int=len, parse_float=len)


@dataclass(frozen=True, slots=True)
class Closed:
    """An object that is valid JSON, duplicate keys and NaN aside."""

    start: int
    resume: int
    """The first character behind it."""
    is_call: bool
    """True when it has the key at its top level."""


@dataclass(frozen=True, slots=True)
class Broken:
    """An object that begins like JSON and then breaks a rule, or never closes."""

    start: int
    position: int
    """Where the rule was broken."""
    rule: str
    resume: int
    """Where the search goes on."""
    is_call: bool = True
    """True when the key was read before the break."""
    in_string: bool = False
    """True when the text ends inside a string that begins at `position`."""


def next_object(text: str, start: int) -> Closed | Broken | None:
    """The first object that begins at or behind `start`; None when there is none."""
    opening = _OPENING.search(text, start)
    return None if opening is None else _read(text, opening.start())


def next_possible_start(text: str, start: int) -> int | None:
    """Where an object begins, or where the end of an unfinished text may turn out to begin one."""
    opening = _PARTIAL_OPENING.search(text, start)
    return None if opening is None else opening.start()


def attempts(text: str) -> Iterator[Closed | Broken]:
    """The objects of a text that attempt a call, outside nested fences, in their order."""
    last = text.rfind(QUOTED_KEY)
    position, read, fences = 0, 0, _Fences(text)
    while position <= last and (found := next_object(text, position)) is not None:
        position = found.resume
        read += 1
        if read > MAX_OBJECTS:
            yield Broken(found.start, found.start, f"it holds more than {MAX_OBJECTS:,} objects", position)
            return
        if found.is_call and not fences.nested_at(found.start):
            yield found


class _Fences:
    """Knows where one code fence stands inside another: what is quoted there is shown, not meant."""

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
    try:
        value: dict[str, Any]
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        return _broken(text, start, error)
    except RecursionError:
        return Broken(start, start, "it is nested too deep", len(text))
    return Closed(start, end, TOOL_KEY in value)


def _broken(text: str, start: int, error: json.JSONDecodeError) -> Broken:
    position = error.pos
    inner = text.rfind("{", start + 1, position)
    resume = inner if inner > start else max(position, start + 1)
    is_call = _KEY.search(text, start, position) is not None
    in_string = error.msg.startswith("Unterminated string")
    return Broken(start, position, error.msg, resume, is_call, in_string)
