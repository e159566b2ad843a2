"""The sentences that the demo model understands, one pattern each, and the steps that they become."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from banksman.model_server.chat import loads_object

TOKEN = r"\x00\d+\x00"
_TOKEN = re.compile(TOKEN)
_LITERAL = re.compile(
    r"```(?:\w*\n)?(?P<fence>.+?)```"
    r"|`(?P<code>[^`\n]+)`"
    r"|(?P<json>\{(?:[^{}]|\{[^{}]*\})*\})"
    r"|(?P<url>https?://[^\s`\"'<>]*[^\s`\"'<>.,;:!?)])"
    r"|\"(?P<quote>[^\"\n]*)\"",
    re.DOTALL,
)


class Literals:
    """A request whose code, JSON, URLs and quotations are masked, so that rules match only its words."""

    def __init__(self, text: str) -> None:
        self.tokens: dict[str, re.Match[str]] = {}
        self.masked = _LITERAL.sub(self._mask, text)

    def find(self, masked: str, *kinds: str) -> list[str]:
        found = [self.tokens[token] for token in _TOKEN.findall(masked)]
        return [_text(literal) for literal in found if literal.lastgroup in kinds]

    def value(self, masked: str) -> str:
        """Return the literal's text if the part is exactly one literal, otherwise the part as written."""
        literal = self.tokens.get(masked.strip())
        return self.source(masked.strip()) if literal is None else _text(literal)

    def source(self, masked: str) -> str:
        return _TOKEN.sub(lambda token: self.tokens[token.group()].group(), masked)

    def _mask(self, literal: re.Match[str]) -> str:
        token = f"\x00{len(self.tokens)}\x00"
        self.tokens[token] = literal
        return token


def _text(literal: re.Match[str]) -> str:
    return literal[literal.lastgroup or 0].strip("\n")


_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_IDEAS_REQUEST = re.compile(
    rf"\b(?P<count>{'|'.join(_NUMBERS)}|[1-9]|10)\s+(?:\w+\s+)?ideas?\b"
    r"(?:\s+(?:for|about|on)\s+(?P<topic>[^\n.!?;]{1,200}))?",
    re.IGNORECASE,
)
_IDEA_TEMPLATES = (
    "Begin with the smallest version of {} that is useful by itself.",
    "Ask three people what they expect from {}, and build on what all of them name.",
    "Combine {} with something that you already do every week.",
    "Limit {} to one hour and one sheet of paper.",
    "Invite a friend to {}, and divide the work.",
    "Look for the oldest example of {}, and repeat it with what exists today.",
    "Plan {} without spending any money.",
    "Write down what could go wrong with {}, and try that part first.",
    "Give {} a name, and draw a poster for it.",
    "Do the opposite of what is usual for {}.",
)


def ideas(request: str) -> str | None:
    """Return the requested number of ideas as a numbered list; None if the request is not for ideas."""
    found = _IDEAS_REQUEST.search(request)
    if found is None:
        return None
    word = found["count"].lower()
    count = _NUMBERS.index(word) + 1 if word in _NUMBERS else int(word)
    topic = (found["topic"] or "it").strip()
    return "\n".join(
        f"{number}. {text.format(topic)}" for number, text in enumerate(_IDEA_TEMPLATES[:count], 1)
    )


VERBS = (
    "run|execute|list|show|read|open|write|save|create|make|put|fetch|get|download|summari[sz]e|delete|remove|"
    "draw|use|call|what|what's|how|tell|explain"
)
READING = frozenset({"list", "read", "summarise", "fetch"})
"""Kinds of steps that change nothing, so that several can run in parallel."""


@dataclass(frozen=True, slots=True)
class Step:
    kind: str
    subject: str
    """Command, folder, path, URL or tool. Empty: the workspace, or the file that was used last."""
    tool: str
    arguments: Mapping[str, Any]


