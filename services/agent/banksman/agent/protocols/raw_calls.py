"""Calls that a model wrote as text in its own format, because its server did not read them.

Servers of local models read such formats with a parser for each model family. Without it, or with the wrong
one, the calls reach the client as text: those of Hermes, Qwen, GLM, Llama, Mistral, DeepSeek, Kimi, MiniMax
and gpt-oss. Calls in a code fence or between backticks are examples and stay text.
"""

# ruff: noqa: RUF001 - the special tokens of DeepSeek contain such characters

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from banksman.agent.protocols.base import MAX_NAME_CHARS, RawCall
from banksman.agent.protocols.repairs import LENIENT
from banksman.contracts.wire import JsonObject

MAX_RAW_CALLS = 1_600
"""Maximum calls to read in one text."""

_MARKERS: Mapping[str, str] = {
    "<tool_call>": "</tool_call>",
    "<tool_calls>": "</tool_calls>",
    "<TOOLCALL>": "</TOOLCALL>",
    "<function_calls>": "</function_calls>",
    "<minimax:tool_call>": "</minimax:tool_call>",
    "<seed:tool_call>": "</seed:tool_call>",
    "<｜DSML｜function_calls>": "</｜DSML｜function_calls>",
    "<function=": "</function>",
    "<invoke name=": "</invoke>",
    "<|python_tag|>": "<|eom_id|>",
    "[TOOL_CALLS]": "</s>",
    "<|tool_call|>": "<|/tool_call|>",
    "<|START_ACTION|>": "<|END_ACTION|>",
    "<|tool_calls_section_begin|>": "<|tool_calls_section_end|>",
    "<｜tool▁calls▁begin｜>": "<｜tool▁calls▁end｜>",
    "<|channel|>commentary to=": "<|call|>",
    "<|start|>assistant": "<|call|>",
    "<|tool_call_start|>": "<|tool_call_end|>",
    "<|tool_call_begin|>": "<|tool_call_end|>",
    "<｜tool▁call▁begin｜>": "<｜tool▁call▁end｜>",
    "<|action_start|>": "<|action_end|>",
}
"""What begins calls, and what ends them; the end of the text does too."""

_MARKER = "|".join(map(re.escape, _MARKERS))
_SCAN = re.compile(rf"(?P<ticks>`+|~{{3,}})|\n|{_MARKER}")
_FIRST = re.compile(_MARKER)

