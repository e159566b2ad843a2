"""Checks of what tenants may consume, of the calls of a reply, and of the tokens that a server counted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pydantic import ValidationError

from banksman.agent.logs.usage_ledger import UsageLedger
from banksman.agent.model.context import size_of
from banksman.agent.protocols.base import Final, Malformed, ModelRequest, RequestedCall
from banksman.agent.protocols.structured import not_fitting, written_object
from banksman.agent.settings import AgentSettings
from banksman.bus.connection import Bus
from banksman.bus.names import APPROVALS
from banksman.contracts import subjects
from banksman.contracts.assistants import Decision, RunSettings
from banksman.contracts.errors import BadInput, BanksmanError, ErrorCode, Overloaded, Unavailable
from banksman.contracts.events import ModelNotice
from banksman.contracts.messages import Usage
from banksman.contracts.runner_requests import FileRead
from banksman.contracts.subjects import ANY
from banksman.contracts.tools import ErrorKind, ToolCall, ToolDefinition, ToolResult, failed
from banksman.contracts.usage import WINDOWS, UsageCount, UsageTotals, Window, ends_at
from banksman.contracts.wire import JsonObject
from banksman.quotas.stored import MessageRoom
from banksman.runs.approval.policy import Pattern, decide, hosts_fetched, remembered_decisions, typed_in
from banksman.runs.outcome import Ending
from banksman.runs.owner import Ownership
from banksman.runs.runners.placement import Placements
from banksman.runs.schema_checks.checker import ArgumentProblem, SchemaChecker
from banksman.runs.state import Conversation, Run
from banksman.runtime.tenants import TenantLimits, TenantSettings

MAX_DIFF_BYTES = 100_000
"""Maximum bytes that are read of an existing file, to show the changes of a write."""
OLD_CONTENTS_S = 3.0
"""Maximum seconds for reading the existing files of all calls of a reply."""


@dataclass(frozen=True, slots=True)
class CallFacts:
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
    found: dict[str, ArgumentProblem] = {}
    for call, call_id in zip(calls, call_ids, strict=False):
        tool = tools.get(call.name)
        if tool is None or call.arguments_error is not None:
            continue
        problem = await schemas.argument_problem(tenant, tool, call.arguments or {})
        if problem is not None:
            found[call_id] = problem
    return found


async def structured(
    schemas: SchemaChecker, tenant: str, schema: JsonObject, final: Final, attempt: int
) -> Final | Malformed:
    """Return a final reply as the text of its object; `Malformed` if it is no object that fits the schema."""
    try:
        output = written_object(final.text)
    except BadInput as error:
        return not_fitting(f"it must be {error.expected}", attempt)
    problem = await schemas.object_problem(tenant, schema, output)
    if problem is not None:
        return not_fitting(str(problem), attempt)
    return Final(json.dumps(output, ensure_ascii=False), final.finish_reason)


async def old_contents(
    placements: Placements, state: Conversation, calls: tuple[RequestedCall, ...]
) -> dict[str, str]:
    """Return the contents of the files that calls would overwrite, for the approver to compare, by path.

    A file that is new or was not read within `OLD_CONTENTS_S` is missing.
    """
    written = (call.arguments or {} for call in calls if call.name == "write_file")
    paths = [path for one in written if isinstance(path := one.get("path"), str)]
    found: dict[str, str] = {}
    if not paths:
        return found
    # Bounded, because the reply is not recorded yet, and a cancel of its run is not noticed meanwhile.
    with contextlib.suppress(TimeoutError, Unavailable):
        async with asyncio.timeout(OLD_CONTENTS_S):
            for path in dict.fromkeys(paths):
                text = await _old_content(placements, state, path)
                if text is not None:
                    found[path] = text
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
    typed: str
    """The text of the run that a person typed, which names hosts."""

    @classmethod
    def of(cls, state: Conversation, run: Run, facts: CallFacts) -> CallPolicy:
        remembered = remembered_decisions((*state.remembered, *run.remembered))
        return cls(run, facts, remembered, hosts_fetched(state.history), typed_in(run, state.history))

    def check(self, requested: RequestedCall, call: ToolCall) -> CheckedCall:
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
        if decision == "ask" and (reason := self.facts.approvals_full) is not None:
            text = f"This call needs an approval, which cannot be requested now: {reason}."
            return _refused(call, "unavailable", text)
        return CheckedCall(call, needs_approval=decision == "ask")

    def _decision(self, call: ToolCall, tool: ToolDefinition) -> Decision:
        return decide(
            call,
            tool,
            self.run.settings.approval_policy,
            remembered=self.remembered,
            message_text=self.typed,
            fetched_hosts=self.fetched_hosts,
        )


def _refused(call: ToolCall, kind: ErrorKind, text: str) -> CheckedCall:
    return CheckedCall(call, refusal=failed(call.id, kind, text))


class ApprovalRoom:
    def __init__(self, bus: Bus) -> None:
        self._room = MessageRoom(bus)

    async def problem(self, tenant: str, size: int) -> str | None:
        """Count an approval request of `size` bytes; return why it must not be stored, None if it may be."""
        below = subjects.approval_request(tenant, ANY)
        try:
            await self._room.take_lent(APPROVALS, below, size, "approval requests")
        except Unavailable:
            # The reply of the model is already charged: an unavailable count must not fail its commit.
            return None
        except Overloaded as full:
            return str(full)
        return None


@dataclass(frozen=True, slots=True)
class TenantBudgets:
    settings: TenantSettings
    usage: UsageLedger
    approvals: ApprovalRoom
    models: AgentSettings

    async def used_up(self, owned: Ownership) -> Ending | None:
        """Return how the run ends if its tenant has used up a limit; None if no limit is used up.

        The usage that any agent stored before the last commit of this run counts. Requests in progress do not
        count: their price is known only with the reply.
        """
        limits = self.settings.of(owned.state.tenant)
        if unpriced := await self._unpriced(owned.run.settings, limits):
            return unpriced
        if all(limits.within(window) == (None, None) for window in WINDOWS):
            return None
        consumed = await self.usage.consumed(owned.state.tenant, owned.state.stream_seq)
        return _used_up(limits, consumed, owned.ports.clock.now())

    async def _unpriced(self, run: RunSettings, limits: TenantLimits) -> Ending | None:
        """Return how a run ends of whose models one has no price, while its only limit is one of cost."""
        of_run, own = run.limits.max_tokens_per_run, run.limits.max_cost_usd
        only_own = own is not None and all(limits.within(window)[0] is None for window in WINDOWS)
        if of_run is not None or not (limits.only_cost or only_own):
            return None
        summaries = (self.models.compaction_model,) if self.models.compaction_model else ()
        for model in (run.model, *run.fallback_models, *summaries):
            # The first look-up imports the price list.
            priced = await asyncio.to_thread(self.models.priced, model, Usage())
            if priced.cost_usd is None:
                code = ErrorCode.TENANT_COST_LIMIT if limits.only_cost else ErrorCode.COST_LIMIT
                return _unlimited(model, code)
        return None


def _unlimited(model: str, code: ErrorCode) -> Ending:
    text = (
        f"The model {model[:200]} has no known price, so a limit of cost, the only limit here, cannot hold. "
        "An operator can set its price in `agent.prices`, or a limit of tokens."
    )
    return Ending("failed", code, text, "not_executed")


def _used_up(limits: TenantLimits, totals: UsageTotals, now: datetime) -> Ending | None:
    for window in WINDOWS:
        tokens, cost_usd = limits.within(window)
        counted = totals.current(window, now)
        if tokens is not None and counted.tokens >= tokens:
            used = f"{counted.tokens} of {tokens} tokens"
            return _ending(ErrorCode.TENANT_TOKEN_LIMIT, window, counted, used, now)
        if cost_usd is not None and counted.cost_usd >= cost_usd:
            used = f"{counted.cost_usd:.2f} of {cost_usd:.2f} USD"
            return _ending(ErrorCode.TENANT_COST_LIMIT, window, counted, used, now)
    return None


def _ending(code: ErrorCode, window: Window, counted: UsageCount, used: str, now: datetime) -> Ending:
    frees = ends_at(window, now).isoformat(timespec="minutes").replace("+00:00", "Z")
    text = (
        f"The limit of this {window} is used up: {used} since {counted.begins.isoformat()}. "
        f"It resets at {frees}."
    )
    return Ending("failed", code, text, "not_executed")


MIN_CUT_TOKENS, CUT_SHARE = 1_000, 0.4
"""A vendor's count from which, and up to which share of the estimate, a prompt counts as cut."""
WARNED_S = 3_600.0
"""Seconds for which the process warns of the latest cut."""


