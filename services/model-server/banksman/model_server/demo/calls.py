from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from banksman.model_server.demo.report import report
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
from banksman.model_server.script import ToolCall


@dataclass(frozen=True, slots=True)
class Done:
    """A step whose result is in the history."""

    step: Step
    result: Result


def tool_call(step: Step, done: Sequence[Done]) -> ToolCall:
    """The call that does a step, given what the steps before it found."""
    name, arguments = _name_and_arguments(step, done)
    return ToolCall(name=name, arguments=arguments)


def _name_and_arguments(step: Step, done: Sequence[Done]) -> tuple[str, dict[str, Any]]:
    match step:
        case Run(command):
            return "bash", {"command": command}
        case ListFiles(folder):
            return "bash", {"command": f"ls {shlex.quote(folder)}" if folder else "ls"}
        case Read(path):
            return "read_file", {"path": path}
        case Write(path, content):
            return "write_file", {"path": path, "content": content}
        case WriteReport(path):
            findings = [(found.step, found.result) for found in done]
            return "write_file", {"path": path, "content": report(findings)}
        case SaveOutput(path):
            return "write_file", {"path": path, "content": done[-1].result.text if done else ""}
        case Fetch(url, form):
            return "web_fetch", {"url": url} | ({"format": form} if form else {})
        case Weather(place):
            return "get_current_weather", {"location": place}
        case UseTool(name, arguments):
            return name, dict(arguments)
        case ReadBack():
            raise ValueError("ReadBack is resolved to a Read before it becomes a call")
        case _:
            assert_never(step)