_NO_CONTENT = re.compile(
    r"(?:[\s,;]+|</?(?:tool_calls?|TOOLCALL|function_calls|minimax:tool_call|seed:tool_call)>"
    r"|</?｜DSML｜function_calls>|<\|(?:python_tag|/?tool_call|START_ACTION|END_ACTION|eom_id|eot_id|call"
    r"|im_end|tool_calls_section_(?:begin|end)|tool_call_(?:begin|start|end)|action_(?:start|end)|plugin)\|>"
    r"|<\|start\|>assistant(?: to=)?|<｜tool▁calls?▁(?:begin|end)｜>"
    r"|\[TOOL_CALLS\]|</s>|function<｜tool▁sep｜>|```(?:json)?|<\|channel\|>commentary to=)*"
)
"""What may be between calls."""
_SPACE = re.compile(r"\s*")
_TAGGED = re.compile(r'<(?:function=|(?:｜DSML｜)?invoke name=)"?(?P<name>[^<>"\n{]{1,256})"?(?:>|(?=\{))')
_PARAMETER = re.compile(r'\s*<(?:｜DSML｜)?parameter(?:=| name=)"?(?P<key>[^<>"\n]{1,256})"?[^<>\n]{0,64}>')
_ARG_KEY = re.compile(r"\s*<arg_key>(?P<key>[^<>]{1,256})</arg_key>\s*<arg_value>")
# A value may contain what ends it, in quotes for example: after the end of a value comes another tag.
_PARAMETER_END = re.compile(r"</(?:｜DSML｜)?parameter>(?=\s*(?:<|\Z))")
_ARG_END = re.compile(r"</arg_value>(?=\s*(?:<|\Z))")
_TAG_END = re.compile(r"\s*</(?:｜DSML｜)?(?:function|invoke)>")
_NAMED = re.compile(
    r"(?:functions\.)?(?P<name>[A-Za-z_][\w.-]{0,255})(?::\d{1,6})?\s*(?:\[CALL_ID\][\w-]{1,64})?"
    r"(?:\[ARGS\]|<｜tool▁sep｜>|<\|tool_call_argument_begin\|>"
    r"|(?:<\|channel\|>commentary)?\s*(?:<\|constrain\|>)?json)?\s*(?:<\|message\|>)?"
    r"\s*(?:```(?:json)?\s*)?"
)
_NAME_IN_JSON = re.compile(r'"name"\s*:\s*"([^"\\]{1,256})"')
_NAMES, _ARGUMENTS = ("name", "tool_name"), ("arguments", "parameters", "args", "input")
_BARE_KEYS = frozenset({"name", "parameters", "arguments", "type", "id"})
_BARE_BEGINNING = re.compile(r'\s*(?:\[\s*)?\{\s*"(?:name|type)"|\s*\[[\w.]{1,256}\(')
_PYTHON = re.compile(r"\[?\s*[A-Za-z_][\w.]{0,255}\(")
_MAX_PYTHON_CHARS = 16 * 1024
_MAX_BARE_CHARS = 16
_DECIDED = re.compile(r'":|[(\]]')
_MAX_ENDS = 4


def raw_calls(text: str, tools: Collection[str]) -> tuple[str, tuple[RawCall, ...]]:
    """Return the text without the calls in it, and the calls; `tools` are the names of the offered tools.

    The values of a format without types are strings. A call whose JSON is broken has the broken text as its
    arguments.
    """
    if bare := _bare_calls(text, tools):
        return "", bare
    kept, calls, end = list[str](), list[RawCall](), 0
    scan = _Scan(text)
    while len(calls) < MAX_RAW_CALLS and (marker := scan.next_marker()) is not None:
        read, start, region_end = _calls_at(text, marker, tools)
        if read:
            kept.append(text[end:start])
            calls += read
            end = region_end
        # Each part of the text is searched once for the end of a call.
        scan.position = region_end
    return "".join((*kept, text[end:])), tuple(calls[:MAX_RAW_CALLS])


def _calls_at(text: str, marker: re.Match[str], tools: Collection[str]) -> tuple[Sequence[RawCall], int, int]:
    """Return the calls after a marker, and where they begin and end."""
    first, ends = marker.start(), _region_ends(text, marker)
    # Prose may name the marker before a call does, and a string in the arguments of the call too.
    second, last = text.find(marker[0], marker.end(), ends[0]), text.rfind(marker[0], first, ends[0])
    for start in dict.fromkeys((first, second if second >= 0 else last, last)):
        for end in ends:
            if read := _calls_in(text[start:end], tools):
                return read, start, end
    return _broken_call(text[last : ends[0]], tools), last, ends[0]


def _region_ends(text: str, marker: re.Match[str]) -> list[int]:
    """Return where the calls after a marker may end; a string in an argument may contain what ends calls."""
    closing = _MARKERS[marker[0]]
    ends, position = list[int](), marker.end()
    while len(ends) < _MAX_ENDS and (found := text.find(closing, position)) >= 0:
        position = found + len(closing)
        ends.append(position)
    return ends or [len(text)]


