"""The calls of a run as its outcome tells them: all of them, as long as they fit one event."""

from __future__ import annotations

import json
from collections.abc import Iterable

from banksman.contracts.events import TrackedCall
from banksman.contracts.wire import JsonObject, JsonValue

MAX_CONTENT_BYTES = 512 * 1024
"""Of an outcome's text in JSON; the log has the whole before it."""
_CUT = "… (cut here: it is too long for the outcome)"

MAX_TRACKED_BYTES = 192 * 1024
"""Of all calls of an outcome together; a commit is one message of at most 1 MiB, and has more to hold."""
TEXT_CHARS = (2_000, 200, 20)
"""Characters left of each text of a call; the next smaller number is taken while the whole is too long."""


def fitting(calls: tuple[TrackedCall, ...]) -> tuple[TrackedCall, ...]:
    """The calls, with long texts cut where needed, and then without the oldest.

    Nothing is lost: the log has every call and its result.
    """
    kept = calls
    for chars in TEXT_CHARS:
        if sum(_sizes(kept)) <= MAX_TRACKED_BYTES:
            return kept
        kept = tuple(_shortened(call, chars) for call in calls)
    room, first = MAX_TRACKED_BYTES, len(kept)
    for size in reversed(_sizes(kept)):
        room -= size
        if room < 0:
            break
        first -= 1
    return kept[first:]


def fitting_text(text: str) -> str:
    """The text of an outcome, cut where it is too long."""
    kept = text
    while (size := len(json.dumps(kept, ensure_ascii=False).encode())) > MAX_CONTENT_BYTES:
        kept = kept[: len(kept) * MAX_CONTENT_BYTES // size - 1]
    return kept if kept is text else kept + _CUT


def _sizes(calls: Iterable[TrackedCall]) -> list[int]:
    return [len(call.model_dump_json().encode()) + 1 for call in calls]


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
