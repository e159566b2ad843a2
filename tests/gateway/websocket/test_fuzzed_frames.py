"""Malformed frames: each gets a reply, or closes its own websocket for a reason that is the client's.

`make frames` sends 100,000 of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.gateway.conftest import UNBOUNDED, GatewayFactory, Served, Socket
from websockets.exceptions import ConnectionClosed

from banksman.contracts.frames import CLIENT_FRAME

logger = logging.getLogger(__name__)
pytestmark = pytest.mark.timeout(1800)

FRAMES = int(os.environ.get("BANKSMAN_FUZZ_FRAMES", "3000"))
SEED = int(os.environ.get("BANKSMAN_FUZZ_SEED", "1"))
BATCH = 250
"""Frames of one websocket."""
UNREAD = 50
"""Frames that are sent before their replies are read: the server refuses more than 64 without a reply."""
SOCKETS = 4
"""Websockets at a time."""
CLOSES = {1007, 1009, 4400, 4409}
"""Codes with which a websocket may be closed: invalid UTF-8, too large, binary, a second hello."""

SCHEMA = CLIENT_FRAME.json_schema()
FORMS: dict[str, dict[str, Any]] = {
    kind: SCHEMA["$defs"][reference.rpartition("/")[2]]
    for kind, reference in SCHEMA["discriminator"]["mapping"].items()
}
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        1,
        2**63,
        1e308,
        "",
        "x",
        "c1",
        "c1-0123456789ab",
        "\\u0000",
        "\N{SKULL}",
        "a.b",
        "*",
        ">",
    ),
    *([], {}, [None], {"": None}, "x" * 300, [[[[[[[[[[]]]]]]]]]], {"$ref": "#"}, {"type": "hello"}),
)


class Fuzzer:
    """Makes frames from a seed, of every type, with fields of any value."""

    def __init__(self, seed: int, conversation: str) -> None:
        self._chance = random.Random(seed)
        self._conversation = conversation
        self._ways: tuple[Callable[[], str | bytes], ...] = (
            *(self._shaped,) * 12,
            *(self._cut,) * 3,
            self._garbage,
            self._nested,
        )

    def frame(self) -> str | bytes:
        """Return a frame, well-formed or not."""
        if self._chance.random() < 0.002:
            return self._chance.choice((b"binary", self._chance.randbytes(20), "x" * 300_000))
        return self._chance.choice(self._ways)()

    def _shaped(self) -> str:
        kind = self._chance.choice([kind for kind in FORMS if kind != "hello"])
        if self._chance.random() < 0.02:
            return json.dumps({"type": self._chance.choice(("nothing", "chat.sen", "")), "id": "u"})
        fields = FORMS[kind]["properties"]
        chosen = [name for name in fields if name in FORMS[kind]["required"] or self._chance.random() < 0.4]
        frame = {name: self._value(name) for name in chosen if self._chance.random() < 0.95}
        if self._chance.random() < 0.1:
            frame[self._chance.choice(("unknown", "idd", "", "conversation"))] = self._chance.choice(VALUES)
        return json.dumps({**frame, "type": kind})

    def _value(self, name: str) -> Any:
        if self._chance.random() < 0.6:
            known: dict[str, Any] = {
                "id": f"f{self._chance.randrange(10_000)}",
                "conversation_id": self._conversation,
                "detail": self._chance.choice(("final", "steps", "full")),
                "after_seq": self._chance.randrange(5),
                "content": [{"type": "text", "text": "hi"}],
                "run_id": f"{self._conversation}-0123456789ab",
                "settings": {"max_iterations": self._chance.choice(VALUES)},
                "overrides": {self._chance.choice(("model", "options", "max_iteration")): "x"},
            }
            return known.get(name, self._chance.choice(VALUES))
        return self._chance.choice(VALUES)

    def _cut(self) -> str:
        text = self._shaped()
        return text[: self._chance.randrange(len(text))]

    def _garbage(self) -> str:
        return "".join(chr(self._chance.randrange(32, 0xD7FF)) for _ in range(self._chance.randrange(60)))

    def _nested(self) -> str:
        depth = self._chance.choice((10, 127, 129, 5_000))
        return '{"type":"ping","id":"n","t":' + "[" * depth + "]" * depth + "}"


async def test_no_frame_is_an_internal_error(
    start_gateway: GatewayFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """A39: no reply has the code `internal`, no close the code 1011, and nothing is logged as an error."""
    found: Counter[str] = Counter()
    rates = {"frames_per_s": UNBOUNDED, "requests_per_s": UNBOUNDED, "json_bytes_per_s": 10**12}
    limits = {**rates, "max_sockets_per_user": 99}
    async with start_gateway(**limits) as gateway:
        async with gateway.socket() as socket:
            conversation = await socket.create()
        batches = iter(range(FRAMES // BATCH))

        async def worker() -> None:
            for number in batches:
                await _batch(gateway, Fuzzer(SEED * 1_000_003 + number, conversation), found)

        async with asyncio.TaskGroup() as group:
            for _ in range(SOCKETS):
                group.create_task(worker())
        assert not await gateway.health.problems()
        async with gateway.socket() as socket:
            assert (await socket.request("ping", t="still here"))["t"] == "still here"
    # `make frames` shows the live log of the test.
    logger.info("%d frames: %s", FRAMES, dict(found.most_common()))
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert {int(kind[6:]) for kind in found if kind.startswith("close ")} <= CLOSES, found
    assert "internal" not in found and min(found["ack"], found["bad_request"], found["unknown_type"]) > 0, (
        found
    )


async def _batch(gateway: Served, fuzzer: Fuzzer, found: Counter[str]) -> None:
    """Send the frames of a batch, over another websocket after each close; count replies and closes."""
    left = BATCH
    while left:
        async with gateway.raw(max_size=None) as connection:
            socket = Socket(connection)
            await socket.request("hello")
            try:
                while left:
                    left -= 1
                    await connection.send(fuzzer.frame())
                    if left % UNREAD == 0:
                        await socket.request("unsubscribe", conversation_id="c1")
            except ConnectionClosed as closed:
                found[f"close {closed.rcvd.code if closed.rcvd else 1006}"] += 1
                with contextlib.suppress(ConnectionClosed):
                    await socket.until(lambda frame: False)
            found.update(frame.get("code") or frame["type"] for frame in socket.frames)