class _Scan:
    """Finds the markers outside code fences and backticks."""

    def __init__(self, text: str) -> None:
        self.position = 0
        self._text = text
        self._fence = self._code = ""
        self._blank = True
        """True while the line consists of white space."""

    def next_marker(self) -> re.Match[str] | None:
        while token := _SCAN.search(self._text, self.position):
            blank = self._blank and not self._text[self.position : token.start()].strip()
            self.position, self._blank = token.end(), token[0] == "\n"
            if token[0] == "\n":
                self._code = ""
            elif token["ticks"]:
                self._take_ticks(token[0], blank)
            elif not self._fence and not self._code:
                return token
        return None

    def _take_ticks(self, ticks: str, blank: bool) -> None:
        if self._fence:
            closes = blank and ticks.startswith(self._fence)
            self._fence = "" if closes else self._fence
        elif blank and len(ticks) >= 3:
            self._fence = ticks
        else:
            self._code = "" if self._code == ticks else self._code or ticks


def _bare_calls(text: str, tools: Collection[str]) -> tuple[RawCall, ...]:
    """Return the calls of a reply that is nothing but calls of offered tools, as JSON or a list in Python.

    Llama 3 and xLAM write JSON, Llama 3.2 and 4 write Python.
    """
    bare = text.strip()
    if not _BARE_BEGINNING.match(bare):
        return ()
    value = _json_at(bare, 0)
    if value is None or value[1] != len(bare):
        calls: list[RawCall | None] = [*(_python_calls(bare) or ())]
    else:
        listed = cast("list[object]", value[0]) if isinstance(value[0], list) else [value[0]]
        calls = [_call_of(one) if _is_bare(one) else None for one in listed]
    return tuple(call for call in calls if call) if all(call and call.name in tools for call in calls) else ()


def _is_bare(value: object) -> bool:
    fields = cast("JsonObject", value) if isinstance(value, dict) else {}
    return _BARE_KEYS.issuperset(fields) and any(key in fields for key in _ARGUMENTS)


def _python_calls(text: str) -> list[RawCall] | None:
    """Return the calls of `[bash(command="ls")]`, or one in each line; None if the text is anything else."""
    if len(text) > _MAX_PYTHON_CHARS or not _PYTHON.match(text):
        return None
    try:
        lines = [line.value if isinstance(line, ast.Expr) else line for line in ast.parse(text).body]
        listed = lines[0].elts if isinstance(lines[0], ast.List) else lines
        return [_python_call(call) for call in listed]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _python_call(call: ast.AST) -> RawCall:
    if not isinstance(call, ast.Call) or call.args or any(one.arg is None for one in call.keywords):
        raise ValueError("no call with named arguments")
    arguments = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    return RawCall(None, ast.unparse(call.func), json.dumps(arguments))


def _calls_in(region: str, tools: Collection[str]) -> list[RawCall] | None:
    """Return the calls of a region; None if it contains anything else."""
    calls, position = list[RawCall](), 0
    while (position := _end_of(_NO_CONTENT, region, position)) < len(region):
        read = _read_call(region, position, tools)
        if read is None or None in read[0]:
            return None
        calls += cast("list[RawCall]", read[0])
        position = read[1]
    return calls


def _read_call(region: str, start: int, tools: Collection[str]) -> tuple[list[RawCall | None], int] | None:
    """Return the calls that begin at a position and where they end; None if none begins there."""
    if tagged := _TAGGED.match(region, start):
        return _tagged_call(region, tagged)
    if _PYTHON.match(region, start):
        closing = region.find("<", start)
        closing = closing if closing >= 0 else len(region)
        if calls := _python_calls(region[start:closing].strip()):
            return [*calls], closing
    if region[start] in "{[":
        value = _json_at(region, start)
        if value is None:
            return None
        listed = cast("list[object]", value[0]) if isinstance(value[0], list) else [value[0]]
        return [_call_of(one) for one in listed], value[1]
    named = _NAMED.match(region, start)
    if named is None:
        return None
    name, position = named["name"], named.end()
    if region[position : position + 1] == "{":
        value = _json_at(region, position)
        return None if value is None else ([RawCall(None, name, cast("JsonObject", value[0]))], value[1])
    read = _parameters(region, position, _ARG_KEY, _ARG_END)
    if read is None or not (read[0] or name in tools):
        return None
    return [RawCall(None, name, read[0])], read[1]


