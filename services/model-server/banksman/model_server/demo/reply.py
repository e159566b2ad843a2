from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain

from banksman.model_server.chat import ChatRequest
from banksman.model_server.demo import texts
from banksman.model_server.demo.history import History, read_history
from banksman.model_server.demo.ideas import ideas
from banksman.model_server.demo.plan import read_request
from banksman.model_server.demo.reports import workflow_text
from banksman.model_server.demo.results import Done, read_result
from banksman.model_server.demo.rules import Step
from banksman.model_server.demo.workflows import workflow_reply
from banksman.model_server.json_values import dumps
from banksman.model_server.script import Reply, ToolCall

_MAX_STREAM_S = 4.0
"""Maximum total of the pauses within one streamed reply."""
_DIAGRAM = re.compile(r"\b(?:diagram|flow\s?chart|mermaid)\b", re.IGNORECASE)


def demo_reply(chat: ChatRequest, *, chunk_delay_s: float) -> Reply:
    """Return the demo model's reply. It depends on the request only."""
    history = read_history(chat)
    text = workflow_reply(chat, history.request) or workflow_text(chat, history.request)
    reply = _reply(history) if text is None else Reply(text=text)
    words = max(1, len(reply.text.split()))
    return reply.model_copy(update={"chunk_delay_s": min(chunk_delay_s, _MAX_STREAM_S / words)})


def _reply(history: History) -> Reply:
    batches, unknown = read_request(history.request, history.last_path)
    steps = list(chain.from_iterable(batches))
    if not history.parallel:
        batches = [[step] for step in steps]
    if not steps:
        return Reply(text=_without_calls(history.request))
    if any(step.kind == "read" and not step.subject for step in steps):
        return Reply(text=texts.UNKNOWN_FILE)
    pairs = zip(batches, history.rounds, strict=False)
    done = [read_result(step, output) for made in pairs for step, output in zip(*made, strict=False)]
    left = batches[len(history.rounds) :]
    if not left or any(each.failure is not None for each in done):
        skipped = list(chain.from_iterable(left))
        return Reply(text=texts.final_text(done, [*texts.notes(skipped, unknown)]))
    calls = [_call(step, done) for step in left[0]]
    missing = next((call.name for call in calls if call.name not in history.tools), None)
    if missing is not None:
        return Reply(text=texts.final_text(done, [texts.NO_TOOL.format(missing)]))
    if history.json_text:
        (call,) = calls
        return Reply(text=dumps({"tool": call.name, "parameters": call.arguments, "terminate": False}))
    return Reply(text="" if history.rounds else texts.announcement(steps), tool_calls=tuple(calls))


def _without_calls(request: str) -> str:
    if _DIAGRAM.search(request):
        return texts.DIAGRAM
    requested = ideas(request)
    return texts.HELP if requested is None else f"{requested}{texts.SIGNATURE}"


def _call(step: Step, done: Sequence[Done]) -> ToolCall:
    """Return the call of a step. Reports and saved outputs contain the results before them."""
    arguments = dict(step.arguments)
    if step.kind == "report":
        arguments["content"] = texts.report(done)
    elif step.kind == "save" and done:
        arguments["content"] = done[-1].text
    return ToolCall(name=step.tool, arguments=arguments)
