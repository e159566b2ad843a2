"""The outcomes of calls and runs as events, in a size that commits can hold. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from pydantic_core import to_json

from banksman.contracts import events
from banksman.contracts.approvals import InputRequested
from banksman.contracts.assistants import RunSettings
from banksman.contracts.errors import BadInput, ErrorCode
from banksman.contracts.ids import approval_id_for, attempt_id
from banksman.contracts.json_text import check_values, parsed
from banksman.contracts.mcp import mcp_server_of
from banksman.contracts.messages import AssistantMessage, Message, ToolMessage
from banksman.contracts.tools import ErrorKind, ToolResult, failed
from banksman.contracts.wire import JsonObject, JsonValue, first_fitting, json_bytes, strict_json
from banksman.contracts.workspaces import WorkspaceLoss
from banksman.runs.state import Conversation, Run

MAX_CONTENT_BYTES = 512 * 1024
"""Maximum bytes of an outcome's text as JSON. An earlier event in the log contains the complete text."""
MAX_TRACKED_BYTES = 192 * 1024
"""Maximum bytes of all calls of an outcome together. Their commit is one message of at most 1 MiB, which also
contains the outcome's text."""
COMMIT_BYTES = 512 * 1024
"""Maximum bytes of JSON of the results in one commit; further results go into the next commit."""
RESULT_BYTES = 256 * 1024
"""Maximum bytes of JSON of one result; a longer result is replaced by a failure that states the limit."""
MAX_NAMED_CALLS = 100
"""Maximum number of calls, the latest ones, that a loss names; a conversation may have had thousands."""
TEXT_CHARS = (2_000, 200, 20)
"""Maximum characters of each text of a call, the largest first: the first that fits is used."""
_CUT = "… (cut here: it is too long for the outcome)"

_COLOURS = re.compile(r"(?<!\\)\\u001b\[[\d;:]*+m")
"""Sequences of colours in JSON text; a backslash before one is text that a program wrote."""
ANSWER_FIELDS = {"bash": "stdout", "read_file": "content", "web_fetch": "body"}
"""The field with the text of a result, for tools whose result is a text."""
MORE_FIELD = "more"
"""The field of a cut result that states how to read the rest."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The reason and the outcome of a run that ends without a final reply of the model."""

    status: events.Outcome
    code: ErrorCode
    message: str
    call_kind: ErrorKind
    """The error kind of the results of its open calls."""


def finished(run: Run, status: events.Outcome, content: str, ending: Ending | None) -> events.RunFinished:
    """Return the terminal event of a run; long texts and old calls are shortened to fit one commit."""
    whole = counted_from_zero(run.tracked)
    calls = outcome_calls(whole)
    return events.RunFinished(
        status=status,
        content=first_fitting(_shorter_texts(content), MAX_CONTENT_BYTES),
        structured_output=_structured(run, status, content),
        service=run.settings.service,
        model=run.answered_by or run.settings.model,
        iterations=run.iteration,
        tool_calls=calls,
        tool_calls_ref=None if calls == whole else f"/context/runs/{run.run_id}/tool-calls",
        max_iterations_reached=status == "max_iterations",
        usage=run.usage,
        error=None if ending is None else events.RunError(code=ending.code, message=ending.message),
    )


def _structured(run: Run, status: events.Outcome, content: str) -> JsonObject | None:
    """Return the final reply of a run with a response schema, against which it was checked, as an object."""
    wanted = run.settings.options.response_schema is not None and run.settings.workflow is None
    if status != "completed" or not wanted:
        return None
    value = strict_json(content)
    return value if isinstance(value, dict) else None


def never_started(settings: RunSettings, ending: Ending) -> events.RunFinished:
    return events.RunFinished(
        status=ending.status,
        content=ending.message,
        service=settings.service,
        model=settings.model,
        iterations=0,
        error=events.RunError(code=ending.code, message=ending.message),
    )


EDITED_NOTE = "A person changed the arguments of this call before it ran. It ran with these."


def result_json(result: ToolResult) -> str:
    """Return the result's object as JSON text, the form that models of the OpenAI format receive.

    Without the colours of a terminal, which only people see.
    """
    text = json.dumps(result.content, ensure_ascii=False)
    return _COLOURS.sub("", text) if "\\u001b[" in text else text


def message_json(message: ToolMessage) -> str:
    """Return what a model receives for a call as JSON text: the result, and arguments that it did not write.

    Without them, it would explain the result by its own arguments.
    """
    if message.executed is None:
        return result_json(message.result)
    changed = {"changed_by_approver": {"note": EDITED_NOTE, "arguments": message.executed}}
    # First, because long texts are cut at their end, and again, because a result may have the same field.
    content = {**changed, **message.result.content, **changed}
    return result_json(message.result.model_copy(update={"content": content}))


def answer_text(name: str, result: ToolResult) -> str:
    """Return the text for the user if a result of tool `name` is the run's answer (`terminate: true`)."""
    field = ANSWER_FIELDS.get(name)
    text = result.content.get(field) if field else None
    if isinstance(text, str) and not result.is_error:
        return text
    return result_json(result)


def counted_from_zero(calls: Iterable[events.TrackedCall]) -> tuple[events.TrackedCall, ...]:
    """Return the calls as outcomes count their iterations, from 0 (R88); `IterationStarted` counts from 1."""
    return tuple(call.model_copy(update={"iteration": call.iteration - 1}) for call in calls)