def _tagged_call(region: str, tagged: re.Match[str]) -> tuple[list[RawCall | None], int] | None:
    name, position = tagged["name"].strip(), tagged.end()
    inner = _end_of(_SPACE, region, position)
    if region[inner : inner + 1] == "{":
        read = _json_at(region, inner)
    else:
        read = _parameters(region, position, _PARAMETER, _PARAMETER_END)
    if read is None or not isinstance(read[0], dict):
        return None
    return [RawCall(None, name, cast("JsonObject", read[0]))], _end_of(_TAG_END, region, read[1])


def _parameters(
    region: str, position: int, opening: re.Pattern[str], closing: re.Pattern[str]
) -> tuple[JsonObject, int] | None:
    """Return parameters between tags and where they end; None if one does not end."""
    found: JsonObject = {}
    while parameter := opening.match(region, position):
        ended = closing.search(region, parameter.end())
        if ended is None:
            return None
        value = region[parameter.end() : ended.start()]
        found[parameter["key"].strip()] = value.removeprefix("\n").removesuffix("\n")
        position = ended.end()
    return found, position


def _call_of(value: object) -> RawCall | None:
    """Return the call that an object describes; None if it describes none."""
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, Any]", value)
    inner = fields.get("function")
    if isinstance(inner, dict):
        return _call_of(cast("dict[str, Any]", inner))
    name = next((fields[key] for key in _NAMES if key in fields), inner)
    arguments = next((fields[key] for key in _ARGUMENTS if key in fields), None)
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
        return None
    if isinstance(arguments, str | dict):
        return RawCall(None, name, cast("str | JsonObject", arguments))
    return RawCall(None, name, "" if arguments is None else json.dumps(arguments))


def _broken_call(region: str, tools: Collection[str]) -> tuple[RawCall, ...]:
    """Return a call of an offered tool with its broken text, so that the model learns what is wrong."""
    start = _end_of(_NO_CONTENT, region, 0)
    is_json = region[start : start + 1] in ("{", "[")
    named = (_NAME_IN_JSON.search if is_json else _NAMED.match)(region, start)
    opening = region.find("{", start)
    if named is None or named[1] not in tools or opening < 0:
        return ()
    return (RawCall(None, named[1], region[opening:]),)


def _json_at(text: str, start: int) -> tuple[object, int] | None:
    try:
        return LENIENT.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None


def _end_of(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.match(text, start)
    return start if found is None else found.end()


class RawCallFilter:
    """A `DeltaFilter` that publishes the text before the first marker, also before one in code."""

    def __init__(self) -> None:
        self._withheld: list[str] = []
        self._started = False
        self._withholds_rest = False

    def feed(self, text: str) -> str:
        if self._withholds_rest:
            self._withheld.append(text)
            return ""
        pending = "".join((*self._withheld, text))
        end = self._safe_end(pending)
        self._withheld = [pending[end:]]
        return pending[:end]

    def flush(self) -> str:
        rest, self._withheld = "".join(self._withheld), []
        return rest

    def _safe_end(self, pending: str) -> int:
        if not self._started:
            bare = pending.lstrip()
            if not bare or (bare[0] in "{[" and len(bare) < _MAX_BARE_CHARS and not _DECIDED.search(bare)):
                return len(pending) - len(bare)
            self._started = True
            self._withholds_rest = _BARE_BEGINNING.match(pending) is not None
        if self._withholds_rest:
            return 0
        if marker := _FIRST.search(pending):
            self._withholds_rest = True
            return marker.start()
        tail = max(pending.rfind("<"), pending.rfind("["))
        rest = pending[tail:] if tail >= 0 else ""
        return tail if rest and any(one.startswith(rest) for one in _MARKERS) else len(pending)
