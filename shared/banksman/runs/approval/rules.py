"""Decides whether a rule of an approval policy matches a call. Pure.

A rule with `auto` matches only what its patterns certainly mean; where that is unknown, a person decides.

A shell command has fixed text if the shell expands nothing in it: no variable, substitution, pattern of file
names, home directory or escape. A simple command is one of fixed text that also has no operator, redirection
or assignment.
"""

from __future__ import annotations

import functools
import json
import posixpath
import re
import shlex
from fnmatch import fnmatchcase
from urllib.parse import unquote

from banksman.contracts.assistants import ApprovalRule, Decision
from banksman.contracts.tools import ToolCall
from banksman.contracts.urls import UrlRefused, parse_url, url_matches
from banksman.contracts.visible import visible
from banksman.contracts.wire import JsonObject, JsonValue

_QUOTED = r"""'[^']*'|"[^"\\$`!]*\""""
# `~` and `#` have a meaning only at the start of a word (https://www.gnu.org/software/bash/manual/bash.html).
_FIXED = re.compile(rf"(?:[^'\"\\$`*?\[\]{{}}~!()#]|(?<=\w)[~#]|{_QUOTED})*", re.ASCII)
_OPERATORS = frozenset(";&|<>\n")
_SUBCOMMAND = re.compile(r"[A-Za-z][\w-]*", re.ASCII)
_ANY, _ANY_OPTIONS = "*", "-*"
MAX_GLOB_CHARS = 4_000
_MAX_COMMAND_CHARS, _MAX_WORDS = 128 * 1024, 1_000
"""Of a simple command; the kernel runs no longer one."""
_MAX_STEPS = 1_000_000
"""Steps to match a glob with `?` or `[`, about 3 ms."""
_COMPILED = 3_000
"""Steps to compile one of its characters."""


def is_fixed(command: object) -> bool:
    return isinstance(command, str) and bool(_FIXED.fullmatch(command)) and visible(command) == command


@functools.lru_cache(16)
def simple_words(command: str) -> tuple[str, ...] | None:
    """Return the words of a simple command; None for any other text.

    It is remembered, because each rule needs it, and the library takes a second for a million characters.
    """
    if len(command) > _MAX_COMMAND_CHARS or not is_fixed(command):
        return None
    words = None if _OPERATORS & set(re.sub(_QUOTED, "", command)) else shlex.split(command)
    return tuple(words) if words and len(words) <= _MAX_WORDS and "=" not in words[0] else None


def first_words(command: str) -> str | None:
    """Return program and subcommand of a simple command; None if it has no subcommand.

    A decision about all commands of a program alone would cover `python -c` and `rm -rf /`.
    """
    words = simple_words(command) or ()
    return shlex.join(words[:2]) if len(words) > 1 and _SUBCOMMAND.fullmatch(words[1]) else None


def words_match(glob: str, words: tuple[str, ...]) -> bool:
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
        if not rest or not all(last == _ANY_OPTIONS or _word_matches(last, word) for word in rest):
            return False
    return len(words) == len(patterns) and all(map(_word_matches, patterns, words))


def _word_matches(pattern: str, word: str) -> bool:
    if word == pattern:
        return True
    hidden = word.startswith("-") > pattern.startswith("-") or ".." in re.split("[/=:]", word)
    return not hidden and _glob_matches(word, pattern)


def _glob_matches(text: str, glob: str) -> bool:
    """Return whether a glob matches a text, in time linear in both unless the glob has `?` or `[`."""
    if "?" in glob or "[" in glob:
        return fnmatchcase(text, glob)
    first, *parts = glob.split("*")
    if not parts:
        return text == glob
    at, end = len(first), len(text) - len(parts[-1])
    if at > end or not text.startswith(first) or not text.endswith(parts.pop()):
        return False
    for part in parts:
        if (found := text.find(part, at, end)) < 0:
            return False
        at = found + len(part)
    return True


def _is_bounded(text: str, glob: str) -> bool:
    """Return whether a comparison takes a few milliseconds: tenants choose globs, and models texts."""
    steps = len(glob) * (len(text) + _COMPILED) if "?" in glob or "[" in glob else 0
    return len(glob) <= MAX_GLOB_CHARS and steps <= _MAX_STEPS


def ruling(rule: ApprovalRule, call: ToolCall) -> Decision | None:
    """Return what a rule decides about a call; None if it does not match.

    A rule decides `ask` if a comparison is too expensive, and one with `deny` also for a command that it does
    not match but cannot read.
    """
    if not fnmatchcase(call.name, rule.tool) or not rule.arguments.keys() <= call.arguments.keys():
        return None
    found = {
        _matches(rule.action, call.name, name, glob, call.arguments[name])
        for name, glob in rule.arguments.items()
    }
    if rule.action == "auto" and call.name == "bash" and "command" in rule.arguments:
        # Within a session, a command means what the calls before it have defined. One in the background lasts
        # longer than the author of the pattern may have expected.
        found.add(not lasts(call.arguments) or "background" in rule.arguments)
    if False in found:
        return None
    return "ask" if None in found else rule.action


def lasts(arguments: JsonObject) -> bool:
    """Return whether a call of bash starts or uses a process that outlives it."""
    return arguments.get("background") is True or "session" in arguments


def _matches(action: Decision, tool: str, name: str, glob: str, value: JsonValue) -> bool | None:
    """Return whether a glob matches an argument; None if that is unknown."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if not _is_bounded(text, glob):
        return None
    match tool, name:
        case "bash", "command":
            return _command_matches(action, glob, text)
        case (("read_file" | "write_file" | "edit_file"), "path"):
            return _path_matches(action, glob, text)
        case "web_fetch", "url":
            return _url_matches(action, glob, text)
        case _:
            return _glob_matches(text, glob)


def _command_matches(action: Decision, glob: str, command: str) -> bool | None:
    words = simple_words(command)
    if action == "auto":
        return words is not None and words_match(glob, words)
    if _glob_matches(command, glob):
        return True
    return None if words is None else _glob_matches(" ".join(words), glob)


def _path_matches(action: Decision, glob: str, path: str) -> bool:
    """Compare the path that a runner opens: `docs/../x` is not below `docs`."""
    opened = posixpath.normpath(path)
    return _glob_matches(opened, glob) or (action != "auto" and _glob_matches(path, glob))


def _url_matches(action: Decision, glob: str, text: str) -> bool:
    """Compare the address that a runner opens, and for `deny` and `ask` also other texts of the same one."""
    try:
        url = parse_url(text)
    except UrlRefused:
        return action != "auto" and _glob_matches(text, glob)
    if url_matches(url, glob, _glob_matches):
        return True
    return action != "auto" and any(_glob_matches(one, glob) for one in (text, str(url), unquote(str(url))))
