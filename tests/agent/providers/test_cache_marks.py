"""The marks in requests to Anthropic, at which the vendor looks for cached prefixes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.agent.providers.histories import TOOLS, assistant, result, user

from banksman.agent.protocols.base import ModelRequest
from banksman.agent.providers.anthropic_request import body
from banksman.agent.providers.profiles import Profile
from banksman.contracts.messages import Message
from banksman.contracts.tools import ToolCall

LOOKBACK = 20
"""Blocks before a mark, itself included, at which the vendor looks for the end of a cached prefix."""
MAX_MARKS = 4


def round_of(number: int, calls: int) -> list[Message]:
    requested = [ToolCall(id=f"k{number}-{at}", name="ping") for at in range(calls)]
    thinking = {"thinking": [{"type": "thinking", "thinking": "Hm.", "signature": "S"}]}
    reply = assistant("Next.", *requested, number=number, provider="anthropic", provider_state=thinking)
    return [reply, *map(result, requested)]


def request_of(rounds: int, calls: int) -> dict[str, Any]:
    history = [user("Go"), *(one for number in range(rounds) for one in round_of(number, calls))]
    return body(ModelRequest("m", "Be brief.", tuple(history), TOOLS), "anthropic", Profile())


def marks(sent: dict[str, Any]) -> list[int]:
    blocks = [block for message in sent["messages"] for block in message["content"]]
    return [at for at, block in enumerate(blocks) if "cache_control" in block]


@pytest.mark.parametrize("calls", [1, 5, 9, 16, 24])
def test_each_request_reads_what_the_previous_one_wrote(calls: int) -> None:
    for rounds in range(1, 12):
        before, after = marks(request_of(rounds - 1, calls)), marks(request_of(rounds, calls))

        assert any(0 <= mark - written < LOOKBACK for mark in after for written in before), (rounds, calls)


@pytest.mark.parametrize("calls", [1, 30])
def test_a_request_has_at_most_four_marks_and_none_on_thinking(calls: int) -> None:
    for rounds in range(8):
        sent = request_of(rounds, calls)
        blocks = [block for message in sent["messages"] for block in message["content"]]
        marked = [*blocks, *sent["system"], *sent["tools"]]

        assert sum("cache_control" in block for block in marked) <= MAX_MARKS
        assert all("cache_control" not in block for block in blocks if block["type"] == "thinking")
        assert "cache_control" in blocks[-1]
