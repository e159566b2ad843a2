from __future__ import annotations

import time

import pytest

from banksman.agent.protocols import protocol_for
from banksman.agent.protocols.base import MAX_REPLY_CHARS, ModelReply, RawCall
from banksman.contracts.tools import ToolDefinition

TOOL = ToolDefinition(name="bash", description="Runs a command.")
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


@pytest.mark.parametrize(
    "block",
    [
        "<tool_call>",
        "<tool_call>{",
        '<tool_call>{"name": "bash", "arguments": {}}',
        "<tool_call></tool_call>",
        "<tool_call>bash<arg_key>a</arg_key><arg_value>",
        "<tool_call>bash<arg_key>a</arg_key><arg_value>b</arg_value></tool_call>",
        "<function=bash><parameter=a>",
        "<function=bash><parameter=a>b</parameter></function>",
        "<invoke name=",
        "[TOOL_CALLS]bash[ARGS]{}",
        "[TOOL_CALLS]",
        "<tool_call>`",
        "` <tool_call>",
        "```\n<tool_call>\n",
        "<tool_call>   ",
        "<|python_tag|>[",
        '{"name": ',
        "\n",
    ],
)
@pytest.mark.parametrize("ends", [True, False])
def test_hostile_text_with_calls_in_it_is_read_in_linear_time(block: str, ends: bool) -> None:
    big, small = (raw_work(block, chars, ends) for chars in (MAX_REPLY_CHARS, MAX_REPLY_CHARS // 4))
    assert big < 10 * max(small, SHORTEST_S)


def raw_work(block: str, chars: int, ends: bool) -> float:
    """Return the CPU seconds for one text with the native protocol, read whole and in pieces."""
    closing = "</tool_call>" if ends else ""
    text = (block * chars)[: chars - len(closing)] + closing
    protocol, times = protocol_for("native"), list[float]()
    for _ in range(3):
        began = time.thread_time()
        protocol.read(ModelReply(text=text), tools=(TOOL,))
        shown = protocol.delta_filter()
        for at in range(0, len(text), 64):
            shown.feed(text[at : at + 64])
        times.append(time.thread_time() - began)
    return min(times)


@pytest.mark.parametrize("block", ["{}", '{"a":1}', '"', "```", '\\\\"', '{"a":', "[", "\n", '"{}"'])
def test_hostile_arguments_are_repaired_in_linear_time(block: str) -> None:
    """Up to the limit of values, no string of the text is searched, so a short text costs next to nothing."""
    big, small = (arguments_work(block, chars) for chars in (MAX_REPLY_CHARS, MAX_REPLY_CHARS // 4))
    assert big < 10 * max(small, 5 * SHORTEST_S)


def arguments_work(block: str, chars: int) -> float:
    call = RawCall("a", "bash", (block * chars)[:chars])
    protocol, times = protocol_for("native"), list[float]()
    for _ in range(3):
        began = time.thread_time()
        protocol.read(ModelReply(text=None, calls=(call,)), tools=(TOOL,))
        times.append(time.thread_time() - began)
    return min(times)


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
