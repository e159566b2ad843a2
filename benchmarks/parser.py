"""CPU time of the text protocol for adversarial texts of 256 KiB (A26: at most 50 ms each).

Run: python benchmarks/parser.py
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from banksman.agent.protocols.base import MAX_REPLY_CHARS, ModelReply
from banksman.agent.protocols.json_text import JsonText

LIMIT_S = 0.050
ROUNDS = 3

CALL = '{"tool": "bash", "parameters": {"command": "ls"}, "terminate": false}'

BLOCKS = {
    "braces": "{",
    "brackets": "[",
    "quotes": '"',
    "backslashes": "\\",
    "blank lines": "\n",
    "open objects": '{"a":',
    "open calls": '{"tool":',
    "open strings": '{"a":"',
    "braces and quotes": '{"{"',
    "braces and spaces": "{ ",
    "empty objects": "{}",
    "small objects": '{"":1}',
    "broken objects": '{"":x',
    "broken arrays": '{"":[x',
    "arrays of arrays": '{"a":[[],',
    "calls": CALL,
    "fences": "```\n",
    "fences with words": "~~~a\n",
}

WHOLE = {
    "one long string": '{"a":"' + "x" * MAX_REPLY_CHARS,
    "one long key": '{"' + '\\"' * MAX_REPLY_CHARS,
    "one long number": '{"a":' + "1" * MAX_REPLY_CHARS,
    "one long space": "{" + " " * MAX_REPLY_CHARS,
    "one long fence": "```" + " " * MAX_REPLY_CHARS,
    "an endless array": '{"a":[' + "1," * MAX_REPLY_CHARS,
    "an endless array of calls": '{"a":[' + '{"tool":1},' * MAX_REPLY_CHARS,
    "calls in nested fences": "````a\n```b\n" + '{"tool":1}' * MAX_REPLY_CHARS,
    "prose": "word " * MAX_REPLY_CHARS,
}

ENDINGS = ("", ' "tool"', '"tool":', CALL)


def texts() -> Iterator[tuple[str, str]]:
    for name, block in BLOCKS.items():
        yield name, block * (MAX_REPLY_CHARS // len(block) + 1)
    yield from WHOLE.items()


def slowest_read_s(text: str) -> float:
    """Return the longest time of any prefix or suffix; the time of each is the minimum of several rounds."""
    return max(
        best_read_s((beginning + text)[: MAX_REPLY_CHARS - len(ending)] + ending)
        for beginning in ("", "so ")
        for ending in ENDINGS
    )


def best_read_s(text: str) -> float:
    protocol, best = JsonText(), float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time()
        protocol.read(ModelReply(text=text))
        best = min(best, time.thread_time() - began)
    return best


def stream_s(text: str, piece_chars: int = 4) -> float:
    """Return the seconds that the filter takes for a stream of small pieces."""
    shown = JsonText().delta_filter()
    began = time.thread_time()
    for start in range(0, MAX_REPLY_CHARS, piece_chars):
        shown.feed(text[start : start + piece_chars])
    return time.thread_time() - began


def main() -> int:
    slow = 0
    print(f"{'text':28}{'read':>10}{'streamed':>12}")
    for name, text in texts():
        read_s, streamed_s = slowest_read_s(text), stream_s(text[:MAX_REPLY_CHARS])
        slow += read_s > LIMIT_S
        print(f"{name:28}{read_s * 1e3:>7.1f} ms{streamed_s * 1e3:>9.0f} ms")
    print(f"{slow} texts took longer than {LIMIT_S * 1e3:.0f} ms" if slow else "all within the limit")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
