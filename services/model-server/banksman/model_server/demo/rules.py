"""The sentences that the demo model understands, one pattern each."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from banksman.model_server.demo.literals import TOKEN, Literals
from banksman.model_server.demo.steps import (
    Fetch,
    ListFiles,
    Read,
    ReadBack,
    Run,
    SaveOutput,
    Step,
    UseTool,
    Weather,
    Write,
    WriteReport,
)
from banksman.model_server.json_values import loads_object

VERBS = (
    "run|execute|list|show|read|open|print|display|write|save|create|make|put|store|prepare|generate|fetch|"
    "get|download|load|visit|summari[sz]e|delete|remove|draw|use|call|what|what's|which|how|tell"
)
"""Words that may begin a clause, as a pattern."""

PATH = rf"(?:{TOKEN}|[\w.~@%+/-]*[./][\w.~@%+/-]*\w|README|Makefile|LICENSE|Dockerfile)"
"""What looks like a path by itself: a quotation, or a word with a dot or a slash in it."""

_NAME = rf"(?:{TOKEN}|[\w.~@%+/-]*\w)"
_PATHS = rf"{PATH}(?:(?:\s*,\s*| and ){PATH})*"
_NAMES = rf"{_NAME}(?:(?:\s*,\s*| and ){PATH})*"
_FILE = "(?:the |a |an |my )?(?:new )?(?:empty )?(?:text )?(?:file )?(?:called |named )?"
_HERE = "(?:the |this |my )?(?:workspace|(?:current )?(?:folder|directory)|here)"
_IN_FOLDER = rf"(?: (?:in|of|under|inside) (?:{_HERE}|(?:the )?(?:folder |directory )?(?P<folder>{_NAME})))?"
_MAKE = "(?:write|save|create|make|put|store|prepare|generate)"
_SHOW = "(?:read|open|show|display|print|get|tell)(?: me)?"
_AGAIN = "(?: (?:again|back|aloud|to me))*"
_SHELL_WORD = "(?:ls|cat|pwd|echo|grep|head|tail|wc|mkdir|python3?|uname|whoami|date)"
_TEXT_OF = "(?:the )?(?:contents? of )?"


@dataclass(frozen=True, slots=True)
class _Clause:
    """One clause that a pattern matches."""

    match: re.Match[str]
    literals: Literals

    def part(self, name: str) -> str | None:
        """What a named part of the pattern means; None when the clause lacks it."""
        part = self.match.groupdict().get(name)
        return None if part is None else self.literals.value(part)

    def parts(self, name: str) -> list[str]:
        """The members of a part that is an enumeration of names."""
        members = re.split(r"\s*,\s*|\s+and\s+", self.match[name])
        return [self.literals.value(member) for member in members]

    @property
    def urls(self) -> list[str]:
        """The addresses in the clause."""
        quotations = self.literals.within(self.match.group())
        return [quotation.text for quotation in quotations if quotation.kind == "url"]


def steps_of(clause: str, literals: Literals) -> list[Step]:
    """The steps of a clause of masked text; none when no rule matches."""
    for pattern, steps in _RULES:
        match = pattern.fullmatch(clause)
        if match is not None and (found := steps(_Clause(match, literals))):
            return found
    return []


def _run(clause: _Clause) -> list[Step]:
    command = clause.match["command"]
    quotations = clause.literals.within(command)
    code = [quotation.text for quotation in quotations if quotation.kind == "code"]
    if not code and re.fullmatch(rf"{TOKEN}(?:\s*(?:,|and)\s*{TOKEN})*", command):
        code = [quotation.text for quotation in quotations]
    return [Run(each) for each in code or [clause.literals.source(command)]]


def _bare_code(clause: _Clause) -> list[Step]:
    (quotation,) = clause.literals.within(clause.match.group())
    return [Run(quotation.text)] if quotation.kind == "code" else []


def _list(clause: _Clause) -> list[Step]:
    return [ListFiles(clause.part("folder"))]


def _read(clause: _Clause) -> list[Step]:
    return [Read(path) for path in clause.parts("paths")]


def _summarise(clause: _Clause) -> list[Step]:
    return [Read(path, summarise=True) for path in clause.parts("paths")]


def _read_back(_clause: _Clause) -> list[Step]:
    return [ReadBack()]


def _write(clause: _Clause) -> list[Step]:
    return [Write(clause.part("path") or "", clause.part("content") or "")]


def _report(clause: _Clause) -> list[Step]:
    return [WriteReport(clause.part("path") or "report.md", clause.part("about"))]


def _save(clause: _Clause) -> list[Step]:
    return [SaveOutput(clause.part("path") or "")]


def _delete(clause: _Clause) -> list[Step]:
    return [Run(f"rm -- {shlex.quote(clause.part('path') or '')}")]


def _fetch(clause: _Clause) -> list[Step]:
    stated = re.search(r"\bas\s+(markdown|raw)\b", clause.match.group(), re.IGNORECASE)
    if stated is None:
        return [Fetch(url) for url in clause.urls]
    return [Fetch(url, "markdown" if stated[1].lower() == "markdown" else "raw") for url in clause.urls]


def _weather(clause: _Clause) -> list[Step]:
    return [Weather(clause.part("place") or "")]


def _use(clause: _Clause) -> list[Step]:
    arguments = loads_object(clause.part("arguments") or "{}")
    return [] if arguments is None else [UseTool(clause.part("name") or "", arguments)]


def _rule(pattern: str, steps: Callable[[_Clause], list[Step]]) -> tuple[re.Pattern[str], _Steps]:
    """A rule whose pattern has one space where a sentence may have any white space."""
    return re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE | re.DOTALL), steps


_Steps = Callable[[_Clause], list[Step]]
_RULES: tuple[tuple[re.Pattern[str], _Steps], ...] = (
    _rule("(?:run|execute) (?:(?:the )?(?:shell )?commands?:? )?(?P<command>.+)", _run),
    _rule(TOKEN, _bare_code),
    _rule(f"(?P<command>{_SHELL_WORD}(?: .*)?)", _run),
    _rule(f"(?:list|{_SHOW}) (?:all )?(?:of )?(?:the |my )?(?:files|folder|directory){_IN_FOLDER}", _list),
    _rule(f"(?:list|{_SHOW}) (?:what is in )?{_HERE}", _list),
    _rule(f"(?:what|which) files (?:are|do i have)(?: there)?{_IN_FOLDER}", _list),
    _rule(f"what(?:'s| is) in {_HERE}", _list),
    _rule(f"list (?P<folder>{PATH})", _list),
    _rule(f"{_SHOW} (?:it|them|that(?: file)?|the (?:file|report|summary|result)){_AGAIN}", _read_back),
    _rule(rf"(?:fetch|get|download|load|visit|open|read|show|summari[sz]e)\b.*{TOKEN}.*", _fetch),
    _rule(f"read {_TEXT_OF}{_FILE}(?P<paths>{_NAMES}){_AGAIN}", _read),
    _rule(f"{_SHOW} {_TEXT_OF}{_FILE}(?P<paths>{_PATHS}){_AGAIN}", _read),
    _rule(f"what(?:'s| is) (?:written )?in {_FILE}(?P<paths>{PATH})", _read),
    _rule(f"summari[sz]e {_TEXT_OF}{_FILE}(?P<paths>{_NAMES})", _summarise),
    _rule(
        rf"{_MAKE} (?:me )?(?:(?:a|an|the) )?(?:\w+ )?(?:report|summary|overview)"
        rf"(?: (?:about|of|on|for) (?:the )?(?P<about>{PATH}|\w+(?: \w+){{0,5}}?))?"
        rf"(?: (?:to|in|into|as|called|named|at) {_FILE}(?P<path>{PATH}))?",
        _report,
    ),
    _rule(
        "(?:write|save|store|put) (?:it|them|that|this|the (?:output|result|results|page|answer)) "
        f"(?:to|into|in|as) {_FILE}(?P<path>{_NAME})",
        _save,
    ),
    _rule(
        f"(?:write|create|make) (?:an? |the )(?:new |empty )?file (?:called |named )?(?P<path>{_NAME})",
        _write,
    ),
    _rule(
        f"{_MAKE} {_FILE}(?P<path>{_NAME}) (?:with|containing|that (?:says|contains)) "
        "(?:the )?(?:(?:contents?|text|words?|line):? )?(?P<content>.+)",
        _write,
    ),
    _rule(rf"write (?:the following )?(?:to|into) {_FILE}(?P<path>{_NAME}):? (?P<content>.+)", _write),
    _rule(
        "(?:write|save|put|store) (?:the (?:text|words?|line|sentence) )?(?P<content>.+) "
        f"(?:to|into|in) {_FILE}(?P<path>{_NAME})",
        _write,
    ),
    _rule(f"(?:delete|remove) {_FILE}(?P<path>{_NAME})", _delete),
    _rule(
        r".{0,80}\bweather\b.{0,40}?\b(?:in|for|at) (?P<place>.{1,80}?)"
        "(?: (?:today|now|right now|like|at the moment))*",
        _weather,
    ),
    _rule(
        rf"(?:use|call) (?:the )?(?:tool )?(?P<name>{TOKEN}|[\w-]+)(?: tool)?"
        rf"(?: with (?P<arguments>{TOKEN}))?",
        _use,
    ),
)
