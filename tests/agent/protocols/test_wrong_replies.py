"""Replies with the mistakes that models make, each with its expected reading (R9, R10, R11, R37)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from banksman.agent.protocols import protocol_for
from banksman.agent.protocols.base import Final, Malformed, ModelReply, RequestedCalls
from banksman.prompting.templates import correction

FOLDER = Path(__file__).parent / "replies"
MARK = "===== "
PROTOCOL = protocol_for("json_text")


@dataclass(frozen=True)
class Case:
    """One reply. `expected` is `final`, `malformed RULE` or `call NAME PARAMETERS`."""

    name: str
    expected: str
    reply: str

    def __str__(self) -> str:
        return self.name


def cases() -> Iterator[Case]:
    for file in sorted(FOLDER.glob("*.txt")):
        for part in file.read_text(encoding="utf-8").removeprefix(MARK).split(f"\n{MARK}"):
            head, _, reply = part.partition("\n")
            expected, _, name = head.rpartition(" | ")
            yield Case(f"{file.stem}: {name}", expected, reply)


CASES = list(cases())


def test_the_table_has_two_hundred_different_replies() -> None:
    assert len({case.reply for case in CASES}) == len(CASES) >= 200
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_wrong_reply_has_its_expected_reading(case: Case) -> None:
    """R9, R10, R11, R37: never a call that the model did not write, never a call shown as a reply."""
    reading = PROTOCOL.read(ModelReply(text=case.reply))

    kind, _, detail = case.expected.partition(" ")
    match reading:
        case RequestedCalls(calls=(call,)):
            assert kind == "call", reading
            name, _, parameters = detail.partition(" ")
            assert (call.name, call.arguments, call.terminate) == (name, json.loads(parameters), False)
        case Malformed(error=error, correction=sent):
            assert (kind, detail in error) == ("malformed", True), reading
            assert sent == correction(error, 1)
        case Final(text=text):
            assert (kind, text) == ("final", case.reply)
        case _:
            pytest.fail(f"unexpected reading: {reading}")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_wrong_reply_streams_a_part_of_its_call(case: Case) -> None:
    """R16, R20: of an attempted call, only the prose before it is published."""
    stream = PROTOCOL.delta_filter()
    shown = "".join(stream.feed(case.reply[i : i + 3]) for i in range(0, len(case.reply), 3))

    assert case.reply.startswith(shown)
    if not case.expected.startswith("final"):
        assert "tool" not in shown.replace("tool_c", "").replace("the tool", "").replace("TOOL_", "")
