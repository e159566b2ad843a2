"""Plans of the runs in a randomized fault test: model scripts, and users that decide, cancel and steer."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any, Literal, cast

from banksman.contracts.approvals import Remember
from banksman.contracts.wire import JsonObject
from tests.support.chaos.fleet import LEDGER_FILE
from tests.support.scripted_models import ScriptedCall, ScriptedReply

AUTO, NEEDS_APPROVAL, FEEDBACK = "chaos-auto", "chaos-asking", "chaos-feedback"
WORKFLOW = "create_project"
_TOOLS = {"enabled": True, "allowed_tools": ["bash", "enter", "write_file"]}
ASSISTANTS = {
    AUTO: {"tools": _TOOLS, "approval_policy": [{"tool": "*", "action": "auto"}]},
    NEEDS_APPROVAL: {"tools": _TOOLS, "approval_policy": [{"tool": "*", "action": "ask"}]},
    FEEDBACK: {
        "tools": {**_TOOLS, "on_reject": "feedback"},
        "approval_policy": [{"tool": "*", "action": "ask"}],
    },
}
"""Assistants by id."""

Verdict = Literal["approve", "reject", "edit", "race", "ignore"]
Kind = Literal[
    "text", "command", "commands", "json", "tool", "approve", "reject", "feedback", "edit", "race", "cancel",
    "cancel-approval", "steer", "queue", "remember", "pry", "workflow", "workflow-here", "workflow-cancel",
    "workflow-misfit", "long",
]  # fmt: skip

WEIGHTS: dict[Kind, int] = {
    "text": 10,
    "command": 14,
    "commands": 8,
    "json": 8,
    "tool": 14,
    "approve": 10,
    "reject": 4,
    "feedback": 4,
    "edit": 4,
    "race": 6,
    "cancel": 8,
    "cancel-approval": 3,
    "steer": 4,
    "queue": 3,
    "remember": 5,
    "pry": 4,
    "workflow": 4,
    "workflow-here": 4,
    "workflow-cancel": 3,
    "workflow-misfit": 2,
    "long": 0,
}
WORKFLOW_KINDS: frozenset[Kind] = frozenset(kind for kind in WEIGHTS if kind.startswith("workflow"))
"""The kinds that a user starts without a model."""

_PRY = (
    "env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n';"
    " cat /run/secrets/* /etc/banksman/* ~/.banksman/keys/*; find / -name '*.nk'"
    " -not -path '/proc/*' -exec cat {} +; true"
)
"""The command of a run that searches for secrets; its output contains all that it finds."""


@dataclass(frozen=True)
class Plan:
    """One run: the replies of its model, and the actions of its user."""

    kind: Kind
    marker: str
    assistant: str
    replies: tuple[ScriptedReply, ...]
    verdict: Verdict = "approve"
    think_s: float = 0.0
    """Seconds until the user decides, cancels or steers."""
    json_text: bool = False
    remember: Remember | None = None
    """The scope of the user's decision."""


def plan(chance: random.Random, marker: str, kind: Kind | None = None) -> Plan:
    """Return the next run."""
    kind = kind or chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    think_s = chance.uniform(0, 1.5)
    seconds = chance.choice((0.0, 0.0, 0.2, 1.0))
    done = ScriptedReply(text=f"Done: {marker}.", first_delay_s=chance.choice((0.0, 0.0, 0.3)))
    match kind:
        case "text":
            return Plan(kind, marker, AUTO, (done,))
        case "command" | "steer" | "queue":
            return Plan(kind, marker, AUTO, (_native(_bash(marker, seconds)), done), think_s=think_s)
        case "pry":
            search = ScriptedCall(name="bash", arguments={"command": f"{command(marker)}; {_PRY}"})
            return Plan(kind, marker, AUTO, (_native(search), done))
        case "commands":
            two = (_bash(f"{marker}-1", seconds), _bash(f"{marker}-2", 0.0))
            return Plan(kind, marker, AUTO, (_native(*two), _native(_bash(f"{marker}-3", 0.0)), done))
        case "json":
            return Plan(kind, marker, AUTO, (_as_text(_bash(marker, seconds)), done), json_text=True)
        case "tool":
            entered = ScriptedCall(name="enter", arguments={"marker": marker, "seconds": seconds})
            return Plan(kind, marker, AUTO, (_native(entered), done))
        case "long":
            # Longer than most faults of the broker: the call runs through them.
            seconds = chance.uniform(3.0, 9.0)
            entered = ScriptedCall(name="enter", arguments={"marker": marker, "seconds": seconds})
            call = entered if chance.random() < 0.3 else _bash(marker, seconds)
            return Plan(kind, marker, AUTO, (_native(call), done))
        case "cancel":
            # Long enough that the cancel arrives during the command, or before it.
            slow = _bash(marker, chance.choice((0.5, 3.0)))
            return Plan(kind, marker, AUTO, (_native(slow), done), think_s=think_s)
        case "cancel-approval" | "approve" | "reject" | "edit" | "race" | "remember" | "feedback":
            return _with_approval(chance, kind, marker, think_s, _bash(marker, seconds), done)
        case "workflow" | "workflow-here" | "workflow-cancel" | "workflow-misfit":
            return Plan(kind, marker, AUTO, (done,), think_s=think_s)