_PATH = rf"(?:{TOKEN}|[\w.~@%+/-]*[./][\w.~@%+/-]*\w|README|Makefile)"
_NAME = rf"(?:{TOKEN}|[\w.~@%+/-]*\w)"
_FILE = "(?:the |a |my )?(?:new |empty )?(?:file )?(?:called |named )?"
_FILES = rf"{_FILE}(?P<subject>{_NAME}(?:(?:\s*,\s*| and ){_PATH})*)"
_HERE = "(?:the |this )?(?:workspace|folder|directory)"
_SHOW = "(?:read|open|show)(?: me)?"
_WRITE = "(?:write|save|put)"
_RULES = [
    # A space matches any white space. The first rule that matches wins.
    (kind, re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE | re.DOTALL))
    for kind, pattern in (
        # An example of the page in German.
        ("run", rf"führe (?P<subject>{TOKEN}) aus(?: und erkläre .*)?"),
        ("run", "(?:run|execute) (?:the )?(?:commands? )?(?P<subject>.+)"),
        ("run", rf"(?P<subject>{TOKEN}|(?:ls|cat|pwd|echo|date|uname|whoami)(?: .*)?)"),
        ("list", rf"(?:list|show)(?: me)? (?:all |the |my )?files(?: in (?:{_HERE}|(?P<subject>{_NAME})))?"),
        ("read", f"{_SHOW} (?:it|the (?:file|report|result))(?: again| back)?"),
        ("fetch", rf"(?:fetch|get|download|open|read|show|summari[sz]e) (?P<subject>.*{TOKEN}.*)"),
        ("read", f"{_SHOW} {_FILES}"),
        ("summarise", f"summari[sz]e {_FILES}"),
        (
            "report",
            rf"(?:create|{_WRITE}) (?:a )?(?:\w+ )?report(?: about .+?)?(?: (?:to|in) (?P<subject>{_PATH}))?",
        ),
        ("save", f"{_WRITE} (?:it|that|the (?:output|result|page)) (?:to|in|as) {_FILE}(?P<subject>{_NAME})"),
        ("write", rf"(?:write|create|make) (?:a )?file (?P<subject>{_NAME})(?: with (?P<content>.+))?"),
        ("write", rf"(?:write|create|make) (?P<subject>{_PATH}) with (?P<content>.+)"),
        ("write", f"{_WRITE} (?P<content>.+) (?:to|into|in) {_FILE}(?P<subject>{_NAME})"),
        ("delete", f"(?:delete|remove) {_FILE}(?P<subject>{_NAME})"),
        ("weather", r".{0,80}\bweather\b.{0,40}?\b(?:in|for|at) (?P<subject>.{1,80}?)(?: today| now)?"),
        ("use", rf"(?:use|call) (?:the )?(?:tool )?(?P<subject>{_NAME})(?: with (?P<content>{TOKEN}))?"),
    )
]


def steps_of(clause: str, literals: Literals) -> list[Step]:
    """Return the steps of a masked clause; none if no rule matches."""
    for kind, pattern in _RULES:
        if match := pattern.fullmatch(clause):
            written = match.groupdict().get("content") or ""
            # A quoted text is written unchanged.
            requested = ideas(written) if kind == "write" and written not in literals.tokens else None
            content = requested or literals.value(written)
            subjects = _subjects(kind, match.groupdict().get("subject") or "", literals)
            if subjects:
                return [step_of(kind, subject, content, clause) for subject in subjects]
    return []


def step_of(kind: str, subject: str, content: str = "", clause: str = "") -> Step:
    match kind:
        case "list":
            return Step(kind, subject, "bash", {"command": f"ls {shlex.quote(subject)}" if subject else "ls"})
        case "delete":
            return step_of("run", f"rm -- {shlex.quote(subject)}")
        case "read" | "summarise":
            return Step(kind, subject, "read_file", {"path": subject})
        case "write" | "report" | "save":
            path = subject or "report.md"
            return Step(kind, path, "write_file", {"path": path, "content": content})
        case "fetch":
            form = re.search(r"\bas\s+(markdown|raw)\b", clause, re.IGNORECASE)
            options = {"format": form[1].lower()} if form else {}
            return Step(kind, subject, "web_fetch", {"url": subject} | options)
        case "weather":
            return Step("use", "get_current_weather", "get_current_weather", {"location": subject})
        case "use":
            return Step(kind, subject, subject, loads_object(content) or {})
        case _:
            return Step("run", subject, "bash", {"command": subject})


