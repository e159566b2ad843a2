from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain

from banksman.model_server.chat import ValidatedRequest
from banksman.model_server.demo import texts
from banksman.model_server.demo.history import DemoConversation, read_history
from banksman.model_server.demo.rules import (
    READING,
    TOKEN,
    VERBS,
    Literals,
    Step,
    ideas,
    step_of,
    steps_of,
)
from banksman.model_server.demo.texts import ExecutedStep, read_result
from banksman.model_server.demo.workflows import workflow_reply, workflow_text
from banksman.model_server.json_values import dumps
from banksman.model_server.script import ScriptedCall, ScriptedReply

_MAX_STREAM_S = 4.0
"""Maximum total of the pauses within one streamed reply."""
_DIAGRAM = re.compile(r"\b(?:diagram|flow\s?chart|mermaid)\b", re.IGNORECASE)


def demo_reply(chat: ValidatedRequest, *, chunk_delay_s: float) -> ScriptedReply:
    """Return the demo model's reply. It depends on the request only."""
    history = read_history(chat)
    text = workflow_reply(chat, history.request) or workflow_text(chat, history.request)
    reply = _reply(history) if text is None else ScriptedReply(text=text)
    words = max(1, len(reply.text.split()))
    return reply.model_copy(update={"chunk_delay_s": min(chunk_delay_s, _MAX_STREAM_S / words)})


def _reply(history: DemoConversation) -> ScriptedReply:
    batches, unknown = read_request(history.request, history.last_path)
    steps = list(chain.from_iterable(batches))
    if not history.parallel:
        batches = [[step] for step in steps]
    if not steps:
        return ScriptedReply(text=_without_calls(history.request))
    if any(step.kind == "read" and not step.subject for step in steps):
        return ScriptedReply(text=texts.UNKNOWN_FILE)
    pairs = zip(batches, history.rounds, strict=False)
    done = [read_result(step, output) for made in pairs for step, output in zip(*made, strict=False)]
    left = batches[len(history.rounds) :]
    if not left or any(each.failure is not None for each in done):
        skipped = list(chain.from_iterable(left))
        return ScriptedReply(text=texts.final_text(done, [*texts.notes(skipped, unknown)]))
    calls = [_call(step, done) for step in left[0]]
    missing = next((call.name for call in calls if call.name not in history.tools), None)
    if missing is not None:
        return ScriptedReply(text=texts.final_text(done, [texts.NO_TOOL.format(missing)]))
    if history.json_text:
        (call,) = calls
        return ScriptedReply(
            text=dumps({"tool": call.name, "parameters": call.arguments, "terminate": False})
        )
    return ScriptedReply(text="" if history.rounds else texts.announcement(steps), tool_calls=tuple(calls))


def _without_calls(request: str) -> str:
    if _DIAGRAM.search(request):
        return texts.DIAGRAM
    requested = ideas(request)
    return texts.HELP if requested is None else f"{requested}{texts.SIGNATURE}"


def _call(step: Step, done: Sequence[ExecutedStep]) -> ScriptedCall:
    """Return the call of a step. Reports and saved outputs contain the results before them."""
    arguments = dict(step.arguments)
    if step.kind == "report":
        arguments["content"] = texts.report(done)
    elif step.kind == "save" and done:
        arguments["content"] = done[-1].text
    return ScriptedCall(name=step.tool, arguments=arguments)


_MAX_REQUEST_CHARS = 100_000
_MAX_WORDS_CHARS = 2_000
"""Longer requests are not parsed, because the time to match the patterns may grow faster than the text."""

_JOINER = r"(?:and|then|also|next|finally|after\s+that|please|now)\b,?\s+"
_POLITE = r"(?:please|(?:could|can|would|will)\s+you|first|hey|hi|hello|ok)\b[,:]?\s+"
_BEGINNING = re.compile(rf"^(?:{_POLITE}|{_JOINER})+", re.IGNORECASE)
_ENDING = re.compile(r"(?:,?\s+(?:please|thanks|thank\s+you)|[.!?\s])+$", re.IGNORECASE)
_SEPARATOR = re.compile(
    rf"((?:\s*[;\n,.!?]+\s*(?:{_JOINER})*|\s+(?:{_JOINER})+)(?=(?:{VERBS})\b)"
    rf"|,?\s+(?:and\s+)?then\s+(?={TOKEN}\s*(?:$|[;,.])))",
    re.IGNORECASE,
)
_IGNORED = re.compile(
    r"(?:(?:tell|show|give)\s+(?:me|us)|explain)\b.*|thanks|thank\s+you", re.IGNORECASE | re.DOTALL
)
"""Clauses that the final reply fulfils anyway."""
_IN_ORDER = re.compile(r"then|after|finally|next|[;\n]", re.IGNORECASE)


def read_request(text: str, last_path: str) -> tuple[list[list[Step]], list[str]]:
    """Find the steps of a request, in which "it" is `last_path` or the file of the step before.

    Returns:
        Batches of steps in order, where the steps of a batch can run in parallel, and the clauses that no
        rule matches. If no clause matches a rule, both are empty.
    """
    batches: list[list[Step]] = []
    unknown: list[str] = []
    literals = Literals(text.strip() if len(text) <= _MAX_REQUEST_CHARS else "")
    for clause, in_order in _clauses(literals.masked):
        steps = steps_of(clause, literals)
        if not steps:
            unknown += [] if _IGNORED.fullmatch(clause) else [literals.source(clause)]
            continue
        if steps[0].kind == "read" and not steps[0].subject:
            steps = [step_of("read", last_path)]
        last_path = str(steps[-1].arguments.get("path", last_path))
        if steps[0].kind == "report" and not batches:
            batches.append([step_of("list", "")])
        kinds = {step.kind for step in (*steps, *(batches[-1] if batches else ()))}
        if batches and not in_order and kinds <= READING:
            batches[-1] += steps
        else:
            batches.append(steps)
    return batches, unknown if batches else []


def _clauses(masked: str) -> list[tuple[str, bool]]:
    """Return each clause, and whether the words before it require its order."""
    parts = _SEPARATOR.split(masked) if len(masked) <= _MAX_WORDS_CHARS else []
    clauses = [_ENDING.sub("", _BEGINNING.sub("", part.strip())) for part in parts[::2]]
    order = [False, *(_IN_ORDER.search(separator) is not None for separator in parts[1::2])]
    return [(clause, in_order) for clause, in_order in zip(clauses, order, strict=False) if clause]
