"""Reads the words of shell commands, as far as the text alone says what the shell runs. Pure.

A command has fixed text if the shell expands nothing in it: no variable, substitution, pattern of file names,
home directory or escape. A simple command is one of fixed text that also has no operator, redirection or
assignment. Everything else is left to a person.
"""

from __future__ import annotations

import re
import shlex
from fnmatch import fnmatchcase

from banksman.contracts.visible import visible

_QUOTED = r"""'[^']*'|"[^"\\$`!]*\""""
# `~` and `#` have a meaning only at the start of a word (https://www.gnu.org/software/bash/manual/bash.html).
_FIXED = re.compile(rf"(?:[^'\"\\$`*?\[\]{{}}~!()#]|(?<=\w)[~#]|{_QUOTED})*", re.ASCII)
_OPERATORS = frozenset(";&|<>\n")
_SUBCOMMAND = re.compile(r"[A-Za-z][\w-]*", re.ASCII)
_ANY, _ANY_OPTIONS = "*", "-*"


def is_fixed(command: object) -> bool:
    return isinstance(command, str) and bool(_FIXED.fullmatch(command)) and visible(command) == command


def simple_words(command: str) -> list[str] | None:
    """Return the words of a simple command; None for any other text."""
    if not is_fixed(command) or _OPERATORS & set(re.sub(_QUOTED, "", command)):
        return None
    words = shlex.split(command)
    return words if words and "=" not in words[0] else None


def first_words(command: str) -> str | None:
    """Return program and subcommand of a simple command; None if it has no subcommand.

    A decision about all commands of a program alone would cover `python -c` and `rm -rf /`.
    """
    words = simple_words(command) or []
    return shlex.join(words[:2]) if len(words) > 1 and _SUBCOMMAND.fullmatch(words[1]) else None


def words_match(glob: str, words: list[str]) -> bool:
    """Return whether each word of a simple command matches the pattern at its place.

    A last `*` stands for one or more words that are not options, a last `-*` for one or more of any kind. A
    pattern with a wildcard matches an option only if it begins with `-`, and no path with `..`.
    """
    try:
        patterns = shlex.split(glob)
    except ValueError:
        return False
    if patterns and patterns[-1] in (_ANY, _ANY_OPTIONS):
        last = patterns.pop()
        words, rest = words[: len(patterns)], words[len(patterns) :]
        if not rest or not all(last == _ANY_OPTIONS or _matches(last, word) for word in rest):
            return False
    return len(words) == len(patterns) and all(map(_matches, patterns, words))


def _matches(pattern: str, word: str) -> bool:
    if word == pattern:
        return True
    hidden = word.startswith("-") > pattern.startswith("-") or ".." in re.split("[/=:]", word)
    return not hidden and fnmatchcase(word, pattern)