ApprovalKind = Literal["cancel-approval", "approve", "reject", "edit", "race", "remember", "feedback"]
"""The kinds with an approval request."""


def _with_approval(
    chance: random.Random,
    kind: ApprovalKind,
    marker: str,
    think_s: float,
    call: ScriptedCall,
    done: ScriptedReply,
) -> Plan:
    match kind:
        case "cancel-approval":
            return Plan(kind, marker, NEEDS_APPROVAL, (_native(call), done), "ignore", think_s)
        case "approve" | "reject" | "edit" | "race":
            return Plan(kind, marker, NEEDS_APPROVAL, (_native(call), done), kind, think_s)
        case "remember":
            # The same file is written twice: in one run if the decision is for the run, otherwise also in the
            # next run.
            writes = (_native(_write(marker, 1)), _native(_write(marker, 2)), done)
            remember: Remember = chance.choice(("run", "conversation"))
            verdict: Verdict = chance.choice(("approve", "approve", "reject"))
            later = writes if remember == "conversation" else ()
            assistant = NEEDS_APPROVAL if verdict == "approve" else FEEDBACK
            return Plan(kind, marker, assistant, (*writes, *later), verdict, think_s, remember=remember)
        case "feedback":
            return Plan(kind, marker, FEEDBACK, (_native(call), done), "reject", think_s)


def filled_in(form: JsonObject, chance: random.Random, chosen: Plan) -> JsonObject:
    """Return a user's input to the workflow's form: all required values, and some of the others.

    If the plan requires it, one value violates the form.
    """
    properties = cast(dict[str, dict[str, Any]], form["properties"])
    offered = list(properties["template"]["enum"])
    entered: JsonObject = {"name": f"p{chosen.marker.removeprefix('mark-').lower().replace('_', '-')}"[:40]}
    if chance.random() < 0.7:
        entered["template"] = chance.choice(offered)
    if chance.random() < 0.5:
        entered["description"] = chance.choice(("For a friend.", "Ünïcode, “quotes” and\nlines."))
    if chosen.kind == "workflow-misfit":
        wrong: JsonObject = {"template": "none of them"} if chance.random() < 0.5 else {"name": "No Folder"}
        entered |= wrong
    return entered


def command(marker: str, seconds: float = 0.0) -> str:
    """Return a command that appends a line to the ledger of its workspace, once per execution."""
    line = f'echo "{marker} $(cat /proc/sys/kernel/random/uuid) $(date +%s.%N)" >> {LEDGER_FILE}'
    return f"{line}; sleep {seconds}" if seconds else line


def _bash(marker: str, seconds: float) -> ScriptedCall:
    return ScriptedCall(name="bash", arguments={"command": command(marker, seconds)})


def _write(marker: str, version: int) -> ScriptedCall:
    name = marker.removeprefix("mark-")
    return ScriptedCall(name="write_file", arguments={"path": f"{name}.txt", "content": f"version {version}"})


def _native(*calls: ScriptedCall) -> ScriptedReply:
    return ScriptedReply(tool_calls=calls)


def _as_text(call: ScriptedCall) -> ScriptedReply:
    written = {"tool": call.name, "parameters": call.arguments, "terminate": False}
    return ScriptedReply(text=json.dumps(written))
