"""Write docs/request-path.md: the functions that one request with an approval passes.

python -m tools.request_path           write the page
python -m tools.request_path --check   check that the page is current (part of `make lint`)
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.generated import ROOT, write_or_check

PAGE = ROOT / "docs/request-path.md"
ROOTS = ("shared", "services/gateway", "services/agent", "services/tool-runner", "services/workflows")

INTRODUCTION = """# The path of a request

One request with one approval: a user sends a message over the websocket, the model requests `bash`, the user
approves, the command runs, and the model writes the final reply. [How it works](architecture.md) has it in
ten steps. This page names the functions in their order, for readers of the code. A function that is passed
again is not repeated. The list omits:

- leaf helpers (encoding, ids, sizes, parsing of fields) and checks that let the request pass;
- activities beside the request (heartbeats, deltas, progress) and error paths;
- the alternatives to the OpenAI format, the native protocol and bwrap.

`make docs` writes this page from `tools/request_path.py`, and `make lint` checks that the functions exist.
"""


@dataclass(frozen=True)
class Step:
    """A part of the path: its title, and `module: function …` for each module that it passes."""

    title: str
    passes: tuple[str, ...]


STEPS: tuple[Step, ...] = (
    Step(
        "Gateway: the message is stored, and the client gets its `ack`.",
        (
            "banksman.gateway.interfaces.websocket.connection: _read _accept _handle_requests _handle",
            "banksman.gateway.operation.dispatch: handle",
            "banksman.gateway.runs.operations: send_message",
            "banksman.gateway.runs.starts: send",
            "banksman.gateway.assistants.run_settings: resolve_settings",
            "banksman.bus.publish: publish durable attempt _publish",
        ),
    ),
    Step(
        "Agent: the work message is claimed.",
        (
            "banksman.bus.queues.work: _received _start_waiting _start _handle",
            "banksman.bus.queues.waiting: add next surplus",
            "banksman.quotas.places: next_of allows take",
            "banksman.bus.queues.handling: handle",
            "banksman.agent.worker: on_work capped",
            "banksman.runs.claim: accept delivered_work _take_in _claim",
            "banksman.runs.conversation_log: read _folded append _append",
            "banksman.bus.storage.log: last append",
            "banksman.runs.owner: append_fitting add follow to_commit",
            "banksman.runs.fold: apply_commit apply_events _apply_event _apply_to_run",
            "banksman.runs.bus_ports: drive",
        ),
    ),
    Step(
        "Loop: the next step is a model request.",
        (
            "banksman.runs.loop: drive",
            "banksman.runs.steps: next_step ending_of _between_iterations",
            "banksman.runs.loop: _request_model",
            "banksman.agent.model.step: complete _prepare _complete _reply _checked",
            "banksman.agent.tools: offered",
            "banksman.prompting.templates: run_variables render",
            "banksman.prompting.enhance: enhance",
            "banksman.agent.protocols.native: prepare",
            "banksman.agent.model.request: unless_cancelled complete_with_fallback",
            "banksman.agent.providers.retrying: complete _with_retries",
            "banksman.agent.providers.openai: _attempt",
            "banksman.agent.providers.openai_request: body messages",
            "banksman.agent.providers.openai_api: chunks",
            "banksman.agent.providers.openai: take reply",
            "banksman.agent.protocols.native: read",
        ),
    ),
    Step(
        "Calls: the reply and its approval request are one commit; the run is parked.",
        (
            "banksman.agent.model.replies: __call__ _call_events",
            "banksman.runs.approval.policy: decide preview",
            "banksman.runs.owner: commit _drafted _committed",
            "banksman.runs.approval.requests: publish_requests open_requests",
            "banksman.bus.storage.approval_slots: publish_request store_request set_timer",
            "banksman.bus.storage.slots: store_slot",
            "banksman.bus.queues.handling: settle",
        ),
    ),
    Step(
        "Gateway: the client sees the request, and its decision is signed and stored.",
        (
            "banksman.bus.storage.live: _received _deliver",
            "banksman.gateway.live.feed: _take",
            "banksman.gateway.approvals.decisions: decide submit decide _item_decision",
            "banksman.runs.approval.requests: sign",
            "banksman.bus.storage.approval_slots: read store_reply",
        ),
    ),
    Step(
        "Agent: the decision is verified and committed, and the run resumes.",
        (
            "banksman.agent.worker: on_decision",
            "banksman.runs.handlers: on_decision",
            "banksman.runs.approval.requests: problem resolution",
            "banksman.runs.owner: append",
            "banksman.runs.handlers: _resume_if_parked",
        ),
    ),
    Step(
        "Execution: the call is sent to the runner of the workspace.",
        (
            "banksman.runs.coordinator: execute _advance _read_slots _dispatch",
            "banksman.runs.call_attempt: call_step _before_start note_reply",
            "banksman.runs.runners.placement: place call",
            "banksman.runs.runners.workspaces: decide_placement",
        ),
    ),
    Step(
        "Tool-runner: the start is stored, the command runs, the result is stored.",
        (
            "banksman.tool_runner.execution: call",
            "banksman.runs.runners.calls: admit",
            "banksman.tool_runner.execution: run _prepare_workspace",
            "banksman.tool_runner.workspaces.registry: turn prepare _begin_change",
            "banksman.runs.runners.calls: perform start",
            "banksman.tool_runner.execution: _execute _outcome _result",
            "banksman.tool_runner.tools.toolbox: run",
            "banksman.tool_runner.tools.bash: run _result",
            "banksman.tool_runner.sandbox.bwrap.sandbox: run _spawn",
            "banksman.tool_runner.sandbox.bwrap.spawner: spawn",
            "banksman.runs.runners.calls: finish",
            "banksman.bus.storage.slots: store_started store_result",
        ),
    ),
    Step(
        "Agent: the result is committed, and the model writes the final reply.",
        (
            "banksman.runs.bus_ports: _stored wait",
            "banksman.runs.coordinator: _commit",
            "banksman.runs.outcome: storable batches completions",
            "banksman.runs.fold_calls: complete_calls _with_results",
            "banksman.runs.outcome: finished",
        ),
    ),
)


def main(arguments: list[str]) -> int:
    """Write or check the page; return the exit code."""
    unknown = [f"{module} has no {name}" for module, name in path() if name not in functions_of(module)]
    if unknown:
        print("tools/request_path.py: " + "; ".join(unknown), file=sys.stderr)
        return 1
    return write_or_check({PAGE: page()}, arguments)


def page() -> str:
    """Return the text of docs/request-path.md."""
    modules, functions = {module for module, _ in path()}, set(path())
    lines = [INTRODUCTION, f"The path crosses {len(modules)} files and {len(functions)} functions."]
    for number, step in enumerate(STEPS, start=1):
        lines += ["", f"**{number}. {step.title}**", "", *map(_line, step.passes)]
    return "\n".join(lines) + "\n"


def _line(passes: str) -> str:
    module, _, names = passes.partition(": ")
    chain = " → ".join(f"`{name}`" for name in names.split())
    return f"- `{source_of(module).relative_to(ROOT).as_posix()}`: {chain}"


def path() -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each function of the path."""
    for step in STEPS:
        for passes in step.passes:
            module, _, names = passes.partition(": ")
            for name in names.split():
                yield module, name


def source_of(module: str) -> Path:
    """Return the source file of a module.

    Raises:
        LookupError: There is no such file.
    """
    name = module.replace(".", "/") + ".py"
    for root in ROOTS:
        if (file := ROOT / root / name).is_file():
            return file
    raise LookupError(f"tools/request_path.py names {module}, which does not exist")


@cache
def functions_of(module: str) -> set[str]:
    """Return the names of all functions that a module defines."""
    tree = ast.parse(source_of(module).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
