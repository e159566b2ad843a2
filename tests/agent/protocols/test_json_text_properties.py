"""The text protocol on any text: it never raises, and published deltas agree with the final reading."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from banksman.agent.protocols import protocol_for
from banksman.agent.protocols.base import Final, Malformed, ModelReply, Reading, RequestedCalls
from banksman.agent.protocols.json_text import written_call
from banksman.contracts.tools import ToolCall
from banksman.contracts.wire import JsonObject

PROTOCOL = protocol_for("json_text")

CALL = '{"tool": "bash", "parameters": {"command": "ls"}, "terminate": false}'
PIECES = [
    *'{}[]":,\\\n `~',
    '{"',
    '": ',
    '"tool"',
    '"tool": ',
    '"parameters": {}',
    '"terminate": true',
    "```",
    "```json\n",
    "\n````\n",
    "NaN",
    "12",
    '\\"',
    "\\u00",
    "prose ",
    '{"a": 1}',
    '{"a": {"tool": 1}}',
    CALL,
    json.dumps({"quoted": CALL}),
    "é😀",
]

hostile = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
prose = st.text(st.characters(exclude_categories=["Cs"], exclude_characters='{"`~'), max_size=60)
names = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_-]{0,20}", fullmatch=True)
strings = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
scalars = st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.floats(allow_nan=False) | strings
finite = scalars.filter(lambda value: value not in (float("inf"), float("-inf")))
values = st.recursive(
    finite,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(strings, inner, max_size=4),
    max_leaves=12,
)
arguments = st.dictionaries(strings, values, max_size=5)


def read(text: str) -> Reading:
    return PROTOCOL.read(ModelReply(text=text))


def shown_of(text: str, cuts: list[int]) -> tuple[str, str]:
    """Return what the filter publishes of a text in pieces, and what it withholds."""
    shown = PROTOCOL.delta_filter()
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    seen = "".join(shown.feed(text[start:end]) for start, end in pairwise(edges))
    return seen, shown.flush()


@given(hostile, st.integers(1, 4))
def test_parser_never_raises(text: str, attempt: int) -> None:
    reading = PROTOCOL.read(ModelReply(text=text), attempt=attempt)

    match reading:
        case Final():
            assert reading.text == text
        case RequestedCalls():
            assert len(reading.calls) == 1
        case Malformed():
            assert 0 <= reading.position <= len(text)
            assert reading.error in reading.correction


@given(
    names,
    arguments,
    st.booleans(),
    prose,
    prose,
    st.sampled_from(["{}", "\n```json\n{}\n```\n", "\n~~~\n{}\n~~~\n"]),
)
def test_written_call_is_parsed_from_any_prose(
    name: str, given_arguments: JsonObject, terminate: bool, before: str, after: str, wrapping: str
) -> None:
    written = written_call(ToolCall(id="c", name=name, arguments=given_arguments, terminate=terminate))

    reading = read(before + wrapping.replace("{}", written) + after)

    assert isinstance(reading, RequestedCalls), reading
    call = reading.calls[0]
    assert (call.name, call.arguments, call.terminate) == (name, given_arguments, terminate)
    text_read = reading.text or ""
    assert text_read.split() == (before + " " + after).split()


@given(st.lists(st.sampled_from(["plain", "nested", "quoted", "call"]), min_size=1, max_size=5), prose)
def test_number_of_call_objects_decides_how_a_reply_is_read(kinds: list[str], between: str) -> None:
    objects = {
        "plain": '{"a": [1, {}]}',
        "nested": '{"a": {"tool": 1}}',
        "quoted": json.dumps({"a": CALL}),
        "call": CALL,
    }
    text = "so: " + between.join(f" {objects[kind]} " for kind in kinds)

    match kinds.count("call"):
        case 0:
            assert isinstance(read(text), Final)
        case 1:
            assert isinstance(read(text), RequestedCalls)
        case _:
            assert isinstance(read(text), Malformed)


@given(hostile, st.lists(st.integers(0, 2000), max_size=30))
def test_published_deltas_are_consistent_with_the_final_reading(text: str, cuts: list[int]) -> None:
    seen, withheld = shown_of(text, cuts)

    assert seen + withheld == text
    if not isinstance(read(text), Final):
        assert read(seen) == Final(seen, "stop")


@given(prose, names, arguments, prose, st.lists(st.integers(0, 2000), max_size=30), st.booleans())
def test_deltas_contain_no_character_of_a_call(
    before: str, name: str, given_arguments: JsonObject, after: str, cuts: list[int], fenced: bool
) -> None:
    written = written_call(ToolCall(id="c", name=name, arguments=given_arguments))
    wrapped = f"\n```json\n{written}\n```\n" if fenced else written

    seen, _ = shown_of(before + wrapped + after, cuts)

    assert before.startswith(seen.rstrip("\n")) or before.rstrip().startswith(seen.rstrip())


@given(prose, st.lists(st.integers(0, 2000), max_size=30))
def test_plain_prose_is_never_withheld(text: str, cuts: list[int]) -> None:
    seen, _ = shown_of(text, cuts)

    assert seen.strip() == text.strip()
