"""The terminal event of a run, in a size that one commit can hold. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from banksman.contracts.assistants import RunSettings
from banksman.contracts.errors import ErrorCode
from banksman.contracts.events import Outcome, RunError, RunFinished, TrackedCall
from banksman.contracts.fitting import first_fitting, json_bytes
from banksman.contracts.tools import ErrorKind, ToolResult
from banksman.contracts.wire import JsonObject, JsonValue
from banksman.runs.state import Run

MAX_CONTENT_BYTES = 512 * 1024
"""Bytes of an outcome's text as JSON. The log holds the whole text in an earlier event."""
MAX_TRACKED_BYTES = 192 * 1024
"""Bytes of all calls of an outcome together; a commit is one message of at most 1 MiB and holds more than
them."""
TEXT_CHARS = (2_000, 200, 20)
"""Characters that are left of each text of a call; a smaller number is used while the calls are too long."""
_CUT = "… (cut here: it is too long for the outcome)"

ANSWER_FIELDS = {"bash": "stdout", "read_file": "content", "web_fetch": "body"}
"""The field of a result that holds its text, for tools whose result is a text."""
MORE_FIELD = "more"
"""The field of a cut result from which the model learns how to read the rest."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a run ends without a final reply of the model, and with which outcome."""

    status: Outcome
    code: ErrorCode
    message: str
    call_kind: ErrorKind
    """The error kind of the results of its open calls."""


def finished(run: Run, status: Outcome, content: str, ending: Ending | None) -> RunFinished:
    """Return the terminal event of a run.

    Long texts and old calls are shortened where the event would not fit one commit; the log holds them whole.
    """
    return RunFinished(
        status=status,
        content=first_fitting(_shorter_texts(content), MAX_CONTENT_BYTES),
        service=run.settings.service,
        model=run.answered_by or run.settings.model,
        iterations=run.iteration,
        tool_calls=outcome_calls(run.tracked),
        max_iterations_reached=status == "max_iterations",
        usage=run.usage,
        error=None if ending is None else RunError(code=ending.code, message=ending.message),
    )


def never_started(settings: RunSettings, ending: Ending) -> RunFinished:
    """Return the terminal event of a run that no agent ever claimed."""
    return RunFinished(
        status=ending.status,
        content=ending.message,
        service=settings.service,
        model=settings.model,
        iterations=0,
        error=RunError(code=ending.code, message=ending.message),
    )


def result_json(result: ToolResult) -> str:
    """Return the result's object as JSON text, the form that models of the OpenAI format receive."""
    return json.dumps(result.content, ensure_ascii=False)


def answer_text(name: str, result: ToolResult) -> str:
    """Return what a user reads when the result of tool `name` is the run's answer (`terminate: true`)."""
    field = ANSWER_FIELDS.get(name)
    text = result.content.get(field) if field else None
    if isinstance(text, str) and not result.is_error:
        return text
    return result_json(result)


def outcome_calls(calls: tuple[TrackedCall, ...]) -> tuple[TrackedCall, ...]:
    """Return the calls that an outcome lists: long texts are cut if needed, then the oldest left out."""
    return first_fitting(_shorter_calls(calls), MAX_TRACKED_BYTES)


def _shorter_texts(text: str) -> Iterator[str]:
    yield text
    kept = text
    while kept:
        # In proportion, because bytes per character differ from script to script; two steps nearly always do.
        kept = kept[: max(0, len(kept) * MAX_CONTENT_BYTES // json_bytes(kept + _CUT) - 1)]
        yield kept + _CUT


def _shorter_calls(calls: tuple[TrackedCall, ...]) -> Iterator[tuple[TrackedCall, ...]]:
    kept = calls
    yield kept
    for chars in TEXT_CHARS:
        kept = tuple(_shortened(call, chars) for call in calls)
        yield kept
    room, first = MAX_TRACKED_BYTES - len("[]"), len(kept)
    for call in reversed(kept):
        room -= json_bytes(call) + len(",")
        if room < 0:
            break
        first -= 1
    yield kept[first:]


def _shortened(call: TrackedCall, chars: int) -> TrackedCall:
    return call.model_copy(
        update={"params": _object(call.params, chars), "result": _object(call.result, chars)}
    )


def _object(value: JsonObject, chars: int) -> JsonObject:
    return {name: _value(item, chars) for name, item in value.items()}


def _value(value: JsonValue, chars: int) -> JsonValue:
    match value:
        case str() if len(value) > chars:
            return f"{value[:chars]}… ({len(value) - chars} characters left out)"
        case dict():
            return _object(value, chars)
        case list():
            return [_value(item, chars) for item in value]
        case _:
            return value