def outcome_calls(calls: tuple[events.TrackedCall, ...]) -> tuple[events.TrackedCall, ...]:
    """Return the calls that an outcome lists: long texts are cut if needed, then the oldest left out."""
    return first_fitting(_shorter_calls(calls), MAX_TRACKED_BYTES)


def _shorter_texts(text: str) -> Iterator[str]:
    yield text
    kept = text
    while kept:
        # In proportion, because bytes per character differ from script to script; two steps nearly always do.
        kept = kept[: max(0, len(kept) * MAX_CONTENT_BYTES // json_bytes(kept + _CUT) - 1)]
        yield kept + _CUT


def _shorter_calls(calls: tuple[events.TrackedCall, ...]) -> Iterator[tuple[events.TrackedCall, ...]]:
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


def _shortened(call: events.TrackedCall, chars: int) -> events.TrackedCall:
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


def storable(result: ToolResult) -> ToolResult:
    """Return the result, or a failure in its place: tool servers of tenants choose its size and depth."""
    if problem := _unstorable(result.content):
        return _replaced(result, f"The result is not stored: {problem}.")
    return first_fitting(_shorter(result), RESULT_BYTES)


def _unstorable(content: JsonObject) -> str | None:
    try:
        text = to_json(content, inf_nan_mode="null")
        check_values(text, what="content")
        parsed(text, what="content")
    except BadInput as error:
        return str(error)
    return None


def batches(results: Iterable[ToolResult]) -> Iterator[tuple[ToolResult, ...]]:
    batch: list[ToolResult] = []
    size = 0
    for result in results:
        # The changed paths are stored twice: in the result, and in an event of their own.
        more = json_bytes(result) + sum(json_bytes(change) for change in result.changed)
        if batch and size + more > COMMIT_BYTES:
            yield tuple(batch)
            batch, size = [], 0
        batch.append(result)
        size += more
    if batch:
        yield tuple(batch)


def completions(state: Conversation, results: Iterable[ToolResult]) -> list[events.EventBody]:
    run = state.run
    waiting = {call.call.id for call in run.open_calls} if run is not None else set[str]()
    bodies: list[events.EventBody] = []
    for result in results:
        if result.tool_call_id not in waiting or result.asks is not None:
            continue
        bodies.append(events.ToolCallCompleted(result=result))
        if result.changed:
            bodies.append(events.WorkspaceChanged(paths=result.changed, more=result.changed_more))
    return bodies


def questions(
    state: Conversation, results: Iterable[ToolResult], numbers: Mapping[str, int], now: datetime
) -> list[InputRequested]:
    """Return what the servers of calls request from the user; `numbers` are those of the attempts by call."""
    run = state.run
    running = (
        {} if run is None else {one.call.id: one.call for one in run.open_calls if one.gate != "awaiting"}
    )
    return [
        InputRequested(
            # The same after a crash: each attempt requests one value at most.
            request_id=approval_id_for(run.run_id, attempt_id(call.id, numbers[call.id])),
            message=result.asks.message,
            schema=result.asks.schema_,
            tool_call_id=call.id,
            expires_at=now + timedelta(seconds=result.asks.expires_s),
            server=mcp_server_of(call.name),
            attempt=numbers[call.id],
        )
        for result in results
        if run is not None and result.asks is not None and (call := running.get(result.tool_call_id))
    ]


def losses(state: Conversation, known: Iterable[WorkspaceLoss | None]) -> list[events.WorkspaceRestored]:
    """Return the newest loss of a moved workspace as an event; nothing if the log already has it."""
    newest = max((loss for loss in known if loss is not None), key=lambda loss: loss.term, default=None)
    if newest is None or newest.term <= state.restored_term:
        return []
    since = newest.snapshot_ts if newest.reason is None else None
    lost = tuple(_changing_calls(state.history, since))[-MAX_NAMED_CALLS:]
    return [
        events.WorkspaceRestored(
            snapshot_ts=newest.snapshot_ts, lost_calls=lost, term=newest.term, reason=newest.reason
        )
    ]


def _shorter(result: ToolResult) -> Iterator[ToolResult]:
    yield result
    yield _replaced(result, f"The result had {json_bytes(result)} bytes; at most {RESULT_BYTES} are stored.")


def _replaced(result: ToolResult, why: str) -> ToolResult:
    replacement = failed(result.tool_call_id, "output_limit", f"{why} The call was executed.")
    kept = {"runner": result.runner, "started_at": result.started_at, "duration_ms": result.duration_ms}
    return replacement.model_copy(update=kept)


def _changing_calls(history: Iterable[Message], since: datetime | None) -> Iterator[str]:
    """Yield the ids of the calls that may have changed files after `since`; of all calls if it is None."""
    harmless: set[str] = set()
    for message in history:
        match message:
            case AssistantMessage():
                harmless = {call.id for call in message.calls if call.idempotent or call.server is not None}
            case ToolMessage(result=result) if result.tool_call_id not in harmless:
                if _may_have_run(result) and (since is None or _ended_after(result, since)):
                    yield result.tool_call_id
            case _:
                pass


def _may_have_run(result: ToolResult) -> bool:
    return result.runner is not None or result.error_kind == "unknown_outcome"


def _ended_after(result: ToolResult, since: datetime) -> bool:
    # The time of a call with an unknown outcome is unknown too, so the call counts.
    return result.started_at is None or result.started_at > since
