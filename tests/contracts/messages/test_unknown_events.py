"""Event types of a newer version, while replicas of two versions run at the same time."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from banksman.contracts.event_frames import event_frame, is_shown
from banksman.contracts.events import Commit, Event, UnknownEvent
from banksman.runs.fold import apply_commit
from banksman.runs.state import Conversation

MOMENT = datetime(2026, 1, 31, 12, tzinfo=UTC)
NEWER = {"type": "moon.rose", "phase": 0.5, "seen_from": ["here"]}


def commit(body: dict[str, object]) -> str:
    """Return the stored form of a commit with one event."""
    event = {"v": 1, "seq": 1, "ts": MOMENT.isoformat(), "run_id": "c-r", "data": body}
    fields = {"ts": MOMENT.isoformat(), "id": "x", "log_epoch": "e", "first_seq": 1, "owner": None}
    return json.dumps({"v": 1, **fields, "events": [event]})


def test_event_of_an_unknown_type_is_stored_and_forwarded_unchanged() -> None:
    """R39: clients may know an event type that this process does not know."""
    [event] = Commit.model_validate_json(commit(NEWER)).events
    assert isinstance(event.data, UnknownEvent)
    assert json.loads(event.model_dump_json(by_alias=True))["data"] == NEWER
    frame = event_frame(event, "c", "e", 0)
    assert (frame["type"], frame["data"]) == ("moon.rose", {"phase": 0.5, "seen_from": ["here"]})
    assert is_shown(event.data.type, "final")


def test_event_of_an_unknown_type_only_advances_seq() -> None:
    """P5: events stay numbered 1..n for readers that ignore one."""
    before = Conversation("t", "c")
    after = apply_commit(before, 7, Commit.model_validate_json(commit(NEWER)))
    assert (after.last_seq, after.stream_seq) == (1, 7)
    assert (after.run, after.history, after.queue) == (before.run, before.history, before.queue)


def test_known_type_with_an_invalid_body_is_an_error() -> None:
    with pytest.raises(ValidationError):
        Commit.model_validate_json(commit({"type": "iteration.started", "n": "first", "max": 10}))


def test_higher_version_of_an_event_is_refused() -> None:
    """A change that must not be ignored raises the version."""
    with pytest.raises(ValidationError):
        Event.model_validate({"v": 2, "seq": 1, "ts": MOMENT, "data": NEWER})
