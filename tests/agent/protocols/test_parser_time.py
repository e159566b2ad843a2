from __future__ import annotations

import time

import pytest

from banksman.agent.protocols import protocol_for
from banksman.agent.protocols.base import MAX_REPLY_CHARS, ModelReply

SHORTEST_S = 0.001
"""Shorter times are indistinguishable from noise."""
CALL = '{"tool": "bash", "parameters": {"command": "ls"}, "terminate": false}'


@pytest.mark.parametrize(
    "block",
    [
        "{",
        "[",
        '"',
        "\\",
        '{"a":',
        '{"tool":',
        '{"a":"',
        '{"{"',
        "{ ",
        '{"":1}',
        '{"":[x',
        '{"a":x}\n',
        CALL,
        "```\n",
        "~~~a\n",
    ],
)
def test_hostile_text_is_parsed_in_linear_time(block: str) -> None:
    """A26: four times the text takes about four times the work; quadratic work would take sixteen times.

    `benchmarks/parser.py` measures the milliseconds.
    """
    assert work(block, MAX_REPLY_CHARS) < 10 * max(work(block, MAX_REPLY_CHARS // 4), SHORTEST_S)


def test_many_broken_objects_cost_about_as_much_as_valid_ones() -> None:
    """An error of Python's parser counts the lines of the whole text before it."""
    valid, broken = (work(block, MAX_REPLY_CHARS) for block in ('{"a":1}\n', '{"a":x}\n'))
    assert broken < 5 * valid


def work(block: str, chars: int) -> float:
    """Return the CPU seconds of this thread for one parse, the best of five."""
    text = (block * chars)[: chars - len(CALL)] + CALL
    protocol, times = protocol_for("json_text"), list[float]()
    for _ in range(5):
        began = time.thread_time()
        protocol.read(ModelReply(text=text))
        times.append(time.thread_time() - began)
    return min(times)
