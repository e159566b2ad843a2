from __future__ import annotations

import json
from typing import Any

from banksman.gateway.live.send_buffer import Outbox


def _delta(offset: int, text: str, message: str = "m1") -> tuple[tuple[str, ...], dict[str, Any]]:
    return (message,), {
        "type": "message.delta",
        "data": {"message_id": message, "offset": offset, "text": text},
    }


async def _all(outbox: Outbox) -> list[Any]:
    found: list[Any] = []
    while not outbox.empty:
        found.append(json.loads(await outbox.next()))
    return found


async def test_waiting_deltas_are_merged_without_a_gap() -> None:
    outbox = Outbox()
    outbox.put_delta(*_delta(0, "Two "))
    outbox.put_delta(*_delta(0, "other", "m2"))
    outbox.put_delta(*_delta(4, "parts"))
    outbox.put_delta(*_delta(12, "after a gap"))
    texts = [(frame["data"]["message_id"], frame["data"]["text"]) for frame in await _all(outbox)]
    assert texts == [("m1", "Two parts"), ("m2", "other"), ("m1", "after a gap")]


async def test_merged_deltas_count_as_one_frame() -> None:
    outbox = Outbox(max_frames=2)
    for offset in range(1000):
        outbox.put_delta(*_delta(offset, "x"))
    assert not outbox.overflowed.is_set()
    assert (await _all(outbox))[0]["data"]["text"] == "x" * 1000


async def test_the_frames_of_one_commit_never_overflow_an_outbox_alone() -> None:
    outbox = Outbox(max_frames=2, max_bytes=10)
    outbox.put(*(f'"{number}"' for number in range(1000)))
    assert not outbox.overflowed.is_set()
    outbox.put("{}")
    assert outbox.overflowed.is_set()
    assert await _all(outbox) == [str(number) for number in range(1000)]


async def test_an_outbox_overflows_by_frames_and_by_bytes() -> None:
    frames, size = Outbox(max_frames=2), Outbox(max_bytes=10)
    for _ in range(3):
        frames.put("{}")
    for _ in range(2):
        size.put("x" * 11)
    assert frames.overflowed.is_set() and size.overflowed.is_set()
