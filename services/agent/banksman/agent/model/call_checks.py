"""Checks of the calls of a reply: their arguments, the approval policy, and the files that they overwrite."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from banksman.agent.protocols.base import RequestedCall
from banksman.contracts.assistants import Decision
from banksman.contracts.calls import FileRead
from banksman.contracts.errors import BanksmanError, Unavailable
from banksman.contracts.messages import text_of
from banksman.contracts.tools import ErrorKind, ToolCall, ToolDefinition, ToolResult, failed
from banksman.runs.approval.policy import Pattern, decide, hosts_fetched, remembered_decisions
from banksman.runs.runners.placement import Placements
from banksman.runs.schema_checks.checker import ArgumentProblem, SchemaChecker
from banksman.runs.state import Conversation, Run

MAX_DIFF_BYTES = 100_000
"""Maximum bytes that are read of an existing file, to show the changes of a write."""
OLD_CONTENTS_S = 3.0
"""Maximum seconds for reading the existing files of all calls of a reply."""


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What the commit of a reply needs to know about its calls."""

    tools: Mapping[str, ToolDefinition]
    """The tools that may be called, by name."""
    problems: Mapping[str, ArgumentProblem]
    """Why arguments do not fit the schema of their tool, by call id."""
    old_contents: Mapping[str, str]
    """The current contents of files that the calls would overwrite, by path."""
    approvals_full: str | None
    """Why the tenant may store no further approval request; None if it may."""


async def argument_problems(
    schemas: SchemaChecker,
    tenant: str,
    calls: tuple[RequestedCall, ...],
    call_ids: tuple[str, ...],
    tools: Mapping[str, ToolDefinition],
) -> dict[str, ArgumentProblem]:
    """Return why arguments do not fit the schema of their tool, by call id."""
    found: dict[str, ArgumentProblem] = {}
    for call, call_id in zip(calls, call_ids, strict=False):
        tool = tools.get(call.name)
        if tool is None or call.arguments_error is not None:
            continue
        problem = await schemas.argument_problem(tenant, tool, call.arguments or {})
        found |= {} if problem is None else {call_id: problem}
    return found


async def old_contents(
    placements: Placements, state: Conversation, calls: tuple[RequestedCall, ...]
) -> dict[str, str]:
    """Return the contents of the files that calls would overwrite, for the approver to compare, by path.

    A file that is new or was not read within `OLD_CONTENTS_S` is missing.
    """
    written = (call.arguments or {} for call in calls if call.name == "write_file")
    paths = [path for one in written if isinstance(path := one.get("path"), str)]
    found: dict[str, str] = {}
    # Bounded, because the reply is not recorded yet, and a cancel of its run is not noticed meanwhile.
    with contextlib.suppress(TimeoutError, Unavailable):
        async with asyncio.timeout(OLD_CONTENTS_S):
            for path in dict.fromkeys(paths):
                text = await _old_content(placements, state, path)
                found |= {} if text is None else {path: text}
    return found


async def _old_content(placements: Placements, state: Conversation, path: str) -> str | None:
    """Return a file's content, None if unreadable; raise `Unavailable` if no runner serves the workspace."""
    request = FileRead(path=path[:4096], max_bytes=MAX_DIFF_BYTES)
    try:
        return (await placements.files(state.tenant, state.conversation_id, request)).text
    except Unavailable:
        raise
    except (BanksmanError, ValidationError):
        return None


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """A call, and whether it is executed, is refused or needs an approval."""

    call: ToolCall
    arguments_error: str | None = None
    """Why the arguments cannot be read; `runs.steps` gives such a call its result."""
    refusal: ToolResult | None = None
    """The result of a call that is not executed; None for a call that may be executed."""
    needs_approval: bool = False


@dataclass(frozen=True, slots=True)
class CallPolicy:
    run: Run
    facts: CallFacts
    remembered: Mapping[Pattern, Decision]
    fetched_hosts: frozenset[str]

    @classmethod
    def of(cls, state: Conversation, run: Run, facts: CallFacts) -> CallPolicy:
        remembered = remembered_decisions((*state.remembered, *run.remembered))
        return cls(run, facts, remembered, hosts_fetched(state.history))

    def check(self, requested: RequestedCall, call: ToolCall) -> CheckedCall:
        """Check a call against the tools, the schema of its tool and the approval policy, in this order."""
        if requested.arguments_error is not None:
            return CheckedCall(call, arguments_error=requested.arguments_error)
        tool = self.facts.tools.get(call.name)
        if tool is None:
            known = ", ".join(sorted(self.facts.tools)) or "none"
            return _refused(call, "unknown_tool", f"There is no tool {call.name!r}. Tools: {known}.")
        problem = self.facts.problems.get(call.id)
        if problem is not None:
            return _refused(call, "invalid_arguments", f"Invalid arguments of {call.name}: {problem}")
        decision = self._decision(call, tool)
        if decision == "deny":
            text = f"The policy of this assistant does not allow this call of {call.name}."
            return _refused(call, "denied", text)
        if decision == "ask" and self.facts.approvals_full is not None:
            reason = self.facts.approvals_full
            text = f"This call needs an approval, which cannot be requested now: {reason}."
            return _refused(call, "unavailable", text)
        return CheckedCall(call, needs_approval=decision == "ask")

    def _decision(self, call: ToolCall, tool: ToolDefinition) -> Decision:
        return decide(
            call,
            tool,
            self.run.settings.approval_policy,
            remembered=self.remembered,
            message_text=text_of(self.run.message.content),
            fetched_hosts=self.fetched_hosts,
        )


def _refused(call: ToolCall, kind: ErrorKind, text: str) -> CheckedCall:
    return CheckedCall(call, refusal=failed(call.id, kind, text))
