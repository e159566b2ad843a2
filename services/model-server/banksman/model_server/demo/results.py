from __future__ import annotations

from dataclasses import dataclass

from banksman.model_server.chat import ToolOutput
from banksman.model_server.json_values import Json, as_object, dumps, loads_object

_TEXT_FIELDS = ("content", "text", "body", "output", "stdout", "result", "message")
_OUTCOMES = {
    "rejected": "was rejected, so it was not done",
    "denied": "is not allowed by the policy, so it was not done",
    "not_executed": "was not executed",
    "cancelled": "was cancelled",
    "timeout": "took too long and was stopped",
    "unknown_outcome": "may or may not have happened: its outcome is unknown",
    "unavailable": "could not be reached",
}


@dataclass(frozen=True, slots=True)
class Result:
    """A tool's result, read from whatever form the provider's format gave it."""

    text: str
    """The main text: a file's content, a page's body, a command's stdout."""
    facts: Json
    """The fields of the result object; empty for plain text."""
    failure: str | None
    """Why the call did not succeed, as the end of a sentence that begins with the call; None: it did."""

    @property
    def exit_code(self) -> int | None:
        """The exit code of a command."""
        code = self.facts.get("exit_code")
        return code if isinstance(code, int) else None


def read_result(output: ToolOutput) -> Result:
    """Read one tool result.

    A command that ended with an exit code is no failure, whatever the code: it ran.
    """
    facts = loads_object(output.text) or {}
    if not isinstance(facts.get("success"), bool) and "exit_code" not in facts:
        # Plain text, or a tool's own JSON without our envelope.
        return Result(output.text, facts, f"failed: {output.text}" if output.is_error else None)
    return Result(_main_text(facts), facts, _failure(facts))


def _main_text(facts: Json) -> str:
    texts = [facts[name] for name in _TEXT_FIELDS if name in facts]
    if not texts:
        return ""
    return texts[0] if isinstance(texts[0], str) else dumps(texts[0])


def _failure(facts: Json) -> str | None:
    kind, reason = facts.get("error_kind"), _reason(facts)
    ran = isinstance(facts.get("exit_code"), int) and kind is None
    if facts.get("success") or ran:
        return None
    outcome = _OUTCOMES.get(str(kind), "failed")
    return f"{outcome}: {reason}" if reason else f"{outcome}."


def _reason(facts: Json) -> str:
    error = facts.get("error")
    nested = as_object(error)
    if nested is not None:
        error = nested.get("message")
    return str(error or facts.get("message") or facts.get("content") or facts.get("reason") or "")
