"""The texts of the demo model: announcements, final replies, reports and help."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from banksman.model_server.chat import Json, ToolOutput, as_object, dumps, loads_object
from banksman.model_server.demo_rules import Step

_QUOTED_CHARS = 2_000
SIGNATURE = "\n\n*I am the demo model: a set of rules, not a language model.*"


def _text(name: str) -> str:
    return (Path(__file__).parent / "texts" / f"{name}.md").read_text("utf-8").rstrip("\n")


HELP = _text("help")
DIAGRAM = _text("diagram") + SIGNATURE
UNKNOWN_FILE = f"I do not know which file you mean: no file was read or written so far.{SIGNATURE}"
NO_TOOL = "For this I would call `{}`, but the request offers no such tool."
_INTENTIONS = {
    "list": "list the files in {}",
    "summarise": "read {}",
    "report": "write a report to {}",
    "save": "save the output to {}",
    "use": "call {}",
}


def announcement(steps: Sequence[Step]) -> str:
    return f"I am the demo model, rules without a language model. I will {_joined(map(_intention, steps))}."


def final_text(done: Sequence[ExecutedStep], notes: Sequence[str]) -> str:
    return "\n\n".join([*map(_outcome, done), *notes]) + SIGNATURE


def notes(skipped: Sequence[Step], unknown: Sequence[str]) -> Iterator[str]:
    """Yield sentences about steps skipped after a failure, and about clauses that no rule matches."""
    if skipped:
        yield f"I stopped there and did not {_joined(map(_intention, skipped), 'or')}."
    if unknown:
        yield f"I did not understand: {'; '.join(map(_code, unknown))}."


def report(done: Sequence[ExecutedStep]) -> str:
    sections = "\n\n".join(_section(each) for each in done if each.step.tool != "write_file")
    return f"# Report\n\n{sections}\n"


def _section(done: ExecutedStep) -> str:
    if done.step.kind != "list":
        return f"## {done.step.subject}\n\n{_size(done.text)}\n\n{_fenced(done.text)}"
    place, names = done.step.subject or "the workspace", done.text.split("\n")[:-1]
    if not names:
        return f"There are no files in {place}."
    return f"{_counted(len(names), 'entry')} in {place}:\n\n{_listed(names)}"


def _outcome(done: ExecutedStep) -> str:
    step, subject, text = done.step, _code(done.step.subject), done.text
    if done.failure is not None:
        return f"My attempt to {_intention(step)} {done.failure}"
    match step.kind:
        case "run":
            errors = str(done.facts.get("stderr") or "")
            stderr = f"\n\nOn stderr:\n\n{_fenced(errors)}" if errors else ""
            return f"{subject} ended with exit code {done.facts.get('exit_code')}:\n\n{_fenced(text)}{stderr}"
        case "list":
            names = [_code(name) for name in text.splitlines()]
            place = subject if step.subject else "The workspace"
            return f"{place} holds {_counted(len(names), 'entry')}:\n\n{_listed(names)}"
        case "summarise":
            return f"{subject} has {_size(text)} It begins:\n\n{_fenced(text[:200])}"
        case "write":
            return f"I wrote {_written(done)} to {subject}."
        case "report":
            return f"I wrote a report to {subject}."
        case "save":
            return f"I saved the output to {subject}."
        case "use":
            facts = [f"{name}: {value}" for name, value in done.facts.items() if name != "success"]
            return f"{subject} returned:\n\n" + (_listed(facts) or text)
        case _:
            return f"{subject} contains:\n\n{_fenced(text)}"


def _listed(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _intention(step: Step) -> str:
    form = _INTENTIONS.get(step.kind, f"{step.kind} {{}}")
    return form.format(_code(step.subject)) if step.subject else "list the files"


def _joined(parts: Iterable[str], last: str = "and") -> str:
    *others, final = parts
    return f"{', '.join(others)} {last} {final}" if others else final


def _size(text: str) -> str:
    lines, words = _counted(len(text.splitlines()), "line"), _counted(len(text.split()), "word")
    return f"{lines}, {words}, {_counted(len(text), 'character')}."


def _written(done: ExecutedStep) -> str:
    """Return how much was written: the user may have edited the content."""
    size = done.facts.get("bytes")
    if isinstance(size, int):
        return _counted(size, "byte")
    return _counted(len(done.step.arguments["content"]), "character")


def _counted(number: int, noun: str) -> str:
    plural = "entries" if noun == "entry" else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def _code(text: str) -> str:
    text = " ".join(text.split())
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _fenced(text: str) -> str:
    """Return the beginning of a text in a code fence that is longer than any in the text."""
    shown = text[:_QUOTED_CHARS].rstrip()
    fence = "`" * max(3, 1 + max((len(ticks) for ticks in re.findall(r"`+", shown)), default=0))
    cut = f"\n\n(the first {_QUOTED_CHARS:,} of {len(text):,} characters)"
    note = cut if len(text) > _QUOTED_CHARS else ""
    return f"{fence}\n{shown}\n{fence}{note}" if shown else "(empty)"


_TEXT_FIELDS = ("content", "stdout", "text", "output", "result", "message")
_FAILURES = {
    "rejected": "was rejected, so it was not done",
    "denied": "is not allowed by the policy, so it was not done",
    "timeout": "took too long and was stopped",
    "unknown_outcome": "may or may not have happened: its outcome is unknown",
}


@dataclass(frozen=True, slots=True)
class ExecutedStep:
    step: Step
    text: str
    facts: Json
    failure: str | None
    """Verb phrase with the reason of the failure; None if the call succeeded."""


def read_result(step: Step, output: ToolOutput) -> ExecutedStep:
    """Read a tool result. An executed command counts as successful for every exit code."""
    facts = loads_object(output.text) or {}
    if not isinstance(facts.get("success"), bool) and "exit_code" not in facts:
        # Plain text, or JSON of a tool without our envelope.
        return ExecutedStep(step, output.text, facts, f"failed: {output.text}" if output.is_error else None)
    text = next((facts[name] for name in _TEXT_FIELDS if name in facts), "")
    return ExecutedStep(step, text if isinstance(text, str) else dumps(text), facts, _failure(facts))


def _failure(facts: Json) -> str | None:
    kind, error = facts.get("error_kind"), facts.get("error")
    if facts.get("success") or (kind is None and isinstance(facts.get("exit_code"), int)):
        return None
    nested = as_object(error)
    reason = (nested.get("message") if nested else error) or facts.get("message") or facts.get("content")
    failure = _FAILURES.get(str(kind), "failed")
    return f"{failure}: {reason}" if reason else f"{failure}."
