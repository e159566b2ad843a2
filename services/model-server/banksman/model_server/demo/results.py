from __future__ import annotations

from dataclasses import dataclass

from banksman.model_server.chat import ToolOutput
from banksman.model_server.demo.rules import Step
from banksman.model_server.json_values import Json, as_object, dumps, loads_object

_TEXT_FIELDS = ("content", "stdout", "text", "output", "result", "message")
_FAILURES = {
    "rejected": "was rejected, so it was not done",
    "denied": "is not allowed by the policy, so it was not done",
    "timeout": "took too long and was stopped",
    "unknown_outcome": "may or may not have happened: its outcome is unknown",
}
"""Verb phrases by error kind."""


@dataclass(frozen=True, slots=True)
class Done:
    """A step with its result."""

    step: Step
    text: str
    """The main text: content of a file, body of a page, stdout of a command."""
    facts: Json
    """The result object; empty for plain text."""
    failure: str | None
    """Verb phrase with the reason of the failure; None if the call succeeded."""


def read_result(step: Step, output: ToolOutput) -> Done:
    """Read a tool result. An executed command counts as successful for every exit code."""
    facts = loads_object(output.text) or {}
    if not isinstance(facts.get("success"), bool) and "exit_code" not in facts:
        # Plain text, or JSON of a tool without our envelope.
        return Done(step, output.text, facts, f"failed: {output.text}" if output.is_error else None)
    text = next((facts[name] for name in _TEXT_FIELDS if name in facts), "")
    return Done(step, text if isinstance(text, str) else dumps(text), facts, _failure(facts))


def _failure(facts: Json) -> str | None:
    kind, error = facts.get("error_kind"), facts.get("error")
    if facts.get("success") or (kind is None and isinstance(facts.get("exit_code"), int)):
        return None
    nested = as_object(error)
    reason = (nested.get("message") if nested else error) or facts.get("message") or facts.get("content")
    failure = _FAILURES.get(str(kind), "failed")
    return f"{failure}: {reason}" if reason else f"{failure}."
