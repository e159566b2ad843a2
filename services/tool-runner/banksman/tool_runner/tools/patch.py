"""Writes a patch for `git apply`. The texts are of others, so this runs in the converter's process."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import unified_diff
from itertools import takewhile
from typing import NamedTuple

_MODES = {"text": "100644", "program": "100755", "absent": ""}
_NULL = "/dev/null"
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


class FileTexts(NamedTuple):
    """One changed file, with its kinds as in `Content`: each is `text`, `program` or `absent`."""

    path: str
    before_kind: str
    before: str
    after_kind: str
    after: str


def file_patch(file: FileTexts, *, plain: bool) -> str:
    """Return the patch of one file. A `plain` one takes linear time: it replaces all between its ends."""
    old, new = _quoted(f"a/{file.path}"), _quoted(f"b/{file.path}")
    before, after = _lines(file.before), _lines(file.after)
    head = [f"diff --git {old} {new}", *_modes(_MODES[file.before_kind], _MODES[file.after_kind])]
    old, new = (
        (_NULL if file.before_kind == "absent" else old),
        (_NULL if file.after_kind == "absent" else new),
    )
    if before == after:
        hunks = []
    elif plain:
        hunks = [f"--- {old}\n", f"+++ {new}\n", *_replacement(before, after)]
    else:
        hunks = list(unified_diff(before, after, old, new))
    return "".join([*(f"{line}\n" for line in head), *map(_ended, hunks)])


def _modes(before: str, after: str) -> list[str]:
    if not before:
        return [f"new file mode {after}"]
    if not after:
        return [f"deleted file mode {before}"]
    return [] if before == after else [f"old mode {before}", f"new mode {after}"]


def _replacement(before: list[str], after: list[str]) -> Iterator[str]:
    same = _common(before, after)
    rest = min(len(before), len(after)) - same
    tail = _common(before[::-1][:rest], after[::-1][:rest])
    start, most = max(0, same - 3), len(before) - tail
    context = before[most : most + 3]
    removed, added = before[same:most], after[same : len(after) - tail]
    counts = (same - start + len(lines) + len(context) for lines in (removed, added))
    old, new = (f"{start + 1 if count else 0},{count}" for count in counts)
    yield f"@@ -{old} +{new} @@\n"
    yield from (f" {line}" for line in before[start:same])
    yield from (f"-{line}" for line in removed)
    yield from (f"+{line}" for line in added)
    yield from (f" {line}" for line in context)


def _common(one: list[str], other: list[str]) -> int:
    """Return the number of equal lines at the beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    return [*(f"{line}\n" for line in lines[:-1]), *filter(None, lines[-1:])]


def _ended(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _quoted(path: str) -> str:
    """Return a path as git writes it: https://git-scm.com/docs/git-diff#_generating_patch_text_with_p."""
    if not any(char in _ESCAPES or char < " " or char == "\x7f" for char in path):
        return path
    return (
        '"'
        + "".join(
            _ESCAPES.get(char) or (char if char >= " " and char != "\x7f" else f"\\{ord(char):03o}")
            for char in path
        )
        + '"'
    )
