from __future__ import annotations

import time

import pytest

from banksman.agent.protocols import protocol_for
from banksman.agent.protocols.base import MAX_REPLY_CHARS, ModelReply

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
        CALL,
        "```\n",
        "~~~a\n",
    ],
)
def test_hostile_text_is_read_in_linear_time(block: str) -> None:
    """A26: 256 KiB in at most 50 ms; the best of five, because the machine does other things too."""
    text = (block * MAX_REPLY_CHARS)[: MAX_REPLY_CHARS - len(CALL)] + CALL
    protocol, times = protocol_for("json_text"), list[float]()

    for _ in range(5):
        began = time.perf_counter()
        protocol.read(ModelReply(text=text))
        times.append(time.perf_counter() - began)

    assert min(times) <= 0.050
