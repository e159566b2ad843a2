from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from banksman.model_server.demo.markdown import bullets, counted, fenced
from banksman.model_server.demo.results import Result
from banksman.model_server.demo.steps import Fetch, ListFiles, Read, Run, Step, UseTool, Weather

_EXCERPT_CHARS = 1_000


def report(findings: Sequence[tuple[Step, Result]]) -> str:
    """A short Markdown report about what the steps found."""
    sections = [_section(step, result) for step, result in findings]
    body = "\n\n".join(section for section in sections if section)
    return f"# Report\n\n{body or 'There was nothing to report.'}\n"


def entries(result: Result) -> list[str]:
    """The names that a listing printed."""
    return [line.strip() for line in result.text.splitlines() if line.strip()]


def _section(step: Step, result: Result) -> str:
    match step:
        case ListFiles(folder):
            return _listing(folder or "the workspace", entries(result))
        case Read(path):
            return f"## {path}\n\n{text_figures(result.text)}\n\n{fenced(result.text, _EXCERPT_CHARS)}"
        case Fetch(url):
            return f"## {url}\n\n{text_figures(result.text)}\n\n{fenced(result.text, _EXCERPT_CHARS)}"
        case Run(command):
            ending = f"Exit code {result.exit_code}."
            return f"## `{command}`\n\n{ending}\n\n{fenced(result.text, _EXCERPT_CHARS)}"
        case Weather(place):
            return f"## Weather in {place}\n\n{bullets(result.facts) or result.text}"
        case UseTool(name):
            return f"## {name}\n\n{bullets(result.facts) or result.text}"
        case _:
            # What was written by this very request is no finding.
            return ""


def text_figures(text: str) -> str:
    """How long a text is."""
    lines, words = counted(len(text.splitlines()), "line"), counted(len(text.split()), "word")
    return f"{lines}, {words}, {counted(len(text), 'character')}."


def _listing(place: str, names: list[str]) -> str:
    if not names:
        return f"There are no files in {place}."
    kinds = Counter(name.rsplit(".", 1)[1] if "." in name[1:] else "no ending" for name in names)
    by_kind = ", ".join(f"{number} \u00d7 {kind}" for kind, number in kinds.most_common())
    listed = "\n".join(f"- {name}" for name in names)
    return f"There {_are(len(names))} in {place} ({by_kind}):\n\n{listed}"


def _are(number: int) -> str:
    return f"is {counted(number, 'entry')}" if number == 1 else f"are {counted(number, 'entry')}"
