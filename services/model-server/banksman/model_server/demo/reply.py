from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain

from banksman.model_server.chat import ChatRequest
from banksman.model_server.demo.answers import (
    announcement,
    diagram,
    final_answer,
    help_text,
    nothing_to_read_back,
    tool_missing,
)
from banksman.model_server.demo.calls import Done, tool_call
from banksman.model_server.demo.json_text import call_text
from banksman.model_server.demo.results import read_result
from banksman.model_server.demo.scene import Scene, read_scene
from banksman.model_server.demo.sentences import read_request
from banksman.model_server.demo.steps import Read, ReadBack, SaveOutput, Step, Write, WriteReport
from banksman.model_server.script import Reply, ToolCall

_MAX_STREAM_S = 4.0
"""The longest time that the pauses of one streamed answer add up to."""


def demo_reply(chat: ChatRequest, *, chunk_delay_s: float) -> Reply:
    """What the demo model says next; everything follows from the request alone."""
    reply = _reply(read_scene(chat))
    words = max(1, len(reply.text.split()))
    return reply.model_copy(update={"chunk_delay_s": min(chunk_delay_s, _MAX_STREAM_S / words)})


def _reply(scene: Scene) -> Reply:
    plan = read_request(scene.request)
    batches = _batches(plan.batches, scene)
    steps = list(chain.from_iterable(batches))
    if not steps:
        return Reply(text=diagram() if _wants_diagram(scene.request) else help_text())
    if any(isinstance(step, ReadBack) for step in steps):
        return Reply(text=nothing_to_read_back())
    done = _done(batches, scene)
    failed = any(each.result.failure is not None for each in done)
    if failed or len(scene.rounds) >= len(batches):
        left = list(chain.from_iterable(batches[len(scene.rounds) :]))
        return Reply(text=final_answer(done, left, plan.not_understood))
    calls = [tool_call(step, done) for step in batches[len(scene.rounds)]]
    missing = next((call.name for call in calls if call.name not in scene.tools), None)
    if missing is not None:
        return Reply(text=tool_missing(missing, done))
    return _calling(calls, scene, steps)


def _calling(calls: Sequence[ToolCall], scene: Scene, steps: Sequence[Step]) -> Reply:
    if scene.json_text:
        (call,) = calls
        arguments = call.arguments if isinstance(call.arguments, dict) else {}
        return Reply(text=call_text(call.name, arguments))
    return Reply(text="" if scene.rounds else announcement(steps), tool_calls=tuple(calls))


def _batches(planned: Sequence[Sequence[Step]], scene: Scene) -> list[list[Step]]:
    """The plan with every "read it back" resolved, one step a batch where calls cannot be parallel."""
    path = scene.last_path
    batches: list[list[Step]] = []
    for batch in planned:
        resolved: list[Step] = []
        for step in batch:
            resolved.append(Read(path) if isinstance(step, ReadBack) and path is not None else step)
            path = step.path if isinstance(step, Read | Write | WriteReport | SaveOutput) else path
        batches += [resolved] if scene.parallel else [[step] for step in resolved]
    return batches


def _done(batches: Sequence[Sequence[Step]], scene: Scene) -> list[Done]:
    return [
        Done(step, read_result(output))
        for batch, made in zip(batches, scene.rounds, strict=False)
        for step, (_, output) in zip(batch, made, strict=False)
    ]


def _wants_diagram(request: str) -> bool:
    return re.search(r"\b(?:diagram|flow\s?chart|mermaid)\b", request, re.IGNORECASE) is not None