def _subjects(kind: str, masked: str, literals: Literals) -> list[str]:
    """Return the subjects of a clause: commands in backquotes, URLs, or names joined by commas and `and`."""
    match kind:
        case "run":
            code = literals.find(masked, "code", "fence")
            return code or ([] if masked in literals.tokens else [literals.source(masked)])
        case "fetch":
            return literals.find(masked, "url")
        case "read" | "summarise":
            return [literals.value(part) for part in re.split(r"\s*,\s*|\s+and\s+", masked)]
        case _:
            return [literals.value(masked)]


_MAX_REQUEST_CHARS = 100_000
_MAX_WORDS_CHARS = 2_000
"""Longer requests are not parsed, because the time to match the patterns may grow faster than the text."""

_JOINER = r"(?:and|then|also|next|finally|after\s+that|please|now)\b,?\s+"
_POLITE = r"(?:please|(?:could|can|would|will)\s+you|first|hey|hi|hello|ok)\b[,:]?\s+"
_BEGINNING = re.compile(rf"^(?:{_POLITE}|{_JOINER})+", re.IGNORECASE)
_ENDING = re.compile(r"(?:,?\s+(?:please|thanks|thank\s+you)|[.!?\s])+$", re.IGNORECASE)
_SEPARATOR = re.compile(
    rf"((?:\s*[;\n,.!?]+\s*(?:{_JOINER})*|\s+(?:{_JOINER})+)(?=(?:{VERBS})\b)"
    rf"|,?\s+(?:and\s+)?then\s+(?={TOKEN}\s*(?:$|[;,.])))",
    re.IGNORECASE,
)
_IGNORED = re.compile(
    r"(?:(?:tell|show|give)\s+(?:me|us)|explain)\b.*|thanks|thank\s+you", re.IGNORECASE | re.DOTALL
)
"""Clauses that the final reply fulfils anyway."""
_IN_ORDER = re.compile(r"then|after|finally|next|[;\n]", re.IGNORECASE)


def read_request(text: str, last_path: str) -> tuple[list[list[Step]], list[str]]:
    """Find the steps of a request, in which "it" is `last_path` or the file of the step before.

    Returns:
        Batches of steps in order, where the steps of a batch can run in parallel, and the clauses that no
        rule matches. If no clause matches a rule, both are empty.
    """
    batches: list[list[Step]] = []
    unknown: list[str] = []
    literals = Literals(text.strip() if len(text) <= _MAX_REQUEST_CHARS else "")
    for clause, in_order in _clauses(literals.masked):
        steps = steps_of(clause, literals)
        if not steps:
            unknown += [] if _IGNORED.fullmatch(clause) else [literals.source(clause)]
            continue
        if steps[0].kind == "read" and not steps[0].subject:
            steps = [step_of("read", last_path)]
        last_path = str(steps[-1].arguments.get("path", last_path))
        if steps[0].kind == "report" and not batches:
            batches.append([step_of("list", "")])
        kinds = {step.kind for step in (*steps, *(batches[-1] if batches else ()))}
        if batches and not in_order and kinds <= READING:
            batches[-1] += steps
        else:
            batches.append(steps)
    return batches, unknown if batches else []


def _clauses(masked: str) -> list[tuple[str, bool]]:
    parts = _SEPARATOR.split(masked) if len(masked) <= _MAX_WORDS_CHARS else []
    clauses = [_ENDING.sub("", _BEGINNING.sub("", part.strip())) for part in parts[::2]]
    order = [False, *(_IN_ORDER.search(separator) is not None for separator in parts[1::2])]
    return [(clause, in_order) for clause, in_order in zip(clauses, order, strict=False) if clause]
