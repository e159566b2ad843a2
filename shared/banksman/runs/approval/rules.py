"""Decides whether a rule of an approval policy matches a call. Pure.

A rule with `auto` matches only what its patterns certainly mean; where that is unknown, a person decides.

A shell command has fixed text if the shell expands nothing in it: no variable, substitution, pattern of file
names, home directory or escape. A simple command is one of fixed text that also has no operator, redirection
or assignment.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from fnmatch import fnmatchcase

from banksman.contracts.assistants import ApprovalRule, Decision
from banksman.contracts.tools import ToolCall
from banksman.contracts.visible import visible
from banksman.contracts.wire import JsonObject, JsonValue

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
        if not rest or not all(last == _ANY_OPTIONS or _word_matches(last, word) for word in rest):
            return False
    return len(words) == len(patterns) and all(map(_word_matches, patterns, words))


def _word_matches(pattern: str, word: str) -> bool:
    if word == pattern:
        return True
    hidden = word.startswith("-") > pattern.startswith("-") or ".." in re.split("[/=:]", word)
    return not hidden and fnmatchcase(word, pattern)


_URL = re.compile(r"([^:/?#]*)://([^/?#]*)(.*)", re.DOTALL)


def ruling(rule: ApprovalRule, call: ToolCall, host: str | None) -> Decision | None:
    """Return what a rule decides about a call whose URL has this host; None if it does not match.

    A rule with `deny` decides `ask` for a command that it does not match but cannot read.
    """
    if not fnmatchcase(call.name, rule.tool) or not rule.arguments.keys() <= call.arguments.keys():
        return None
    found = {
        _matches(rule.action, call.name, name, glob, call.arguments[name], host)
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


def _matches(
    action: Decision, tool: str, name: str, glob: str, value: JsonValue, host: str | None
) -> bool | None:
    """Return whether a glob matches an argument; None if that is unknown."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    match tool, name:
        case "bash", "command":
            return _command_matches(action, glob, text)
        case (("read_file" | "write_file" | "edit_file"), "path"):
            return _path_matches(action, glob, text)
        case "web_fetch", "url" if action == "auto":
            return host is not None and _url_matches(glob, text)
        case _:
            return fnmatchcase(text, glob)


def _command_matches(action: Decision, glob: str, command: str) -> bool | None:
    words = simple_words(command)
    if action == "auto":
        return words is not None and words_match(glob, words)
    if fnmatchcase(command, glob):
        return True
    return None if words is None else fnmatchcase(" ".join(words), glob)


def _path_matches(action: Decision, glob: str, path: str) -> bool:
    """Compare the path that a runner opens: `docs/../x` is not below `docs`."""
    opened = posixpath.normpath(path)
    return fnmatchcase(opened, glob) or (action != "auto" and fnmatchcase(path, glob))


def _url_matches(glob: str, url: str) -> bool:
    """Compare scheme, host and rest by themselves, so that no `*` reaches from one into the next."""
    wanted, given = _URL.fullmatch(glob), _URL.fullmatch(url)
    if wanted is None or given is None:
        return fnmatchcase(url, glob)
    return all(map(fnmatchcase, given.groups(), wanted.groups()))
