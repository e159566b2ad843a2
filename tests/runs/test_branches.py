"""Branches: the fold keeps every message of a conversation, and a run may continue from any of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from banksman.contracts.messages import AssistantMessage, Message, ToolMessage, UserMessage
from banksman.contracts.tools import ToolCall, ToolResult
from banksman.runs.history import MAX_LEFT_PATHS, Paths


def _with_messages(paths: Paths, *ids: str) -> Paths:
    """Add messages: `u…` of the user, `a…` of the agent, `k…` a result."""
    return Paths((*paths.history, *map(_message, ids)), paths.left)


def _message(name: str) -> Message:
    match name[0]:
        case "u":
            return UserMessage(message_id=name, content=name)
        case "a":
            return AssistantMessage(
                message_id=name, content=name, calls=(ToolCall(id="k", name="bash", arguments={}),)
            )
        case _:
            return ToolMessage(name="bash", result=ToolResult(tool_call_id=name, content={}))


def _names(messages: tuple[Message, ...]) -> list[str]:
    return [one.result.tool_call_id if isinstance(one, ToolMessage) else one.message_id for one in messages]


def test_an_edited_message_replaces_later_messages_and_the_first_version_stays() -> None:
    paths = _with_messages(Paths(()), "u1", "a1", "u2", "a2")
    edited = _with_messages(paths.branched("a1"), "u3", "a3")
    back = edited.branched("a2")
    assert _names(edited.history) == ["u1", "a1", "u3", "a3"]
    assert _names(back.history) == ["u1", "a1", "u2", "a2"]
    assert _names(back.branched("a3").history) == ["u1", "a1", "u3", "a3"]


def test_a_branch_at_the_beginning_has_an_empty_history() -> None:
    paths = _with_messages(_with_messages(Paths(()), "u1", "a1").branched(None), "u2")
    assert _names(paths.history) == ["u2"]
    assert _names(paths.branched("a1").history) == ["u1", "a1"]


def test_a_branch_after_calls_continues_with_their_results() -> None:
    paths = _with_messages(Paths(()), "u1", "a1", "k1", "k2", "a2")
    assert _names(paths.branched("a1").history) == ["u1", "a1", "k1", "k2"]


def test_a_message_that_is_unknown_or_was_replaced_cannot_be_continued() -> None:
    paths = _with_messages(_with_messages(Paths(()), "u1", "a1", "u2", "a2").branched("a1"), "u3")
    compacted = Paths(paths.history[2:], paths.left)
    assert paths.reaches("a2") and not paths.reaches("other")
    assert not compacted.reaches("a2")
    assert compacted.pruned() == ()
    assert paths.branched("other") is paths


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 3)), max_size=40))
def test_every_message_is_stored_once_and_stays_reachable(branches: list[tuple[int, int]]) -> None:
    paths = Paths(())
    known: list[str | None] = [None]
    lines: dict[str | None, list[str]] = {None: []}
    for turn, (choice, length) in enumerate(branches):
        after = known[choice % len(known)]
        paths = paths.branched(after)
        assert _names(paths.history) == lines[after]
        for number in range(length):
            name = f"u{turn}-{number}"
            paths = _with_messages(paths, name)
            lines[name] = _names(paths.history)
            known.append(name)
    stored = [*_names(paths.history), *(name for one in paths.left for name in _names(one.messages))]
    assert sorted(stored) == sorted(name for name in known if name is not None)


def test_the_oldest_abandoned_branches_are_forgotten() -> None:
    paths = Paths(())
    for number in range(MAX_LEFT_PATHS + 2):
        paths = _with_messages(paths.branched(None), f"u{number}")
    assert len(paths.left) == MAX_LEFT_PATHS
    assert not paths.reaches("u0") and paths.reaches("u2")