class CutPrompts:
    """The notices of one process; the latest is also a warning for the operator."""

    def __init__(self) -> None:
        self._latest: tuple[float, str] | None = None

    def notices(self, model: str, request: ModelRequest, usage: Usage) -> tuple[ModelNotice, ...]:
        """Return a notice if the vendor counted far fewer tokens than the prompt has."""
        found = cut_notices(request, usage)
        for notice in found:
            self._latest = (time.monotonic(), f"{model}: {notice.text}")
        return found

    async def warning(self) -> str | None:
        """Return the latest cut of the last hour."""
        if self._latest is None or time.monotonic() - self._latest[0] > WARNED_S:
            return None
        return self._latest[1]


def cut_notices(request: ModelRequest, usage: Usage) -> tuple[ModelNotice, ...]:
    """Return a notice if the vendor counted far fewer tokens than the prompt has: its server cut the prompt.

    Ollama does so at 4,096 tokens by default. Counts below `MIN_CUT_TOKENS` exclude what a cache contained.
    """
    if usage.input_tokens < MIN_CUT_TOKENS:
        return ()
    estimated = size_of(request, request.messages, None).total
    if usage.input_tokens > estimated * CUT_SHARE:
        return ()
    text = (
        f"The model's server counted {usage.input_tokens} tokens of a prompt with about {estimated}: it may "
        "have cut the prompt. Give the model a larger context there, or set limits.context_tokens."
    )
    return (ModelNotice(kind="prompt_cut", text=text),)
