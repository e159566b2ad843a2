"""Checks of the results of steps."""

from __future__ import annotations

from banksman.contracts.workflows import StepResult
from banksman.sdk.workflows import WorkflowFailed


def check(result: StepResult, problem: str) -> None:
    """Raise `WorkflowFailed` with `problem` and the reason if a tool call failed."""
    if result.is_error:
        raise WorkflowFailed(f"{problem}: {result.content.get('error')}")


def reply_of(result: StepResult, agent: str) -> str:
    """Return the reply of an agent run; raise `WorkflowFailed` if the run did not complete."""
    if result.is_error:
        raise WorkflowFailed(f"{agent} did not finish: {result.content.get('content')}")
    return str(result.content.get("content"))
