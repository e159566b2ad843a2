"""Messages that could not be handled: operators list, read, discard and replay them."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from banksman.bus import dead
from banksman.bus.connection import Bus
from banksman.bus.names import APPROVALS, RUNS, WEBHOOK_QUEUE, WORKFLOWS
from banksman.contracts.errors import Conflict
from banksman.contracts.wire import Stored, Timestamp
from banksman.contracts.work import DeadLetter

MAX_LETTERS = 200
SHOWN_BYTES = 16 * 1024
_REPLAYED = frozenset((RUNS, APPROVALS, WORKFLOWS, WEBHOOK_QUEUE))
"""Streams on whose subjects a gateway may publish. Only the operator's NATS user may publish on others."""


class ListedDeadLetter(Stored):
    """A message that could not be handled."""

    id: int
    subject: str
    stream: str
    reason: str
    ts: Timestamp
    can_replay: bool
    """False for a message that only `banksman dead replay`, or its sender, may publish again."""


class ShownDeadLetter(ListedDeadLetter):
    """A dead letter with its content."""

    headers: dict[str, str]
    payload: str
    """The first 16 KiB as text, with invalid UTF-8 replaced."""
    payload_bytes: int


class DeadLetterPage(Stored):
    """Dead letters, oldest first."""

    items: tuple[ListedDeadLetter, ...]
    next: int | None
    """`after` of the next page; null at the end."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    bus: Bus

    async def page(self, *, after: int, limit: int) -> DeadLetterPage:
        found: list[ListedDeadLetter] = []
        async for stored in dead.dead_letters(self.bus, after=after):
            letter = stored.letter
            found.append(_listed(stored.stream_seq, letter))
            if len(found) == limit:
                return DeadLetterPage(items=tuple(found), next=stored.stream_seq)
        return DeadLetterPage(items=tuple(found), next=None)

    async def read(self, letter_id: int) -> ShownDeadLetter:
        letter = await dead.read_dead_letter(self.bus, letter_id)
        payload = base64.b64decode(letter.payload_base64)
        return ShownDeadLetter(
            **dict(_listed(letter_id, letter)),
            headers=letter.headers,
            payload=payload[:SHOWN_BYTES].decode("utf-8", "replace"),
            payload_bytes=len(payload),
        )

    async def discard(self, letter_id: int) -> None:
        await dead.remove(self.bus, letter_id)

    async def replay(self, letter_id: int) -> None:
        """Publish a dead letter again and remove it. If that fails, it remains a dead letter."""
        letter = await dead.read_dead_letter(self.bus, letter_id)
        if letter.stream not in _REPLAYED:
            raise Conflict(
                f"a gateway may not publish on {letter.subject}: use `banksman dead replay {letter_id}`"
            )
        await dead.replay(self.bus, letter_id)


def _listed(letter_id: int, letter: DeadLetter) -> ListedDeadLetter:
    return ListedDeadLetter(
        id=letter_id,
        subject=letter.subject,
        stream=letter.stream,
        reason=letter.reason,
        ts=letter.ts,
        can_replay=letter.stream in _REPLAYED,
    )
