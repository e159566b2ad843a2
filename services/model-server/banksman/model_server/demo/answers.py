"""What the demo model says: final answers, announcements and its help."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

from banksman.model_server.demo.calls import Done
from banksman.model_server.demo.markdown import bullets, code, counted, fenced
from banksman.model_server.demo.report import entries, text_figures
from banksman.model_server.demo.results import Result
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

_QUOTED_CHARS = 2_000
_SIGNATURE = "*I am the demo model: a set of rules, no language model.*"
_HELP = """I am Banksman's demo model. I follow simple rules and have **no language model** behind me, \
so that everything can be tried without a key. I understand requests like these, alone or joined by \
"then" and "and":

- run `ls -la`, or run `uname` and `date`
- list the files
- read notes.txt, or summarise notes.txt
- write hello world to notes.txt, and read it back
- fetch https://example.com as markdown
- list the files, then write a short report about them to report.md
- what is the weather in Paris (where that tool is offered)
- use the tool `name` with {"argument": "value"}
- draw a diagram"""
_DIAGRAM = """This is the way of a message through Banksman:

```mermaid
flowchart LR
    you([You]) --> gateway
    gateway --> nats[(NATS)]
    nats --> agent
    agent --> model[Model]
    agent --> runner[Tool runner]
    agent -. asks .-> approval{Approval}
    approval -. decides .-> agent
```"""


def announcement(steps: Sequence[Step]) -> str:
    """What the first reply with calls says."""
    return f"I am the demo model, rules without a language model. I will {_joined(map(_intention, steps))}."


def help_text() -> str:
    """What a request gets that no rule matches."""
    return _HELP


def diagram() -> str:
    """A small diagram."""
    return _signed([_DIAGRAM])


def tool_missing(tool: str, done: Sequence[Done]) -> str:
    """What is said when the next step needs a tool that the request does not offer."""
    lack = f"For this I would call {code(tool)}, but the request offers no such tool."
    return _signed([*map(_outcome, done), lack])


def nothing_to_read_back() -> str:
    """What is said when no file was written or read before."""
    return _signed(["I do not know which file you mean: none was read or written so far. Please name it."])


def final_answer(done: Sequence[Done], left: Sequence[Step], not_understood: Sequence[str]) -> str:
    """The answer after the last call, or after one that failed.

    Args:
        done: The steps with their results.
        left: The steps that were not begun because one before them failed.
        not_understood: Clauses of the request that no rule matches.
    """
    paragraphs = [_outcome(each) for each in done]
    if left:
        paragraphs.append(f"I stopped there and did not {_joined(map(_intention, left), 'or')}.")
    if not_understood:
        paragraphs.append(f"I did not understand: {'; '.join(map(code, not_understood))}.")
    return _signed(paragraphs)


def _signed(paragraphs: Sequence[str]) -> str:
    return "\n\n".join([*paragraphs, _SIGNATURE])


def _joined(parts: Iterable[str], last: str = "and") -> str:
    *others, final = parts
    return f"{', '.join(others)} {last} {final}" if others else final


def _intention(step: Step) -> str:
    match step:
        case Run(command):
            return f"run {code(command)}"
        case ListFiles(folder):
            return f"list the files in {code(folder)}" if folder else "list the files"
        case Read(path):
            return f"read {code(path)}"
        case ReadBack():
            return "read the file back"
        case Write(path):
            return f"write {code(path)}"
        case WriteReport(path):
            return f"write a report to {code(path)}"
        case SaveOutput(path):
            return f"save the output to {code(path)}"
        case Fetch(url):
            return f"fetch {url}"
        case Weather(place):
            return f"ask for the weather in {place}"
        case UseTool(name):
            return f"call {code(name)}"
        case _:
            assert_never(step)


def _outcome(done: Done) -> str:
    step, result = done.step, done.result
    if result.failure is not None:
        return _failed(step, result)
    match step:
        case Run(command):
            return _command(command, result)
        case ListFiles(folder):
            return _listing(folder, result)
        case Read(path, summarise):
            return _summary(path, result.text) if summarise else _quoted(f"{code(path)} says", result.text)
        case Write(path, content):
            return f"I wrote {counted(len(content), 'character')} to {code(path)}."
        case WriteReport(path):
            return f"I wrote a report to {code(path)}."
        case SaveOutput(path):
            return f"I saved the output to {code(path)}."
        case Fetch(url):
            return _quoted(f"{url} answered", result.text)
        case Weather(place):
            return f"The weather in {place}:\n\n{bullets(result.facts) or result.text}"
        case UseTool(name):
            return f"{code(name)} answered:\n\n{bullets(result.facts) or result.text}"
        case ReadBack():
            return ""
        case _:
            assert_never(step)


def _failed(step: Step, result: Result) -> str:
    intention = _intention(step)
    output = f"\n\n{fenced(result.text, _QUOTED_CHARS)}" if isinstance(step, Run) and result.text else ""
    return f"My attempt to {intention} {result.failure}{output}"


def _command(command: str, result: Result) -> str:
    ending = f" ended with exit code {result.exit_code}" if result.exit_code is not None else " ended"
    stdout, stderr = result.text, str(result.facts.get("stderr") or "")
    parts = [f"{code(command)}{ending}" + (":" if stdout or stderr else " and printed nothing.")]
    if stdout:
        parts.append(fenced(stdout, _QUOTED_CHARS))
    if stderr:
        parts += ["On stderr:", fenced(stderr, _QUOTED_CHARS)]
    return "\n\n".join(parts)


def _listing(folder: str | None, result: Result) -> str:
    place = code(folder) if folder else "The workspace"
    if result.exit_code:
        return _command(f"ls {folder or ''}".strip(), result)
    names = entries(result)
    if not names:
        return f"{place} is empty."
    listed = "\n".join(f"- {code(name)}" for name in names)
    return f"{place} holds {counted(len(names), 'entry')}:\n\n{listed}"


def _summary(path: str, text: str) -> str:
    beginning = next((line.strip() for line in text.splitlines() if line.strip()), "")
    opening = f" It begins: \u201c{beginning[:200]}\u201d" if beginning else ""
    return f"{code(path)} has {text_figures(text)}{opening}"


def _quoted(opening: str, text: str) -> str:
    if not text.strip():
        return f"{opening} nothing: it is empty."
    return f"{opening}:\n\n{fenced(text, _QUOTED_CHARS)}"
